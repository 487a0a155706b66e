"""What trainers' loggers have in common: calls of `log({key: value}, step)`, whatever file they end up in.

A sink (TensorBoard, wandb, JSON lines, ...) is read into `Logged` rows; a framework's table then says what the keys
mean. So every framework can be read from every sink, and a sink is written once.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.model import Cursor, Limits

# A run directory has a handful of logs; a home directory given by mistake must not be walked for minutes.
MAX_DEPTH = 6
# Of one folder: files looked at by name, entries listed at all; and folders entered.
MAX_ENTRIES, MAX_LISTED, MAX_FOLDERS = 5_000, 200_000, 2_000
# Folders that hold many files and never a log.
SKIPPED = frozenset(
    {"checkpoints", "node_modules", "__pycache__", ".git", ".venv", "site-packages", "weights", "completions"}
)


@dataclass(slots=True)
class Logged:
    """One call of a logger, or what its file makes of it (TensorBoard: the scalars of one step together).

    Attributes:
        values: by key as logged; numbers, and whatever else the sink holds (texts, None, tables as dicts).
        step: the sink's own step. It may count something else than the trainer's steps: the framework knows.
        ts: epoch seconds, or None where the sink keeps no time.
        origin: who wrote it where one sink has several writers or kinds of line ("perf", "rollout", a file's name).
    """

    values: dict[str, Any]
    step: int | None = None
    ts: float | None = None
    origin: str = ""


@dataclass(slots=True)
class Logs:
    """Rows since the cursor, oldest first; fields of the same name as in `collectors.model.Reading`.

    Attributes:
        restarted: the source is not the one the cursor was about: these rows begin at its start.
        config: the run's configuration as the sink keeps it, flat or nested; only when (newly) met.
        run_name: the run's own name for itself.
        finished: the evidence that the run is over, in words; "" when there is none.
        failed: that end was a failure.
        modified: epoch seconds of the source's last change, for rows without a time.
        ahead: how much is left to read, as a multiple of what this call read (0 at the end), for the same purpose.
    """

    rows: list[Logged] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    more: bool = False
    restarted: bool = False
    dropped: int = 0
    why: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    run_name: str = ""
    finished: str = ""
    failed: bool = False
    modified: float | None = None
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Sink:
    """One kind of log.

    Attributes:
        name: the word shown to users.
        looks_for: what is looked for, in words, for "nothing found".
        find: a file or a run directory -> the logs of this kind in it, the newest first. Bounded; never raises.
        read: one of those paths and a cursor -> rows. Raises `ScrapeError`: ``missing``, ``garbage``, ``locked``.
        writers: several processes may write into one log at once, so that rows of one step may come late.
        lag_seconds: how long the sink itself holds a row back.
        further: places of a log behind its first ``limits.tail_bytes``, its end among them: what is said there, for
            logs in which others print megabytes before the trainer does. Bounded, with gaps; not for numbers.
        near_end: (path, bytes) -> a cursor that many bytes before the end; None: it is read from its start only.
    """

    name: str
    looks_for: str
    find: Callable[[Path], list[Path]]
    read: Callable[[Path, Cursor, Limits], Logs]
    writers: bool = False
    lag_seconds: float = 0.0
    further: Callable[[Path, Limits], Logs] | None = None
    near_end: Callable[[Path, int], Cursor] | None = None


def walk(folder: Path, wanted: Callable[[Path], bool], depth: int = MAX_DEPTH) -> list[Path]:
    """Regular files below a folder that are wanted, the newest first. Bounded in depth and number.

    Folders behind links are not entered. Every folder has a share of its own, so that 100,000 completions beside a log
    do not hide it.
    """
    found: list[tuple[float, Path]] = []
    queue, folders = [(folder, 0)], 0
    while queue and folders < MAX_FOLDERS:
        here, level = queue.pop(0)
        folders += 1
        below, files = _entries(here)
        if level < depth:
            queue += [(here / name, level + 1) for name in below if name not in SKIPPED]
        logs = (path for path in map(here.joinpath, files) if wanted(path))
        # A pipe of that name would be waited on for ever.
        found += [(_modified(path), path) for path in logs if path.is_file()]
    return [path for _, path in sorted(found, reverse=True)]


def newest(paths: Iterable[Path]) -> list[Path]:
    """The newest first; what is gone meanwhile is last."""
    return sorted(paths, key=_modified, reverse=True)


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """(folders, others) in it by name; empty when it may not be read."""
    try:
        return entries(folder)[:2]
    except OSError:
        return [], []


def entries(folder: Path) -> tuple[list[str], list[str], int]:
    """(folders, others, how many others were left out) in it by name. Raises `OSError`."""
    return _listed(folder, folder.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _listed(folder: Path, modified: int) -> tuple[list[str], list[str], int]:
    """Kept per state of the folder: every sink of every framework asks the same."""
    with os.scandir(folder) as found:
        # Sorted, so that the same folder gives the same answer everywhere.
        named = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(found, MAX_LISTED))
    others = [name for name, is_folder in named if not is_folder]
    return [name for name, is_folder in named if is_folder], others[:MAX_ENTRIES], max(0, len(others) - MAX_ENTRIES)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A nested configuration as dotted keys. Lists and empty groups are values."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, value
