"""Reads files of JSON lines with one rollout per row and the rows of a group in sequence; texts and tokens are skipped.

A group's size is the number of its rows, so a group that exceeds the limits of a call waits for the next call.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import structs

from collectors.formats import jsonl, parquet
from collectors.formats import rows as rows_format
from collectors.formats.rows import whole
from collectors.model import Cursor, Limits, Purpose, Reading, Rollout, ScrapeError
from collectors.transport import bytetail

# ---- step files
# Reads the new files of a folder in which a trainer writes one whole file per step, for any number of files.

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
        if self._copied is None and len({file.step for file in files}) >= rows_format.STEPS_LEAST:
            self._copied = max(0.0, rows_format.copied_until(_times(files).values()))

    def copy_facts(self, files: Sequence[StepFile]) -> dict[str, Any]:
        """Facts about copies: rates need times, and those of copied files are not the run's."""
        if not self._copied:
            return {}
        newest = max(files, key=lambda file: file.step)
        copied = max(_times([newest]).values(), default=0.0) <= self._copied
        return {
            "facts": {"times_copied": float(copied)},
            "gaps": (f"{rows_format.NOTE}; step times are unknown",) * copied,
        }

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


# Bytes. A row of 200,000 tokens with log-probabilities and conversation has about 6 MB; long rows matter most.
LINE_BYTES = 32 << 20
SKIP_BYTES = 1 << 20
HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class RowLine:
    """One row. ``index``: its number in the file; ``raw``: its bytes; ``at``: its time in epoch seconds."""

    index: int
    row: Mapping[str, Any]
    raw: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Numbered:
    """A rollout with the number of its row and the byte it begins at."""

    index: int
    start: int
    rollout: Rollout


def lines(
    request: ReadRequest, to_rollout: Callable[[RowLine], Rollout | None], row_name: str, *, appended: bool = False
) -> FilePart:
    """The rollouts on the lines of a file, in whole groups as far as the limits allow.

    Args:
        make: a row -> its rollout; None for a row of another kind.
        what: the name of a row, for the reason of a dropped one.
        appended: the file grows: an incomplete line waits, and older rows get earlier times than the newest.
    """
    part, numbered, bad, waiting = FilePart(), list[Numbered](), list[int](), False
    with request.file.path.open("rb") as file:
        span = _span(request, file, appended)
        for index, start, raw in _raw(file, request, span):
            waiting = appended and raw is not None and not raw.endswith(b"\n")
            if waiting:
                file.seek(start)
                break
            part.rows, part.bytes_read = part.rows + 1, file.tell() - span.start
            row = jsonl.parse(rows_format.cut(raw)) if raw is not None else None
            rollout = to_rollout(RowLine(index, row, raw or b"", span.at(file.tell()))) if row is not None else None
            if rollout is not None:
                numbered.append(Numbered(index, start, rollout))
            elif raw is None or raw.strip():
                bad.append(start)
        stop = Numbered(span.index + part.rows, file.tell(), Rollout(""))
        part.done = waiting or stop.start >= span.size
        part.rollouts, stop = whole_groups(
            numbered, stop, request.position.get("cut", ""), done=part.done, first=request.first
        )
        part.dropped = sum(start < stop.start for start in bad)
        part.why = f"the line at byte {bad[0]} of {request.file.path.name} is not a {row_name}" if part.dropped else ""
        part.position = {
            "offset": stop.start,
            "row": stop.index,
            "cut": stop.rollout.group_id,
            "head": _head(file, stop.start),
        }
        if appended:
            part.position["since"] = request.memory["since"] = span.at(stop.start)
    return part


def whole_groups(
    numbered: Sequence[Numbered], stop: Numbered, cut: str, *, done: bool, first: bool
) -> tuple[list[Rollout], Numbered]:
    """Adds the groups' sizes to the rollouts; returns where to continue: before the last group while it may grow.

    A group that exceeds the limits of any call, even as the ``first`` of a call, has no size: ``cut`` began in the
    previous call, and ``stop`` is the one that continues. Rows with a stated size or completion time are not counted.
    """
    groups = [list(group) for _, group in groupby(numbered, key=lambda item: item.rollout.group_id)]
    sizes = [len(group) if _is_counted(group[0].rollout, cut) else None for group in groups]
    if groups and not done:
        last = groups[-1][0]
        if len(groups) > 1 or not (first or last.rollout.group_id == cut):
            stop = replace(last, rollout=Rollout(""))
            groups.pop()
        else:
            sizes, stop = [None], replace(stop, rollout=last.rollout)
    sized = [(item, size) for group, size in zip(groups, sizes, strict=False) for item in group]
    return [structs.replace(item.rollout, group_size=size) if size else item.rollout for item, size in sized], stop


def _is_counted(first: Rollout, cut: str) -> bool:
    return first.group_id not in ("", cut) and first.group_size is None and first.group_complete_at is None


@dataclass(frozen=True, slots=True)
class _Span:
    """The new part of a file: first and last row and byte, and the times between which it was written."""

    index: int
    start: int
    size: int
    since: float
    until: float

    def at(self, offset: int) -> float:
        """When the byte before ``offset`` was written, if the file grew evenly."""
        share = (offset - self.start) / (self.size - self.start) if self.size > self.start else 1.0
        return self.since + (self.until - self.since) * share


def _span(request: ReadRequest, file: BinaryIO, appended: bool) -> _Span:
    size = file.seek(0, 2)
    start, index = int(request.position.get("offset", 0)), int(request.position.get("row", 0))
    if start > size or (start and request.position.get("head") != _head(file, start)):
        start, index = 0, 0
    since = request.position.get("since") if start else request.memory.get("since")
    since = min(float(since), request.at) if appended and since is not None else request.at
    file.seek(start)
    return _Span(index, start, size, since, request.at)


def _raw(file: BinaryIO, request: ReadRequest, span: _Span) -> Iterator[tuple[int, int, bytes | None]]:
    """Number, first byte and bytes of each line within the limits; None for one that is too long."""
    index = span.index
    while index - span.index < request.rows and file.tell() - span.start < request.bytes_read:
        start = file.tell()
        raw = file.readline(LINE_BYTES)
        if not raw:
            return
        whole = raw.endswith(b"\n") or len(raw) < LINE_BYTES
        if not whole:
            while not file.readline(SKIP_BYTES).endswith(b"\n") and file.tell() < span.size:
                pass
        yield index, start, raw if whole else None
        index += 1


def _head(file: BinaryIO, offset: int) -> str:
    """A hash of the first bytes read; another file begins differently."""
    file.seek(0)
    return hashlib.blake2b(file.read(min(HEAD_BYTES, offset)), digest_size=8).hexdigest()


def list_length(raw: bytes, key: bytes) -> int | None:
    """The count of numbers in the flat list under a key; None if there is no list. The first one of the row counts."""
    match = _list(key).search(raw)
    if match is None:
        return None
    return match[1].count(b",") + 1 if match[1].strip() else 0


def mask_ones(raw: bytes, key: bytes) -> int | None:
    """The count of ones in a mask (``1``, ``1.0`` or ``true``)."""
    match = _list(key).search(raw)
    return match[1].count(b"1") + match[1].count(b"true") if match is not None else None


def list_items(raw: bytes, key: bytes) -> bytes | None:
    """The list's bytes without its brackets."""
    match = _list(key).search(raw)
    return match[1] if match is not None else None


@cache
def _list(key: bytes) -> re.Pattern[bytes]:
    # NeMo-RL writes a batch of one: a list in a list.
    return re.compile(rb'"' + re.escape(key) + rb'": ?\[\s?\[?([-+0-9.eE,\struefalsnNI]*+)\]')


# ---- verbs
# Verbs shared by the collectors of step files, and conversions of numbers in rows.

VERB_HEAD_BYTES = 512

Tail = Callable[[Path, Cursor, Limits, float], Reading]


def tail_of(
    find: Callable[[Path], list[StepFile]], read: Callable[[ReadRequest], FilePart], looked_for: str,
    path: Path, cursor: Cursor, limits: Limits, now: float, *, appended: bool = False,
) -> Reading:  # fmt: skip
    """New rollouts in the files that ``find`` lists.

    Raises:
        ScrapeError: ``not_a_run`` if there are none and never were, ``missing`` if the path cannot be read.
    """
    with bytetail.readable(path.name[:100]):
        files = find(path)
        if not files and not cursor:
            path.stat()
            raise ScrapeError("not_a_run", f"no rollouts in {path.name}: looked for {looked_for}")
        return follow(files, cursor, limits, now, read, appended=appended)


def verbs_of(
    find: Callable[[Path], list[StepFile]], read: Callable[[ReadRequest], FilePart], looked_for: str, reason: str, *,
    appended: bool = False,
) -> tuple[Tail, Callable[[Path], str | None]]:  # fmt: skip
    """`tail` and `matches_path` of a format that is nothing but files of steps. ``said``: the reason, {} its file."""

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        return tail_of(find, read, looked_for, path, cursor, limits, now, appended=appended)

    def matches_path(path: Path) -> str | None:
        first_file = first_of(find, path)
        return reason.format(first_file.name) if first_file is not None else None

    return tail, matches_path


def with_parquet(find: Callable[[Path], list[StepFile]]) -> Callable[[Path], list[StepFile]]:
    """The same, with an error (``missing``) if there are files but pyarrow is not installed."""

    def find_checked(path: Path) -> list[StepFile]:
        files = find(path)
        if files and not parquet.installed():
            raise ScrapeError("missing", parquet.INSTALL)
        return files

    return find_checked


def first_of(find: Callable[[Path], list[StepFile]], path: Path) -> StepFile | None:
    """The first file, for `matches_path`."""
    try:
        return next(iter(find(path)), None)
    except OSError:
        return None


def begins(path: Path, head: re.Pattern[bytes]) -> bool:
    """Returns whether the file begins like this; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return head.match(file.read(VERB_HEAD_BYTES)) is not None
    except OSError:
        return False


def count(values: Iterable[object]) -> int | None:
    """The sum; None if a value is absent."""
    counts = [whole(value) for value in values]
    valid_counts = [value for value in counts if value is not None]
    return sum(valid_counts) if len(valid_counts) == len(counts) and counts else None
