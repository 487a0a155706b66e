"""The store: one object per process, safe to share between threads."""

import json
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from operator import itemgetter
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Engine, case, delete, literal, or_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from server.signals.model import TargetState
from server.store import alerts, histograms, removal, rollouts, rollup, sandboxes, schema
from server.store import runs as store_runs
from server.store.alerts import AlertStore
from server.store.bulk import Row, among, clean, upsert
from server.store.chunks import ChunkStore
from server.store.engine import Engines
from server.store.generators import FleetStore, GeneratorStore
from server.store.histograms import Edges, HistogramStore
from server.store.inbox import PushStore
from server.store.panels import PanelStore
from server.store.retention import RetentionStore
from server.store.rollouts import RolloutStore
from server.store.runs import RunStore, VerdictStore, ensure_run, one_run, rolled_until
from server.store.samples import SampleStore
from server.store.sandboxes import SandboxStore
from server.store.series import SeriesStore
from server.store.steps import StepStore
from server.store.tables import (
    SLOT_MS,
    counters,
    cursors,
    dirty,
    events,
    inbox,
    incarnations,
    latest,
    points,
    postgres_samples,
    runs,
    signal_state,
    sqlite_samples,
    step_values,
    steps,
    targets,
)
from server.store.types import Batch, PointState, RunRow

# ---- write
# One batch into the database, in the caller's transaction.

RUN_FIELDS = frozenset({"framework", "mode", "lifecycle", "watermark", "generation", "collected_at", "catch_up"})
"""What `Batch.run_fields` may set."""

_TWO, _THREE = itemgetter(0, 1), itemgetter(0, 1, 2)
_TARGET_COLUMNS = TargetState.__struct_fields__


def write_batch(connection: Connection, batch: Batch, layouts: dict[histograms.Edges, int]) -> int:
    """Store all of ``batch``; the run's newest seq after it.

    Raises:
        ValueError: an unknown run field: a programming error, found before anything is written.
    """
    if unknown := set(batch.run_fields) - RUN_FIELDS:
        raise ValueError(f"unknown run fields: {', '.join(sorted(unknown))}")
    ensure_run(connection, batch.run)
    # Must come first: everything below reads and changes what only one writer of the run may.
    run, seq, rolled = _lock_run(connection, batch)
    _samples(connection, batch)
    _points(connection, batch, run, seq - len(batch.points))
    _late(connection, batch, run, rolled)
    _steps(connection, batch, run)
    _incarnations(connection, batch, run)
    histograms.write(connection, batch.histograms, layouts)
    _events(connection, batch, run)
    _state(connection, batch, run)
    _targets(connection, batch, run)
    alerts.write(connection, batch, run)
    store_runs.write(connection, batch.verdicts, run)
    sandboxes.write(connection, batch.sandboxes, run)
    rollouts.write(connection, batch, run)
    if batch.taken:
        connection.execute(delete(inbox).where(among(inbox.c.id, batch.taken)))
    return seq


def sample_days(batch: Batch) -> set[int]:
    """Days since the epoch that the samples fall on: PostgreSQL needs a partition for each."""
    return {ts // 86_400_000 for _, ts, _ in batch.samples}


def begin_incarnation(connection: Connection, run: int, n: int, ts: int, first_step: int | None) -> None:
    """Records incarnation ``n``; of several reports the earliest start and first step win."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(incarnations).values(run=run, n=n, start_ts=ts, first_step=first_step)
    new, old = statement.excluded, incarnations.c
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["run", "n"],
            set_={
                "start_ts": _smaller(old.start_ts, new.start_ts),
                "first_step": _smaller(old.first_step, new.first_step),
            },
        )
    )


def _lock_run(connection: Connection, batch: Batch) -> tuple[int, int, int | None]:
    """(id, seq after the batch's points, closed up to). Holds the run's row until the transaction ends."""
    first, last = _span(batch)
    changes: dict[str, object] = {**batch.run_fields, "seq": runs.c.seq + len(batch.points)}
    if first is not None:
        changes["first_ts"] = _smaller(runs.c.first_ts, literal(first))
        changes["last_ts"] = case((runs.c.last_ts >= last, runs.c.last_ts), else_=last)
    statement = update(runs).where(runs.c.name == batch.run).values(changes)
    run, seq, rolled, facts = connection.execute(
        statement.returning(runs.c.id, runs.c.seq, runs.c.rolled, runs.c.facts)
    ).one()
    # Merged here and not in SQL: the two databases spell JSON differently, and the row is locked.
    merged = {**json.loads(facts), **batch.facts}
    if batch.facts and merged != json.loads(facts):
        connection.execute(update(runs).where(runs.c.id == run).values(facts=json.dumps(merged)))
    return run, seq, rolled


def _span(batch: Batch) -> tuple[int | None, int | None]:
    # Sets: ten thousand samples of a tick have one time.
    times = {ts for _, ts, _ in batch.samples}
    times |= {ts for _, ts, _, _ in batch.points}
    times |= {stamp.ts for stamp in batch.steps}
    times |= {ts for ts, _ in batch.events}
    times |= {ts for _, ts, _ in batch.histograms}
    times |= {round(row.moved_at * 1000) for row in batch.rollouts}
    return (min(times), max(times)) if times else (None, None)


def _samples(connection: Connection, batch: Batch) -> None:
    # NaN is not a number to SQLite but NULL, and an infinity makes every sum it is in useless: neither is a
    # measurement. Sorted, because neighbours in the key then land on one page.
    good = math.isfinite
    rows: list[Row]
    if connection.dialect.name == "sqlite":
        rows = [(ts // SLOT_MS, series, ts, v) for series, ts, v in batch.samples if good(v)]
        rows.sort(key=_THREE)
        upsert(connection, sqlite_samples, ("slot", "series", "ts", "v"), rows)
        return
    rows = [(series, ts, float(v)) for series, ts, v in batch.samples if good(v)]
    rows.sort(key=_TWO)
    upsert(connection, postgres_samples, ("series", "ts", "v"), rows)


def _points(connection: Connection, batch: Batch, run: int, seq: int) -> None:
    good, has_value = math.isfinite, int(PointState.VALUE)
    rows: list[Row] = [
        (series, ts, float(value), state, run, number)
        if state == has_value and value is not None and good(value)
        else (series, ts, *_point(value, state), run, number)
        for number, (series, ts, value, state) in enumerate(batch.points, start=seq + 1)
    ]
    # The seq changes with the value, so that a reader whose cursor is past this point gets the new value.
    upsert(connection, points, ("series", "ts", "v", "state", "run", "seq"), rows, ("v", "state", "seq"))


def _point(value: float | None, state: int) -> tuple[float | None, int]:
    """Only a VALUE carries a number, and only a finite number is one: sums and extremes rely on it."""
    if state != PointState.VALUE:
        return None, int(state)
    if value is None or not math.isfinite(value):
        return None, int(PointState.UNKNOWN)
    return float(value), int(state)


def _late(connection: Connection, batch: Batch, run: int, rolled: int | None) -> None:
    """Marks the slots whose closed buckets no longer match the rows."""
    if rolled is None:
        return
    late = {(run, ts // SLOT_MS, series) for series, ts, _ in batch.samples if ts < rolled}
    late |= {(run, ts // SLOT_MS, series) for series, ts, _, _ in batch.points if ts < rolled}
    upsert(connection, dirty, ("run", "slot", "series"), sorted(late))


def _steps(connection: Connection, batch: Batch, run: int) -> None:
    rows = [(run, s.axis, s.incarnation, s.step, s.ts) for s in batch.steps]
    upsert(connection, steps, ("run", "axis", "incarnation", "step", "ts"), rows)
    values = [
        (series, incarnation, step, float(v)) for series, incarnation, step, v in batch.step_values if math.isfinite(v)
    ]
    upsert(connection, step_values, ("series", "incarnation", "step", "v"), values, ("v",))


def _incarnations(connection: Connection, batch: Batch, run: int) -> None:
    for n in sorted({stamp.incarnation for stamp in batch.steps}):
        own = [stamp for stamp in batch.steps if stamp.incarnation == n]
        begin_incarnation(connection, run, n, min(s.ts for s in own), min(s.step for s in own))
    # A restart is known before its first step: a step of a large run takes an hour.
    for n, ts in batch.incarnations:
        begin_incarnation(connection, run, n, ts, None)


def _events(connection: Connection, batch: Batch, run: int) -> None:
    rows = [(run, ts, event.kind, clean(event.key), clean(event.detail), event.version) for ts, event in batch.events]
    upsert(connection, events, ("run", "ts", "kind", "key", "detail", "version"), rows)


def _state(connection: Connection, batch: Batch, run: int) -> None:
    """What the next tick starts from: newest points, folds, counters, cursors."""
    newest = [(run, r.series, r.ts, *_point(r.value, r.state), clean(r.why), r.source) for r in batch.latest]
    names = ("run", "series", "ts", "v", "state", "why", "source")
    upsert(connection, latest, names, newest, names[2:])
    folds = [(run, name, version, state) for name, (version, state) in batch.states.items()]
    upsert(connection, signal_state, ("run", "name", "code_version", "state"), folds, ("code_version", "state"))
    totals = [(run, series, float(v)) for series, v in batch.counters.items() if math.isfinite(v)]
    upsert(connection, counters, ("run", "series", "v"), totals, ("v",))
    places = [(run, target, cursor) for target, cursor in batch.cursors.items()]
    upsert(connection, cursors, ("run", "target", "cursor"), places, ("cursor",))


def _targets(connection: Connection, batch: Batch, run: int) -> None:
    rows = [(run, *_target_values(target)) for target in batch.targets]
    upsert(connection, targets, ("run", *_TARGET_COLUMNS), rows, _TARGET_COLUMNS[1:])


def _target_values(target: TargetState) -> Iterable[object]:
    for name in _TARGET_COLUMNS:
        value = getattr(target, name)
        if name in ("last_ts", "last_ok_ts") and value is not None:
            value = round(value * 1000)
        if name == "unmapped":
            value = _as_text(tuple(value.items()))
        if name == "origin":
            value = json.dumps([value.source, value.job, value.labels, value.key]) if value is not None else ""
        yield clean(value) if name in ("error", "origin") else value


@lru_cache(maxsize=256)
def _as_text(unmapped: tuple[tuple[str, int], ...]) -> str:
    """A fleet of one kind leaves out the same."""
    return json.dumps(dict(unmapped))


def _smaller(old: ColumnElement[Any], new: ColumnElement[Any]) -> ColumnElement[Any]:
    """The smaller of two that may be NULL. (SQLite and PostgreSQL name that function differently.)"""
    return case((or_(old.is_(None), new < old), new), else_=old)


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
        panels: charts that users chose.
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
        self.panels = PanelStore(engines)
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
        return cls(url, schema.checked(url, read_only=read_only))

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
            self._ensure_days(engine, {day for batch in batches for day in sample_days(batch)})
        try:
            with engine.begin() as connection:
                return [write_batch(connection, batch, self._layouts) for batch in batches]
        except BaseException:
            self._layouts.clear()  # ids that the failed transaction took back
            raise

    def _ensure_days(self, engine: Engine, days: set[int]) -> None:
        if missing := days - self._days:
            schema.ensure(engine, missing)
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
