"""The journal of a `.wandb` file: LevelDB's log format behind a header of seven bytes (wandb 0.31.0).

The file is cut into blocks of 32 KiB, counted from its first byte. A record is one chunk or several, none over a
block's end: ``crc32 of type and data (u32) | length (u16) | type (u8) | data``. wandb writes zlib's plain crc32;
LevelDB's own masked crc is taken too, for nothing but a release note would tell of a change.
"""

import struct
import zlib
from dataclasses import dataclass, field

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK_BYTES = 32 << 10

_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK = 0xA282EAD8


@dataclass(slots=True)
class Records:
    """Whole records of a window.

    Attributes:
        records: the offset in the file where each begins, and its payload.
        offset: where to go on.
        skipping: there the rest of a record begins that was given up, and counted.
        bad: (offset, what is wrong) of what was given up.
    """

    records: list[tuple[int, bytes]] = field(default_factory=list)
    offset: int = 0
    skipping: bool = False
    bad: list[tuple[int, str]] = field(default_factory=list)


def window_bytes(least: int, limit: int) -> int:
    """How much to read so that a record within the limit is there whole."""
    return max(least, limit + _HEADER.size * (limit // (BLOCK_BYTES - _HEADER.size) + 2) + BLOCK_BYTES)


def split(data: bytes, offset: int, limit: int, *, skipping: bool = False) -> Records:
    """Cut a window that begins at ``offset`` of the file into records. What has no end yet waits.

    Args:
        limit: the longest record that is read.
        skipping: as the window before said.
    """
    return _Splitting(data, offset, limit, skipping).result()


class _Splitting:
    def __init__(self, data: bytes, offset: int, limit: int, skipping: bool) -> None:
        self.data, self.base, self.limit = data, offset, limit
        self.found = Records(skipping=skipping)
        self.at = 0
        # Chunks of the record that is being put together, and where it begins.
        self.parts: list[bytes] = []
        self.start = 0

    def result(self) -> Records:
        while self._step():
            pass
        found = self.found
        found.offset = self.base + (self.start if self.parts else self.at)
        return found

    def _step(self) -> bool:
        """One chunk, or the rest of a block; False when what is left has to wait."""
        left = BLOCK_BYTES - (self.base + self.at) % BLOCK_BYTES
        if left < _HEADER.size:
            return self._next_block(left)
        if self.at + _HEADER.size > len(self.data):
            return False
        crc, length, kind = _HEADER.unpack_from(self.data, self.at)
        end = self.at + _HEADER.size + length
        if not _FULL <= kind <= _LAST or _HEADER.size + length > left:
            return self._damaged(left)
        if end > len(self.data):
            return False
        # The type is the header's last byte, so it and the data lie together.
        if crc not in _checksums(self.data[self.at + _HEADER.size - 1 : end]):
            return self._damaged(left)
        self._chunk(kind, self.data[self.at + _HEADER.size : end])
        self.at = end
        return True

    def _next_block(self, left: int) -> bool:
        if self.at + left > len(self.data):
            return False
        self.at += left
        return True

    def _damaged(self, left: int) -> bool:
        """LevelDB's rule: the next block is sound again. Until there is one, a torn write may still be completed."""
        at = self.at
        if not self._next_block(left):
            return False
        self.parts, self.found.skipping = [], True
        self._drop(at, "is damaged")
        return True

    def _chunk(self, kind: int, data: bytes) -> None:
        found = self.found
        if kind in (_FULL, _FIRST):
            if self.parts:
                self._drop(self.start, "has no end")
            self.parts, self.start, found.skipping = [], self.at, False
        elif not self.parts:
            if not found.skipping:
                self._drop(self.at, "has no beginning")
            found.skipping = kind == _MIDDLE
            return
        self.parts.append(data)
        if sum(map(len, self.parts)) > self.limit:
            self._drop(self.start, f"is longer than {self.limit} bytes")
            self.parts, found.skipping = [], kind in (_FIRST, _MIDDLE)
        elif kind in (_FULL, _LAST):
            found.records.append((self.base + self.start, b"".join(self.parts)))
            self.parts = []

    def _drop(self, at: int, why: str) -> None:
        self.found.bad.append((self.base + at, why))


def _checksums(chunk: bytes) -> tuple[int, int]:
    plain = zlib.crc32(chunk)
    return plain, ((plain >> 15 | plain << 17) + _MASK) & 0xFFFF_FFFF
