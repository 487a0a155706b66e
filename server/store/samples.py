"""Reads over time: raw samples, points of signals, and buckets for charts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from statistics import median_low
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, text

from server.signals.window import carry_seconds
from server.store import chunks
from server.store.engine import Engines
from server.store.rollup import TIERS, floor, last_value
from server.store.runs import one_run, rolled_of_series
from server.store.series import SeriesStore
from server.store.tables import SLOT_MS, points, runs
from server.store.types import Bucket, SeriesKey

# A tier is used for buckets of at least twice its width, so that rounding up to it loses little resolution.
FINEST = 2
# Times between samples from which a source is seen to be slow: of fewer, half may be a gap.
FEWEST_GAPS = 3
Points = list[tuple[int, float | None, int]]
"""(ts, value, PointState)."""

# A subquery, not a join: the index on (run, seq) then gives the rows in order, without a sort.
_POINTS = (
    select(points.c.seq, points.c.series, points.c.ts, points.c.v, points.c.state)
    .where(points.c.run == select(runs.c.id).where(runs.c.name == bindparam("name")).scalar_subquery())
    .where(points.c.seq > bindparam("seq"))
    .order_by(points.c.seq)
    .limit(bindparam("most"))
)


class SampleStore:
    """Reached as `Store.samples`. Times are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines, series: SeriesStore) -> None:
        self._engines, self._series = engines, series

    def points(self, series_ids: Sequence[int], start: int, end: int) -> dict[int, Points]:
        """series -> points in [start, end), oldest first; a series without points has an empty list."""
        c = points.c
        found: dict[int, Points] = {}
        with self._engines.reading() as connection:
            # A query per series: each is one range of the key; an IN list would sort all rows.
            for number in series_ids:
                query = select(c.ts, c.v, c.state).where(c.series == number, c.ts >= start, c.ts < end).order_by(c.ts)
                found[number] = [tuple(row) for row in connection.execute(query)]
        return found

    def points_since(self, run: str, seq: int, limit: int) -> list[tuple[int, int, int, float | None, int]]:
        """(seq, series, ts, value, PointState) of the points after ``seq``, in the order of seq."""
        with self._engines.reading() as connection:
            rows = connection.execute(_POINTS, {"name": run, "seq": seq, "most": limit}).all()
        return [tuple(row) for row in rows]

    def buckets(self, series_id: int, start: int, end: int, width_ms: int) -> list[Bucket]:
        """Whole buckets of ``fit_width(width_ms)`` that touch the range, oldest first, from raw rows or rollups.

        Buckets without rows are left out; ``n == 0`` holds gap points only: the line breaks there.
        """
        return self.buckets_of([series_id], start, end, width_ms)[series_id]

    def buckets_of(self, series_ids: Sequence[int], start: int, end: int, width_ms: int) -> dict[int, list[Bucket]]:
        """`buckets` of several series in one read."""
        with self._engines.reading() as connection:
            rolled = rolled_of_series(connection, series_ids)
            return {one: buckets(connection, one, start, end, width_ms, *rolled[one]) for one in series_ids}

    def reported(
        self, series_id: int, start: int, end: int, width_ms: int, carry: int, *, rate: bool = False
    ) -> list[Bucket]:
        """As `buckets`, of samples of a target, with a bucket of ``n == 0`` where samples are missing.

        Args:
            carry: ms that the target may be silent. A source that reports less often than that has its own.
            rate: of a counter: the rates per second between its samples (see `rates`).
        """
        width = fit_width(width_ms)
        with self._engines.reading() as connection:
            rolled, expired = rolled_of_series(connection, [series_id])[series_id]
            where = (connection, series_id, start, end, width, rolled, expired)
            found = _rates(*where, carry) if rate else buckets(*where)
        longest = _held([bucket.ts for bucket in found], carry, width)
        return [*with_breaks(found, width, longest, expired, TIERS[0] + carry)]

    def window(
        self, run: str, metrics: Iterable[str] | None, since_ms: int, until_ms: int | None = None
    ) -> Iterator[tuple[int, SeriesKey, list[tuple[int, float]]]]:
        """(series, key, [(ts, value), ...]) of the metrics (None: all) in [since, until).

        Series without rows are left out. One short read per series: a long read would keep SQLite's WAL from
        being merged into the database.
        """
        end = until_ms if until_ms is not None else 1 << 62
        for number, key in self._series.of_metrics(run, metrics):
            with self._engines.reading() as connection:
                rows = _raw(connection, number, since_ms, end)
            if rows:
                yield number, key, rows

    def newest(
        self, run: str, metrics: Iterable[str] | None, since_ms: int = 0
    ) -> list[tuple[int, SeriesKey, int, float]]:
        """(series, key, ts, value) of each series' newest sample at or after ``since_ms``."""
        keys = dict(self._series.of_metrics(run, metrics))
        with self._engines.reading() as connection:
            found = _newest(connection, list(keys), since_ms)
            for number in keys.keys() - found.keys():
                if (packed := chunks.newest(connection, number, since_ms)) is not None:
                    found[number] = packed
        return [(number, keys[number], *found[number]) for number in keys if number in found]

    def after(self, run: str, ts: int) -> list[tuple[int, int, float]]:
        """(series, ts, value) of every sample later than ``ts``, oldest first."""
        with self._engines.reading() as connection:
            slot = "x.slot >= :slot AND " if connection.dialect.name == "sqlite" else ""
            sql = text(
                "SELECT x.series, x.ts, x.v FROM samples x JOIN series s ON s.id = x.series "
                f"WHERE {slot}x.ts > :ts AND s.run = (SELECT id FROM runs WHERE name = :run) ORDER BY x.ts, x.series"
            )
            found = {(at, n): v for n, at, v in connection.execute(sql, {"run": run, "ts": ts, "slot": ts // SLOT_MS})}
            row = one_run(connection, run)
            packed = {} if row is None else {(at, n): v for n, at, v in chunks.after(connection, row.id, ts)}
            return [(n, at, v) for (at, n), v in sorted((found | packed).items())]


class Reading(NamedTuple):
    """A counter at a time. With ``tier`` (ms): the last sample of a bucket of it, and the bucket's extremes."""

    ts: int
    last: float
    low: float
    high: float
    tier: int = 0


def _held(times: Sequence[int], carry: int, grain: int) -> int:
    """``carry``, or that of a source that is seen to report less often than that. All in ms.

    ``grain``: distance of the times of a source that reports all the time.
    """
    gaps = [after - before for before, after in pairwise(times)]
    usual = median_low(gaps) if len(gaps) >= FEWEST_GAPS else 0
    return max(carry, round(1000 * carry_seconds(usual / 1000))) if usual >= 2 * grain else carry


def rates(readings: Iterable[Reading], width: int, longest: int) -> list[Bucket]:
    """Rates per second between neighbouring readings, each in the bucket where it ends; ``total / n`` is their mean.

    The mean is over time: increase by seconds. After a decrease the counter counts from zero. Over a gap of more than
    ``longest`` ms the rate is unknown; closed buckets of a tier that follow each other have no gap.
    """
    found: dict[int, tuple[int, float, float, float, float, float]] = {}
    # Unpacked and added up at once: a range of narrow buckets has a million samples.
    for (since, before, _, _, _), (ts, last, low, high, tier) in pairwise(readings):
        gap = ts - since
        if gap <= 0 or (gap > longest and (not tier or ts // tier - since // tier > 1)):
            continue
        grown = last - before if low >= before else _increase_of_reset(before, last, high)
        rate, bucket = 1000 * grown / gap, ts - ts % width
        n, least, most, total, span, _ = found.get(bucket) or (0, rate, rate, 0.0, 0.0, rate)
        found[bucket] = (n + 1, min(least, rate), max(most, rate), total + grown, span + gap, rate)
    return [
        Bucket(ts, n, least, most, 1000 * total / span * n, rate)
        for ts, (n, least, most, total, span, rate) in found.items()
    ]


def _rates(
    connection: Connection, series: int, start: int, end: int, width: int, rolled: int | None, expired: int, carry: int
) -> list[Bucket]:
    first, last = floor(start, width), -(-end // width) * width
    # The first rate is over the time since the sample before the range.
    begin = first - max(carry, _tier(width) or TIERS[0])
    parts = _segments(begin, last, width, rolled, expired)
    readings = [one for part in parts for one in _readings(connection, series, *part)]
    longest = _held([one.ts for one in readings], carry, max((one.tier for one in readings), default=0))
    return [bucket for bucket in rates(readings, width, longest) if bucket.ts >= first]


def with_breaks(
    found: Sequence[Bucket], width: int, longest: int, expired: int = 0, longest_expired: int = 0
) -> Iterator[Bucket]:
    """The buckets, with one of ``n == 0`` where the next is more than ``longest`` ms (and a bucket) away.

    Before ``expired`` (ms) it is ``longest_expired``, if that is longer: there only minutes are stored.
    """
    yield from found[:1]
    for before, bucket in pairwise(found):
        apart = max(width, longest, longest_expired if before.ts < expired else 0)
        if bucket.ts - before.ts > apart:
            yield Bucket(before.ts + width, 0, None, None, 0.0, None)
        yield bucket


def _increase_of_reset(before: float, last: float, high: float) -> float:
    """Of a counter that began again. What it reached before that in a tier's bucket counts, too, where it is known."""
    return last + (max(0.0, high - before) if high > last else 0.0)


def _readings(connection: Connection, series: int, tier: int | None, start: int, end: int) -> Iterator[Reading]:
    if tier is None:
        yield from (Reading(ts, v, v, v) for ts, v in _raw(connection, series, start, end))
        return
    values = {"series": series, "start": start, "end": end, "tier": tier}
    for ts, last, low, high in connection.execute(_TIER_READINGS, values):
        yield Reading(ts, last, low, high, tier)


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
            before = found.get(bucket.ts)
            found[bucket.ts] = bucket if before is None else _join(before, bucket)
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
    if tier is None and (packed := chunks.read(connection, series, start, end)):
        yield from of_samples({**dict(_rows(connection, series, start, end)), **dict(packed)}, width)
        return
    sql = _raw_sql(connection.dialect.name) if tier is None else _TIER_SQL
    values = {"series": series, "start": start, "end": end, "width": width, "tier": tier, "slot": start // SLOT_MS}
    # All at once: a row at a time costs as much again.
    for bucket, n, low, high, total, last in connection.execute(text(sql), values).all():
        yield Bucket(int(bucket), int(n), low, high, float(total), last)


def of_samples(samples: Mapping[int, float], width: int) -> Iterator[Bucket]:
    """Buckets of raw samples (ts -> value); a series with packed samples has no gap points."""
    for bucket, group in groupby(sorted(samples.items()), key=lambda pair: pair[0] - pair[0] % width):
        values = [value for _, value in group]
        yield Bucket(bucket, len(values), min(values), max(values), sum(values), values[-1])


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


_TIER_READINGS = text(
    "SELECT last_ts, last, low, high FROM rollups "
    "WHERE tier = :tier AND series = :series AND bucket >= :start AND bucket < :end AND n > 0 ORDER BY bucket"
)


def _raw_sql(dialect: str) -> str:
    return f"""{_SQLITE_ROWS if dialect == "sqlite" else _POSTGRES_ROWS},
g AS (
  SELECT series, ts - ts % :width AS bucket, count(v) AS n, min(v) AS low, max(v) AS high,
         coalesce(sum(v), 0) AS total, max(CASE WHEN v IS NOT NULL THEN ts END) AS last_ts
    FROM raw GROUP BY 1, 2
)
SELECT g.bucket, g.n, g.low, g.high, g.total, {last_value(dialect)} FROM g ORDER BY g.bucket"""


def _raw(connection: Connection, series: int, start: int, end: int) -> list[tuple[int, float]]:
    """(ts, value) of a series in [start, end), oldest first; gap points are left out."""
    found = _rows(connection, series, start, end)
    packed = chunks.read(connection, series, start, end)
    return sorted({**dict(found), **dict(packed)}.items()) if packed else found


def _rows(connection: Connection, series: int, start: int, end: int) -> list[tuple[int, float]]:
    """As `_raw`, without packed samples."""
    rows = _SQLITE_ROWS if connection.dialect.name == "sqlite" else _POSTGRES_ROWS
    sql = text(f"{rows} SELECT ts, v FROM raw WHERE v IS NOT NULL ORDER BY ts")
    values = {"series": series, "start": start, "end": end, "slot": start // SLOT_MS}
    return [(ts, v) for ts, v in connection.execute(sql, values)]


def _newest(connection: Connection, series: Sequence[int], since: int) -> dict[int, tuple[int, float]]:
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
