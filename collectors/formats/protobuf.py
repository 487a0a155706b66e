"""Protobuf's wire format (proto2 and proto3), as far as wandb's records need it: fields of a message, level by level.

wandb's records are read without their schema, because it comes with a package of hundreds of megabytes. Groups
(deprecated, not used by wandb) are refused.
"""

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# 64 bits in groups of seven.
MAX_VARINT_BYTES = 10

Field = tuple[int, int, int, bytes]
"""(number, wire type, value of a varint, bytes of any other type); the value that does not apply is 0 or b""."""

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


def fields(data: bytes) -> Iterator[Field]:
    """The fields of a message in written order; a repeated field comes several times.

    Raises:
        ValueError: not a message: an unknown wire type, a length or number beyond the end, field number 0.
    """
    position, end = 0, len(data)
    while position < end:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = varint(data, position - 1)
            if tag >> 32:
                raise ValueError("a field number of more than 29 bits")
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field number 0")
        if kind == VARINT:
            value, position = varint(data, position)
            yield number, kind, value, b""
            continue
        start, position = _span(data, position, kind)
        if position > end:
            raise ValueError(f"field {number} ends behind its message")
        yield number, kind, 0, data[start:position]


def _span(data: bytes, position: int, kind: int) -> tuple[int, int]:
    if kind == BYTES:
        length, position = varint(data, position)
        return position, position + length
    if kind == FIXED64:
        return position, position + 8
    if kind == FIXED32:
        return position, position + 4
    raise ValueError(f"wire type {kind}")


def varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits and the position behind it.

    Raises:
        ValueError: it has no end, or more than 64 bits.
    """
    value = shift = 0
    for byte in data[position : position + MAX_VARINT_BYTES]:
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # The tenth byte has one bit for 64; overflow is cut, as protobuf's own readers do.
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise ValueError("a number without end")


def varints(data: bytes) -> list[int]:
    """A packed repeated field of varints.

    Raises:
        ValueError: the last one has no end.
    """
    values, position = [], 0
    while position < len(data):
        value, position = varint(data, position)
        values.append(value)
    return values


def signed(value: int) -> int:
    """A varint of type int32 or int64: negative numbers are written as 64 bits of two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """A varint of type sint32 or sint64."""
    return (value >> 1) ^ -(value & 1)


def double(data: bytes) -> float:
    """A fixed64 of type double.

    Raises:
        ValueError: not eight bytes.
    """
    if len(data) != 8:
        raise ValueError("a double has 8 bytes")
    return float(_DOUBLE.unpack(data)[0])


def single(data: bytes) -> float:
    """A fixed32 of type float.

    Raises:
        ValueError: not four bytes.
    """
    if len(data) != 4:
        raise ValueError("a float has 4 bytes")
    return float(_FLOAT.unpack(data)[0])


def text(data: bytes) -> str:
    """Decodes a string. Broken UTF-8 is replaced, because a row with an odd key is better than a lost row."""
    return data.decode("utf-8", "replace")
