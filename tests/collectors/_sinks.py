"""A sink read by hand: one call, and calls to its end; and the varints that two of the formats share."""

import json
from collections.abc import Callable
from pathlib import Path

from collectors.formats.rows import Logged, Logs, Sink
from collectors.model import Cursor, Limits

Read = Callable[..., Logs]
Drain = Callable[..., tuple[list[Logged], Cursor, list[str]]]


def reads(sink: Sink) -> tuple[Read, Drain]:
    """(read, drain) of a sink."""

    def read(path: Path, cursor: Cursor, limits: Limits | None = None) -> Logs:
        """One call; the cursor goes through JSON, as in the store."""
        return sink.read(path, json.loads(json.dumps(cursor)), limits or Limits())

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

    return read, drain


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])
