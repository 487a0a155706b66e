"""Event files by hand, and a loop that reads one to its end."""

import json
import struct
from pathlib import Path

from collectors.model import Cursor, Limits
from collectors.readers import _tfrecord, tensorboard
from collectors.readers.rows import Logged, Logs


def read(path: Path, cursor: Cursor, limits: Limits | None = None) -> Logs:
    """One call; the cursor goes through JSON, as in the store."""
    return tensorboard.SINK.read(path, json.loads(json.dumps(cursor)), limits or Limits())


def drain(path: Path, cursor: Cursor, limits: Limits | None = None) -> tuple[list[Logged], Cursor, list[str]]:
    """Call until nothing more is there."""
    rows: list[Logged] = []
    why = []
    for _ in range(2_000):
        logs = read(path, cursor, limits)
        rows += logs.rows
        why += [logs.why] * logs.dropped
        cursor = logs.cursor
        if not logs.more:
            return rows, cursor, why
    raise AssertionError("it never ends")


def flat(rows: list[Logged]) -> list[tuple[str, int | None, str, float]]:
    """(origin, step, key, value) of every value, in order."""
    return [(row.origin, row.step, key, value) for row in rows for key, value in row.values.items()]


def simple(tag: str, value: float) -> bytes:
    """A Summary.Value with a simple_value."""
    return b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)


def event(ts: float, step: int, *values: bytes) -> bytes:
    summary = b"".join(b"\x0a" + varint(len(value)) + value for value in values)
    return b"\x09" + struct.pack("<d", ts) + b"\x10" + varint(step) + b"\x2a" + varint(len(summary)) + summary


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def record(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    crcs = [struct.pack("<I", _tfrecord.masked_crc(data)) for data in (head, payload)]
    return head + crcs[0] + payload + crcs[1]


def name(begun: int, more: str = "vm.1.0") -> str:
    return f"events.out.tfevents.{begun}.{more}"
