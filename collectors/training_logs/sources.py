"""Selects the log of a run directory that is read: the framework's best sink that exists and has its keys.

A run that logs to four sinks is read from one of them, so that every value is read once. The selection stays while its
file exists. A newer file of the same kind (a resumed run begins a new one) is read after the old one is read to its
end. A better sink that appears within the first reads replaces the selection, because loggers open files late.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from collectors.formats import unreadable
from collectors.formats.rows import Sink, flat
from collectors.model import Limits, ScrapeError

# The first rows identify the framework: configuration and keys are present from the first steps on.
PEEK = Limits(tail_bytes=1 << 20, tail_rows=400)
# Only this many newest logs of each kind are examined.
CANDIDATES = 8
# For this many reads (half an hour at 5 s) a better sink is looked for; a later log belongs to another run.
UPGRADE_READS = 360


@dataclass(frozen=True, slots=True)
class Peek:
    """The first rows of a log: keys as logged, dotted configuration keys with their values."""

    keys: frozenset[str]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """The selected log. ``identity`` is stored in the cursor."""

    sink: Sink
    path: Path
    peek: Peek

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
    source = continued or choose(sinks, path, recognises)
    if source is not None:
        return source
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
        left = [*left, before["path"]][-CANDIDATES:]
    silent = not rows and (moved or bool(before.get("silent")))
    looks = min(UPGRADE_READS, before.get("looks", UPGRADE_READS if before else 0) + (not more))
    return {**source.identity, "more": more, "left": left, "looks": looks, **({"silent": True} if silent else {})}


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
        return better
    exists = old.exists()
    if not (exists and before.get("more")):
        newest = next((log for log in sink.find(path) if str(log) not in before.get("left", ())), None)
        # Never return to a log left before: two runs that grow at once would alternate, each read again from its start.
        is_newer = newest is not None and newest != old and _newer(newest, old)
        if is_newer and newest is not None and (peek := _of_run(sink, newest, recognises)) is not None:
            return Source(sink, newest, peek)
    return Source(sink, old, Peek(frozenset(), {})) if exists else None


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
