"""wandb's transaction log as a sink: `run-<id>.wandb`, which it writes online and offline (checked with 0.31.0).

wandb flushes the file every 15 s. Field numbers are those of wandb/proto/wandb_internal.proto. `Logged.step` is
wandb's own counter, which grows with every `wandb.log` and is seldom the trainer's step. A nested dictionary is logged
under dotted keys.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits, ScrapeError
from collectors.transport import bytetail

# ---- protobuf
# Protobuf's wire format (proto2 and proto3), as far as wandb's records need it: fields of a message, level by level.

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


def text_field(data: bytes) -> str:
    """Decodes a string. Broken UTF-8 is replaced, because a row with an odd key is better than a lost row."""
    return data.decode("utf-8", "replace")


# ---- journal
# The journal of a `.wandb` file: LevelDB's log format behind a header of seven bytes (wandb 0.31.0).

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


# Fields of Record.
_HISTORY, _CONFIG, _RUN, _EXIT = 2, 5, 17, 18
# Bytes read at the start and at the end to compare logs: some rows, several blocks of the journal.
END_BYTES = 256 << 10
# The setting with wandb's own telemetry.
_TELEMETRY_KEY = "_wandb"


def find(path: Path) -> list[Path]:
    """`run-*.wandb` below a run directory, the last written one first; a file is itself."""
    if path.is_file():
        return [path] if path.suffix == ".wandb" else []
    return walk(path, lambda file: file.suffix == ".wandb" and file.name.startswith("run-"))


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows since ``cursor``. A configuration that grew is returned whole.

    Raises:
        ScrapeError: ``missing``; ``garbage``: not a wandb file, or of another version.
    """
    with bytetail.readable(path.name):
        status = path.stat()
    if bytetail.unchanged(status, cursor):
        return Logs(cursor=dict(cursor), modified=status.st_mtime)
    with bytetail.appended(path, cursor) as new:
        return _read(path, new, bool(cursor.get("skipping")) and not new.restarted, limits)


def _read(path: Path, new: bytetail.Appended, skipping: bool, limits: Limits) -> Logs:
    logs = Logs(restarted=new.restarted, modified=new.status.st_mtime)
    begin = new.offset or _header(path, new)
    if not begin:
        logs.cursor = new.cursor(0, whole=True)
        return logs
    size = window_bytes(limits.tail_bytes, limits.line_bytes)
    data = new.window(size, begin)
    journal_records = split(data, begin, limits.line_bytes, skipping=skipping)
    offset, broken = _records(journal_records, limits, logs)
    # Errors beyond the offset are read, and counted, in the next call.
    bad = sorted([*broken, *(error for error in journal_records.bad if error[0] < offset)])
    logs.dropped = len(bad)
    logs.why = f"the record at byte {bad[0][0]} of {path.name} {bad[0][1]}" if bad else ""
    if logs.config and new.offset:
        # Later settings alone would look as if the others were not set.
        logs.config = _settings(new.window(size, len(MAGIC)), limits) | logs.config
    ended = begin + len(data) >= new.status.st_size
    logs.more = not ended or offset < journal_records.offset
    logs.ahead = max(0, new.status.st_size - offset) / max(offset - new.offset, 1) if logs.more else 0.0
    # A skipped record at the end of the window stays skipped; before the end, reading continues with a valid record.
    logs.cursor = new.cursor(offset, whole=not logs.more) | {
        "skipping": journal_records.skipping and offset == journal_records.offset
    }
    return logs


def _header(path: Path, new: bytetail.Appended) -> int:
    """The offset of the first record; 0 while the header is incomplete.

    Raises:
        ScrapeError: ``garbage``.
    """
    head = new.window(len(MAGIC), 0)
    if not MAGIC.startswith(head):
        raise ScrapeError("garbage", f"{path.name} is not a wandb file of a supported version")
    return len(head) if len(head) == len(MAGIC) else 0


def _records(journal_records: Records, limits: Limits, logs: Logs) -> tuple[int, list[tuple[int, str]]]:
    """Reads the records into the result; returns the offset of the first unread one, and the broken ones."""
    broken: list[tuple[int, str]] = []
    for at, payload in journal_records.records:
        if len(logs.rows) >= limits.tail_rows:
            return at, broken
        try:
            _record(payload, logs)
        except ValueError as error:
            broken.append((at, f"cannot be read: {error}"))
    return journal_records.offset, broken


def _record(payload: bytes, logs: Logs) -> None:
    """A Record; the field that is set gives its kind."""
    for kind, wire, _, data in fields(payload):
        if wire != BYTES:
            continue
        if kind == _HISTORY:
            logs.rows.append(_row(data))
        elif kind == _CONFIG:
            _update(data, logs.config)
        elif kind == _RUN:
            _run(data, logs)
        elif kind == _EXIT:
            _exit(data, logs)


def _run(data: bytes, logs: Logs) -> None:
    """A RunRecord: run_id = 1, config = 4, display_name = 8."""
    run_id = display = ""
    for kind, _, _, value in fields(data):
        if kind == 1:
            run_id = text_field(value)
        elif kind == 4:
            _update(value, logs.config)
        elif kind == 8:
            display = text_field(value)
    logs.run_name = display or run_id


def _exit(data: bytes, logs: Logs) -> None:
    """A RunExitRecord: exit_code = 1. It is written by `finish` and when Python ends, not when a process is killed."""
    code = next((signed(value) for kind, wire, value, _ in fields(data) if (kind, wire) == (1, 0)), 0)
    logs.finished, logs.failed = f"wandb run ended with exit code {code}", code != 0


def _update(data: bytes, config: dict[str, Any]) -> None:
    """A ConfigRecord: update = 1, remove = 2; each with key = 1 or nested_key = 2, and value_json = 16."""
    for kind, wire, _, item in fields(data):
        if wire != BYTES or kind not in (1, 2):
            continue
        keys, value, _ = _item(item)
        if keys and keys[0] != _TELEMETRY_KEY:
            _set(config, keys, _loads(value) if kind == 1 else None)


def _set(config: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = config.get(key)
        config[key] = inner = inner if isinstance(inner, dict) else {}
        config = inner
    config[keys[-1]] = value


def _settings(data: bytes, limits: Limits) -> dict[str, Any]:
    """The configuration at the start of a file."""
    logs = Logs()
    for _, payload in split(data, len(MAGIC), limits.line_bytes).records:
        if payload and any(kind in (_CONFIG, _RUN) for kind in _kinds(payload)):
            _records(Records([(0, payload)]), limits, logs)
    return logs.config


def _kinds(payload: bytes) -> Iterator[int]:
    try:
        yield from (kind for kind, _, _, _ in fields(payload))
    except ValueError:
        return


def _row(data: bytes) -> Logged:
    """A HistoryRecord: item = 1, step = 2 (HistoryStep: num = 1)."""
    keys, texts = [], []
    values: dict[str, Any] = {}
    step: int | None = None
    for kind, wire, _, inner in fields(data):
        if kind == 1 and wire == BYTES:
            path, text, typed = _item(inner)
            if text:
                keys.append(".".join(path))
                texts.append(text)
            else:
                values[".".join(path)] = typed
        elif kind == 2 and wire == BYTES:
            step = next((signed(value) for number_field, _, value, _ in fields(inner) if number_field == 1), 0)
    values.update(zip(keys, _all(texts), strict=True))
    own_step = number(values.pop("_step", None))
    return Logged(values, int(own_step) if own_step is not None else step, number(values.pop("_timestamp", None)))


def _item(data: bytes) -> tuple[list[str], bytes, Any]:
    """An item's key, its value as JSON, or as one of the types newer versions of the schema have.

    boolean = 4, integer = 5 (sint64), number = 6, text = 7, json = 8, value_json = 16.
    """
    keys, text = [], b""
    typed: Any = None
    for kind, _, value, inner in fields(data):
        if kind in (1, 2):
            keys.append(text_field(inner))
        elif kind in (8, 16):
            text = inner
        elif kind == 4:
            typed = bool(value)
        elif kind == 5:
            typed = zigzag(value)
        elif kind == 6:
            typed = double(inner)
        elif kind == 7:
            typed = text_field(inner)
    return keys, text, typed


def _all(texts: list[bytes]) -> list[Any]:
    """Parses the values of one row. As one list this is four times as fast as one by one."""
    try:
        together = json.loads(b"[" + b",".join(texts) + b"]")
    except (ValueError, RecursionError):
        together = []
    return together if len(together) == len(texts) else [_loads(text) for text in texts]


def _loads(text: bytes) -> Any:
    """A value, or None if it is not JSON; the rest of its row is valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def run_id(path: Path) -> str:
    """The run's id by the file's name: each start of a resumed run has a folder of its own with the same file name."""
    return path.name


def ends(path: Path) -> tuple[list[Logged], list[Logged]]:
    """The first and the last rows. Raises `OSError`."""
    size = path.stat().st_size
    tail = max(0, size - END_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    with path.open("rb") as file:
        head = file.read(END_BYTES)
        file.seek(tail)
        last = file.read(2 * END_BYTES) if tail else head
    return _rows(head, 0), _rows(last, tail)


def _rows(data: bytes, offset: int) -> list[Logged]:
    """The rows of a window that begins at the file's start or at a block's."""
    begin = 0 if offset else len(MAGIC)
    logs = Logs()
    _records(split(data[begin:], offset + begin, END_BYTES, skipping=bool(offset)), Limits(tail_rows=END_BYTES), logs)
    return logs.rows


SINK = Sink("wandb", "run-*.wandb", find, read, lag_seconds=15.0, run_of=run_id, ends=ends)
