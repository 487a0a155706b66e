"""Infers the exit of rollouts that ended and are not shipped, because prime-rl logs it nowhere.

Source: prime-rl 559b4477 (orchestrator/train_sink.py, dispatcher.py, utils.py).

- Traces wait in the order in which their groups were complete, and a batch takes them from the front. If a trace of a
  later group was shipped and this one was not, it was left out. The reason is ``stale`` if its version was beyond the
  bound at that step, or zero advantage if its reward is its group's mean and the run drops such rollouts. Otherwise it
  was a filter that no file names (a curriculum's gate): ``surplus``.
- The bound is strict: batch N trains version N-1, and a trace that began at v ships no later than v + bound + 1. After
  that it is ``stale``.

Rollouts cancelled in flight (stale or too many at once) have no line and no record; `off_policy/dropped` and
`dispatcher/cancelled/*` count them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from collectors.model import Exit, Rollout
from collectors.rollouts.verifiers_rollouts.settings import Settings

# Groups cached while their rollouts wait, a few batches. Beyond this the oldest are dropped.
GROUPS_MAX = 4_096
# Rewards are added up in float32 by prime-rl and in float64 here.
EQUAL = 1e-6

Memory = dict[str, Any]
"""``{"groups": {id: group}, "next": order of the next complete one}``; JSON-able. A group is ``{environment, version,
seen (episodes), order (None: open), n, total (of valid rewards), last (end of the newest), waiting: {trace: reward}}``.
"""


def arrived(memory: Memory, group_id: str, records: list[Rollout], settings: Settings) -> list[Rollout]:
    """Adds one episode of a training group; returns its records, with the group's completion if it is the last."""
    group = memory["groups"].setdefault(group_id, _empty(records))
    size = settings.group_size(group["environment"], "train")
    if size is None and settings.bound is None:
        # Their exit would never be known.
        del memory["groups"][group_id]
        return records
    group["seen"] += 1
    group["last"] = max(
        [group["last"], *(record.scored_at or record.exited_at or record.finished_at or 0.0 for record in records)]
    )
    group_records = [record for record in records if record.group_id == group_id]
    for record in group_records:
        if record.exit is None:
            group["waiting"][record.rollout_id] = record.reward
            if record.reward is not None:
                group["n"], group["total"] = group["n"] + 1, group["total"] + record.reward
    complete = group["seen"] == size
    if complete:
        group["order"], memory["next"] = memory["next"], memory["next"] + 1
    _forget(memory, group_id)
    at = group["last"] if complete and group["last"] else None
    if at is None:
        return records
    return [replace(record, group_complete_at=at) if record in group_records else record for record in records]


def _empty(records: list[Rollout]) -> dict[str, Any]:
    environment = next((record.environment for record in records), "")
    version = next((record.version_dispatched for record in records if record.purpose == "train"), None)
    return {
        "environment": environment, "version": version,
        "seen": 0, "order": None, "n": 0, "total": 0.0, "last": 0.0, "waiting": {},
    }  # fmt: skip


def _forget(memory: Memory, newest: str) -> None:
    """Drops groups without waiting rollouts, and the oldest if there are too many."""
    groups: dict[str, dict[str, Any]] = memory["groups"]
    if groups[newest]["order"] is not None and not groups[newest]["waiting"]:
        del groups[newest]
    while len(groups) > GROUPS_MAX:
        del groups[next(iter(groups))]


def shipped(memory: Memory, trace: str, group_id: str) -> int:
    """Removes a shipped trace; returns the order of its group, -1 if the group is unknown or incomplete."""
    group = memory["groups"].get(group_id)
    if group is None:
        return -1
    group["waiting"].pop(trace, None)
    order = group["order"]
    return -1 if order is None else int(order)


def left(
    memory: Memory, step: int, newest: int, at: float | None, settings: Settings
) -> Iterator[Rollout]:  # fmt: skip
    """The rollouts that certainly left once batch ``step`` is shipped.

    Args:
        newest: order of the last group in the batch.
        at: when the batch was shipped.
    """
    groups: dict[str, dict[str, Any]] = memory["groups"]
    for name, group in list(groups.items()):
        for trace, reward in list(group["waiting"].items()):
            cause = _cause(group, reward, step, newest, settings)
            if cause is not None:
                del group["waiting"][trace]
                yield Rollout(trace, group_id=name, exit=cause, exited_at=at)
        over = group["order"] is not None or settings.bound is None or _stale(group, step + 1, settings)
        if over and not group["waiting"]:
            del groups[name]


def _cause(group: Mapping[str, Any], reward: float | None, step: int, newest: int, settings: Settings) -> Exit | None:
    if group["order"] is not None and group["order"] < newest:
        if _stale(group, step, settings):
            return "stale"
        return "zero_advantage" if _of_no_use(group, reward, settings) else "surplus"
    return "stale" if _stale(group, step + 1, settings) else None


def _stale(group: Mapping[str, Any], step: int, settings: Settings) -> bool:
    """Returns whether the whole group is too old for batch ``step``."""
    version: int | None = group["version"]
    return version is not None and settings.bound is not None and version < step - 1 - settings.bound


def _of_no_use(group: Mapping[str, Any], reward: float | None, settings: Settings) -> bool:
    if reward is None or not group["n"] or not settings.prunes(group["environment"]):
        return False
    mean = float(group["total"] / group["n"])
    return abs(reward - mean) <= EQUAL * max(1.0, abs(reward))
