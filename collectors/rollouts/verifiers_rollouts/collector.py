"""Rollouts saved by verifiers and prime-rl: versions, rewards, turns, tokens, times, and the step that used them.

The run needs no change: prime-rl writes these files by default. `rollouts/step_N/train/all` gets an episode when it
ends. `effective` gets the traces of batch N when the batch is shipped, which gives the consumption: batch N trains
version N-1, and staleness is (N - 1) - `policy.start`. `eval/all` has evaluations. `configs/rl.json` has the sizes of
groups and the staleness bound. One trace is one rollout.

Not available: rollouts in flight (a line is written at the end), cancelled rollouts, the version of each token in an
episode that met an update, and why a batch left out a rollout that neither the bound nor its reward explains. The time
of its file is when a batch was shipped; for copied files it is the end of its last rollout.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collectors.formats import copies, jsonl, slim, verifiers
from collectors.formats.jsonl import number
from collectors.formats.shapes import mapping, objects
from collectors.model import Collector, Consumption, Cursor, Limits, Reading, Rollout, ScrapeError
from collectors.rollouts.verifiers_rollouts import exits
from collectors.rollouts.verifiers_rollouts import rows as verifiers_rollouts_rows
from collectors.rollouts.verifiers_rollouts import settings as verifiers_rollouts_settings
from collectors.transport import bytetail

# A batch is written at once, which may take a while; its time is that of the last block.
QUIET_SECONDS = 5.0
# A batch waits for the trainer's next version, at most one long step: a file that is later by this was copied.
COPIED_SECONDS = 6 * 3600.0


@dataclass(slots=True)
class _Gathered:
    """The result of one call. ``memory``: the next cursor; ``limits``: what the call may still read."""

    root: Path
    memory: dict[str, Any]
    limits: Limits
    settings: verifiers_rollouts_settings.Settings
    rollouts: list[Rollout] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    more: bool = False
    dropped: int = 0
    why: str = ""
    rows: int = 0

    def drop(self, why: str) -> None:
        self.dropped, self.why = self.dropped + 1, self.why or why


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Rollouts of the episodes and batches appended since ``cursor``, step by step.

    The cursor holds a position per file of the newest steps, and the rollouts that wait to be shipped.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    try:
        return _tail(path, cursor, limits, now)
    except OSError as error:
        # A folder without read permission, or removed between two reads.
        raise ScrapeError("missing", f"the traces cannot be read: {type(error).__name__}") from None


def _tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    only = verifiers.alone(path)
    found = verifiers.steps(path)
    if only is None and not found:
        verifiers.refuse(path)
    limits = replace(limits, line_bytes=verifiers.LINE_BYTES)
    got = _Gathered(path, _memory(cursor, found), limits, verifiers_rollouts_settings.read(path))
    if "copied" not in got.memory and len(found) >= copies.STEPS_LEAST:
        got.memory["copied"] = max(0.0, copies.copied_until(_batch_times(path, found)))
    if only is not None:
        _read_file(only, 0, got)
    _read_steps(found, now, got)
    return Reading(
        rollouts=tuple(got.rollouts),
        unmapped=got.unmapped,
        cursor=got.memory,
        more=got.more,
        dropped=got.dropped,
        why_dropped=got.why,
        samples_scraped=got.rows,
        gaps=(f"{copies.NOTE}; a batch is dated by its last rollout",) if _is_copied(path, found, got) else (),
        reader=f"{verifiers.STEPS}/step_*/*/{verifiers.FILE}" if found else verifiers.FILE,
    )


def _batch_times(path: Path, found: list[int]) -> Iterator[float]:
    """When the file of each step's batch was written."""
    for step in found:
        with suppress(OSError):
            yield verifiers.file_of(path, step, "train", "effective").stat().st_mtime


def _is_copied(path: Path, found: list[int], got: _Gathered) -> bool:
    """Returns whether the newest batch was copied; a run that continues after a copy has times of its own."""
    times = list(_batch_times(path, found[-verifiers.OPEN_STEPS :]))
    return bool(times) and max(times) <= got.memory.get("copied", 0.0)


def _memory(cursor: Cursor, found: list[int]) -> dict[str, Any]:
    """The state so far. A resumed run removes the steps that it repeats, and with them all waiting rollouts."""
    previous = {"floor": 0, "last": 0, "judged": 0, "ends": {}, "newest": 0.0, "shipped": {}, **cursor}
    waiting = cursor.get("waiting", {"groups": {}, "next": 0})
    groups = {name: {**one, "waiting": dict(one["waiting"])} for name, one in waiting["groups"].items()}
    last = max(found, default=0)
    memory = previous | {
        "floor": min(previous["floor"], last),
        "judged": min(previous["judged"], last),
        "files": dict(cursor.get("files", {})),
        "ends": dict(previous["ends"]),
        "shipped": dict(previous["shipped"]),
        "waiting": {"groups": {} if last < previous["last"] else groups, "next": waiting["next"]},
    }
    return memory | {"last": last}


def _read_steps(found: list[int], now: float, got: _Gathered) -> None:
    """Reads step after step up to the limits of the call; finished steps are dropped from the state."""
    memory = got.memory
    newest = found[-verifiers.OPEN_STEPS :]
    open_steps = [step for step in found if step >= memory["floor"]]
    for step in open_steps:
        if not _read_step(step, now, got):
            break
        if step not in newest:
            memory["floor"] = step + 1
    open_names = {str(step) for step in open_steps if step >= memory["floor"]}
    for name in ("ends", "shipped"):
        memory[name] = {step: value for step, value in memory[name].items() if step in open_names}
    memory["files"] = {
        name: one for name, one in memory["files"].items() if _step_of(name) in open_names or "/" not in name
    }


def _step_of(name: str) -> str:
    """The step in a file's path below the run."""
    return name.split("/")[1].removeprefix("step_") if name.count("/") > 1 else ""


def _read_step(step: int, now: float, got: _Gathered) -> bool:
    """Reads the new part of a step in the order it was written; returns whether that was all of it so far."""
    done = _read_file(verifiers.file_of(got.root, step, "train"), step, got)
    done = done and _read_batch(verifiers.file_of(got.root, step, "train", "effective"), step, now, got)
    return _read_file(verifiers.file_of(got.root, step, "eval"), step, got) and done


def _read_file(file: Path, step: int, got: _Gathered) -> bool:
    for row in _rows(file, got):
        _episode(row, step, got)
    return not got.more


def _episode(row: Any, step: int, got: _Gathered) -> None:
    memory = got.memory
    # Lines are in order of time: an episode without a time ended at the newest end before it.
    records = verifiers_rollouts_rows.rollouts(row, got.settings, memory["newest"] or None)
    end = max((one.scored_at or one.finished_at or 0.0 for one in records), default=0.0)
    memory["newest"] = max(memory["newest"], end)
    if any(one.purpose == "train" for one in records):
        memory["ends"][str(step)] = max(memory["ends"].get(str(step), 0.0), end)
    group = verifiers_rollouts_rows.group_of(row)
    if group and verifiers_rollouts_rows.purpose(row) == "train":
        records = exits.arrived(memory["waiting"], group, records, got.settings)
    got.rollouts += records
    for word in verifiers.unknown_versions(row):
        got.unmapped[word] = got.unmapped.get(word, 0) + 1


def _read_batch(file: Path, step: int, now: float, got: _Gathered) -> bool:
    """Reads the batch shipped at this step when it is complete, and when the step is over, what was left out."""
    over = step < got.memory["last"]
    if file.is_file():
        at = file.stat().st_mtime
        if not over and now - at < QUIET_SECONDS:
            return True
        at = _shipped_at(at, step, got)
        newest = got.memory["shipped"].get(str(step), -1)
        for row in _rows(file, got):
            newest = max(newest, _ship(row, step, at, got))
        got.memory["shipped"][str(step)], got.memory["dated"] = newest, at
    newest = got.memory["shipped"].get(str(step))
    if over and not got.more and newest is not None and step > got.memory["judged"]:
        got.rollouts += exits.left(got.memory["waiting"], step, newest, got.memory.get("dated"), got.settings)
        got.memory["judged"] = step
    return not got.more


def _shipped_at(modified: float, step: int, got: _Gathered) -> float:
    last = got.memory["ends"].get(str(step), 0.0)
    copied = modified <= got.memory.get("copied", 0.0) or not -QUIET_SECONDS <= modified - last < COPIED_SECONDS
    return last if last and copied else modified


def _ship(row: Any, step: int, at: float, got: _Gathered) -> int:
    """Ships one episode of batch ``step``, which trains the version before it; returns the order of its group."""
    group, orders = verifiers_rollouts_rows.group_of(row), [-1]
    for trace in objects(row.get("traces")):
        if not (identity := verifiers_rollouts_rows.trace_id(trace)):
            continue
        orders.append(exits.shipped(got.memory["waiting"], identity, group))
        used = Consumption(step - 1, at) if step > 0 else Consumption(None, at)
        advantage = number(mapping(trace, "info").get("advantage"))
        got.rollouts.append(
            Rollout(identity, group_id=group, purpose="train", advantage=advantage, consumptions=(used,))
        )
    return max(orders)


def _rows(file: Path, got: _Gathered) -> Iterator[Any]:
    """Episodes appended to a file; other rows are dropped and counted."""
    got.more = got.more or got.limits.tail_rows <= 0 or got.limits.tail_bytes <= 0
    if got.more or not file.is_file():
        return
    name = verifiers.name(file, got.root)
    read = bytetail.read(file, got.memory["files"].get(name, {}), got.limits)
    got.memory["files"][name] = read.cursor
    if read.restarted:
        _forget(file, got)
    got.limits = verifiers.left(got.limits, read)
    got.more, got.rows = got.more or read.more, got.rows + len(read.lines)
    got.dropped, got.why = got.dropped + read.dropped, got.why or read.why
    for offset, line in read.lines:
        row = jsonl.parse(slim.cut(line, counted=True))
        if row is not None and verifiers.is_episode(row):
            yield row
        else:
            got.drop(f"the line at byte {offset} of {file.name} is no episode of verifiers")


def _forget(file: Path, got: _Gathered) -> None:
    """A file was rewritten, as by a run that rewinds: its step is read again, and its waiting rollouts are dropped."""
    memory, step = got.memory, _step_of(verifiers.name(file, got.root))
    if file.parent.parent.name != "train":
        return
    memory["waiting"]["groups"].clear()
    for name in ("ends", "shipped"):
        memory[name].pop(step, None)
    if step and file.parent.name == "all":
        memory["files"].pop(
            verifiers.name(verifiers.file_of(got.root, int(step), "train", "effective"), got.root), None
        )


RECORD_FIELDS = (
    "group_id",
    "reward",
    "response_tokens",
    "environment",
    "version_dispatched",
    "version_start",
    "version_finish",
    "started_at",
    "finished_at",
    "turns",
    "tool_calls",
    "turn versions",
    "consumptions",
    "exit",
    "failures",
)
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="verifiers_rollouts",
    actor="generator",
    reads="rollouts saved by prime-rl and verifiers (traces.jsonl): versions, rewards, turns, times, the step they fed",
    versions="prime-rl 559b4477 (2026-08) and verifiers 0.4.0 by source and recorded files",
    tail=tail,
    matches_path=verifiers.matches_path,
    looks_for=(verifiers.LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
