"""Packs old raw samples: a chunk holds an hour of up to 32 series of a run in one row, at about a byte a sample.

An hour is packed when its rollups are closed and the two slots after it have passed. The chunk replaces its rows in one
transaction. A late sample is written as a row next to its chunk, and readers join both; of two samples of one time the
first stays, as elsewhere. When the rollups of the late sample's slot are recomputed, the chunk becomes rows again, and
these are packed later.
"""

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import sub, xor
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, case, delete, exists, func, select, text, update

from server.store import schema
from server.store.bulk import among, upsert
from server.store.engine import Engines, StoreError
from server.store.tables import (
    DAY_MS,
    SLOT_MS,
    chunks,
    dirty,
    expiry,
    postgres_samples,
    runs,
    series,
    sqlite_samples,
)

# ---- chunk codec
# Packs the samples of several series into one compressed body, and reads one of them back.

CodedSamples = Sequence[tuple[int, float]]
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


def encode(series: Mapping[int, CodedSamples]) -> bytes:
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


HOUR_MS = 3_600_000
BLOCK = 32
"""Series in one chunk, by their ids: 23,000 samples at a scrape every 5 s, packed in 20 ms. They share their times."""

OPEN_MS = 2 * SLOT_MS
"""So much after an hour its rows stay unpacked: the newest rows are read and changed most."""

PACKED = "packed"
"""Kind in `expiry`: rows of the run before that time are packed; in the hour after it, those of series up to its id."""

Samples = list[tuple[int, float]]

_OF_SERIES_SQL = (
    "SELECT c.body FROM chunks c WHERE c.block = :block AND c.run = (SELECT run FROM series WHERE id = :series) "
    "AND c.start > :before AND c.start < :end ORDER BY c.start"
)
_OF_SERIES, _OF_SERIES_NEWEST = text(_OF_SERIES_SQL), text(f"{_OF_SERIES_SQL} DESC")


class ChunkStore:
    """Reached as `Store.chunks`. Times are epoch ms. Safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def step(self) -> bool:
        """Pack the next block of series that is due, in one short transaction. False: nothing is due.

        Raises:
            StoreError: the store was opened read-only.
        """
        engine = self._engines.write
        if engine is None:
            raise StoreError("the store was opened read-only")
        with self._engines.reading() as connection:
            due = _next_due(connection)
            if due is None:
                return False
            run, hour, done = due
            found = _block(connection, run, done)
            rows = {} if found is None else _rows(connection, found, hour)
        if found is None:
            with engine.begin() as connection:
                _next_hour(connection, run, hour)
            return True
        # Encoded outside of the transaction, which the writer would wait for.
        body = encode(rows) if rows else b""
        with suppress(_Changed), engine.begin() as connection:
            _lock(connection, run)
            if rows:
                _replace(connection, run, hour, found, rows, body)
            save(connection, run, hour, found[-1])
        return True

    def backlog(self) -> int:
        """Hours of runs that are due to be packed, also those that wait for the rollups of late samples."""
        due = _due_runs(select(func.sum((runs.c.rolled - OPEN_MS - _BEGIN) // HOUR_MS)))
        with self._engines.reading() as connection:
            return int(connection.execute(due).scalar() or 0)


def read(connection: Connection, number: int, start: int, end: int) -> Samples:
    """The packed samples of a series in [start, end), oldest first."""
    values = {"series": number, "block": number // BLOCK, "start": start, "end": end, "before": start - HOUR_MS}
    bodies = connection.execute(_OF_SERIES, values).scalars()
    found = [pair for body in bodies for pair in decode(bytes(body), number).get(number, ())]
    return [pair for pair in found if start <= pair[0] < end]


def newest(connection: Connection, number: int, since: int) -> tuple[int, float] | None:
    """The newest packed sample of a series at or after ``since``."""
    values = {"series": number, "block": number // BLOCK, "start": since, "end": 1 << 62, "before": since - HOUR_MS}
    for body in connection.execute(_OF_SERIES_NEWEST, values).scalars():
        found = decode(bytes(body), number).get(number)
        if found:
            return found[-1] if found[-1][0] >= since else None
    return None


def after(connection: Connection, run: int, ts: int) -> list[tuple[int, int, float]]:
    """(series, ts, value) of the run's packed samples later than ``ts``."""
    c = chunks.c
    bodies = connection.execute(select(c.body).where(c.run == run, c.start > ts - HOUR_MS)).scalars()
    return [
        (number, at, value)
        for body in bodies
        for number, samples in decode(bytes(body)).items()
        for at, value in samples
        if at > ts
    ]


def first(connection: Connection, run: int) -> int | None:
    """When the oldest hour of the run that is packed begins."""
    found = connection.execute(select(func.min(chunks.c.start)).where(chunks.c.run == run)).scalar()
    return None if found is None else int(found)


def oldest(connection: Connection) -> int | None:
    """When the oldest packed hour of all runs begins."""
    by_run = [first(connection, run) for run in connection.execute(select(runs.c.id)).scalars()]
    return min((start for start in by_run if start is not None), default=None)


def unpack(connection: Connection, run: int, slot: int, numbers: Collection[int], expired: int) -> None:
    """Make rows of the chunks that hold these series in this slot. They are packed again later.

    Samples before ``expired`` are left out: their rows would be deleted.
    """
    hour = slot * SLOT_MS // HOUR_MS * HOUR_MS
    c = chunks.c
    blocks = sorted({number // BLOCK for number in numbers})
    for block in blocks:
        mine = (c.run == run, c.block == block, c.start == hour)
        body = connection.execute(select(c.body).where(*mine)).scalar()
        if body is None:
            continue
        _insert(connection, (
            (number, ts, value)
            for number, samples in decode(bytes(body)).items()
            for ts, value in samples
            if ts >= expired
        ))  # fmt: skip
        connection.execute(delete(chunks).where(*mine))
    e = expiry.c
    # Late rows of series without a chunk are packed by this, too.
    reopened = update(expiry).where(e.run == run, e.kind == PACKED, e.before >= hour)
    connection.execute(reopened.values(before=hour, series=0))


def delete_before(connection: Connection, run: int, before: int) -> int:
    """Delete the run's chunks whose hour ends by ``before``; returns how many."""
    return connection.execute(delete(chunks).where(chunks.c.run == run, chunks.c.start <= before - HOUR_MS)).rowcount


def save(connection: Connection, run: int, before: int, done: int) -> None:
    """Store how far the run is packed."""
    columns = ("run", "kind", "before", "series")
    upsert(connection, expiry, columns, [(run, PACKED, before, done)], ("before", "series"))


# ---- what is due


_PACKED, _DELETED = expiry.alias(), expiry.alias()
_REACHED = func.coalesce(_PACKED.c.before, runs.c.first_ts - runs.c.first_ts % HOUR_MS)
_EXPIRED = func.coalesce(_DELETED.c.before, 0)
_BEGIN = case((_REACHED + HOUR_MS > _EXPIRED, _REACHED), else_=_EXPIRED - _EXPIRED % HOUR_MS)
"""When a run's first hour begins that is neither packed nor deleted."""


def _due_runs(columns: Select[Any]) -> Select[Any]:
    return (
        columns.select_from(runs)
        .outerjoin(_PACKED, (_PACKED.c.run == runs.c.id) & (_PACKED.c.kind == PACKED))
        .outerjoin(_DELETED, (_DELETED.c.run == runs.c.id) & (_DELETED.c.kind == "raw"))
        .where(runs.c.first_ts.is_not(None), runs.c.rolled >= _BEGIN + HOUR_MS + OPEN_MS)
    )


def _next_due(connection: Connection) -> tuple[int, int, int] | None:
    """(run, hour, id of the last packed series in it) of the run that is packed the least far."""
    done = case((_BEGIN == _REACHED, func.coalesce(_PACKED.c.series, 0)), else_=0)
    late = exists().where(dirty.c.run == runs.c.id, dirty.c.slot < (_BEGIN + HOUR_MS) / SLOT_MS)
    query = _due_runs(select(runs.c.id, _BEGIN, done)).where(~late).order_by(_BEGIN, runs.c.id).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else (int(row[0]), int(row[1]), int(row[2]))


def _block(connection: Connection, run: int, done: int) -> list[int] | None:
    """Ids of the run's next series with samples that belong into one chunk, ascending; None: that was the last."""
    c = series.c
    of_targets = select(c.id).where(c.run == run, c.target != "", c.axis == "")
    head = connection.execute(of_targets.where(c.id > done).order_by(c.id).limit(1)).scalar()
    if head is None:
        return None
    end = (head // BLOCK + 1) * BLOCK
    return [int(n) for n in connection.execute(of_targets.where(c.id >= head, c.id < end).order_by(c.id)).scalars()]


def _next_hour(connection: Connection, run: int, hour: int) -> None:
    """The hour is done. The next one is the first with rows, so that a hole of a year costs one query."""
    found = _next_row(connection, hour + HOUR_MS)
    closed = connection.execute(select(runs.c.rolled).where(runs.c.id == run).with_for_update()).scalar() or 0
    last = max(hour + HOUR_MS, (closed - OPEN_MS) // HOUR_MS * HOUR_MS)
    save(connection, run, last if found is None else min(last, max(hour + HOUR_MS, found // HOUR_MS * HOUR_MS)), 0)
    if connection.dialect.name == "postgresql":
        drop_empty_days(connection)


def _next_row(connection: Connection, start: int) -> int | None:
    """A time (ms) before which, from ``start`` on, no run has rows of samples; None: none has later ones."""
    if connection.dialect.name == "sqlite":
        slot = connection.execute(
            select(func.min(sqlite_samples.c.slot)).where(sqlite_samples.c.slot >= start // SLOT_MS)
        ).scalar()
        return None if slot is None else int(slot) * SLOT_MS
    days = [day for day in schema.existing(connection) if (day + 1) * DAY_MS > start]
    return max(min(days) * DAY_MS, start) if days else None


def drop_empty_days(connection: Connection) -> None:
    """Drop the partitions in which all rows are packed or deleted: their files keep their size after a DELETE."""
    closed = connection.execute(
        select(func.min(_BEGIN))
        .select_from(runs)
        .outerjoin(_PACKED, (_PACKED.c.run == runs.c.id) & (_PACKED.c.kind == PACKED))
        .outerjoin(_DELETED, (_DELETED.c.run == runs.c.id) & (_DELETED.c.kind == "raw"))
        .where(runs.c.first_ts.is_not(None))
    ).scalar()
    for day in schema.existing(connection):
        if (day + 1) * DAY_MS <= (closed or 0) and schema.is_empty(connection, day):
            schema.drop(connection, day)


# ---- rows


class _Changed(Exception):
    """Rows came or went since they were read."""


def _in_hour(connection: Connection, numbers: list[int], hour: int) -> tuple[Table, ColumnElement[bool]]:
    """The table of samples, and the condition for the rows of these series in the hour."""
    if connection.dialect.name == "sqlite":
        c = sqlite_samples.c
        slots = list(range(hour // SLOT_MS, (hour + HOUR_MS) // SLOT_MS))
        return sqlite_samples, and_(among(c.slot, slots), among(c.series, numbers))
    c = postgres_samples.c
    return postgres_samples, and_(among(c.series, numbers), c.ts >= hour, c.ts < hour + HOUR_MS)


def _rows(connection: Connection, numbers: list[int], hour: int) -> dict[int, Samples]:
    table, condition = _in_hour(connection, numbers, hour)
    c = table.c
    found: dict[int, Samples] = {}
    for number, ts, value in connection.execute(select(c.series, c.ts, c.v).where(condition).order_by(c.series, c.ts)):
        found.setdefault(number, []).append((ts, value))
    return found


def _replace(
    connection: Connection, run: int, hour: int, numbers: list[int], rows: dict[int, Samples], body: bytes
) -> None:
    """Delete the rows and write the chunk.

    Raises:
        _Changed: the rows are not the ones in the chunk.
    """
    table, condition = _in_hour(connection, numbers, hour)
    count = sum(map(len, rows.values()))
    if connection.execute(delete(table).where(condition)).rowcount != count:
        raise _Changed
    c, block = chunks.c, numbers[0] // BLOCK
    before = connection.execute(select(c.body).where(c.run == run, c.block == block, c.start == hour)).scalar()
    if before is not None:
        packed = decode(bytes(before))
        joined = {n: sorted({**dict(rows.get(n, ())), **dict(packed.get(n, ()))}.items()) for n in packed | rows}
        body, count = encode(joined), sum(map(len, joined.values()))
    columns = ("block", "run", "start", "n", "body")
    upsert(connection, chunks, columns, [(block, run, hour, count, body)], ("n", "body"))


def _insert(connection: Connection, rows: Iterable[tuple[int, int, float]]) -> None:
    listed = list(rows)
    if connection.dialect.name == "sqlite":
        slots = [(ts // SLOT_MS, number, ts, value) for number, ts, value in listed]
        upsert(connection, sqlite_samples, ("slot", "series", "ts", "v"), slots, ("v",))
        return
    schema.ensure_in(connection, {ts // DAY_MS for _, ts, _ in listed})
    upsert(connection, postgres_samples, ("series", "ts", "v"), listed, ("v",))


def _lock(connection: Connection, run: int) -> None:
    """Take the run's row, as `write` does. (SQLite ignores FOR UPDATE: BEGIN IMMEDIATE.)"""
    connection.execute(select(runs.c.id).where(runs.c.id == run).with_for_update())
