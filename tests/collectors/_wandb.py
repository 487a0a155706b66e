"""Transaction logs of wandb by hand."""

import json
import struct
import zlib
from pathlib import Path

from collectors.formats import wandb
from tests.collectors._sinks import varint


def chunk(kind: int, data: bytes) -> bytes:
    body = bytes([kind]) + data
    return struct.pack("<IH", zlib.crc32(body), len(data)) + body


def journal(payloads: list[bytes]) -> bytes:
    """A file as LevelDB's log format has it, by its description: no chunk over the end of a block."""
    out = bytearray(wandb.MAGIC)
    for payload in payloads:
        rest, first = payload, True
        while first or rest:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += b"\0" * left
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            out += chunk(
                {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not rest], part
            )
            first = False
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def row(step: int, **values: object) -> bytes:
    """A Record with a HistoryRecord."""
    items = {**values, "_step": step, "_timestamp": 1795000000.5 + step}
    return field(2, b"".join(item(key, value) for key, value in items.items()))


def item(key: str, value: object) -> bytes:
    return field(1, field(2, key.encode()) + field(16, json.dumps(value).encode()))


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
