"""Reads over time: raw rows of a series, and buckets for charts."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, select, text

from server.store.rollup import TIERS, floor, last_value
from server.store.tables import SLOT_MS, points
from server.store.types import Bucket

FINEST = 2
"""A tier is used for buckets of at least twice its width, so that rounding them up costs little sharpness."""


def fit_width(width: int) -> int:
    """The bucket width (ms) that is really used: a multiple of the tier it is read from, never less than requested.

    A tier's bucket that lay across two of the chart's would be shown in the wrong one.
    """
    tier = _tier(width)
    return max(width, 1) if tier is None else -(-width // tier) * tier


def _tier(width: int) -> int | None:
    return next((tier for tier in reversed(TIERS) if width >= FINEST * tier), None)


def _segments(
    start: int, end: int, width: int, rolled: int | None, expired: int
) -> Iterator[tuple[int | None, int, int]]:
    """(tier or None for raw rows, from, to): the coarse tiers as far as they are closed, then ever finer ones.

    Raw rows before ``expired`` are deleted: there the finest tier is the finest there is, however narrow the buckets.
    """
    coarsest = _tier(width)
    at = start
    if coarsest is None and at < (gone := min(end, expired)):
        yield TIERS[0], at, gone
        at = gone
    for tier in reversed(TIERS):
        if coarsest is None or tier > coarsest or rolled is None:
            continue
        closed = min(end, floor(rolled, tier))
        if closed > at:
            yield tier, at, closed
            at = closed
    if at < end:
        yield None, at, end


def buckets(
    connection: Connection, series: int, start: int, end: int, width: int, rolled: int | None, expired: int
) -> list[Bucket]:
    """Whole buckets of `fit_width(width)` that touch [start, end), oldest first; those without rows are left out.

    ``n == 0`` marks a bucket that holds gap points only: there the line breaks.
    """
    # Buckets sit on multiples of their width, so that they keep their place while the window moves.
    width = fit_width(width)
    found: dict[int, Bucket] = {}
    for tier, begin, stop in _segments(floor(start, width), -(-end // width) * width, width, rolled, expired):
        for bucket in _segment(connection, series, tier, begin, stop, width):
            known = found.get(bucket.ts)
            found[bucket.ts] = bucket if known is None else _join(known, bucket)
    return list(found.values())


def _join(a: Bucket, b: Bucket) -> Bucket:
    """Two parts of one bucket, ``a`` the earlier."""
    if not (a.n and b.n):
        return a if a.n else b
    low, high = _extreme(min, a.low, b.low), _extreme(max, a.high, b.high)
    return Bucket(a.ts, a.n + b.n, low, high, a.total + b.total, b.last)


def _extreme(pick: Any, a: float | None, b: float | None) -> float | None:
    return pick((v for v in (a, b) if v is not None), default=None)  # type: ignore[no-any-return]


def _segment(
    connection: Connection, series: int, tier: int | None, start: int, end: int, width: int
) -> Iterator[Bucket]:
    sql = _raw_sql(connection.dialect.name) if tier is None else _TIER_SQL
    values = {"series": series, "start": start, "end": end, "width": width, "tier": tier, "slot": start // SLOT_MS}
    for bucket, n, low, high, total, last in connection.execute(text(sql), values):
        yield Bucket(int(bucket), int(n), low, high, float(total), last)


# A loose index scan: jump from one slot that exists to the next, then to the series in it. `BETWEEN` on the slot
# would read every series of every slot, and a list of all slots would be endless for start = 0.
_SLOTS = """slots(slot) AS (
  SELECT min(slot) FROM samples WHERE slot >= :slot
  UNION ALL
  SELECT (SELECT min(x.slot) FROM samples x WHERE x.slot > slots.slot) FROM slots
   WHERE slots.slot IS NOT NULL AND slots.slot * 600000 < :end
)"""

_SQLITE_ROWS = f"""WITH RECURSIVE {_SLOTS}, raw AS (
  SELECT x.series, x.ts, x.v FROM slots CROSS JOIN samples x
   WHERE x.slot = slots.slot AND x.series = :series AND x.ts >= :start AND x.ts < :end
  UNION ALL
  SELECT p.series, p.ts, p.v FROM points p WHERE p.series = :series AND p.ts >= :start AND p.ts < :end
)"""

_POSTGRES_ROWS = """WITH raw AS (
  SELECT x.series, x.ts, x.v FROM samples x WHERE x.series = :series AND x.ts >= :start AND x.ts < :end
  UNION ALL
  SELECT p.series, p.ts, p.v FROM points p WHERE p.series = :series AND p.ts >= :start AND p.ts < :end
)"""

_TIER_SQL = """
WITH g AS (
  SELECT bucket - bucket % :width AS bucket, sum(n) AS n, min(low) AS low, max(high) AS high,
         sum(total) AS total, max(last_ts) AS last_ts
    FROM rollups WHERE tier = :tier AND series = :series AND bucket >= :start AND bucket < :end GROUP BY 1
)
SELECT g.bucket, g.n, g.low, g.high, g.total,
       (SELECT r.last FROM rollups r WHERE r.tier = :tier AND r.series = :series
           AND r.bucket = g.last_ts - g.last_ts % :tier)
  FROM g ORDER BY g.bucket"""


def _raw_sql(dialect: str) -> str:
    return f"""{_SQLITE_ROWS if dialect == "sqlite" else _POSTGRES_ROWS},
g AS (
  SELECT series, ts - ts % :width AS bucket, count(v) AS n, min(v) AS low, max(v) AS high,
         coalesce(sum(v), 0) AS total, max(CASE WHEN v IS NOT NULL THEN ts END) AS last_ts
    FROM raw GROUP BY 1, 2
)
SELECT g.bucket, g.n, g.low, g.high, g.total, {last_value(dialect)} FROM g ORDER BY g.bucket"""


def raw(connection: Connection, series: int, start: int, end: int) -> list[tuple[int, float]]:
    """(ts, value) of a series in [start, end), oldest first; gap points are left out."""
    rows = _SQLITE_ROWS if connection.dialect.name == "sqlite" else _POSTGRES_ROWS
    sql = text(f"{rows} SELECT ts, v FROM raw WHERE v IS NOT NULL ORDER BY ts")
    values = {"series": series, "start": start, "end": end, "slot": start // SLOT_MS}
    return [(ts, v) for ts, v in connection.execute(sql, values)]


def signal_points(
    connection: Connection, series: Sequence[int], start: int, end: int
) -> dict[int, list[tuple[int, float | None, int]]]:
    """series -> [(ts, value, PointState)] in [start, end), oldest first; a series without points has an empty list."""
    found: dict[int, list[tuple[int, float | None, int]]] = {number: [] for number in series}
    c = points.c
    # A query per series: each is one stretch of the key, which an IN list would make a sort of all.
    for number in found:
        query = select(c.ts, c.v, c.state).where(c.series == number, c.ts >= start, c.ts < end).order_by(c.ts)
        found[number] = [tuple(row) for row in connection.execute(query)]
    return found


def after(connection: Connection, run: int, ts: int) -> list[tuple[int, int, float]]:
    """(series, ts, value) of a run's samples later than ``ts``, oldest first."""
    slot = "x.slot >= :slot AND " if connection.dialect.name == "sqlite" else ""
    sql = text(
        "SELECT x.series, x.ts, x.v FROM samples x JOIN series s ON s.id = x.series "
        f"WHERE {slot}x.ts > :ts AND s.run = :run ORDER BY x.ts, x.series"
    )
    rows = connection.execute(sql, {"run": run, "ts": ts, "slot": ts // SLOT_MS})
    return [(series, at, v) for series, at, v in rows]


def newest(connection: Connection, series: Sequence[int], since: int) -> dict[int, tuple[int, float]]:
    """series -> (ts, value) of its newest sample at or after ``since``."""
    if connection.dialect.name == "sqlite":
        return _newest_sqlite(connection, set(series), since)
    sql = text("SELECT ts, v FROM samples WHERE series = :series AND ts >= :since ORDER BY ts DESC LIMIT 1")
    found = {n: connection.execute(sql, {"series": n, "since": since}).one_or_none() for n in series}
    return {n: (row[0], row[1]) for n, row in found.items() if row is not None}


def _newest_sqlite(connection: Connection, wanted: set[int], since: int) -> dict[int, tuple[int, float]]:
    """Reads slot by slot backwards until every series is found; nearly always the first slot has them all."""
    before = text("SELECT max(slot) FROM samples WHERE slot < :slot")
    newest_in = text("SELECT ts, v FROM samples WHERE slot = :slot AND series = :series ORDER BY ts DESC LIMIT 1")
    found: dict[int, tuple[int, float]] = {}
    slot = connection.execute(text("SELECT max(slot) FROM samples")).scalar()
    while slot is not None and slot >= since // SLOT_MS and len(found) < len(wanted):
        for number in wanted - found.keys():
            row = connection.execute(newest_in, {"slot": slot, "series": number}).one_or_none()
            if row is not None and row[0] >= since:
                found[number] = (row[0], row[1])
        slot = connection.execute(before, {"slot": slot}).scalar()
    return found
