"""The store: one object per process, safe to share between threads."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Self, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from collectors.model import Event
from server.store import histograms, partitions, ranges, read, removal, rollup, series, write
from server.store.alerts import AlertStore
from server.store.engine import Engines, StoreError, explained, open_engines
from server.store.fleet import FleetStore
from server.store.generators import GeneratorStore
from server.store.inbox import PushStore
from server.store.retention import RetentionStore
from server.store.rollouts.read import RolloutStore
from server.store.sandboxes import SandboxStore
from server.store.schema.revision import check
from server.store.types import Batch, Bucket, HistogramDelta, LatestRow, RunRow, SeriesKey, StepRow, StepTime, TargetRow
from server.store.verdicts import VerdictStore

_T = TypeVar("_T")

Points = list[tuple[int, float | None, int]]


class Store:
    """Reads and writes. Every time is epoch milliseconds, every range is [start, end).

    A run or series that does not exist reads as empty. Times before 1970 are not supported.

    Attributes:
        alerts: alerts, silences, the outbox and heartbeats.
        sandboxes, rollouts: their records.
        pushes: the inbox of pushed data, and its senders.
        verdicts: the newest of a run, and its history.
        fleet: all runs at once.
        generators: values of single engines.
        retention: deletes what is older than its retention, and the size of the store.
    """

    def __init__(self, url: str, engines: Engines) -> None:
        self.url = url
        self.dialect = engines.dialect
        self._engines = engines
        self.alerts = AlertStore(engines)
        self.sandboxes = SandboxStore(engines)
        self.generators = GeneratorStore(engines)
        self.verdicts = VerdictStore(engines)
        self.fleet = FleetStore(engines)
        self.rollouts = RolloutStore(engines)
        self.pushes = PushStore(engines)
        self.retention = RetentionStore(engines)
        self._guard = threading.Lock()
        self._ids: dict[str, dict[SeriesKey, int]] = defaultdict(dict)
        self._run_ids: dict[str, int] = {}
        # Writes of this process take turns: the layouts of an open transaction must not be used by another.
        self._writing = threading.Lock()
        self._layouts: dict[histograms.Edges, int] = {}
        self._days: set[int] = set()

    @classmethod
    def open(cls, url: str, *, read_only: bool = False) -> Self:
        """Open a migrated store.

        Raises:
            StoreError: no such database, not migrated, another schema version, or a URL we do not know.
        """
        engines = open_engines(url, read_only=read_only)
        try:
            with explained():
                check(engines.write or engines.read)
        except BaseException:
            engines.dispose()
            raise
        return cls(url, engines)

    def remove(self, run: str, now: int) -> bool:
        """Delete a run and all its rows (``now``: wall clock, epoch ms). False: there is no such run.

        Raises:
            RunInUse: a collector works on the run.
        """
        with self._guard:
            self._ids.pop(run, None)
        return removal.remove(self._engines, run, now)

    def close(self) -> None:
        """Closes every connection. A WAL that no other process uses is merged into the database."""
        self._engines.dispose()

    # -- writing

    def ensure_run(self, name: str) -> RunRow:
        """The run of this name, made if it is new."""
        with self._write_engine().begin() as connection:
            write.ensure_run(connection, name)
            row = read.one_run(connection, name)
        assert row is not None
        with self._guard:
            # Another process may have deleted the run, and this one made it again: ids of the old one are void.
            if self._run_ids.setdefault(name, row.id) != row.id:
                self._ids.pop(name, None)
                self._run_ids[name] = row.id
        return row

    def intern(self, run: str, keys: Sequence[SeriesKey], units: Mapping[str, str] | None = None) -> list[int]:
        """Stable ids, one per key, made where new. ``units``: metric -> unit, kept from the first time."""
        with self._guard:
            known = self._ids[run]
            new = [key for key in dict.fromkeys(keys) if key not in known]
        if new:
            self._intern(run, new, units or {})
        return [known[key] for key in keys]

    def _intern(self, run: str, new: list[SeriesKey], units: Mapping[str, str]) -> None:
        with self._write_engine().begin() as connection:
            write.ensure_run(connection, run)
            row = read.one_run(connection, run)
            assert row is not None
            series.intern(connection, row.id, new, units)
            # Only of the targets concerned: when 1,000 come up, all series would be read 1,000 times.
            targets = {key.target for key in new}
            found = {key: number for target in targets for number, key in series.listed(connection, run, target)}
        # Only after the commit: an id of a failed transaction must not be returned.
        with self._guard:
            self._ids[run].update(found)

    def write(self, batch: Batch) -> int:
        """Commit a batch, all or nothing; the run's newest seq. Writing it again changes nothing (but seqs)."""
        return self.write_many([batch])[0]

    def write_many(self, batches: Sequence[Batch]) -> list[int]:
        """Commit several batches in one transaction, in their order; the newest seq of each one's run."""
        try:
            with self._writing:
                return self._write_once(batches)
        except IntegrityError as error:
            # Retention dropped a day that is in our cache: "no partition of relation found for row".
            if not self._days or "no partition" not in str(error.orig):
                raise
        with self._writing:
            self._days.clear()
            return self._write_once(batches)

    def _write_once(self, batches: Sequence[Batch]) -> list[int]:
        engine = self._write_engine()
        if self.dialect == "postgresql":
            self._ensure_days(engine, {day for batch in batches for day in write.sample_days(batch)})
        try:
            with engine.begin() as connection:
                return [write.write(connection, batch, self._layouts) for batch in batches]
        except BaseException:
            self._layouts.clear()  # ids that the failed transaction took back
            raise

    def _ensure_days(self, engine: Engine, days: set[int]) -> None:
        if missing := days - self._days:
            partitions.ensure(engine, missing)
            self._days |= missing

    def start_incarnation(self, run: str, n: int, ts: int, first_step: int | None = None) -> None:
        """Records the start of the trainer's ``n``-th incarnation at ``ts``."""
        row = self.ensure_run(run)
        with self._write_engine().begin() as connection:
            write.begin_incarnation(connection, row.id, n, ts, first_step)

    def rollup(self, run: str, watermark_ms: int, lateness_ms: int = rollup.LATENESS_MS) -> None:
        """Close what ended ``lateness_ms`` before the watermark, and recompute what late rows changed.

        Cheap when nothing is due. A long history is closed in many short transactions.
        """
        row = self.run(run)
        if row is None:
            return
        engine = self._write_engine()
        rolled, late = self._read(lambda c: (read.rolled(c, row.id), rollup.has_dirty(c, row.id)))
        # Checked without the write lock first: this is called on every tick and rarely due.
        if rollup.due(row, rolled, watermark_ms, lateness_ms):
            _until_done(engine, lambda c: rollup.close_next(c, row.id, watermark_ms, lateness_ms))
        if late:
            _until_done(engine, lambda c: rollup.recompute_next(c, row.id))

    def _write_engine(self) -> Engine:
        if self._engines.write is None:
            raise StoreError("the store was opened read-only")
        return self._engines.write

    # -- reading state

    def one_state(self) -> AbstractContextManager[None]:
        """Reads of this thread inside the block share a transaction. Nothing that is written meanwhile is seen."""
        return self._engines.one_state()

    def mark(self) -> int | None:
        """A number that changes with every commit; None if it cannot be read within microseconds."""
        return self._engines.mark()

    def _read(self, query: Callable[[Connection], _T]) -> _T:
        with self._engines.reading() as connection:
            return query(connection)

    def runs(self) -> list[RunRow]:
        """Every run, the one with the newest data first."""
        return self._read(read.all_runs)

    def run(self, name: str) -> RunRow | None:
        """One run, or None."""
        return self._read(lambda c: read.one_run(c, name))

    def cursor(self, run: str) -> tuple[int, int] | None:
        """(generation, newest seq) of one run, or None."""
        return self._read(lambda c: read.run_cursor(c, run))

    def cursors(self, run: str) -> dict[str, str]:
        """target -> cursor as JSON text."""
        return self._read(lambda c: read.run_cursors(c, run))

    def targets(self, run: str | None = None) -> list[tuple[str, TargetRow]]:
        """(run, target) of one run or of all."""
        return self._read(lambda c: read.run_targets(c, run))

    def facts(self, run: str) -> dict[str, str | float]:
        """Run facts, merged."""
        row = self.run(run)
        return {} if row is None else dict(row.facts)

    def states(self, run: str) -> dict[str, tuple[int, str]]:
        """fold -> (code version, state as JSON text)."""
        return self._read(lambda c: read.run_states(c, run))

    def counters(self, run: str) -> dict[int, float]:
        """series -> absolute value."""
        return self._read(lambda c: read.run_counters(c, run))

    def latest(self, run: str) -> list[tuple[SeriesKey, LatestRow]]:
        """The newest point of every signal series."""
        return self._read(lambda c: read.run_latest(c, run))

    def newest(self, run: str) -> list[LatestRow]:
        """As `latest`, without the keys: a series id is permanent, so that a reader can cache the keys."""
        return self._read(lambda c: read.run_newest(c, run))

    def incarnation(self, run: str) -> int:
        """The newest incarnation; 0 before the first."""
        return self._read(lambda c: read.newest_incarnation(c, run))

    def lives(self, run: str) -> list[int]:
        """Start of each trainer incarnation after the first (epoch ms), the oldest first."""
        return self._read(lambda c: read.lives(c, run))

    def steps(
        self,
        run: str,
        axis: str | None = None,
        last: int = 100,
        before: int | None = None,
        incarnation: int | None = None,
    ) -> list[StepRow]:
        """The newest ``last`` steps per axis, oldest first.

        Args:
            axis: one axis, or None for each.
            before: only step numbers below this: the way to page back.
            incarnation: None is the newest.
        """
        row = self.run(run)
        if row is None:
            return []
        life = self.incarnation(run) if incarnation is None else incarnation
        return self._read(lambda c: read.run_steps(c, row, axis, last, before, life))

    def step_times(self, run: str, axis: str, start: int, end: int, most: int) -> list[StepTime]:
        """Steps of an axis reported within [start, end] and the last one before, oldest first.

        Of more than ``most`` the newest at equal distances: a month costs as much as an hour.
        """
        return self._read(lambda c: read.step_times(c, run, axis, start, end, most))

    def series(self, run: str, target: str | None = None) -> list[tuple[int, SeriesKey]]:
        """(id, key) of a run's series, or of one target's."""
        return self._read(lambda c: list(series.listed(c, run, target)))

    def metrics(self, run: str) -> frozenset[str]:
        """Names of the metrics that any target of a run ever reported."""
        return self._read(lambda c: series.metrics(c, run))

    def find(self, run: str, key: SeriesKey) -> int | None:
        """The id of a series that exists; never makes one."""
        known = self._ids[run].get(key) if run in self._ids else None
        return known if known is not None else self._read(lambda c: series.find(c, run, key))

    def unit(self, series_id: int) -> str:
        """The unit a series was interned with."""
        return self._read(lambda c: series.unit(c, series_id))

    def events(
        self, run: str, start: int, end: int, kinds: Collection[str] = (), limit: int | None = None
    ) -> list[tuple[int, Event]]:
        """(ts, event) in the range, of these kinds (none: all), oldest first; of more than ``limit`` the newest."""
        return self._read(lambda c: read.run_events(c, run, start, end, kinds, limit))

    def points_since(self, run: str, seq: int, limit: int) -> list[tuple[int, int, int, float | None, int]]:
        """(seq, series, ts, value, PointState) of the points after ``seq``, in the order of seq."""
        return self._read(lambda c: read.points_since(c, run, seq, limit))

    # -- reading ranges

    def points(self, series_ids: Sequence[int], start: int, end: int) -> dict[int, Points]:
        """series -> [(ts, value, PointState)], oldest first; the result has every requested series."""
        return self._read(lambda c: ranges.signal_points(c, series_ids, start, end))

    def buckets(self, series_id: int, start: int, end: int, width_ms: int) -> list[Bucket]:
        """Whole buckets of ``fit_width(width_ms)`` that touch the range, oldest first, from raw rows or rollups.

        Buckets without rows are left out; ``n == 0`` holds gap points only: the line breaks there.
        """

        def query(c: Connection) -> list[Bucket]:
            rolled, expired = read.rolled_of_series(c, series_id)
            return ranges.buckets(c, series_id, start, end, width_ms, rolled, expired)

        return self._read(query)

    def window(
        self, run: str, metrics: Iterable[str] | None, since_ms: int, until_ms: int | None = None
    ) -> Iterator[tuple[int, SeriesKey, list[tuple[int, float]]]]:
        """(series, key, [(ts, value), ...]) of the metrics (None: all) in [since, until).

        Series without rows are left out. One short read per series: a long one would keep SQLite's WAL from
        being folded into the database.
        """
        end = until_ms if until_ms is not None else 1 << 62
        for number, key in self._of_metrics(run, metrics):
            rows = self._read(partial(ranges.raw, series=number, start=since_ms, end=end))
            if rows:
                yield number, key, rows

    def last_samples(
        self, run: str, metrics: Iterable[str] | None, since_ms: int = 0
    ) -> list[tuple[int, SeriesKey, int, float]]:
        """(series, key, ts, value) of each series' newest sample at or after ``since_ms``."""
        keys = dict(self._of_metrics(run, metrics))
        found = self._read(lambda c: ranges.newest(c, list(keys), since_ms))
        return [(number, keys[number], *found[number]) for number in keys if number in found]

    def samples_after(self, run: str, ts: int) -> list[tuple[int, int, float]]:
        """(series, ts, value) of every sample later than ``ts``, oldest first."""
        row = self.run(run)
        return [] if row is None else self._read(lambda c: ranges.after(c, row.id, ts))

    def histogram(self, run: str, key: SeriesKey, start: int, end: int) -> list[HistogramDelta]:
        """What was observed in the minutes that begin in the range, one per edge layout, in order of appearance."""
        number = self.find(run, key)
        return [] if number is None else self._read(lambda c: histograms.read(c, number, start, end))

    def histogram_windows(
        self, run: str, metrics: Iterable[str], start: int
    ) -> tuple[list[tuple[SeriesKey, int, HistogramDelta]], list[tuple[SeriesKey, histograms.Total]]]:
        """What a restart goes on from: minutes (ms) from ``start`` on with what they added, and the last readings."""
        keys = dict(self._of_metrics(run, metrics))
        minutes = self._read(lambda c: list(histograms.since(c, list(keys), start)))
        last = self._read(lambda c: histograms.newest(c, keys))
        return [(keys[n], minute, delta) for n, minute, delta in minutes], [(keys[n], t) for n, t in last.items()]

    def _of_metrics(self, run: str, metrics: Iterable[str] | None) -> list[tuple[int, SeriesKey]]:
        wanted = None if metrics is None else frozenset(metrics)
        return [(number, key) for number, key in self.series(run) if wanted is None or key.metric in wanted]


def _until_done(engine: Engine, step: Callable[[Connection], bool]) -> None:
    """Repeats ``step``, each in its own transaction, while it returns that there is more."""
    more = True
    while more:
        with engine.begin() as connection:
            more = step(connection)
