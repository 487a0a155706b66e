"""Event files by hand, and a loop that reads one to its end."""

import struct

from collectors.formats import tensorboard
from collectors.formats.rows import Logged
from tests.collectors._sinks import reads, varint

read, drain = reads(tensorboard.SINK)


def flat(rows: list[Logged]) -> list[tuple[str, int | None, str, float]]:
    """(origin, step, key, value) of every value, in order."""
    return [(row.origin, row.step, key, value) for row in rows for key, value in row.values.items()]


def simple(tag: str, value: float) -> bytes:
    """A Summary.Value with a simple_value."""
    return b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)


def event(ts: float, step: int, *values: bytes) -> bytes:
    summary = b"".join(b"\x0a" + varint(len(value)) + value for value in values)
    return b"\x09" + struct.pack("<d", ts) + b"\x10" + varint(step) + b"\x2a" + varint(len(summary)) + summary


def record(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    crcs = [struct.pack("<I", tensorboard.masked_crc(data)) for data in (head, payload)]
    return head + crcs[0] + payload + crcs[1]


def name(begun: int, more: str = "vm.1.0") -> str:
    return f"events.out.tfevents.{begun}.{more}"
