"""The store: one object per process, safe to share between threads."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Self

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

from server.store import partitions, removal, rollup, write
from server.store.alerts import AlertStore
from server.store.chunks import ChunkStore
from server.store.engine import Engines, explained, open_engines
from server.store.fleet import FleetStore
from server.store.foreign import refuse_foreign
from server.store.generators import GeneratorStore
from server.store.histograms import Edges, HistogramStore
from server.store.inbox import PushStore
from server.store.retention import RetentionStore
from server.store.rollouts.read import RolloutStore
from server.store.runs import RunStore, ensure_run, one_run, rolled_until
from server.store.samples import SampleStore
from server.store.sandboxes import SandboxStore
from server.store.schema.revision import check
from server.store.series import SeriesStore
from server.store.steps import StepStore
from server.store.types import Batch, RunRow
from server.store.verdicts import VerdictStore


class Store:
    """Writes batches; reads by topic. Every time is epoch milliseconds, every range is [start, end).

    A run or series that does not exist reads as empty. Times before 1970 are not supported.

    Attributes:
        runs: state of runs: targets, newest values, incarnations, events.
        fleet: newest values of all runs at once.
        series: ids of series.
        samples: raw samples and points over time, and buckets for charts.
        histograms: histograms of minutes.
        steps: steps, and their times.
        generators: values of single engines.
        sandboxes, rollouts: their records.
        verdicts: the newest verdict of a run, and its history.
        alerts: alerts, silences, the outbox and heartbeats.
        pushes: the inbox of pushed data, and its senders.
        chunks: packs old raw samples.
        retention: deletes what is older than its retention; the size of the store.
    """

    def __init__(self, url: str, engines: Engines) -> None:
        self.url = url
        self.dialect = engines.dialect
        self._engines = engines
        self.runs = RunStore(engines)
        self.series = SeriesStore(engines)
        self.samples = SampleStore(engines, self.series)
        self.histograms = HistogramStore(engines, self.series)
        self.steps = StepStore(engines, self.runs)
        self.alerts = AlertStore(engines)
        self.sandboxes = SandboxStore(engines)
        self.generators = GeneratorStore(engines)
        self.verdicts = VerdictStore(engines)
        self.fleet = FleetStore(engines)
        self.rollouts = RolloutStore(engines)
        self.pushes = PushStore(engines)
        self.chunks = ChunkStore(engines)
        self.retention = RetentionStore(engines)
        self._guard = threading.Lock()
        self._run_ids: dict[str, int] = {}
        # Writes of this process take turns: the layouts of an open transaction must not be used by another.
        self._writing = threading.Lock()
        self._layouts: dict[Edges, int] = {}
        self._days: set[int] = set()

    @classmethod
    def open(cls, url: str, *, read_only: bool = False) -> Self:
        """Open a migrated store.

        Raises:
            StoreError: no such database, of another application, not migrated, another schema version, or an
                unknown URL.
        """
        refuse_foreign(url)
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
        self.series.forget(run)
        return removal.remove(self._engines, run, now)

    def close(self) -> None:
        """Closes every connection. A WAL that no other process uses is merged into the database."""
        self._engines.dispose()

    def ensure_run(self, name: str) -> RunRow:
        """Returns the run of this name; creates it if it is new."""
        with self._engines.writable().begin() as connection:
            ensure_run(connection, name)
            row = one_run(connection, name)
        assert row is not None
        with self._guard:
            # If another process deleted the run and this process created it again, the cached series ids are void.
            if self._run_ids.setdefault(name, row.id) != row.id:
                self.series.forget(name)
                self._run_ids[name] = row.id
        return row

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
        engine = self._engines.writable()
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

    def rollup(self, run: str, watermark_ms: int, lateness_ms: int = rollup.LATENESS_MS) -> None:
        """Close what ended ``lateness_ms`` before the watermark, and recompute what late rows changed.

        Cheap when nothing is due. A long history is closed in many short transactions.
        """
        row = self.runs.get(run)
        if row is None:
            return
        engine = self._engines.writable()
        with self._engines.reading() as connection:
            rolled, late = rolled_until(connection, row.id), rollup.has_dirty(connection, row.id)
        # Checked without the write lock first: this is called on every tick and rarely due.
        if rollup.due(row, rolled, watermark_ms, lateness_ms):
            _until_done(engine, lambda c: rollup.close_next(c, row.id, watermark_ms, lateness_ms))
        if late:
            _until_done(engine, lambda c: rollup.recompute_next(c, row.id))

    def one_state(self) -> AbstractContextManager[None]:
        """Reads of this thread inside the block share a transaction. Nothing that is written meanwhile is seen."""
        return self._engines.one_state()

    def mark(self) -> int | None:
        """A number that changes with every commit; None if it cannot be read within microseconds."""
        return self._engines.mark()


def _until_done(engine: Engine, step: Callable[[Connection], bool]) -> None:
    """Repeats ``step``, each in its own transaction, while it returns that there is more."""
    more = True
    while more:
        with engine.begin() as connection:
            more = step(connection)
