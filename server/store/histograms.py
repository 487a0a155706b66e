"""Histograms: cumulative readings in, mergeable per-minute deltas out.

A reading is a total since the process began. What is stored is what came since the reading before, under the
edges it was read with, so that any time range is a plain sum and nothing depends on who was restarted when.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add, lt, sub
from struct import pack, unpack

from sqlalchemy import Connection, select, text

from collectors.model import Histogram
from server.store.bulk import among, upsert
from server.store.engine import Engines
from server.store.rollup import floor
from server.store.series import SeriesStore
from server.store.tables import hist, hist_last, hist_layouts
from server.store.types import Bucket, HistogramDelta, SeriesKey

MINUTE_MS = 60_000

_MEANS = text(
    "SELECT minute - minute % :width AS bucket, count(*), min(total / n), max(total / n), sum(total), sum(n) FROM hist "
    "WHERE series = :series AND minute >= :start AND minute < :end AND n > 0 GROUP BY 1 ORDER BY 1"
)

Edges = tuple[float, ...]
Reading = tuple[int, int, Histogram]  # series, ts, as read


@dataclass(frozen=True, slots=True)
class Total:
    """The newest reading of a series. ``counts`` are cumulative, one more than ``edges``."""

    ts: int
    edges: Edges
    counts: tuple[float, ...]
    total: float


def fold(last: Total | None, new: Total) -> tuple[Total, HistogramDelta | None]:
    """What ``new`` adds to what is stored: the next state, and the delta (None: nothing).

    - The first reading is the base line: its counts happened before the scrapes began.
    - A reading not newer than the last is a retry or late: a cumulative count holds it already.
    - Other edges, or a lower count, mean a new process: all its counts are new.
    """
    if last is None:
        return new, None
    if new.ts <= last.ts:
        return last, None
    # Both are sound: of the same edges, as many counts.
    reset = new.edges != last.edges or any(map(lt, new.counts, last.counts))
    grown = new.counts if reset else tuple(map(sub, new.counts, last.counts))
    # The last count is of all: when it stands still nothing was observed, and idle engines store no rows.
    if grown[-1] == 0:
        return new, None
    total = new.total - (0.0 if reset else last.total)
    return new, HistogramDelta(new.edges, _per_bucket(grown), total, grown[-1])


def merge(deltas: Iterable[HistogramDelta]) -> list[HistogramDelta]:
    """Deltas summed per edge layout, in the order the layouts appear. Different edges cannot be summed."""
    sums: dict[Edges, HistogramDelta] = {}
    for delta in deltas:
        total = sums.get(delta.edges)
        sums[delta.edges] = delta if total is None else _add(total, delta)
    return list(sums.values())


def write(connection: Connection, readings: Sequence[Reading], layouts: dict[Edges, int]) -> None:
    """Fold readings into `hist`, each exactly once. The caller holds the run's lock; ``layouts`` is its cache."""
    usable = sorted((r for r in readings if _sound(r[2])), key=lambda reading: reading[1])
    if not usable:
        return
    _intern_layouts(connection, {h.edges for _, _, h in usable}, layouts)
    last = _load_last(connection, {series for series, _, _ in usable})
    changed: dict[int, Total] = {}
    added: dict[tuple[int, int, Edges], list[HistogramDelta]] = defaultdict(list)
    # Several readings of one series may come in one batch: each is folded onto the one before it.
    for series, ts, h in usable:
        before = changed.get(series, last.get(series))
        after, delta = fold(before, Total(ts, h.edges, h.counts, h.total))
        if after is not before:
            changed[series] = after
        if delta is not None:
            added[series, ts // MINUTE_MS * MINUTE_MS, h.edges].append(delta)
    _store_deltas(connection, added, layouts)
    _store_last(connection, changed, layouts)


class HistogramStore:
    """Reached as `Store.histograms`. Times are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines, series: SeriesStore) -> None:
        self._engines, self._series = engines, series

    def merged(self, run: str, key: SeriesKey, start: int, end: int) -> list[HistogramDelta]:
        """Merged deltas of the minutes that begin in the range, one per edge layout, in order of appearance."""
        number = self._series.find(run, key)
        if number is None:
            return []
        query = (
            select(hist_layouts.c.edges, hist.c.deltas, hist.c.total, hist.c.n)
            .join(hist_layouts, hist_layouts.c.id == hist.c.layout)
            .where(hist.c.series == number, hist.c.minute >= start, hist.c.minute < end)
            .order_by(hist.c.minute)
        )
        with self._engines.reading() as connection:
            rows = connection.execute(query).all()
        return merge(HistogramDelta(_floats(edges), _floats(deltas), total, n) for edges, deltas, total, n in rows)

    def means(self, series_id: int, start: int, end: int, width_ms: int) -> list[Bucket]:
        """Means of the observations in buckets of whole minutes that touch [start, end), oldest first.

        ``low`` and ``high`` are the extremes of the means of single minutes. Minutes without observations are left out.
        """
        width = -(-width_ms // MINUTE_MS) * MINUTE_MS
        values = {"series": series_id, "start": floor(start, width), "end": -(-end // width) * width, "width": width}
        with self._engines.reading() as connection:
            rows = connection.execute(_MEANS, values).all()
        return [Bucket(int(ts), int(n), low, high, total / seen * n, None) for ts, n, low, high, total, seen in rows]

    def windows(
        self, run: str, metrics: Iterable[str], start: int
    ) -> tuple[list[tuple[SeriesKey, int, HistogramDelta]], list[tuple[SeriesKey, Total]]]:
        """State to continue from after a restart: deltas of minutes (ms) from ``start`` on, and the last readings."""
        keys = dict(self._series.of_metrics(run, metrics))
        query = (
            select(hist.c.series, hist.c.minute, hist_layouts.c.edges, hist.c.deltas, hist.c.total, hist.c.n)
            .join(hist_layouts, hist_layouts.c.id == hist.c.layout)
            .where(among(hist.c.series, sorted(keys)), hist.c.minute >= start)
        )
        with self._engines.reading() as connection:
            minutes = [
                (keys[number], minute, HistogramDelta(_floats(edges), _floats(deltas), total, n))
                for number, minute, edges, deltas, total, n in connection.execute(query)
            ]
        with self._engines.reading() as connection:
            last = _load_last(connection, set(keys))
        return minutes, [(keys[number], total) for number, total in last.items()]


def _sound(h: Histogram) -> bool:
    """Leaves out a malformed histogram: it must not fail the batch (and with it the cursor) permanently."""
    return len(h.counts) == len(h.edges) + 1 and all(map(math.isfinite, (*h.counts, *h.edges, h.total)))


def _per_bucket(cumulative: Sequence[float]) -> tuple[float, ...]:
    return (cumulative[0], *map(sub, cumulative[1:], cumulative))


def _add(a: HistogramDelta, b: HistogramDelta) -> HistogramDelta:
    counts = tuple(map(add, a.counts, b.counts))
    return HistogramDelta(a.edges, counts, a.total + b.total, a.n + b.n)


def _store_deltas(
    connection: Connection, added: dict[tuple[int, int, Edges], list[HistogramDelta]], layouts: dict[Edges, int]
) -> None:
    if not added:
        return
    # The minute may already hold some of it, from an earlier batch.
    edges_of = {number: edges for edges, number in layouts.items()}
    for series, minute, layout, counts, total, n in _stored(connection, added):
        key = (series, minute, edges_of.get(layout, ()))
        if key in added:
            added[key].append(HistogramDelta(key[2], _floats(counts), total, n))
    rows = []
    for (series, minute, edges), deltas in added.items():
        (whole,) = merge(deltas)
        rows.append((series, minute, layouts[edges], whole.n, whole.total, _blob(whole.counts)))
    upsert(connection, hist, ("series", "minute", "layout", "n", "total", "deltas"), rows, ("n", "total", "deltas"))


def _stored(
    connection: Connection, wanted: Iterable[tuple[int, int, Edges]]
) -> Iterator[tuple[int, int, int, bytes, float, float]]:
    wanted = list(wanted)
    minutes = {minute for _, minute, _ in wanted}
    numbers = sorted({series for series, _, _ in wanted})
    yield from connection.execute(
        select(hist.c.series, hist.c.minute, hist.c.layout, hist.c.deltas, hist.c.total, hist.c.n).where(
            among(hist.c.series, numbers), hist.c.minute >= min(minutes), hist.c.minute <= max(minutes)
        )
    )


def _load_last(connection: Connection, series: set[int]) -> dict[int, Total]:
    rows = connection.execute(
        select(hist_last.c.series, hist_last.c.ts, hist_layouts.c.edges, hist_last.c.counts, hist_last.c.total)
        .join(hist_layouts, hist_layouts.c.id == hist_last.c.layout)
        .where(among(hist_last.c.series, sorted(series)))
    )
    return {number: Total(ts, _edges(e), _floats(c), total) for number, ts, e, c, total in rows}


def _store_last(connection: Connection, last: dict[int, Total], layouts: dict[Edges, int]) -> None:
    rows = [(series, layouts[t.edges], t.ts, t.total, _blob(t.counts)) for series, t in last.items()]
    names = ("series", "layout", "ts", "total", "counts")
    upsert(connection, hist_last, names, rows, names[1:])


def _intern_layouts(connection: Connection, edges: set[Edges], ids: dict[Edges, int]) -> None:
    digests = {_digest(some): some for some in edges if some not in ids}
    if not digests:
        return
    for digest, some in digests.items():
        upsert(connection, hist_layouts, ("digest", "edges"), [(digest, _blob(some))])
    rows = connection.execute(
        select(hist_layouts.c.digest, hist_layouts.c.id).where(among(hist_layouts.c.digest, digests))
    )
    # Read back, not returned by the insert: another process may have been first.
    ids.update({digests[digest]: number for digest, number in rows})


def _digest(edges: Edges) -> str:
    return hashlib.blake2b(_blob(edges), digest_size=16).hexdigest()


def _blob(values: Sequence[float]) -> bytes:
    return pack(f"<{len(values)}d", *values)


@lru_cache(maxsize=256)
def _edges(blob: bytes) -> Edges:
    """The same object for the same edges, which are compared and looked up for every series."""
    return _floats(blob)


def _floats(blob: bytes) -> tuple[float, ...]:
    return unpack(f"<{len(blob) // 8}d", blob)
