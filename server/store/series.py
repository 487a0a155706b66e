"""Series ids: each key gets a permanent number at its first use."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import Connection, select, text

from server.store.bulk import labels_hash, pack_labels, unpack_labels, upsert
from server.store.engine import Engines
from server.store.runs import ensure_run, one_run, rolled_until
from server.store.tables import SLOT_MS, runs, series
from server.store.types import SeriesKey

# Closed minutes are in the rollups, newer samples in rows: one seek per series and table, however long the run is.
_NEWEST = """SELECT s.id,
  (SELECT r.last_ts FROM rollups r WHERE r.tier = 60000 AND r.series = s.id ORDER BY r.bucket DESC LIMIT 1),
  (SELECT h.ts FROM hist_last h WHERE h.series = s.id),
  (SELECT t.ts FROM step_values v JOIN steps t
      ON t.run = s.run AND t.axis = s.axis AND t.incarnation = v.incarnation AND t.step = v.step
    WHERE v.series = s.id ORDER BY v.incarnation DESC, v.step DESC LIMIT 1),
  {row}
 FROM series s WHERE s.run = :run AND s.target <> ''"""
_NEWEST_ROW = {
    "sqlite": f"""(WITH RECURSIVE slots(slot) AS (
      SELECT min(slot) FROM samples WHERE slot >= :start / {SLOT_MS}
      UNION ALL
      SELECT (SELECT min(x.slot) FROM samples x WHERE x.slot > slots.slot) FROM slots
       WHERE slots.slot < :last / {SLOT_MS}
    ) SELECT max((SELECT max(x.ts) FROM samples x WHERE x.slot = slots.slot AND x.series = s.id)) FROM slots)""",
    "postgresql": "(SELECT max(x.ts) FROM samples x WHERE x.series = s.id AND x.ts >= :start AND x.ts <= :last)",
}

COLUMNS = ("run", "target", "metric", "labels_hash", "axis", "labels", "unit")


class SeriesStore:
    """Reached as `Store.series`. Caches the ids that this process interned; safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._guard = threading.Lock()
        self._ids: dict[str, dict[SeriesKey, int]] = defaultdict(dict)

    def intern(self, run: str, keys: Sequence[SeriesKey], units: Mapping[str, str] | None = None) -> list[int]:
        """Permanent ids, one per key, made where new. ``units``: metric -> unit; the first unit of a metric stays."""
        with self._guard:
            ids = self._ids[run]
            new = [key for key in dict.fromkeys(keys) if key not in ids]
        if new:
            self._intern(run, new, units or {})
        return [ids[key] for key in keys]

    def _intern(self, run: str, new: list[SeriesKey], units: Mapping[str, str]) -> None:
        with self._engines.writable().begin() as connection:
            ensure_run(connection, run)
            row = one_run(connection, run)
            assert row is not None
            rows = [
                (
                    row.id,
                    k.target,
                    k.metric,
                    labels_hash(k.labels),
                    k.axis,
                    pack_labels(k.labels),
                    units.get(k.metric, ""),
                )
                for k in new
            ]
            # Sorted: two processes with the same new keys in different orders would deadlock.
            upsert(connection, series, COLUMNS, sorted(rows))
            # Only of the targets concerned: when 1,000 come up, all series would be read 1,000 times.
            targets = {key.target for key in new}
            ids = {key: number for target in targets for number, key in _listed(connection, run, target)}
        # Only after the commit: an id of a failed transaction must not be returned.
        with self._guard:
            self._ids[run].update(ids)

    def forget(self, run: str) -> None:
        """Drops the cached ids of a run that was deleted."""
        with self._guard:
            self._ids.pop(run, None)

    def listed(self, run: str, target: str | None = None) -> list[tuple[int, SeriesKey]]:
        """(id, key) of a run's series, or of one target's, by id."""
        with self._engines.reading() as connection:
            return list(_listed(connection, run, target))

    def of_metrics(self, run: str, metrics: Iterable[str] | None) -> list[tuple[int, SeriesKey]]:
        """(id, key) of a run's series of these metrics; None: of all."""
        wanted = None if metrics is None else frozenset(metrics)
        return [(number, key) for number, key in self.listed(run) if wanted is None or key.metric in wanted]

    def metrics(self, run: str) -> frozenset[str]:
        """Names of the metrics that any target of a run ever reported, without its own signals."""
        c = series.c
        query = select(c.metric).distinct().join(runs, runs.c.id == c.run).where(runs.c.name == run, c.target != "")
        with self._engines.reading() as connection:
            return frozenset(connection.execute(query).scalars())

    def reported(self, run: str, metric: str | None = None) -> list[tuple[int, SeriesKey]]:
        """(id, key) of the series that targets of a run reported: of one metric or of all, sorted by key."""
        c = series.c
        query = select(c.id, c.target, c.metric, c.labels, c.axis).join(runs, runs.c.id == c.run)
        query = query.where(runs.c.name == run, c.target != "")
        if metric is not None:
            query = query.where(c.metric == metric)
        with self._engines.reading() as connection:
            rows = connection.execute(query).all()
        found = [(number, SeriesKey(name, m, unpack_labels(labels), axis)) for number, name, m, labels, axis in rows]
        return sorted(found, key=lambda row: (row[1].metric, row[1].target, row[1].labels, row[1].axis))

    def newest(self, run: str) -> dict[int, int]:
        """Series -> time of the newest sample, histogram or step of each that targets of a run reported."""
        with self._engines.reading() as connection:
            row = one_run(connection, run)
            if row is None or row.first_ts is None:
                return {}
            rolled = rolled_until(connection, row.id)
            values = {"run": row.id, "start": row.first_ts if rolled is None else rolled, "last": row.last_ts}
            sql = text(_NEWEST.format(row=_NEWEST_ROW[connection.dialect.name]))
            found = {
                number: [ts for ts in times if ts is not None] for number, *times in connection.execute(sql, values)
            }
        return {number: max(times) for number, times in found.items() if times}

    def find(self, run: str, key: SeriesKey) -> int | None:
        """The id of a series; None if nothing was ever written for it. Never makes one."""
        return self.find_all(run, [key]).get(key)

    def find_all(self, run: str, keys: Sequence[SeriesKey]) -> dict[SeriesKey, int]:
        """The ids of those series for which something was ever written, in one read. Never makes one."""
        cached = self._ids.get(run, {})
        found = {key: number for key in keys if (number := cached.get(key)) is not None}
        rest = {(key.target, key.metric, labels_hash(key.labels), key.axis): key for key in keys if key not in found}
        if not rest:
            return found
        c = series.c
        query = select(c.id, c.target, c.metric, c.labels_hash, c.axis).join(runs, runs.c.id == c.run)
        query = query.where(runs.c.name == run, c.target.in_({key.target for key in rest.values()}))
        query = query.where(c.metric.in_({key.metric for key in rest.values()}))
        query = query.where(c.labels_hash.in_({labels for _, _, labels, _ in rest}))
        with self._engines.reading() as connection:
            rows = connection.execute(query).all()
        return found | {rest[row[1:]]: row[0] for row in map(tuple, rows) if row[1:] in rest}

    def unit(self, series_id: int) -> str:
        """The unit a series was interned with; "" without one."""
        with self._engines.reading() as connection:
            return str(connection.execute(select(series.c.unit).where(series.c.id == series_id)).scalar() or "")


def _listed(connection: Connection, run: str, target: str | None = None) -> Iterator[tuple[int, SeriesKey]]:
    """Yields (id, key) of the series of a run, or of one of its targets, by id."""
    c = series.c
    query = select(c.id, c.target, c.metric, c.labels, c.axis).join(runs, runs.c.id == c.run)
    query = query.where(runs.c.name == run).order_by(c.id)
    if target is not None:
        query = query.where(c.target == target)
    for number, name, metric, labels, axis in connection.execute(query):
        yield number, SeriesKey(name, metric, unpack_labels(labels), axis)
