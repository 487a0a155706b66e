"""Selects the log of a run directory that is read: the framework's best sink that exists and has its keys.

A run that logs to four sinks is read from one of them, so that every value is read once. If each start of a resumed run
has a log of its own, the oldest is read first, then the others (`starts`). The selection stays while its file exists. A
newer file of the same kind is read after the old one is read to its end. A better sink that appears within the first
reads replaces the selection, because loggers open files late.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from collectors.formats import unreadable
from collectors.formats.jsonl import number, parse
from collectors.formats.rows import Sink, flat
from collectors.model import Limits, ScrapeError

# The first rows identify the framework: configuration and keys are present from the first steps on.
PEEK = Limits(tail_bytes=1 << 20, tail_rows=400)
# Only this many newest logs of each kind are examined.
CANDIDATES = 8
# Starts of one run that are read: preempted jobs are resumed many times.
MAX_STARTS = 64
# Seconds that the last row of a start may be later than the first row of the next: clocks of nodes differ.
OVERLAP_SECONDS = 60.0
# Settings that a resumed run keeps; with other values it is another run.
KEPT_SETTINGS = ("learning_rate", "num_generations", "output_dir", "seed")
# For this many reads (half an hour at 5 s) a better sink is looked for; a later log belongs to another run.
UPGRADE_READS = 360


@dataclass(frozen=True, slots=True)
class Peek:
    """The first rows of a log: keys as logged, dotted configuration keys with their values."""

    keys: frozenset[str]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """The selected log. ``identity`` is stored in the cursor; ``later``: logs of later starts, read after this one."""

    sink: Sink
    path: Path
    peek: Peek
    later: tuple[Path, ...] = ()

    @property
    def identity(self) -> dict[str, str]:
        return {"sink": self.sink.name, "path": str(self.path)}

    def log_label(self, given: Path) -> str:
        """The kind of log and its name relative to the given path."""
        below = self.path != given and self.path.is_relative_to(given)
        return f"{self.sink.name} {self.path.relative_to(given) if below else self.path.name}"


def choose(sinks: Sequence[Sink], path: Path, recognises: Callable[[Peek], bool]) -> Source | None:
    """Selects the newest log of the best sink whose keys are recognised; None if there is none.

    Raises:
        ScrapeError: ``locked``: a log exists but cannot be read now; None would hide the run.
    """
    for sink in sinks:
        for candidate in sink.find(path)[:CANDIDATES]:
            if (peek := _of_run(sink, candidate, recognises)) is not None:
                return Source(sink, candidate, peek)
    return None


def follow(sinks: Sequence[Sink], path: Path, before: Mapping[str, Any], recognises: Callable[[Peek], bool]) -> Source:
    """Selects the log to read now, given the result of `remembered` of the previous call (``{}`` at the beginning).

    Raises:
        ScrapeError: ``missing``; ``not_a_run`` with the kinds of logs looked for.
    """
    continued = _continued(sinks, path, before, recognises) if before else None
    if continued is not None:
        return continued
    source = choose(sinks, path, recognises)
    if source is not None:
        return _from_first(source, path, recognises)
    if not path.exists():
        raise ScrapeError("missing", f"{path.name} does not exist")
    looked_for = ", ".join(sink.looks_for for sink in sinks)
    raise ScrapeError("not_a_run", f"no run in {path.name}: looked for {looked_for}{unreadable.suffix(path)}")


def remembered(source: Source, before: Mapping[str, Any], more: bool, rows: bool = True) -> dict[str, Any]:
    """The cursor's part about the source: its identity, whether it is read to its end, and logs left before.

    ``rows``: the call read rows. A source without rows so far is ``silent``.
    """
    left = [*before.get("left", ())]
    moved = before.get("path") != str(source.path)
    if before and moved:
        left = [*left, before["path"]][-MAX_STARTS:]
    silent = not rows and (moved or bool(before.get("silent")))
    looks = min(UPGRADE_READS, before.get("looks", UPGRADE_READS if before else 0) + (not more))
    later = {"later": [str(log) for log in source.later]} if source.later else {}
    return {
        **source.identity,
        "more": more,
        "left": left,
        "looks": looks,
        **later,
        **({"silent": True} if silent else {}),
    }


def is_upgrade(sinks: Sequence[Sink], source: Source, before: Mapping[str, Any]) -> bool:
    """Returns whether the log is of a better kind than the previous one: then it is the same run, not a restart."""
    names = [sink.name for sink in sinks]
    return before.get("sink") in names and names.index(source.sink.name) < names.index(before["sink"])


def _continued(
    sinks: Sequence[Sink], path: Path, before: Mapping[str, Any], recognises: Callable[[Peek], bool]
) -> Source | None:
    sink = next((candidate for candidate in sinks if candidate.name == before.get("sink")), None)
    old = Path(before.get("path", ""))
    if sink is None:
        return None
    # A job prints its configuration long before its logger writes a first step to another sink.
    may_upgrade = before.get("silent") or (
        not before.get("more") and before.get("looks", UPGRADE_READS) < UPGRADE_READS
    )
    better = choose(sinks[: sinks.index(sink)], path, recognises) if may_upgrade else None
    if better is not None and better.peek.keys:
        return _from_first(better, path, recognises)
    exists = old.exists()
    later = tuple(log for log in map(Path, before.get("later", ())) if log.exists())
    if later and exists and before.get("more"):
        return Source(sink, old, Peek(frozenset(), {}), later)
    if later:
        return Source(sink, later[0], Peek(frozenset(), {}), later[1:])
    if not (exists and before.get("more")):
        newest = next((log for log in sink.find(path) if str(log) not in before.get("left", ())), None)
        # Never return to a log left before: two runs that grow at once would alternate, each read again from its start.
        is_newer = newest is not None and newest != old and _newer(newest, old)
        if is_newer and newest is not None and (peek := _of_run(sink, newest, recognises)) is not None:
            return Source(sink, newest, peek)
    return Source(sink, old, Peek(frozenset(), {})) if exists else None


def _from_first(source: Source, path: Path, recognises: Callable[[Peek], bool]) -> Source:
    """The log of the first start of the selected log's run."""
    first, *later = starts(source.sink, path, source.path, recognises)
    return Source(source.sink, first, source.peek, tuple(later))


@dataclass(frozen=True, slots=True)
class _Start:
    """The log of one start; ``steps``: the distinct steps of its first rows; None for what the rows do not have."""

    path: Path
    first_ts: float | None
    last_ts: float | None
    steps: tuple[int, ...]
    last_step: int | None
    settings: Mapping[str, Any]


def starts(sink: Sink, path: Path, log: Path, recognises: Callable[[Peek], bool]) -> list[Path]:
    """The logs of the starts of this log's run, oldest first; the log alone if no other belongs to it.

    The order is that of the times in the rows, or of the names, because a copy may lose the times of files.
    """
    if sink.run_of is None or sink.ends is None:
        return [log]
    run = sink.run_of(log)
    others = [other for other in sink.find(path) if other != log and sink.run_of(other) == run]
    # A copy of a folder has its name; it is no start of its own.
    by_name = {other.parent.name + "/" + other.name: other for other in reversed(others)}
    by_name.pop(log.parent.name + "/" + log.name, None)
    others = [other for other in others if other in by_name.values()][: MAX_STARTS - 1]
    found = [start for other in others if _of_run(sink, other, recognises) and (start := _start(sink, other))]
    own = _start(sink, log) if found else None
    if own is None:
        return [log]
    found = sorted([*found, own], key=_order)
    previous = {
        later.path: next((earlier for earlier in reversed(found[:index]) if _continues(sink, earlier, later)), None)
        for index, later in enumerate(found)
    }
    chain = [own]
    while (earlier := previous[chain[0].path]) is not None:
        chain.insert(0, earlier)
    while later := [start for start in found if previous[start.path] is chain[-1]]:
        chain.append(later[-1])
    return [start.path for start in chain]


def _order(start: _Start) -> tuple[float, list[tuple[int, int | str]]]:
    """By time; without times by name, numbers in it by value. A log without rows has just begun."""
    parts = re.findall(r"\d+|\D+", str(start.path))
    begun = start.first_ts if start.first_ts is not None else 0.0 if start.steps else inf
    return begun, [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def _start(sink: Sink, log: Path) -> _Start | None:
    assert sink.ends is not None
    try:
        first, last = sink.ends(log)
    except (OSError, ScrapeError):
        return None
    steps = [row.step for row in first if row.step is not None]
    settings: dict[str, Any] = {}
    for row in first:
        for value in row.values.values():
            if isinstance(value, str) and value.lstrip()[:1] == "{" and (text := parse(value)) is not None:
                settings |= text
    return _Start(
        log,
        next((row.ts for row in first if row.ts is not None), None),
        next((row.ts for row in reversed(last) if row.ts is not None), None),
        tuple(dict.fromkeys(steps)),
        max((row.step for row in last if row.step is not None), default=None),
        settings,
    )


def _continues(sink: Sink, earlier: _Start, later: _Start) -> bool:
    """Returns whether the later log is the next start of the earlier one's run.

    By steps: the later log begins at a step that the earlier one has reached, or at the next. Both the first and the
    second step of the earlier one lie before it, because runs of a sweep begin at the same step, some with an
    evaluation before it.
    """
    if (
        earlier.last_ts is not None
        and later.first_ts is not None
        and later.first_ts < earlier.last_ts - OVERLAP_SECONDS
    ):
        return False
    if not sink.by_steps:
        return True
    if len(earlier.steps) < 2 or not later.steps or earlier.last_step is None:
        return False
    stride = earlier.steps[1] - earlier.steps[0]
    if not earlier.steps[1] < later.steps[0] <= earlier.last_step + max(1, stride):
        return False
    return all(
        earlier.settings[key] == later.settings[key]
        for key in KEPT_SETTINGS
        if key in earlier.settings and key in later.settings
    )


def _newer(path: Path, other: Path) -> bool:
    try:
        return not other.exists() or path.stat().st_mtime > other.stat().st_mtime
    except OSError:
        return False


def _of_run(sink: Sink, path: Path, recognises: Callable[[Peek], bool]) -> Peek | None:
    """The content of a log, if its keys are recognised: from its first rows, and from later parts of a long log."""
    try:
        modified, size = _state(path)
    except OSError:
        return None
    first = _peeked(sink, path, modified, size, further=False)
    if recognises(first):
        return first
    if sink.further is None or size <= PEEK.tail_bytes:
        return None
    later = _peeked(sink, path, modified, size, further=True)
    combined = Peek(first.keys | later.keys, {**first.config, **later.config})
    return combined if recognises(combined) else None


def _state(path: Path) -> tuple[int, int]:
    """Time of the last change (ns) and size. A directory's own do not change when a file in it grows."""
    states = [path.stat()]
    if path.is_dir():
        states += [file.stat() for file in path.iterdir()]
    return max(state.st_mtime_ns for state in states), sum(state.st_size for state in states)


@lru_cache(maxsize=256)
def _peeked(sink: Sink, path: Path, modified: int, size: int, further: bool) -> Peek:
    """Cached per state of the file, because eighteen frameworks read the same log."""
    try:
        logs = sink.further(path, PEEK) if further and sink.further is not None else sink.read(path, {}, PEEK)
    except ScrapeError as error:
        if error.kind == "locked":
            raise
        return Peek(frozenset(), {})
    return Peek(frozenset(key for row in logs.rows for key in row.values), dict(flat(logs.config)))


# ---- settings
# Looks up a run's configuration by dotted keys: nested, flat, or in MLflow's form (slashes, texts).

Facts = dict[str, str | float]


class Settings:
    """Settings by dotted key, independent of the sink.

    wandb and JSON keep nesting and types. MLflow has one text per key, with ``/`` or ``.`` between the parts.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._values = {key.replace("/", "."): value for key, value in flat(config)}

    def number(self, key: str) -> float | None:
        """A finite number, also one written as text; None for anything else."""
        return number(self._plain(key))

    def text(self, key: str) -> str:
        """A text that is not empty; "" for anything else."""
        value = self._values.get(key)
        return value if isinstance(value, str) and value not in ("None", "null") else ""

    def flag(self, key: str) -> bool | None:
        """True or False, also as text; None when the key is absent or something else."""
        value = self._values.get(key)
        flags = {"true": True, "false": False}
        return value if isinstance(value, bool) else flags.get(value.lower()) if isinstance(value, str) else None

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def _plain(self, key: str) -> Any:
        value = self._values.get(key)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return None


def facts_of(**facts: str | float | None) -> Facts:
    """Returns facts without None, "" and numbers that are not positive."""
    return {key: value for key, value in facts.items() if value and (isinstance(value, str) or value > 0)}


def product(*factors: float | None) -> float | None:
    """The product, or None if a factor is None."""
    result = 1.0
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result
