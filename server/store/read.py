"""Reads of state: what a start, a tick or a page needs, without the long ranges (`ranges.py`)."""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, case, func, select, text

from collectors.model import Event, Labels
from server.store.series import unpack_labels
from server.store.tables import (
    DELETED,
    counters,
    cursors,
    events,
    expiry,
    incarnations,
    latest,
    points,
    runs,
    series,
    signal_state,
    step_values,
    steps,
    targets,
)
from server.store.types import LatestRow, Origin, PointState, RunRow, SeriesKey, StepRow, StepTime, TargetRow

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
# A subquery, not a join: the index on (run, seq) then gives the rows in order, without a sort.
_POINTS = (
    select(points.c.seq, points.c.series, points.c.ts, points.c.v, points.c.state)
    .where(points.c.run == select(runs.c.id).where(runs.c.name == _NAME).scalar_subquery())
    .where(points.c.seq > bindparam("seq"))
    .order_by(points.c.seq)
    .limit(bindparam("most"))
)
_STATES = {int(state): state for state in PointState}


def all_runs(connection: Connection) -> list[RunRow]:
    """Every run, the one with the newest data first."""
    rows = connection.execute(
        select(*_RUN)
        .where(runs.c.lifecycle != DELETED)
        .order_by(func.coalesce(runs.c.last_ts, 0).desc(), runs.c.id.desc())
    )
    return [_run(row) for row in rows]


def one_run(connection: Connection, name: str) -> RunRow | None:
    """A run by name."""
    row = connection.execute(_ONE, {"name": name}).one_or_none()
    return None if row is None else _run(row)


def _run(row: Any) -> RunRow:
    values = dict(row._mapping)
    return RunRow(**{**values, "facts": json.loads(values["facts"])})


def rolled(connection: Connection, run: int) -> int | None:
    """1-minute buckets before this (ms) are closed; None when none is."""
    return connection.execute(select(runs.c.rolled).where(runs.c.id == run)).scalar()


def rolled_of_series(connection: Connection, number: int) -> tuple[int | None, int]:
    """:func:`rolled` of a series' run, and the time before which rows of the series are deleted (0: none are)."""
    kind = case((series.c.target == "", "signals"), else_="raw")
    query = (
        select(runs.c.rolled, func.coalesce(expiry.c.before, 0))
        .join(series, series.c.run == runs.c.id)
        .outerjoin(expiry, (expiry.c.run == runs.c.id) & (expiry.c.kind == kind))
        .where(series.c.id == number)
    )
    row = connection.execute(query).one_or_none()
    return (None, 0) if row is None else (row[0], row[1])


def run_cursor(connection: Connection, name: str) -> tuple[int, int] | None:
    """(generation, newest seq) of a run, or None."""
    row = connection.execute(_CURSOR, {"name": name}).one_or_none()
    return None if row is None else (row.generation, row.seq)


def run_cursors(connection: Connection, name: str) -> dict[str, str]:
    """target -> cursor as JSON text."""
    query = select(cursors.c.target, cursors.c.cursor).join(runs, runs.c.id == cursors.c.run)
    return {target: cursor for target, cursor in connection.execute(query.where(runs.c.name == name))}


def run_targets(connection: Connection, name: str | None) -> list[tuple[str, TargetRow]]:
    """(run, target), by name."""
    found = connection.execute(_TARGETS) if name is None else connection.execute(_TARGETS_OF_ONE, {"name": name})
    return [(run, _target(values)) for run, *values in found]


def _target(values: list[Any]) -> TargetRow:
    named: dict[str, Any] = dict(zip((column.name for column in _TARGET), values, strict=True))
    return TargetRow(**{**named, "unmapped": json.loads(named["unmapped"]), "origin": _origin(named["origin"])})


def _origin(text: str) -> Origin | None:
    if not text:
        return None
    source, job, labels, key = json.loads(text)
    return Origin(source, job, tuple((name, value) for name, value in labels), key)


def run_states(connection: Connection, name: str) -> dict[str, tuple[int, str]]:
    """fold -> (code version, state as JSON text)."""
    c = signal_state.c
    query = select(c.name, c.code_version, c.state).join(runs, runs.c.id == c.run).where(runs.c.name == name)
    return {fold: (version, state) for fold, version, state in connection.execute(query)}


def run_counters(connection: Connection, name: str) -> dict[int, float]:
    """series -> absolute value."""
    return {number: value for number, value in connection.execute(_COUNTERS, {"name": name})}


def run_latest(connection: Connection, name: str) -> list[tuple[SeriesKey, LatestRow]]:
    """The newest point of every signal series of a run, by series id."""
    return [
        (SeriesKey(target, metric, unpack_labels(labels), axis), LatestRow(n, ts, v, _STATES[state], why, source))
        for target, metric, labels, axis, n, ts, v, state, why, source in connection.execute(_LATEST, {"name": name})
    ]


def run_newest(connection: Connection, name: str) -> list[LatestRow]:
    """As `run_latest` without the keys, which never change and can be cached."""
    # All at once: row by row, SQLAlchemy costs as much again as the answer.
    rows = connection.execute(_NEWEST, {"name": name}).all()
    return [LatestRow(n, ts, v, _STATES[state], why, source) for n, ts, v, state, why, source in rows]


def newest_incarnation(connection: Connection, name: str) -> int:
    """The newest incarnation of a run; 0 before its first."""
    query = select(func.max(incarnations.c.n)).join(runs, runs.c.id == incarnations.c.run)
    return int(connection.execute(query.where(runs.c.name == name)).scalar() or 0)


def lives(connection: Connection, name: str) -> list[int]:
    """Start of each incarnation of a run's trainer after the first (epoch ms)."""
    query = select(incarnations.c.start_ts).join(runs, runs.c.id == incarnations.c.run)
    query = query.where(runs.c.name == name, incarnations.c.n > 0).order_by(incarnations.c.start_ts)
    return list(connection.execute(query).scalars())


def run_events(
    connection: Connection, name: str, start: int, end: int, kinds: Collection[str] = (), limit: int | None = None
) -> list[tuple[int, Event]]:
    """(ts, event) in [start, end), oldest first; of more than ``limit`` the newest."""
    c = events.c
    run = select(runs.c.id).where(runs.c.name == name).scalar_subquery()
    query = select(c.ts, c.kind, c.key, c.detail, c.version).where(c.run == run, c.ts >= start, c.ts < end)
    if kinds:
        query = query.where(c.kind.in_(sorted(kinds)))
    rows = connection.execute(query.order_by(c.ts.desc(), c.id.desc()).limit(limit)).all()
    return [(ts, Event(kind, key, ts / 1000, detail, version)) for ts, kind, key, detail, version in reversed(rows)]


def points_since(
    connection: Connection, name: str, seq: int, limit: int
) -> list[tuple[int, int, int, float | None, int]]:
    """(seq, series, ts, value, state) of the points with a greater seq, in their order."""
    return [tuple(row) for row in connection.execute(_POINTS, {"name": name, "seq": seq, "most": limit}).all()]


_Told = dict[str, dict[tuple[str, Labels], float]]


def run_steps(
    connection: Connection, run: RunRow, axis: str | None, last: int, before: int | None, incarnation: int
) -> list[StepRow]:
    """The newest ``last`` steps per axis with a step number below ``before``, oldest first."""
    axes = [axis] if axis is not None else _axes(connection, run.id, incarnation)
    # One axis after the other: `last` counts per axis, and their step numbers have nothing to do with each other.
    rows = [row for name in axes for row in _axis_steps(connection, run.id, name, incarnation, last, before)]
    return sorted(rows, key=lambda row: (row.ts, row.axis, row.step))


def _axes(connection: Connection, run: int, incarnation: int) -> list[str]:
    query = select(steps.c.axis).where(steps.c.run == run, steps.c.incarnation == incarnation).distinct()
    return sorted(connection.execute(query).scalars())


def _axis_steps(
    connection: Connection, run: int, axis: str, incarnation: int, last: int, before: int | None
) -> list[StepRow]:
    c = steps.c
    query = select(c.step, c.ts).where(c.run == run, c.axis == axis, c.incarnation == incarnation)
    if before is not None:
        query = query.where(c.step < before)
    found = connection.execute(query.order_by(c.step.desc()).limit(last)).all()
    if not found:
        return []
    # All values of the range at once: a query per step would be a hundred.
    values = _step_values(connection, run, axis, incarnation, (found[-1][0], found[0][0]))
    return [StepRow(axis, incarnation, step, ts, _merged(values[step]), values[step]) for step, ts in found]


def _merged(told: _Told) -> dict[tuple[str, Labels], float]:
    return {key: value for values in told.values() for key, value in values.items()}


def _step_values(
    connection: Connection, run: int, axis: str, incarnation: int, between: tuple[int, int]
) -> Mapping[int, _Told]:
    """step -> target -> (metric, labels) -> value. Of two targets the one whose series were made later is last."""
    query = (
        select(step_values.c.step, series.c.target, series.c.metric, series.c.labels, step_values.c.v)
        .join(series, series.c.id == step_values.c.series)
        .where(series.c.run == run, series.c.axis == axis, step_values.c.incarnation == incarnation)
        .where(step_values.c.step.between(*between))
        .order_by(series.c.id)
    )
    values: dict[int, _Told] = defaultdict(lambda: defaultdict(dict))
    for step, target, metric, labels, value in connection.execute(query):
        values[step][target][metric, unpack_labels(labels)] = value
    return values


# ---- times of steps

# One seek per instant. `DISTINCT` before the join: between two steps many instants have the same. `CROSS JOIN`: SQLite
# would read every step of the run, in order, and look for each among the instants.
_STEP_SEEKS = text("""WITH RECURSIVE instants(at) AS (
  SELECT CAST(:start AS BIGINT) UNION ALL SELECT at + :width FROM instants WHERE at + :width <= :end
), newest AS (
  SELECT DISTINCT (SELECT x.ts FROM steps x WHERE x.run = :run AND x.axis = :axis AND x.ts <= instants.at
    ORDER BY x.ts DESC LIMIT 1) AS ts FROM instants
)
SELECT s.ts, s.step, s.incarnation FROM newest CROSS JOIN steps s
 WHERE s.run = :run AND s.axis = :axis AND s.ts = newest.ts ORDER BY s.ts, s.incarnation, s.step""")


def step_times(connection: Connection, name: str, axis: str, start: int, end: int, most: int) -> list[StepTime]:
    """See `Store.step_times`."""
    run = connection.execute(select(runs.c.id).where(runs.c.name == name)).scalar()
    if run is None:
        return []
    c = steps.c
    query = select(c.ts, c.step, c.incarnation).where(c.run == run, c.axis == axis)
    inside = query.where(c.ts > start, c.ts <= end).order_by(c.ts, c.incarnation, c.step).limit(most + 1)
    before = query.where(c.ts <= start).order_by(c.ts.desc(), c.incarnation.desc(), c.step.desc()).limit(1)
    rows = [*connection.execute(before), *connection.execute(inside)]
    if len(rows) > most:
        width = max(1, (end - start) // max(1, most // 2))
        values = {"run": run, "axis": axis, "start": start, "end": end, "width": width}
        rows = list(connection.execute(_STEP_SEEKS, values))
    return [StepTime(int(ts), int(step), int(life)) for ts, step, life in rows]
