"""The journal of a `.wandb` file: LevelDB's log format behind a header of seven bytes (wandb 0.31.0).

The file has blocks of 32 KiB, counted from its first byte. A record is one chunk or several, none across a block's
end: ``crc32 of type and data (u32) | length (u16) | type (u8) | data``. wandb writes zlib's plain crc32. LevelDB's own
masked crc is accepted, too, because only a release note would announce a change.
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
        records: the offset of each in the file, and its payload.
        offset: where the next window begins.
        skipping: the rest of a skipped and counted record begins there.
        bad: (offset, error) of skipped records.
    """

    records: list[tuple[int, bytes]] = field(default_factory=list)
    offset: int = 0
    skipping: bool = False
    bad: list[tuple[int, str]] = field(default_factory=list)


def window_bytes(least: int, limit: int) -> int:
    """The bytes to read so that a record within the limit is complete."""
    return max(least, limit + _HEADER.size * (limit // (BLOCK_BYTES - _HEADER.size) + 2) + BLOCK_BYTES)


def split(data: bytes, offset: int, limit: int, *, skipping: bool = False) -> Records:
    """Splits a window that begins at ``offset`` of the file into records. An incomplete record waits.

    Args:
        limit: the longest record that is read.
        skipping: `Records.skipping` of the previous window.
    """
    return _Splitting(data, offset, limit, skipping).result()


class _Splitting:
    def __init__(self, data: bytes, offset: int, limit: int, skipping: bool) -> None:
        self.data, self.base, self.limit = data, offset, limit
        self.result_records = Records(skipping=skipping)
        self.at = 0
        # Chunks of the record that is being joined, and its offset.
        self.parts: list[bytes] = []
        self.start = 0

    def result(self) -> Records:
        while self._step():
            pass
        records = self.result_records
        records.offset = self.base + (self.start if self.parts else self.at)
        return records

    def _step(self) -> bool:
        """Reads one chunk, or the rest of a block; False if the rest has to wait."""
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
        # The type is the header's last byte, so it is contiguous with the data.
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
        """LevelDB's rule: reading continues at the next block. Without one, a partial write may still be completed."""
        at = self.at
        if not self._next_block(left):
            return False
        self.parts, self.result_records.skipping = [], True
        self._drop(at, "is damaged")
        return True

    def _chunk(self, kind: int, data: bytes) -> None:
        records = self.result_records
        if kind in (_FULL, _FIRST):
            if self.parts:
                self._drop(self.start, "has no end")
            self.parts, self.start, records.skipping = [], self.at, False
        elif not self.parts:
            if not records.skipping:
                self._drop(self.at, "has no beginning")
            records.skipping = kind == _MIDDLE
            return
        self.parts.append(data)
        if sum(map(len, self.parts)) > self.limit:
            self._drop(self.start, f"is longer than {self.limit} bytes")
            self.parts, records.skipping = [], kind in (_FIRST, _MIDDLE)
        elif kind in (_FULL, _LAST):
            records.records.append((self.base + self.start, b"".join(self.parts)))
            self.parts = []

    def _drop(self, at: int, why: str) -> None:
        self.result_records.bad.append((self.base + at, why))


def _checksums(chunk: bytes) -> tuple[int, int]:
    plain = zlib.crc32(chunk)
    return plain, ((plain >> 15 | plain << 17) + _MASK) & 0xFFFF_FFFF
