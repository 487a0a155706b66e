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
class _ReadResult:
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
    single_file = verifiers.single_file(path)
    steps = verifiers.steps(path)
    if single_file is None and not steps:
        verifiers.refuse(path)
    limits = replace(limits, line_bytes=verifiers.LINE_BYTES)
    result = _ReadResult(path, _memory(cursor, steps), limits, verifiers_rollouts_settings.read(path))
    if "copied" not in result.memory and len(steps) >= copies.STEPS_LEAST:
        result.memory["copied"] = max(0.0, copies.copied_until(_batch_times(path, steps)))
    if single_file is not None:
        _read_file(single_file, 0, result)
    _read_steps(steps, now, result)
    return Reading(
        rollouts=tuple(result.rollouts),
        unmapped=result.unmapped,
        cursor=result.memory,
        more=result.more,
        dropped=result.dropped,
        why_dropped=result.why,
        samples_scraped=result.rows,
        gaps=(f"{copies.NOTE}; a batch is dated by its last rollout",) if _is_copied(path, steps, result) else (),
        reader=f"{verifiers.STEPS}/step_*/*/{verifiers.FILE}" if steps else verifiers.FILE,
    )


def _batch_times(path: Path, steps: list[int]) -> Iterator[float]:
    """When the file of each step's batch was written."""
    for step in steps:
        with suppress(OSError):
            yield verifiers.file_of(path, step, "train", "effective").stat().st_mtime


def _is_copied(path: Path, steps: list[int], result: _ReadResult) -> bool:
    """Returns whether the newest batch was copied; a run that continues after a copy has times of its own."""
    times = list(_batch_times(path, steps[-verifiers.OPEN_STEPS :]))
    return bool(times) and max(times) <= result.memory.get("copied", 0.0)


def _memory(cursor: Cursor, steps: list[int]) -> dict[str, Any]:
    """The state so far. A resumed run removes the steps that it repeats, and with them all waiting rollouts."""
    previous = {"floor": 0, "last": 0, "judged": 0, "ends": {}, "newest": 0.0, "shipped": {}, **cursor}
    waiting = cursor.get("waiting", {"groups": {}, "next": 0})
    groups = {name: {**group, "waiting": dict(group["waiting"])} for name, group in waiting["groups"].items()}
    last = max(steps, default=0)
    memory = previous | {
        "floor": min(previous["floor"], last),
        "judged": min(previous["judged"], last),
        "files": dict(cursor.get("files", {})),
        "ends": dict(previous["ends"]),
        "shipped": dict(previous["shipped"]),
        "waiting": {"groups": {} if last < previous["last"] else groups, "next": waiting["next"]},
    }
    return memory | {"last": last}


def _read_steps(steps: list[int], now: float, result: _ReadResult) -> None:
    """Reads step after step up to the limits of the call; finished steps are dropped from the state."""
    memory = result.memory
    newest = steps[-verifiers.OPEN_STEPS :]
    open_steps = [step for step in steps if step >= memory["floor"]]
    for step in open_steps:
        if not _read_step(step, now, result):
            break
        if step not in newest:
            memory["floor"] = step + 1
    open_names = {str(step) for step in open_steps if step >= memory["floor"]}
    for name in ("ends", "shipped"):
        memory[name] = {step: value for step, value in memory[name].items() if step in open_names}
    memory["files"] = {
        name: file_cursor
        for name, file_cursor in memory["files"].items()
        if _step_of(name) in open_names or "/" not in name
    }


def _step_of(name: str) -> str:
    """The step in a file's path below the run."""
    return name.split("/")[1].removeprefix("step_") if name.count("/") > 1 else ""


def _read_step(step: int, now: float, result: _ReadResult) -> bool:
    """Reads the new part of a step in the order it was written; returns whether that was all of it so far."""
    done = _read_file(verifiers.file_of(result.root, step, "train"), step, result)
    done = done and _read_batch(verifiers.file_of(result.root, step, "train", "effective"), step, now, result)
    return _read_file(verifiers.file_of(result.root, step, "eval"), step, result) and done


def _read_file(file: Path, step: int, result: _ReadResult) -> bool:
    for row in _rows(file, result):
        _episode(row, step, result)
    return not result.more


def _episode(row: Any, step: int, result: _ReadResult) -> None:
    memory = result.memory
    # Lines are in order of time: an episode without a time ended at the newest end before it.
    records = verifiers_rollouts_rows.rollouts(row, result.settings, memory["newest"] or None)
    end = max((rollout.scored_at or rollout.finished_at or 0.0 for rollout in records), default=0.0)
    memory["newest"] = max(memory["newest"], end)
    if any(rollout.purpose == "train" for rollout in records):
        memory["ends"][str(step)] = max(memory["ends"].get(str(step), 0.0), end)
    group = verifiers_rollouts_rows.group_of(row)
    if group and verifiers_rollouts_rows.purpose(row) == "train":
        records = exits.arrived(memory["waiting"], group, records, result.settings)
    result.rollouts += records
    for version_name in verifiers.unknown_versions(row):
        result.unmapped[version_name] = result.unmapped.get(version_name, 0) + 1


def _read_batch(file: Path, step: int, now: float, result: _ReadResult) -> bool:
    """Reads the batch shipped at this step when it is complete, and when the step is over, what was left out."""
    over = step < result.memory["last"]
    if file.is_file():
        at = file.stat().st_mtime
        if not over and now - at < QUIET_SECONDS:
            return True
        at = _shipped_at(at, step, result)
        newest = result.memory["shipped"].get(str(step), -1)
        for row in _rows(file, result):
            newest = max(newest, _ship(row, step, at, result))
        result.memory["shipped"][str(step)], result.memory["dated"] = newest, at
    newest = result.memory["shipped"].get(str(step))
    if over and not result.more and newest is not None and step > result.memory["judged"]:
        result.rollouts += exits.left(
            result.memory["waiting"], step, newest, result.memory.get("dated"), result.settings
        )
        result.memory["judged"] = step
    return not result.more


def _shipped_at(modified: float, step: int, result: _ReadResult) -> float:
    last = result.memory["ends"].get(str(step), 0.0)
    copied = modified <= result.memory.get("copied", 0.0) or not -QUIET_SECONDS <= modified - last < COPIED_SECONDS
    return last if last and copied else modified


def _ship(row: Any, step: int, at: float, result: _ReadResult) -> int:
    """Ships one episode of batch ``step``, which trains the version before it; returns the order of its group."""
    group, orders = verifiers_rollouts_rows.group_of(row), [-1]
    for trace in objects(row.get("traces")):
        if not (identity := verifiers_rollouts_rows.trace_id(trace)):
            continue
        orders.append(exits.shipped(result.memory["waiting"], identity, group))
        used = Consumption(step - 1, at) if step > 0 else Consumption(None, at)
        advantage = number(mapping(trace, "info").get("advantage"))
        result.rollouts.append(
            Rollout(identity, group_id=group, purpose="train", advantage=advantage, consumptions=(used,))
        )
    return max(orders)


def _rows(file: Path, result: _ReadResult) -> Iterator[Any]:
    """Episodes appended to a file; other rows are dropped and counted."""
    result.more = result.more or result.limits.tail_rows <= 0 or result.limits.tail_bytes <= 0
    if result.more or not file.is_file():
        return
    name = verifiers.name(file, result.root)
    read = bytetail.read(file, result.memory["files"].get(name, {}), result.limits)
    result.memory["files"][name] = read.cursor
    if read.restarted:
        _forget(file, result)
    result.limits = verifiers.left(result.limits, read)
    result.more, result.rows = result.more or read.more, result.rows + len(read.lines)
    result.dropped, result.why = result.dropped + read.dropped, result.why or read.why
    for offset, line in read.lines:
        row = jsonl.parse(slim.cut(line, counted=True))
        if row is not None and verifiers.is_episode(row):
            yield row
        else:
            result.drop(f"the line at byte {offset} of {file.name} is not an episode of verifiers")


def _forget(file: Path, result: _ReadResult) -> None:
    """A file was rewritten, as by a run that rewinds: its step is read again, and its waiting rollouts are dropped."""
    memory, step = result.memory, _step_of(verifiers.name(file, result.root))
    if file.parent.parent.name != "train":
        return
    memory["waiting"]["groups"].clear()
    for name in ("ends", "shipped"):
        memory[name].pop(step, None)
    if step and file.parent.name == "all":
        memory["files"].pop(
            verifiers.name(verifiers.file_of(result.root, int(step), "train", "effective"), result.root), None
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
