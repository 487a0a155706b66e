"""The common form of trainers' logs: calls of `log({key: value}, step)`, in files of any kind.

A sink (TensorBoard, wandb, JSON lines, ...) is read into `Logged` rows; a framework's table has the meaning of the
keys. So every framework can be read from every sink, and each sink is implemented once.
"""

import hashlib
import math
import os
import re
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


# ---- slim
# Cuts long strings and long lists of numbers out of JSON bytes before they are parsed.

# Longer than every id and name that is read, uuids with suffixes included.
KEPT_BYTES = 160

_NUMBERS = re.compile(rb"\[[-+0-9.eE,\struefalsnNI]{64,}+\]")
# Possessive, so that a text is scanned once. The quote comes first, because it is what the search looks for. Text that
# begins like the end of a string is skipped.
_TEXTS = re.compile(
    rb'"(?<=[\[:,{\s]")(?!\s*+[,:\]}])(?:[^"\\]|\\.){%d,%d}+[^"\\]*+(?:\\.[^"\\]*+)*+"' % (KEPT_BYTES, KEPT_BYTES),
    re.DOTALL,
)


def cut(data: bytes, *, counted: bool = False) -> bytes:
    """The same JSON with ``""`` for every string longer than `KEPT_BYTES` and ``[]`` for every long list of numbers.

    Args:
        counted: as in `numbers`.
    """
    # Lists first: without them there is little but punctuation between two strings.
    return _TEXTS.sub(b'""', numbers(data, counted=counted))


def numbers(data: bytes, *, counted: bool = False) -> bytes:
    """As `cut`, with all texts unchanged.

    Args:
        counted: a long list of booleans (a loss mask) becomes ``[n]``, n of them true: see `true_count`.
    """
    return _NUMBERS.sub(_short if counted else b"[]", data)


def true_count(mask: object) -> int | None:
    """The number of true entries of a loss mask, cut or not; None if it is empty or no mask."""
    if not isinstance(mask, list) or not mask:
        return None
    if len(mask) == 1 and isinstance(mask[0], int) and not isinstance(mask[0], bool) and mask[0] >= 0:
        return mask[0]
    return sum(1 for entry in mask if entry is True)


def _short(match: re.Match[bytes]) -> bytes:
    listed = match[0]
    return b"[%d]" % listed.count(b"true") if listed[1:2] in b"tf" else b"[]"


def hashed(data: bytes) -> bytes:
    """As `cut`, but each long string becomes a short hash, so that equal texts stay equal. For use in memory only."""
    return _TEXTS.sub(_hash, _NUMBERS.sub(b"[]", data))


def _hash(text: re.Match[bytes]) -> bytes:
    return b'"#' + hashlib.blake2b(text[0], digest_size=8).hexdigest().encode() + b'"'


# ---- copies
# Recognises step files that were copied: their modification times are of the copy, not of the run.

# With fewer files nothing is concluded: a run may write two files at once.
STEPS_LEAST = 4
# Seconds. No trainer makes steps faster on average; a copy writes the files of a step within milliseconds.
STEP_SECONDS = 0.05
NOTE = "files were copied: their times are not the run's"


def copied_until(times: Iterable[float]) -> float:
    """Modification time of the newest file that was copied, or -inf.

    Args:
        times: modification times (epoch s), one of each step. Later ones may be the run's own, if it continued.
    """
    ordered = sorted(times)
    for last in range(len(ordered), STEPS_LEAST - 1, -1):
        # The run may continue after a copy: find the longest beginning that was written at once.
        if ordered[last - 1] - ordered[0] < STEP_SECONDS * (last - 1):
            return ordered[last - 1]
    return -math.inf


# ---- shapes
# Reads JSON of any shape: a value of an unexpected type counts as absent, never as an error.

NOTHING: Mapping[str, Any] = {}


def mapping(value: Any, *path: str) -> Mapping[str, Any]:
    """The object at ``path`` under ``value``; empty if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else NOTHING


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, in order; other entries are left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """A whole number not below zero, such as a count, version or step; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value) if value == int(value) else None
