"""Rollups: buckets of 1 min, 10 min and 1 h, so that a chart costs its pixels and not the run's history.

Always recomputed from what is below (raw rows, then the finer tier), never added to: computing a bucket twice,
or after late rows, gives the same bucket.
"""

from itertools import pairwise

from sqlalchemy import Connection, delete, exists, func, literal, select, text, update

from server.store import chunks, schema
from server.store.tables import DAY_MS, SLOT_MS, dirty, expiry, runs
from server.store.types import RunRow

MINUTE_MS = 60_000
TIERS = (60_000, 600_000, 3_600_000)
"""Bucket widths in ms, fine to coarse, each a multiple of the one before. A 10 s tier would outgrow the raw rows."""

SLOTS_AT_ONCE = 18
"""Three hours of history in one transaction: of a run read from its log, a slot alone is 30 rows a series and costs as
many seeks. With 1,000 targets every 5 s that would be 11 M rows, but then the slots are closed as they end."""

LATENESS_MS = 15_000
"""How long a bucket stays open after its end: three scrape intervals. What is later still is marked dirty."""

# `n`, `low`... count values only: v is NULL for points in state "unknown" or "not applicable".
_AGGREGATES = (
    "count(v) AS n, min(v) AS low, max(v) AS high, coalesce(sum(v), 0) AS total, "
    "max(CASE WHEN v IS NOT NULL THEN ts END) AS last_ts"
)

_SAVE = (
    "ON CONFLICT (tier, series, bucket) DO UPDATE SET n = excluded.n, low = excluded.low, high = excluded.high, "
    "total = excluded.total, last = excluded.last, last_ts = excluded.last_ts"
)

# Of a bucket whose raw rows are deleted: late rows are added to it. Values are NULL in a bucket of gap points only.
_ADD = """ON CONFLICT (tier, series, bucket) DO UPDATE SET
  n = rollups.n + excluded.n, total = rollups.total + excluded.total,
  low = CASE WHEN rollups.low IS NULL OR excluded.low < rollups.low THEN excluded.low ELSE rollups.low END,
  high = CASE WHEN rollups.high IS NULL OR excluded.high > rollups.high THEN excluded.high ELSE rollups.high END,
  last = CASE WHEN rollups.last_ts IS NULL OR excluded.last_ts >= rollups.last_ts
         THEN excluded.last ELSE rollups.last END,
  last_ts = CASE WHEN rollups.last_ts IS NULL OR excluded.last_ts >= rollups.last_ts
            THEN excluded.last_ts ELSE rollups.last_ts END"""

_EVERY_SERIES = "SELECT id AS series FROM series WHERE run = :run"
# Series of the slot whose raw rows are deleted (`server.store.retention`: `expiry` names the time, and the series that
# are done in the unit of time after it).
_EXPIRED = """EXISTS (
  SELECT 1 FROM series s JOIN expiry e
    ON e.run = d.run AND e.kind = CASE WHEN s.target = '' THEN 'signals' ELSE 'raw' END
   WHERE s.id = d.series AND (:start < e.before
      OR (s.id <= e.series AND :start < e.before + CASE WHEN s.target = '' THEN 3600000 ELSE :raw_unit END)))"""
_DIRTY_SERIES = f"SELECT d.series FROM dirty d WHERE d.run = :run AND d.slot = :slot AND NOT {_EXPIRED}"
_EXPIRED_SERIES = f"SELECT d.series FROM dirty d WHERE d.run = :run AND d.slot = :slot AND {_EXPIRED}"
_CHANGED_SERIES = "SELECT series FROM dirty WHERE run = :run AND slot = :slot"


def last_value(dialect: str) -> str:
    """SQL for the value at (g.series, g.last_ts), wherever that series keeps its rows."""
    slot = f"x.slot = g.last_ts / {SLOT_MS} AND " if dialect == "sqlite" else ""
    return (
        f"coalesce((SELECT x.v FROM samples x WHERE {slot}x.series = g.series AND x.ts = g.last_ts), "
        "(SELECT p.v FROM points p WHERE p.series = g.series AND p.ts = g.last_ts))"
    )


def _raw_sql(dialect: str, scope: str, conflict: str = _SAVE) -> str:
    # CROSS JOIN fixes SQLite's order: seek per slot and series. A scan of the slot reads ten minutes to close one.
    slots, join, slot = "", "", ""
    if dialect == "sqlite":
        slots = "slots AS (SELECT :slot AS slot UNION ALL SELECT slot + 1 FROM slots WHERE slot < :last_slot),"
        join, slot = "CROSS JOIN slots", "x.slot = slots.slot AND "
    return f"""
WITH RECURSIVE scope AS ({scope}),
{slots}
raw AS (
  SELECT x.series, x.ts, x.v FROM scope {join} CROSS JOIN samples x
   WHERE {slot}x.series = scope.series AND x.ts >= :start AND x.ts < :end
  UNION ALL
  SELECT p.series, p.ts, p.v FROM scope CROSS JOIN points p
   WHERE p.series = scope.series AND p.ts >= :start AND p.ts < :end
),
g AS (SELECT series, ts - ts % {MINUTE_MS} AS bucket, {_AGGREGATES} FROM raw GROUP BY 1, 2)
INSERT INTO rollups (tier, series, bucket, n, low, high, total, last, last_ts)
SELECT {MINUTE_MS}, g.series, g.bucket, g.n, g.low, g.high, g.total, {last_value(dialect)}, g.last_ts FROM g WHERE true
{conflict}"""


def _coarser_sql(tier: int, finer: int, scope: str) -> str:
    return f"""
WITH scope AS ({scope}),
g AS (
  SELECT r.series, r.bucket - r.bucket % {tier} AS bucket, sum(r.n) AS n, min(r.low) AS low, max(r.high) AS high,
         sum(r.total) AS total, max(r.last_ts) AS last_ts
    FROM scope CROSS JOIN rollups r
   WHERE r.tier = {finer} AND r.series = scope.series AND r.bucket >= :start AND r.bucket < :end
   GROUP BY 1, 2
)
INSERT INTO rollups (tier, series, bucket, n, low, high, total, last, last_ts)
SELECT {tier}, g.series, g.bucket, g.n, g.low, g.high, g.total,
       (SELECT f.last FROM rollups f WHERE f.tier = {finer} AND f.series = g.series
           AND f.bucket = g.last_ts - g.last_ts % {finer}), g.last_ts
  FROM g WHERE true
{_SAVE}"""


def due(run: RunRow, rolled: int | None, watermark: int, lateness: int) -> bool:
    """Whether a bucket must be closed. Cheap, because it is evaluated on every tick."""
    return run.first_ts is not None and (rolled or run.first_ts) < floor(watermark - lateness, MINUTE_MS)


def close_next(connection: Connection, run: int, watermark: int, lateness: int) -> bool:
    """Close the next stretch, at most `SLOTS_AT_ONCE`. False: nothing left to close."""
    rolled = _lock(connection, run)
    end = floor(watermark - lateness, MINUTE_MS)
    found = _next_data(connection, run, rolled or 0)
    if rolled is None and (found is None or found >= end):
        return False
    if rolled is not None and rolled >= end:
        return False
    # From the next row on: what lies before it is empty, and closing it is only a matter of saying so.
    start = end if found is None else max(floor(found, MINUTE_MS), rolled or 0)
    upto = end if start >= end else min(end, floor(start, SLOT_MS) + SLOTS_AT_ONCE * SLOT_MS)
    if start < upto:
        _raw(connection, _EVERY_SERIES, run, start, upto)
    begun = start if rolled is None else rolled
    # Not from `start`: a coarse bucket that a hole follows ends inside the hole.
    for finer, tier in pairwise(TIERS):
        values = {"run": run, "start": floor(begun, tier), "end": floor(upto, tier)}
        _one_tier(connection, (tier, finer), _EVERY_SERIES, values)
    connection.execute(update(runs).where(runs.c.id == run).values(rolled=upto))
    return upto < end


def recompute_next(connection: Connection, run: int) -> bool:
    """Recompute the closed buckets of the oldest dirty slot. False: none is dirty."""
    rolled = _lock(connection, run)
    slot = connection.execute(select(func.min(dirty.c.slot)).where(dirty.c.run == run)).scalar()
    if slot is None or rolled is None:
        return False
    start, end = slot * SLOT_MS, min((slot + 1) * SLOT_MS, rolled)
    late = list(connection.execute(select(dirty.c.series).where(dirty.c.run == run, dirty.c.slot == slot)).scalars())
    chunks.unpack(connection, run, slot, late, _raw_expired(connection, run))
    _raw(connection, _DIRTY_SERIES, run, start, end)
    _add_expired(connection, run, start, end)
    for finer, tier in pairwise(TIERS):
        # The coarser bucket around the slot, unless it is still open: then closing it will see the late rows.
        first = floor(start, tier)
        last = min(floor(end - 1, tier) + tier, floor(rolled, tier))
        _one_tier(connection, (tier, finer), _CHANGED_SERIES, {"run": run, "slot": slot, "start": first, "end": last})
    connection.execute(delete(dirty).where(dirty.c.run == run, dirty.c.slot == slot))
    return True


def _raw_expired(connection: Connection, run: int) -> int:
    query = select(expiry.c.before).where(expiry.c.run == run, expiry.c.kind == "raw")
    return int(connection.execute(query).scalar() or 0)


def has_dirty(connection: Connection, run: int) -> bool:
    """Are there late rows that the rollups do not show yet?"""
    return bool(connection.execute(select(exists(select(literal(1)).where(dirty.c.run == run)))).scalar())


def floor(ts: int, width: int) -> int:
    """The multiple of ``width`` at or before ``ts``."""
    return ts // width * width


def _lock(connection: Connection, run: int) -> int | None:
    """Take the run's row, as `write` does; how far it is closed. (SQLite ignores FOR UPDATE: BEGIN IMMEDIATE.)"""
    locked = select(runs.c.rolled).where(runs.c.id == run).with_for_update()
    rolled: int | None = connection.execute(locked).scalar_one()
    return rolled


def _raw(connection: Connection, scope: str, run: int, start: int, end: int) -> None:
    """1-minute buckets of [start, end)."""
    connection.execute(text(_raw_sql(connection.dialect.name, scope)), _values(connection, run, start, end))


def _values(connection: Connection, run: int, start: int, end: int) -> dict[str, int]:
    return {
        "run": run, "slot": start // SLOT_MS, "last_slot": (end - 1) // SLOT_MS, "start": start, "end": end,
        "raw_unit": SLOT_MS if connection.dialect.name == "sqlite" else DAY_MS,
    }  # fmt: skip


def _add_expired(connection: Connection, run: int, start: int, end: int) -> None:
    """Add late rows to buckets whose raw rows are deleted, then delete these rows too: they must not count twice."""
    dialect, values = connection.dialect.name, _values(connection, run, start, end)
    expired = [number for (number,) in connection.execute(text(_EXPIRED_SERIES), values)]
    if not expired:
        return
    connection.execute(text(_raw_sql(dialect, _EXPIRED_SERIES, _ADD)), values)
    slot = "slot = :slot AND " if dialect == "sqlite" else ""
    for table, condition in (("samples", slot), ("points", "")):
        sql = f"DELETE FROM {table} WHERE {condition}series IN ({_EXPIRED_SERIES}) AND ts >= :start AND ts < :end"
        connection.execute(text(sql), values)


def _one_tier(connection: Connection, tiers: tuple[int, int], scope: str, values: dict[str, int]) -> None:
    if values["start"] < values["end"]:
        connection.execute(text(_coarser_sql(*tiers, scope)), values)


def _next_data(connection: Connection, run: int, start: int) -> int | None:
    """A time at or after ``start`` before which the run has no rows: lets a hole of a year cost one query."""
    candidates = [ts for ts in (next_slot(connection, start), _next_point(connection, run, start)) if ts is not None]
    return max(min(candidates), start) if candidates else None


def next_slot(connection: Connection, start: int) -> int | None:
    """A time (ms) before which, from ``start`` on, there are no samples of any run; None without later samples."""
    # Of any run: asking per series would cost a seek for each, to skip what is nearly always not there.
    if connection.dialect.name == "sqlite":
        sql = text("SELECT min(slot) FROM samples WHERE slot >= :slot")
        slot = connection.execute(sql, {"slot": start // SLOT_MS}).scalar()
        return None if slot is None else int(slot) * SLOT_MS
    days = sorted(day for day in schema.existing(connection) if day >= start // DAY_MS)
    return days[0] * DAY_MS if days else None


def _next_point(connection: Connection, run: int, start: int) -> int | None:
    sql = text(
        "SELECT min(first) FROM (SELECT (SELECT min(p.ts) FROM points p WHERE p.series = s.id AND p.ts >= :start) "
        "AS first FROM series s WHERE s.run = :run) AS firsts"
    )
    first = connection.execute(sql, {"run": run, "start": start}).scalar()
    return None if first is None else int(first)
