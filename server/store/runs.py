"""Reads the state of runs: the runs, their targets, newest values, incarnations and events."""

import json
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, case, func, select

from collectors.model import Event
from server.signals.model import Origin, TargetState
from server.store.bulk import clean, unpack_labels, upsert
from server.store.engine import Engines
from server.store.tables import (
    DELETED,
    counters,
    cursors,
    events,
    expiry,
    incarnations,
    latest,
    runs,
    series,
    signal_state,
    targets,
    verdicts,
)
from server.store.types import LatestRow, PointState, RunRow, SeriesKey, VerdictRow

_RUN = (
    runs.c.id,
    runs.c.name,
    runs.c.framework,
    runs.c.mode,
    runs.c.lifecycle,
    runs.c.generation,
    runs.c.watermark,
    runs.c.first_ts,
    runs.c.last_ts,
    runs.c.facts,
    runs.c.seq,
    runs.c.collected_at,
    runs.c.catch_up,
)
_TARGET = tuple(column for column in targets.columns if column.name != "run")
# Statements of every page load are built once: building costs as much as SQLite's execution.
_NAME: BindParameter[str] = bindparam("name")
_ONE = select(*_RUN).where(runs.c.name == _NAME)
_CURSOR = select(runs.c.generation, runs.c.seq).where(runs.c.name == _NAME)
_TARGETS = select(runs.c.name, *_TARGET).join(runs, runs.c.id == targets.c.run).order_by(runs.c.name, targets.c.name)
_TARGETS_OF_ONE = _TARGETS.where(runs.c.name == _NAME)
_COUNTERS = select(counters.c.series, counters.c.v).join(runs, runs.c.id == counters.c.run).where(runs.c.name == _NAME)
_LATEST = (
    select(series.c.target, series.c.metric, series.c.labels, series.c.axis)
    .add_columns(latest.c.series, latest.c.ts, latest.c.v, latest.c.state, latest.c.why, latest.c.source)
    .join(runs, runs.c.id == latest.c.run)
    .join(series, series.c.id == latest.c.series)
    .where(runs.c.name == _NAME)
    .order_by(latest.c.series)
)
_NEWEST = (
    select(latest.c.series, latest.c.ts, latest.c.v, latest.c.state, latest.c.why, latest.c.source)
    .where(latest.c.run == select(runs.c.id).where(runs.c.name == _NAME).scalar_subquery())
    .order_by(latest.c.series)
)
_STATES = {int(state): state for state in PointState}


class RunStore:
    """Reached as `Store.runs`. Times are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def all(self) -> list[RunRow]:
        """Every run, the one with the newest data first."""
        query = select(*_RUN).where(runs.c.lifecycle != DELETED)
        query = query.order_by(func.coalesce(runs.c.last_ts, 0).desc(), runs.c.id.desc())
        with self._engines.reading() as connection:
            return [_run(row) for row in connection.execute(query)]

    def get(self, run: str) -> RunRow | None:
        """One run, or None."""
        with self._engines.reading() as connection:
            return one_run(connection, run)

    def cursor(self, run: str) -> tuple[int, int] | None:
        """(generation, newest seq) of one run, or None."""
        with self._engines.reading() as connection:
            row = connection.execute(_CURSOR, {"name": run}).one_or_none()
        return None if row is None else (row.generation, row.seq)

    def cursors(self, run: str) -> dict[str, str]:
        """target -> cursor as JSON text."""
        query = select(cursors.c.target, cursors.c.cursor).join(runs, runs.c.id == cursors.c.run)
        with self._engines.reading() as connection:
            return {target: cursor for target, cursor in connection.execute(query.where(runs.c.name == run))}

    def targets(self, run: str | None = None) -> list[tuple[str, TargetState]]:
        """(run, target) of one run or of all, by name."""
        with self._engines.reading() as connection:
            rows = connection.execute(_TARGETS) if run is None else connection.execute(_TARGETS_OF_ONE, {"name": run})
            return [(name, _target(values)) for name, *values in rows]

    def facts(self, run: str) -> dict[str, str | float]:
        """Run facts, merged."""
        row = self.get(run)
        return {} if row is None else dict(row.facts)

    def states(self, run: str) -> dict[str, tuple[int, str]]:
        """fold -> (code version, state as JSON text)."""
        c = signal_state.c
        query = select(c.name, c.code_version, c.state).join(runs, runs.c.id == c.run).where(runs.c.name == run)
        with self._engines.reading() as connection:
            return {fold: (version, state) for fold, version, state in connection.execute(query)}

    def counters(self, run: str) -> dict[int, float]:
        """series -> absolute value."""
        with self._engines.reading() as connection:
            return {series: value for series, value in connection.execute(_COUNTERS, {"name": run})}

    def latest(self, run: str) -> list[tuple[SeriesKey, LatestRow]]:
        """The newest point of every signal series, by series id."""
        with self._engines.reading() as connection:
            return [
                (
                    SeriesKey(target, metric, unpack_labels(labels), axis),
                    LatestRow(n, ts, v, _STATES[state], why, source),
                )
                for target, metric, labels, axis, n, ts, v, state, why, source in connection.execute(
                    _LATEST, {"name": run}
                )
            ]

    def newest(self, run: str) -> list[LatestRow]:
        """As `latest`, without the keys: a series id is permanent, so that a reader can cache the keys."""
        # All rows at once: row by row, SQLAlchemy doubles the cost.
        with self._engines.reading() as connection:
            rows = connection.execute(_NEWEST, {"name": run}).all()
        return [LatestRow(n, ts, v, _STATES[state], why, source) for n, ts, v, state, why, source in rows]

    def incarnation(self, run: str) -> int:
        """The newest incarnation; 0 before the first."""
        query = select(func.max(incarnations.c.n)).join(runs, runs.c.id == incarnations.c.run)
        with self._engines.reading() as connection:
            return int(connection.execute(query.where(runs.c.name == run)).scalar() or 0)

    def incarnation_starts(self, run: str) -> list[int]:
        """Start of each trainer incarnation after the first (epoch ms), the oldest first."""
        query = select(incarnations.c.start_ts).join(runs, runs.c.id == incarnations.c.run)
        query = query.where(runs.c.name == run, incarnations.c.n > 0).order_by(incarnations.c.start_ts)
        with self._engines.reading() as connection:
            return list(connection.execute(query).scalars())

    def events(
        self, run: str, start: int, end: int, kinds: Collection[str] = (), limit: int | None = None
    ) -> list[tuple[int, Event]]:
        """(ts, event) in [start, end), of these kinds (empty: all), oldest first; of more than ``limit`` the newest."""
        c = events.c
        number = select(runs.c.id).where(runs.c.name == run).scalar_subquery()
        query = select(c.ts, c.kind, c.key, c.detail, c.version).where(c.run == number, c.ts >= start, c.ts < end)
        if kinds:
            query = query.where(c.kind.in_(sorted(kinds)))
        with self._engines.reading() as connection:
            rows = connection.execute(query.order_by(c.ts.desc(), c.id.desc()).limit(limit)).all()
        return [(ts, Event(kind, key, ts / 1000, detail, version)) for ts, kind, key, detail, version in reversed(rows)]


_PRESENT = select(runs.c.id).where(runs.c.name == _NAME).with_for_update(read=True, key_share=True)


def ensure_run(connection: Connection, name: str) -> None:
    """Creates the run if it is new. No other transaction deletes or renames it until this one ends."""
    # This lock waits for a deletion or a new name only. PostgreSQL's ON CONFLICT waits for every transaction that
    # updated the row, so that each push waited for the writer's commit.
    if connection.execute(_PRESENT, {"name": name}).first() is not None:
        return
    columns = ("name", "framework", "mode", "lifecycle", "generation", "seq", "facts")
    upsert(connection, runs, columns, [(name, "", "", "starting", 1, 0, "{}")])


def one_run(connection: Connection, name: str) -> RunRow | None:
    """Returns a run by name."""
    row = connection.execute(_ONE, {"name": name}).one_or_none()
    return None if row is None else _run(row)


def _run(row: Any) -> RunRow:
    values = dict(row._mapping)
    return RunRow(**{**values, "facts": json.loads(values["facts"])})


def rolled_until(connection: Connection, run: int) -> int | None:
    """1-minute buckets before this (ms) are closed; None when none is."""
    return connection.execute(select(runs.c.rolled).where(runs.c.id == run)).scalar()


def rolled_of_series(connection: Connection, numbers: Sequence[int]) -> dict[int, tuple[int | None, int]]:
    """Series -> `rolled_until` of its run, and the time before which rows of the series are deleted (0: none are)."""
    kind = case((series.c.target == "", "signals"), else_="raw")
    query = (
        select(series.c.id, runs.c.rolled, func.coalesce(expiry.c.before, 0))
        .join(runs, series.c.run == runs.c.id)
        .outerjoin(expiry, (expiry.c.run == runs.c.id) & (expiry.c.kind == kind))
        .where(series.c.id.in_(numbers))
    )
    found = {number: (rolled, before) for number, rolled, before in connection.execute(query).all()}
    return {number: found.get(number, (None, 0)) for number in numbers}


def _target(values: list[Any]) -> TargetState:
    named: dict[str, Any] = dict(zip((column.name for column in _TARGET), values, strict=True))
    times = {name: named[name] / 1000 for name in ("last_ts", "last_ok_ts") if named[name] is not None}
    unmapped, origin = json.loads(named["unmapped"]), _origin(named["origin"])
    return TargetState(**{**named, **times, "unmapped": unmapped, "origin": origin})


def _origin(text: str) -> Origin | None:
    if not text:
        return None
    source, job, labels, key = json.loads(text)
    return Origin(source, job, tuple((name, value) for name, value in labels), key)


# ---- verdicts
# Verdicts in the store: a row for each change, and the newest one whole.

_COLUMNS = tuple(field.name for field in fields(VerdictRow))
_TEXTS = ("cause", "rule")
# Built once, because every page load executes it.
_NEWEST_VERDICT = (
    select(signal_state.c.state)
    .join(runs, runs.c.id == signal_state.c.run)
    .where(runs.c.name == bindparam("run"), signal_state.c.name == "verdict")
)


def write(connection: Connection, rows: Sequence[VerdictRow], run: int) -> None:
    """Store the rows; one of the same time takes the old one's place."""
    values = [
        (run, *(clean(getattr(row, name)) if name in _TEXTS else getattr(row, name) for name in _COLUMNS))
        for row in rows
    ]
    upsert(connection, verdicts, ("run", *_COLUMNS), values, _COLUMNS[1:])


class VerdictStore:
    """Reached as `Store.verdicts`. Times are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def newest(self, run: str) -> str | None:
        """What the rules said last, and when, as `server.derive.results` keeps it (JSON); None before the
        first.
        """
        with self._engines.reading() as connection:
            return connection.execute(_NEWEST_VERDICT, {"run": run}).scalar()

    def page(self, run: str, start: int, end: int, limit: int) -> list[VerdictRow]:
        """Verdicts that stood at some time of [start, end], oldest first; of more than ``limit`` the newest."""
        c = verdicts.c
        query = select(*(c[name] for name in _COLUMNS)).join(runs, runs.c.id == c.run).where(runs.c.name == run)
        newest = query.order_by(c.ts.desc())
        with self._engines.reading() as connection:
            found = list(connection.execute(newest.where(c.ts > start, c.ts <= end).limit(limit)))
            found += connection.execute(newest.where(c.ts <= start, c.ts <= end).limit(1))
        return [VerdictRow(*row) for row in reversed(found[:limit])]

    def following(self, run: str, ts: int) -> int | None:
        """Time at which the verdict of ``ts`` was replaced; None while it is current."""
        c = verdicts.c
        query = select(c.ts).join(runs, runs.c.id == c.run).where(runs.c.name == run, c.ts > ts)
        with self._engines.reading() as connection:
            return connection.execute(query.order_by(c.ts).limit(1)).scalar()
