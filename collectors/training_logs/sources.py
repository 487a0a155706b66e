"""Which log of a run directory is read: the framework's best sink that is there and holds its keys.

One run logged to four sinks is read from one of them, so every value is there once. The choice is kept as long as
its file lives; a newer file of the same kind (a resumed run begins a new one) is taken when the old one is read out.
A better sink that appears in the first reads is adopted: a logger may open its file after another's first steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from collectors.formats import unreadable
from collectors.formats.rows import Sink, flat
from collectors.model import Limits, ScrapeError

# The first rows tell whose they are; config and keys are there from the first steps on.
PEEK = Limits(tail_bytes=1 << 20, tail_rows=400)
# Of each kind only the newest logs are looked into.
CANDIDATES = 8
# For so many reads (half an hour at 5 s) a better sink is looked for; a log that appears later is another run's.
LOOKS = 360


@dataclass(frozen=True, slots=True)
class Peek:
    """What the first rows of a log hold: keys as logged, dotted configuration keys with their values."""

    keys: frozenset[str]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A log that was chosen. ``identity`` goes into the cursor."""

    sink: Sink
    path: Path
    peek: Peek

    @property
    def identity(self) -> dict[str, str]:
        return {"sink": self.sink.name, "path": str(self.path)}

    def seen_from(self, given: Path) -> str:
        """The kind of log and its name, as seen from the path that was given."""
        below = self.path != given and self.path.is_relative_to(given)
        return f"{self.sink.name} {self.path.relative_to(given) if below else self.path.name}"


def choose(sinks: Sequence[Sink], path: Path, known: Callable[[Peek], bool]) -> Source | None:
    """The best sink's newest log whose keys are known; None when there is none.

    Raises:
        ScrapeError: ``locked``: there is one, and saying no would hide the run.
    """
    for sink in sinks:
        for candidate in sink.find(path)[:CANDIDATES]:
            if (peek := _of_run(sink, candidate, known)) is not None:
                return Source(sink, candidate, peek)
    return None


def follow(sinks: Sequence[Sink], path: Path, before: Mapping[str, Any], known: Callable[[Peek], bool]) -> Source:
    """The log to read now, given what `remembered` said of the one read before (``{}`` at the beginning).

    Raises:
        ScrapeError: ``missing``; ``not_a_run`` with what was looked for.
    """
    kept = _kept(sinks, path, before, known) if before else None
    found = kept or choose(sinks, path, known)
    if found is not None:
        return found
    if not path.exists():
        raise ScrapeError("missing", f"{path.name} does not exist")
    looked_for = ", ".join(sink.looks_for for sink in sinks)
    raise ScrapeError("not_a_run", f"no run in {path.name}: looked for {looked_for}{unreadable.words(path)}")


def remembered(source: Source, before: Mapping[str, Any], more: bool, rows: bool = True) -> dict[str, Any]:
    """What the cursor keeps of a source: which one, whether it is read out, and those that were left for it.

    ``rows``: it has told any just now. Until it does it is ``silent``.
    """
    left = [*before.get("left", ())]
    moved = before.get("path") != str(source.path)
    if before and moved:
        left = [*left, before["path"]][-CANDIDATES:]
    silent = not rows and (moved or bool(before.get("silent")))
    looks = min(LOOKS, before.get("looks", LOOKS if before else 0) + (not more))
    return {**source.identity, "more": more, "left": left, "looks": looks, **({"silent": True} if silent else {})}


def is_upgrade(sinks: Sequence[Sink], source: Source, before: Mapping[str, Any]) -> bool:
    """Is the log of a better kind than the one before? Then it is the same run, and nothing was restarted."""
    names = [sink.name for sink in sinks]
    return before.get("sink") in names and names.index(source.sink.name) < names.index(before["sink"])


def _kept(sinks: Sequence[Sink], path: Path, before: Mapping[str, Any], known: Callable[[Peek], bool]) -> Source | None:
    sink = next((one for one in sinks if one.name == before.get("sink")), None)
    old = Path(before.get("path", ""))
    if sink is None:
        return None
    # A job prints its configuration long before its logger writes a first step elsewhere.
    wanted = before.get("silent") or (not before.get("more") and before.get("looks", LOOKS) < LOOKS)
    better = choose(sinks[: sinks.index(sink)], path, known) if wanted else None
    if better is not None and better.peek.keys:
        return better
    there = old.exists()
    if not (there and before.get("more")):
        newest = next((log for log in sink.find(path) if str(log) not in before.get("left", ())), None)
        # Never back to one that was left: two runs that grow side by side would be read by turns, each from its start.
        fresh = newest is not None and newest != old and _newer(newest, old)
        if fresh and newest is not None and (peek := _of_run(sink, newest, known)) is not None:
            return Source(sink, newest, peek)
    return Source(sink, old, Peek(frozenset(), {})) if there else None


def _newer(path: Path, than: Path) -> bool:
    try:
        return not than.exists() or path.stat().st_mtime > than.stat().st_mtime
    except OSError:
        return False


def _of_run(sink: Sink, path: Path, known: Callable[[Peek], bool]) -> Peek | None:
    """What a log holds, if that is known: by its first rows, and by what it says further on where it is long."""
    try:
        modified, size = _state(path)
    except OSError:
        return None
    first = _peeked(sink, path, modified, size, further=False)
    if known(first):
        return first
    if sink.further is None or size <= PEEK.tail_bytes:
        return None
    later = _peeked(sink, path, modified, size, further=True)
    both = Peek(first.keys | later.keys, {**first.config, **later.config})
    return both if known(both) else None


def _state(path: Path) -> tuple[int, int]:
    """Time of the last change (ns) and size. A directory's own do not change when a file in it grows."""
    states = [path.stat()]
    if path.is_dir():
        states += [file.stat() for file in path.iterdir()]
    return max(state.st_mtime_ns for state in states), sum(state.st_size for state in states)


@lru_cache(maxsize=256)
def _peeked(sink: Sink, path: Path, modified: int, size: int, further: bool) -> Peek:
    """Kept per state of the file: eighteen frameworks ask the same of the same log."""
    try:
        logs = sink.further(path, PEEK) if further and sink.further is not None else sink.read(path, {}, PEEK)
    except ScrapeError as error:
        if error.kind == "locked":
            raise
        return Peek(frozenset(), {})
    return Peek(frozenset(key for row in logs.rows for key in row.values), dict(flat(logs.config)))
