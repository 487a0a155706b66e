"""Reads the new files of a folder in which a trainer writes one whole file per step, for any number of files.

A file is read when it has not changed for a few seconds. Then it is complete, its groups can be counted and its time is
final. A file that is written again (by a resumed run) is read again from its start. Its rows have no times, so they get
the file's.

The cursor is ``{files: {name: {at: [size, mtime], place}}, step, mtime, memory, copied}``: the newest files one by one,
older ones as a step and a time, which show changed files. ``copied``: see `collectors.formats.copies`.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.formats import copies
from collectors.model import Cursor, Limits, Purpose, Reading, Rollout, ScrapeError

# A trainer's dump is written at once; the dump of a background thread may pause between two blocks.
QUIET_SECONDS = 3.0
# A file time further in the future comes from another host's clock; the reader does not wait for it.
SKEW_SECONDS = 60.0
# Files in the cursor one by one; for older files a step and a time show changes.
REMEMBERED = 16
MAX_LISTED = 200_000

Position = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepFile:
    """One file; ``name``: its path relative to the given path."""

    step: int
    path: Path
    name: str
    purpose: Purpose = "train"


@dataclass(slots=True)
class FilePart:
    """The result of reading a part of one file.

    Attributes:
        rows, taken: rows and bytes read, for the limits.
        place: where to continue.
        done: the file was read to its end.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    rows: int = 0
    bytes_read: int = 0
    position: Position = field(default_factory=dict)
    done: bool = True
    dropped: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The input of a reader: the file, the position reached in it, its time, and the limits that remain.

    ``memory``: the reader's own, passed from file to file. ``first``: nothing was read in this call yet, so the next
    call has no more room than this one.
    """

    file: StepFile
    position: Mapping[str, Any]
    at: float
    rows: int
    bytes_read: int
    memory: dict[str, Any]
    first: bool = True


def listed(
    folder: Path, pattern: re.Pattern[str], purpose: Purpose = "train", root: Path | None = None
) -> list[StepFile]:
    """Files of a folder whose whole name matches; group 1 is the step. Ascending; empty if there is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [(int(match[1]), entry.name) for entry in islice(entries, MAX_LISTED)
                     if (match := pattern.fullmatch(entry.name))]  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        return []
    prefix = "" if root is None or root == folder else f"{folder.relative_to(root).as_posix()}/"
    return [StepFile(step, folder / name, prefix + name, purpose) for step, name in sorted(names)]


def follow(
    files: Iterable[StepFile], cursor: Cursor, limits: Limits, now: float, read: Callable[[ReadRequest], FilePart], *,
    appended: bool = False,
) -> Reading:  # fmt: skip
    """Reads the new contents of the files, oldest step first.

    Args:
        read: reads a part of one file; its `ScrapeError` drops the file with a reason.
        appended: files grow, and reading continues where it stopped.
    """
    files = list(files)
    read_files = ReadFiles(cursor, appended)
    read_files.detect_copies(files)
    rollouts: list[Rollout] = []
    rows, bytes_read, dropped, why, more = 0, 0, 0, "", False
    for file, status in _fresh(files, read_files, now):
        more = rows >= limits.tail_rows or bytes_read >= limits.tail_bytes
        if more:
            break
        at = min(status.st_mtime, now)
        position, room = read_files.position(file, status), (limits.tail_rows - rows, limits.tail_bytes - bytes_read)
        request = ReadRequest(file, position, at, *room, read_files.memory, first=not rows)
        part = _part(read, request)
        read_files.record_read(file, status, part)
        rollouts += part.rollouts
        rows, bytes_read, dropped, why = (
            rows + part.rows,
            bytes_read + part.bytes_read,
            dropped + part.dropped,
            why or part.why,
        )
        more = not part.done
        if more:
            break
    return Reading(
        rollouts=tuple(rollouts),
        cursor=read_files.cursor(),
        more=more,
        dropped=dropped,
        why_dropped=why,
        samples_scraped=rows,
        **read_files.copy_facts(files),
    )


def _part(read: Callable[[ReadRequest], FilePart], request: ReadRequest) -> FilePart:
    try:
        return read(request)
    except ScrapeError as error:
        return FilePart(dropped=1, why=str(error))
    except OSError as error:
        return FilePart(dropped=1, why=f"{request.file.path.name} cannot be read: {type(error).__name__}")


def _fresh(files: Iterable[StepFile], read_files: "ReadFiles", now: float) -> Iterator[tuple[StepFile, os.stat_result]]:
    for file in sorted(files, key=lambda entry: (entry.step, entry.name)):
        try:
            status = file.path.stat()
        except OSError:
            continue  # removed between the listing and this read
        age = now - status.st_mtime
        if not read_files.is_read(file, status) and not -SKEW_SECONDS < age < QUIET_SECONDS:
            yield file, status


class ReadFiles:
    """The files that were read, and how far."""

    def __init__(self, cursor: Cursor, appended: bool) -> None:
        self._files: dict[str, dict[str, Any]] = dict(cursor.get("files", {}))
        self._step, self._mtime = int(cursor.get("step", -1)), int(cursor.get("mtime", -1))
        self._appended = appended
        self.memory: dict[str, Any] = dict(cursor.get("memory", {}))
        self._copied: float | None = cursor.get("copied")

    def detect_copies(self, files: Sequence[StepFile]) -> None:
        """Decides once, as soon as there are enough files, whether the existing ones were copied."""
        if self._copied is None and len({file.step for file in files}) >= copies.STEPS_LEAST:
            self._copied = max(0.0, copies.copied_until(_times(files).values()))

    def copy_facts(self, files: Sequence[StepFile]) -> dict[str, Any]:
        """Facts about copies: rates need times, and those of copied files are not the run's."""
        if not self._copied:
            return {}
        newest = max(files, key=lambda file: file.step)
        copied = max(_times([newest]).values(), default=0.0) <= self._copied
        return {"facts": {"times_copied": float(copied)}, "gaps": (f"{copies.NOTE}; step times are unknown",) * copied}

    def is_read(self, file: StepFile, status: os.stat_result) -> bool:
        entry = self._files.get(file.name)
        if entry is None:
            return file.step <= self._step and status.st_mtime_ns <= self._mtime
        return bool(entry["done"]) and entry["at"] == _mark(status)

    def position(self, file: StepFile, status: os.stat_result) -> Mapping[str, Any]:
        entry = self._files.get(file.name)
        if entry is None:
            return {}
        grown = self._appended and status.st_size >= entry["at"][0]
        return entry["place"] if grown or entry["at"] == _mark(status) else {}

    def record_read(self, file: StepFile, status: os.stat_result, part: FilePart) -> None:
        self._files[file.name] = {
            "step": file.step, "at": _mark(status), "done": part.done,
            "place": part.position if self._appended or not part.done else {},
        }  # fmt: skip

    def cursor(self) -> dict[str, Any]:
        closed = [name for name, entry in self._files.items() if entry["done"]]
        for name in sorted(closed, key=lambda entry: self._files[entry]["step"])[:-REMEMBERED]:
            dropped = self._files.pop(name)
            self._step, self._mtime = max(self._step, dropped["step"]), max(self._mtime, dropped["at"][1])
        return {"files": self._files, "step": self._step, "mtime": self._mtime, "memory": self.memory} | (
            {} if self._copied is None else {"copied": self._copied}
        )


def _times(files: Sequence[StepFile]) -> dict[int, float]:
    """Step -> modification time of its newest file."""
    newest_times: dict[int, float] = {}
    for file in files:
        with suppress(OSError):
            newest_times[file.step] = max(newest_times.get(file.step, 0.0), file.path.stat().st_mtime)
    return newest_times


def _mark(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns]
