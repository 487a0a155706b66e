"""The common form of trainers' logs: calls of `log({key: value}, step)`, in files of any kind.

A sink (TensorBoard, wandb, JSON lines, ...) is read into `Logged` rows; a framework's table has the meaning of the
keys. So every framework can be read from every sink, and each sink is implemented once.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.formats.faults import Fault
from collectors.model import Cursor, Limits

# Levels of folders. A home directory given by mistake must not be searched for minutes.
MAX_DEPTH = 6
# Of one folder: files looked at by name, entries listed at all; and folders entered.
MAX_ENTRIES, MAX_LISTED, MAX_FOLDERS = 5_000, 200_000, 2_000
# Folders with many files and never a log.
SKIPPED = frozenset(
    {"checkpoints", "node_modules", "__pycache__", ".git", ".venv", "site-packages", "weights", "completions"}
)


@dataclass(slots=True)
class Logged:
    """One call of a logger, or the form its file gives it (TensorBoard: the scalars of one step together).

    Attributes:
        values: by key as logged; numbers, and other values of the sink (texts, None, tables as dicts).
        step: the sink's own step, which may count something else than the trainer's steps.
        ts: epoch seconds, or None if the sink has no times.
        estimated: ``ts`` is an estimate of `tail`.
        origin: the writer or kind of line, if a sink has several ("perf", "rollout", a file's name).
    """

    values: dict[str, Any]
    step: int | None = None
    ts: float | None = None
    origin: str = ""
    estimated: bool = False


@dataclass(slots=True)
class Logs:
    """Rows since the cursor, oldest first; fields of the same name as in `collectors.model.Reading`.

    Attributes:
        restarted: the source is not the cursor's: these rows begin at its start.
        config: the run's configuration as the sink has it, flat or nested; only in the call that read it.
        run_name: the run's own name.
        finished: the evidence that the run is over, as text; "" if there is none.
        failed: the run ended with a failure.
        modified: epoch seconds of the source's last change, for rows without a time.
        ahead: the unread rest as a multiple of what this call read (0 at the end), for rows without a time.
        fault: the fault that lines after the newest row report, also if an earlier call read them.
        newest: the newest time of a line, if a line near the end of what this call read has a time.
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
    fault: Fault | None = None
    newest: float | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """One kind of log.

    Attributes:
        name: the name shown to users.
        looks_for: a description of the logs, for the message "nothing found".
        find: a file or a run directory -> the logs of this kind in it, the newest first. Bounded; never raises.
        read: one of those paths and a cursor -> rows. Raises `ScrapeError`: ``missing``, ``garbage``, ``locked``.
        writers: several processes may write into one log at once, so that rows of one step may come late.
        lag_seconds: how long the sink itself delays a row.
        further: reads places of a log after its first ``limits.tail_bytes``, its end among them, for logs in which
            other processes print megabytes before the trainer does. Bounded, with gaps; not for numbers.
        near_end: (path, bytes) -> a cursor that many bytes before the end; None: the sink is read from its start.
        run_of: identifies the run of a log whose every start of the process begins another log; logs with the same
            text may be starts of one run.
        ends: the first and the last rows of a log, bounded: they show whether a log continues another.
        by_steps: `run_of` alone does not show that two logs are of one run; their steps have to continue, too.
        local_times: its times are local times without a zone, as loggers print them; else epoch seconds.
    """

    name: str
    looks_for: str
    find: Callable[[Path], list[Path]]
    read: Callable[[Path, Cursor, Limits], Logs]
    writers: bool = False
    lag_seconds: float = 0.0
    further: Callable[[Path, Limits], Logs] | None = None
    near_end: Callable[[Path, int], Cursor] | None = None
    run_of: Callable[[Path], str] | None = None
    ends: Callable[[Path], tuple[list[Logged], list[Logged]]] | None = None
    by_steps: bool = False
    local_times: bool = False


def walk(folder: Path, matches: Callable[[Path], bool], depth: int = MAX_DEPTH) -> list[Path]:
    """Wanted regular files below a folder, the newest first. Bounded in depth and number.

    Links to folders are not followed. Every folder has its own limit, so that 100,000 completions do not hide a log.
    """
    files_by_time: list[tuple[float, Path]] = []
    queue, folders = [(folder, 0)], 0
    while queue and folders < MAX_FOLDERS:
        current_folder, level = queue.pop(0)
        folders += 1
        subfolders, files = _entries(current_folder)
        if level < depth:
            queue += [(current_folder / name, level + 1) for name in subfolders if name not in SKIPPED]
        matching = (path for path in map(current_folder.joinpath, files) if matches(path))
        # Reading a pipe of that name would block.
        files_by_time += [(_modified(path), path) for path in matching if path.is_file()]
    return [path for _, path in sorted(files_by_time, reverse=True)]


def newest(paths: Iterable[Path]) -> list[Path]:
    """The newest first; removed files last."""
    return sorted(paths, key=_modified, reverse=True)


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """(folders, other entries) by name; empty if the folder cannot be read."""
    try:
        return entries(folder)[:2]
    except OSError:
        return [], []


def entries(folder: Path) -> tuple[list[str], list[str], int]:
    """(folders, other entries, number of entries left out) by name. Raises `OSError`."""
    return _listed(folder, folder.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _listed(folder: Path, modified: int) -> tuple[list[str], list[str], int]:
    """Cached per state of the folder, because every sink of every framework lists it."""
    with os.scandir(folder) as scan:
        # Sorted, so that the same folder gives the same result on every machine.
        named = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(scan, MAX_LISTED))
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
