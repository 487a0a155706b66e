"""Packs the samples of several series into one compressed body, and reads one of them back. Lossless, pure.

A body is JSON (the layout) and binary columns, compressed by zlib. Series that were sampled together share one column
of times. Times are second differences; values are differences of scaled integers where they are decimal numbers, else
the exclusive or of neighbours. Columns are stored byte plane by byte plane: small numbers are then planes of zeros.
"""

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from operator import sub, xor
from typing import Any

Samples = Sequence[tuple[int, float]]
"""(ts in ms, value), oldest first, each time once."""

VERSION = 1
LEVEL = 6
WORD = 8
# Scaled values must stay exact in a float and their differences in 64 bits.
MOST_EXACT = 1 << 52
DECIMALS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7)
_HEAD = struct.Struct("<BI")
_XOR = -1.0
"""Scale of a series that is stored as bits."""


def encode(series: Mapping[int, Samples]) -> bytes:
    """Returns the body of these series; each has at least one sample."""
    times: dict[tuple[int, ...], int] = {}
    layout, columns = [], list[bytes]()
    for number, samples in series.items():
        at, values = zip(*samples, strict=True)
        place = times.setdefault(at, len(times))
        scale, first, column = _values(values)
        layout.append((number, place, scale, first, len(column)))
        columns.append(column)
    clocks = [_times(at) for at in times]
    head = json.dumps({"times": [(at[0], len(at), len(column)) for at, column in zip(times, clocks, strict=True)],
                       "series": layout}, separators=(",", ":")).encode()  # fmt: skip
    body = _HEAD.pack(VERSION, len(head)) + head + b"".join(clocks) + b"".join(columns)
    return zlib.compress(body, LEVEL)


def decode(body: bytes, wanted: int | None = None) -> dict[int, list[tuple[int, float]]]:
    """Returns the samples of one series, or of all.

    Raises:
        ValueError: the body has another version.
    """
    plain = zlib.decompress(body)
    version, length = _HEAD.unpack_from(plain)
    if version != VERSION:
        raise ValueError(f"a chunk of version {version}; this Rollscope reads version {VERSION}")
    at = _HEAD.size + length
    layout: dict[str, Any] = json.loads(plain[_HEAD.size : at])
    clocks = []
    for first, count, size in layout["times"]:
        clocks.append((first, count, plain[at : at + size]))
        at += size
    read: dict[int, list[int]] = {}
    found = {}
    for number, place, scale, first, size in layout["series"]:
        if wanted is None or number == wanted:
            times = read.setdefault(place, []) or _read_times(*clocks[place])
            read[place] = times
            found[number] = list(zip(times, _read_values(plain[at : at + size], scale, first, len(times)), strict=True))
        at += size
    return found


# ---- times


def _times(at: Sequence[int]) -> bytes:
    steps = list(map(sub, at[1:], at))
    return _shuffled(array("q", _zigzag([*steps[:1], *map(sub, steps[1:], steps)])))


def _read_times(first: int, count: int, column: bytes) -> list[int]:
    found, step = [first], 0
    for change in _unzigzag(_unshuffled("q", column, count - 1)):
        step += change
        found.append(found[-1] + step)
    return found


# ---- values


def _values(values: Sequence[float]) -> tuple[float, str | int, bytes]:
    """Returns (scale, first, column). No column: all values are the first one."""
    bits = array("Q", array("d", values).tobytes())
    if len(set(bits)) == 1:
        return _XOR, str(bits[0]), b""
    scaled = _scaled(values)
    if scaled is not None:
        scale, whole = scaled
        return scale, whole[0], _shuffled(array("q", _zigzag(list(map(sub, whole[1:], whole)))))
    return _XOR, str(bits[0]), _shuffled(array("Q", map(xor, bits[1:], bits)))


def _scaled(values: Sequence[float]) -> tuple[float, list[int]] | None:
    """Returns (scale, integers) that give back exactly these values; None if no scale does."""
    for scale in DECIMALS:
        if not math.isfinite(values[0]) or round(values[0] * scale) / scale != values[0]:
            continue
        if not all(map(math.isfinite, values)) or max(map(abs, values)) * scale >= MOST_EXACT:
            return None
        whole = [round(value * scale) for value in values]
        if all(number / scale == value for number, value in zip(whole, values, strict=True)):
            # 0 has lost its sign.
            return None if any(value == 0.0 and math.copysign(1.0, value) < 0 for value in values) else (scale, whole)
    return None


def _read_values(column: bytes, scale: float, first: str | int, count: int) -> list[float]:
    if scale == _XOR:
        bits = [int(first)]
        for change in _unshuffled("Q", column, count - 1):
            bits.append(bits[-1] ^ change)
        return array("d", array("Q", bits).tobytes()).tolist()
    whole = [int(first)]
    for change in _unzigzag(_unshuffled("q", column, count - 1)):
        whole.append(whole[-1] + change)
    return [number / scale for number in whole]


# ---- columns


def _zigzag(numbers: Sequence[int]) -> list[int]:
    return [(number << 1) ^ (number >> 63) for number in numbers]


def _unzigzag(numbers: Sequence[int]) -> list[int]:
    return [(number >> 1) ^ -(number & 1) for number in numbers]


def _shuffled(column: "array[int]") -> bytes:
    """Returns the bytes of all words by their place in the word, without the planes of zeros at the end."""
    if sys.byteorder == "big":
        column.byteswap()
    data = column.tobytes()
    planes = [data[place::WORD] for place in range(WORD)]
    while planes and not any(planes[-1]):
        planes.pop()
    return bytes([len(planes)]) + b"".join(planes)


def _unshuffled(kind: str, data: bytes, count: int) -> list[int]:
    planes = data[0] if data else 0
    words = bytearray(count * WORD)
    for place in range(planes):
        words[place::WORD] = data[1 + place * count : 1 + (place + 1) * count]
    column = array(kind, bytes(words))
    if sys.byteorder == "big":
        column.byteswap()
    return column.tolist()
