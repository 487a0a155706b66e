"""What was appended to a growing file since last time, as whole lines: the part all file tails share.

Polling only (inotify does not see a write on another host of a cluster file system). The cursor is
``{inode, offset, skipping, head, tail}`` (the last two are hashes): a shrunk file, or other bytes where
we have read (copy-truncate, a log rewritten on resume) starts the file over, and says so: what it held after the last
look is lost. A file renamed to make room for a new one is finished first, where it is still beside it; one of several
rotated away between two looks is not noticed. A line without its end waits for the next call. Reads at most
``limits.tail_bytes`` and one line per call.

Files of records instead of lines (TensorBoard, wandb) share the part below the lines: `unchanged` and `appended`.
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

# Enough of the start to tell two logs apart (their first rows carry times), enough of the end to notice a rewrite.
HEAD_BYTES = 256
TAIL_BYTES = 64
# Of a folder looked through for a renamed file.
MAX_BESIDE = 20_000

ROTATED = "rotated: the rest of the old file was not found"
REWRITTEN = "truncated or rewritten: what was written after the last look and before that is lost"
UNFINISHED = "rotated: the old file's last line has no end"


@dataclass(slots=True)
class Lines:
    """Whole lines with the offset each begins at.

    Attributes:
        restarted: the file is not the one the cursor was about: these lines begin at its start.
        dropped: lines longer than the limit (``why`` says the first one's offset), or 1 for what a rotation took away.
    """

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    more: bool = False
    restarted: bool = False
    dropped: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Appended:
    """An open file and where reading goes on in it.

    Attributes:
        offset: the first byte not read yet; 0 when the file is not the one the cursor was about (``restarted``).
    """

    file: BinaryIO
    status: os.stat_result
    offset: int
    restarted: bool

    def window(self, size: int, offset: int | None = None) -> bytes:
        """At most so many bytes from ``offset`` on (else from where reading goes on)."""
        self.file.seek(self.offset if offset is None else offset)
        return self.file.read(size)

    def cursor(self, offset: int, *, whole: bool) -> dict[str, Any]:
        """The cursor to go on at ``offset``; ``whole``: all there was has been looked at, see `unchanged`."""
        found = {"inode": self.status.st_ino, "offset": offset, **_marks(self.file, offset)}
        return {**found, "seen": [self.status.st_size, self.status.st_mtime_ns]} if whole else found


def unchanged(status: os.stat_result, cursor: Cursor) -> bool:
    """Nothing was written since all there was had been looked at: the file need not be opened."""
    return cursor.get("inode") == status.st_ino and cursor.get("seen") == [status.st_size, status.st_mtime_ns]


@contextmanager
def appended(path: Path, cursor: Cursor) -> Iterator[Appended]:
    """The file, open, with the place to go on at.

    Raises:
        ScrapeError: ``missing`` when the file is not there or may not be read, also for what the block meets.
    """
    try:
        with open(path, "rb", opener=_opened) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ScrapeError("missing", f"{path.name} is no regular file")
            # By what was read, not by its inode: rsync and mv put a grown copy in its place.
            same = bool(cursor) and _is_continued(file, cursor, status.st_size)
            yield Appended(file, status, int(cursor["offset"]) if same else 0, bool(cursor) and not same)
    except OSError as error:
        raise ScrapeError("missing", f"{path.name} cannot be read: {type(error).__name__}") from None


def _opened(path: str, flags: int) -> int:
    """A pipe without a writer must not hold the reader."""
    return os.open(path, flags | os.O_NONBLOCK)


def read(path: Path, cursor: Cursor, limits: Limits) -> Lines:
    """Lines appended since ``cursor``; those of a file renamed meanwhile before those of the new one (``more``).

    Raises:
        ScrapeError: ``missing`` when the file is not there or may not be read.
    """
    with appended(path, cursor) as new:
        # Of an empty file any other looks like the continuation.
        replaced = bool(cursor) and not new.offset and cursor.get("inode") != new.status.st_ino
        if not new.restarted and not replaced:
            return _read(new, cursor, limits)
        rest, lost = _rest(path, cursor, limits) if replaced else (None, REWRITTEN)
        if rest is not None:
            return rest
        found = _read(new, cursor, limits)
        if lost and new.restarted:
            found.dropped, found.why = found.dropped + 1, lost
        return found


def near_end(path: Path, size: int) -> dict[str, Any]:
    """A cursor ``size`` bytes before the end; the line it falls into is skipped.

    Raises:
        ScrapeError: ``missing``, as `read`.
    """
    with appended(path, {}) as file:
        offset = max(0, file.status.st_size - size)
        return {**file.cursor(offset, whole=False), "skipping": offset > 0}


def _rest(path: Path, cursor: Cursor, limits: Limits) -> tuple[Lines | None, str]:
    """What the file that was renamed still holds, else what is lost of it, in words."""
    old = _renamed(path.parent, cursor.get("inode"))
    if old is None:
        return None, ROTATED
    try:
        with appended(old, cursor) as was:
            if was.restarted or was.status.st_ino != cursor.get("inode"):
                return None, ROTATED
            rest = _read(was, cursor, limits)
    except ScrapeError:
        return None, ROTATED
    if rest.cursor["offset"] != was.offset:
        rest.more = True
        return rest, ""
    return None, UNFINISHED if was.status.st_size > was.offset else ""


def _renamed(folder: Path, inode: object) -> Path | None:
    """The regular file of that inode; a rename within a folder keeps it."""
    with os.scandir(folder) as found:
        # The listing tells inodes, so that nothing but the one file is asked for more.
        same = (entry for entry in islice(found, MAX_BESIDE) if entry.inode() == inode)
        return next((folder / entry.name for entry in same if entry.is_file(follow_symlinks=False)), None)


def _read(new: Appended, cursor: Cursor, limits: Limits) -> Lines:
    found = Lines(restarted=new.restarted)
    offset, size = new.offset, new.status.st_size
    skipping = bool(cursor.get("skipping")) and not new.restarted
    # One byte more than a line may have, so that a line too long is seen as such and not as unfinished.
    window = new.window(max(limits.tail_bytes, limits.line_bytes + 1))
    used, skipping = _split(window, offset, skipping, limits, found)
    offset += used
    found.more = found.more or offset + len(window) - used < size
    found.cursor = {**new.cursor(offset, whole=False), "skipping": skipping}
    return found


def _split(window: bytes, offset: int, skipping: bool, limits: Limits, found: Lines) -> tuple[int, bool]:
    """Cut the window into lines; how many bytes are done with, and whether a line too long goes on behind them."""
    start = 0
    while (end := window.find(b"\n", start)) >= 0:
        if len(found.lines) >= limits.tail_rows:
            found.more = True
            return start, skipping
        line = window[start:end]
        if skipping:
            skipping = False
        elif len(line) > limits.line_bytes:
            _drop(found, offset + start, limits)
        elif line.strip():
            found.lines.append((offset + start, line))
        start = end + 1
    rest = len(window) - start
    # What is left has no end yet. Within the limit it waits to be read again whole; beyond, it is never kept.
    if skipping:
        return len(window), True
    if rest > limits.line_bytes:
        _drop(found, offset + start, limits)
        return len(window), True
    return start, False


def _drop(found: Lines, offset: int, limits: Limits) -> None:
    found.dropped += 1
    found.why = found.why or f"the line at byte {offset} is longer than {limits.line_bytes} bytes"


def _is_continued(file: BinaryIO, cursor: Mapping[str, Any], size: int) -> bool:
    offset = int(cursor.get("offset", 0))
    return size >= offset and all(cursor.get(key) == value for key, value in _marks(file, offset).items())


def _marks(file: BinaryIO, offset: int) -> dict[str, str]:
    """Hashes of the first and last bytes already read."""
    file.seek(0)
    head = file.read(min(HEAD_BYTES, offset))
    file.seek(max(0, offset - TAIL_BYTES))
    tail = file.read(min(TAIL_BYTES, offset))
    # Hashes, not bytes: the cursor is stored and shown, and a log line may hold a secret.
    return {"head": _hash(head), "tail": _hash(tail)}


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
