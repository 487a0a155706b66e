"""Reads what was appended to a growing file since the last call, as whole lines, for all file tails.

Polling only (inotify does not see a write on another host of a cluster file system). The cursor is
``{inode, offset, skipping, head, tail}`` (the last two are hashes). A smaller file, or other bytes at places already
read (copy-truncate, a log rewritten on resume), starts the file over and is reported: lines written after the last
read are lost. A renamed file (log rotation) is read to its end first, if it is still in the folder. Of several
rotations between two reads only the last is noticed. An incomplete line waits for the next call. A call reads at most
``limits.tail_bytes`` and one line.

Formats with records instead of lines (TensorBoard, wandb) use the lower part: `unchanged` and `appended`.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from collectors.model import Cursor, Limits, ScrapeError

# Bytes at the start that distinguish two logs (first rows have times), and at the end that detect a rewrite.
HEAD_BYTES = 256
TAIL_BYTES = 64
# Entries of a folder that is searched for a renamed file.
MAX_FOLDER_ENTRIES = 20_000

ROTATED = "rotated: the rest of the old file was not found"
REWRITTEN = "truncated or rewritten: lines written since the last read before it are lost"
UNFINISHED = "rotated: the old file's last line has no end"


@dataclass(slots=True)
class Lines:
    """Whole lines with the offset each begins at.

    Attributes:
        restarted: the file is not the cursor's: these lines begin at its start.
        dropped: lines longer than the limit (``why`` has the first one's offset); 1 for lines lost in a rotation.
    """

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    more: bool = False
    restarted: bool = False
    dropped: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Appended:
    """An open file and the offset where reading continues.

    Attributes:
        offset: the first unread byte; 0 if the file is not the cursor's (``restarted``).
    """

    file: BinaryIO
    status: os.stat_result
    offset: int
    restarted: bool

    def window(self, size: int, offset: int | None = None) -> bytes:
        """At most ``size`` bytes from ``offset`` on (default: from the first unread byte)."""
        self.file.seek(self.offset if offset is None else offset)
        return self.file.read(size)

    def cursor(self, offset: int, *, whole: bool) -> dict[str, Any]:
        """The cursor to continue at ``offset``; ``whole``: the file was read to its end, see `unchanged`."""
        position = {"inode": self.status.st_ino, "offset": offset, **_marks(self.file, offset)}
        return {**position, "seen": [self.status.st_size, self.status.st_mtime_ns]} if whole else position


def unchanged(status: os.stat_result, cursor: Cursor) -> bool:
    """Returns whether nothing was written since the file was read to its end: it need not be opened."""
    return cursor.get("inode") == status.st_ino and cursor.get("seen") == [status.st_size, status.st_mtime_ns]


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Files are read inside the block, or in the function that it decorates. ``what``: the subject of the message.

    Raises:
        ScrapeError: ``missing`` for an `OSError`, as of a folder that is closed, or was removed between two reads.
    """
    try:
        yield
    except OSError as error:
        raise ScrapeError("missing", f"{what} cannot be read: {type(error).__name__}") from None


@contextmanager
def appended(path: Path, cursor: Cursor) -> Iterator[Appended]:
    """Opens the file at the offset to continue at.

    Raises:
        ScrapeError: ``missing`` if the file is not there or cannot be read, also for errors inside the block.
    """
    with readable(path.name), open(path, "rb", opener=_opened) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ScrapeError("missing", f"{path.name} is not a regular file")
        # Compared by content, not by inode: rsync and mv replace a file by a grown copy.
        same = bool(cursor) and _is_continued(file, cursor, status.st_size)
        yield Appended(file, status, int(cursor["offset"]) if same else 0, bool(cursor) and not same)


def _opened(path: str, flags: int) -> int:
    """Opens without blocking: a pipe without a writer would block the reader."""
    return os.open(path, flags | os.O_NONBLOCK)


def read(path: Path, cursor: Cursor, limits: Limits) -> Lines:
    """Lines appended since ``cursor``; first those of a file renamed meanwhile, then those of the new one (``more``).

    Raises:
        ScrapeError: ``missing`` if the file is not there or cannot be read.
    """
    with appended(path, cursor) as new:
        # Any file looks like the continuation of an empty one.
        replaced = bool(cursor) and not new.offset and cursor.get("inode") != new.status.st_ino
        if not new.restarted and not replaced:
            return _read(new, cursor, limits)
        rest, lost = _rest(path, cursor, limits) if replaced else (None, REWRITTEN)
        if rest is not None:
            return rest
        lines = _read(new, cursor, limits)
        if lost and new.restarted:
            lines.dropped, lines.why = lines.dropped + 1, lost
        return lines


def near_end(path: Path, size: int) -> dict[str, Any]:
    """A cursor ``size`` bytes before the end; the line it falls into is skipped.

    Raises:
        ScrapeError: ``missing``, as `read`.
    """
    with appended(path, {}) as file:
        offset = max(0, file.status.st_size - size)
        return {**file.cursor(offset, whole=False), "skipping": offset > 0}


def _rest(path: Path, cursor: Cursor, limits: Limits) -> tuple[Lines | None, str]:
    """The unread lines of the renamed file, else a text about what is lost of it."""
    old = _renamed(path.parent, cursor.get("inode"))
    if old is None:
        return None, ROTATED
    try:
        with appended(old, cursor) as old_file:
            if old_file.restarted or old_file.status.st_ino != cursor.get("inode"):
                return None, ROTATED
            rest = _read(old_file, cursor, limits)
    except ScrapeError:
        return None, ROTATED
    if rest.cursor["offset"] != old_file.offset:
        rest.more = True
        return rest, ""
    return None, UNFINISHED if old_file.status.st_size > old_file.offset else ""


def _renamed(folder: Path, inode: object) -> Path | None:
    """The regular file with that inode; a rename within a folder keeps it."""
    with os.scandir(folder) as entries:
        # The listing has the inodes, so that only one file needs a stat call.
        same = (entry for entry in islice(entries, MAX_FOLDER_ENTRIES) if entry.inode() == inode)
        return next((folder / entry.name for entry in same if entry.is_file(follow_symlinks=False)), None)


def _read(new: Appended, cursor: Cursor, limits: Limits) -> Lines:
    lines = Lines(restarted=new.restarted)
    offset, size = new.offset, new.status.st_size
    skipping = bool(cursor.get("skipping")) and not new.restarted
    # One byte more than a line may have, so that a line that is too long is not taken for an incomplete one.
    window = new.window(max(limits.tail_bytes, limits.line_bytes + 1))
    used, skipping = _split(window, offset, skipping, limits, lines)
    offset += used
    lines.more = lines.more or offset + len(window) - used < size
    lines.cursor = {**new.cursor(offset, whole=False), "skipping": skipping}
    return lines


def _split(window: bytes, offset: int, skipping: bool, limits: Limits, lines: Lines) -> tuple[int, bool]:
    """Splits the window into lines; returns the bytes processed, and whether a line that is too long continues."""
    start = 0
    while (end := window.find(b"\n", start)) >= 0:
        if len(lines.lines) >= limits.tail_rows:
            lines.more = True
            return start, skipping
        line = window[start:end]
        if skipping:
            skipping = False
        elif len(line) > limits.line_bytes:
            _drop(lines, offset + start, limits)
        elif line.strip():
            lines.lines.append((offset + start, line))
        start = end + 1
    rest = len(window) - start
    # The rest has no line end yet. Within the limit it is read again as a whole; beyond the limit it is dropped.
    if skipping:
        return len(window), True
    if rest > limits.line_bytes:
        _drop(lines, offset + start, limits)
        return len(window), True
    return start, False


def _drop(lines: Lines, offset: int, limits: Limits) -> None:
    lines.dropped += 1
    lines.why = lines.why or f"the line at byte {offset} is longer than {limits.line_bytes} bytes"


def _is_continued(file: BinaryIO, cursor: Mapping[str, Any], size: int) -> bool:
    offset = int(cursor.get("offset", 0))
    return size >= offset and all(cursor.get(key) == value for key, value in _marks(file, offset).items())


def _marks(file: BinaryIO, offset: int) -> dict[str, str]:
    """Hashes of the first and last bytes already read."""
    file.seek(0)
    head = file.read(min(HEAD_BYTES, offset))
    file.seek(max(0, offset - TAIL_BYTES))
    tail = file.read(min(TAIL_BYTES, offset))
    # Hashes, not bytes: the cursor is stored and shown, and a log line may contain a secret.
    return {"head": _hash(head), "tail": _hash(tail)}


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
