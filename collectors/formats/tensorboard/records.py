"""The TFRecord framing of TensorBoard's event files (tensorboard 2.21.0, tensorboardX 2.6.5).

A record is ``length (u64) | masked crc32c of the length (u32) | payload | masked crc32c of the payload (u32)``.
"""

import re
import struct
from array import array
from dataclasses import dataclass, field
from functools import lru_cache

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
_AROUND = HEADER_BYTES + _FOOTER.size
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # crc32c, Castagnoli, reflected

# Possible beginnings of a record behind damaged bytes: a length below 4 GiB that is no multiple of 64 KiB.
_START = re.compile(rb"(?=(?:[^\0].|\0[^\0])..\0{4})", re.DOTALL)


@dataclass(slots=True)
class Frames:
    """Records of a window.

    Attributes:
        records: the offset of each in the window, its payload and its stored checksum.
        used: bytes processed; beyond the window when a long record is skipped.
        needs: bytes of the incomplete record at ``used``, if its header is there.
        bad: (offset, error) of skipped bytes.
        lost: the window ends within damaged bytes that are already counted.
    """

    records: list[tuple[int, bytes, int]] = field(default_factory=list)
    used: int = 0
    needs: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)
    lost: bool = False


def split(data: bytes, left: int, limit: int, *, lost: bool = False) -> Frames:
    """Splits a window into records. An incomplete record waits; behind damaged bytes the next valid header continues.

    Args:
        left: bytes of the file from the window's start on.
        limit: the longest payload that is read.
        lost: `Frames.lost` of the previous window.
    """
    frames, position = Frames(), 0
    while position + HEADER_BYTES <= len(data):
        length, crc = _HEADER.unpack_from(data, position)
        if crc != _length_crc(length):
            if len(data) >= left and not any(data[position:]):
                break  # a hole at the end, which a network file system has not filled yet
            if not lost:
                frames.bad.append((position, "is not a record"))
            position, lost = _resync(data, position + 1, limit)
            continue
        lost = False
        end = position + length + _AROUND
        if length > limit and end <= left:
            frames.bad.append((position, f"is longer than {limit} bytes"))
        elif end > len(data):
            frames.needs = end - position
            break
        else:
            payload = data[position + HEADER_BYTES : end - _FOOTER.size]
            frames.records.append((position, payload, _FOOTER.unpack_from(data, end - _FOOTER.size)[0]))
        position = end
    frames.used, frames.lost = position, lost
    return frames


def _resync(data: bytes, start: int, limit: int) -> tuple[int, bool]:
    """The offset of the next valid header and False; without one, the next possible offset and True."""
    for match in _START.finditer(data, start, max(start, len(data) - 4)):
        position = match.start()
        if position + HEADER_BYTES > len(data):
            break
        length, crc = _HEADER.unpack_from(data, position)
        if length <= limit and crc == _length_crc(length):
            return position, False
    return max(start, len(data) - HEADER_BYTES + 1), True


@lru_cache(maxsize=4096)
def _length_crc(length: int) -> int:
    return masked_crc(struct.pack("<Q", length))


def masked_crc(data: bytes) -> int:
    """crc32c (RFC 3720), rotated and shifted as TFRecord has it. Python's library only has crc32."""
    table, crc = _table(), 0xFFFF_FFFF
    even = len(data) & ~1
    # Two bytes a step, because the loop takes most of the time.
    for pair in struct.unpack(f"<{even // 2}H", data[:even]):
        crc = table[(crc ^ pair) & 0xFFFF] ^ (crc >> 16)
    if even < len(data):
        crc = _shifted(crc & 0xFF ^ data[-1]) ^ (crc >> 8)
    crc ^= 0xFFFF_FFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFF_FFFF


@lru_cache(maxsize=1)
def _table() -> "array[int]":
    low = [_shifted(byte) for byte in range(256)]
    # The low byte of a pair is shifted out first; the rest is combined with the high byte.
    halves = ((low[pair & 0xFF], pair >> 8) for pair in range(1 << 16))
    return array("I", (low[(first ^ high) & 0xFF] ^ (first >> 8) for first, high in halves))


def _shifted(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte
