"""Reads stored steps: their values, and their times."""

from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import Connection, select, text

from collectors.model import Labels
from server.store.bulk import unpack_labels
from server.store.engine import Engines
from server.store.runs import RunStore
from server.store.tables import runs, series, step_values, steps
from server.store.types import StepRow, StepTime

_TargetValues = dict[str, dict[tuple[str, Labels], float]]

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


# From the steps to the values: a series has its values by step, in the order of time only within an incarnation.
_VALUES = text("""SELECT t.ts, v.v FROM series s CROSS JOIN steps t CROSS JOIN step_values v
 WHERE s.id = :series AND t.run = s.run AND t.axis = s.axis AND t.ts >= :start AND t.ts < :end
   AND v.series = s.id AND v.incarnation = t.incarnation AND v.step = t.step ORDER BY t.ts, t.incarnation""")


class StepStore:
    """Reached as `Store.steps`. Times are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines, run_store: RunStore) -> None:
        self._engines, self._runs = engines, run_store

    def newest(
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
            before: only step numbers below this: for the previous page.
            incarnation: None is the newest.
        """
        row = self._runs.get(run)
        if row is None:
            return []
        n = self._runs.incarnation(run) if incarnation is None else incarnation
        with self._engines.reading() as connection:
            axes = [axis] if axis is not None else _axes(connection, row.id, n)
            # One axis after the other: `last` counts per axis, and step numbers of two axes are unrelated.
            rows = [step for name in axes for step in _axis_steps(connection, row.id, name, n, last, before)]
        return sorted(rows, key=lambda step: (step.ts, step.axis, step.step))

    def values(self, series_id: int, start: int, end: int) -> list[tuple[int, float]]:
        """(time of the step, value) of a series over steps within [start, end), oldest first."""
        with self._engines.reading() as connection:
            values = {"series": series_id, "start": start, "end": end}
            return [(int(ts), v) for ts, v in connection.execute(_VALUES, values)]

    def times(self, run: str, axis: str, start: int, end: int, most: int) -> list[StepTime]:
        """Steps of an axis reported within [start, end] and the last one before, oldest first.

        Of more than ``most`` the newest at equal distances: a month costs as much as an hour.
        """
        with self._engines.reading() as connection:
            return _times(connection, run, axis, start, end, most)


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


def _merged(by_target: _TargetValues) -> dict[tuple[str, Labels], float]:
    return {key: value for values in by_target.values() for key, value in values.items()}


def _step_values(
    connection: Connection, run: int, axis: str, incarnation: int, between: tuple[int, int]
) -> Mapping[int, _TargetValues]:
    """step -> target -> (metric, labels) -> value. Of two targets the one whose series were made later is last."""
    query = (
        select(step_values.c.step, series.c.target, series.c.metric, series.c.labels, step_values.c.v)
        .join(series, series.c.id == step_values.c.series)
        .where(series.c.run == run, series.c.axis == axis, step_values.c.incarnation == incarnation)
        .where(step_values.c.step.between(*between))
        .order_by(series.c.id)
    )
    values: dict[int, _TargetValues] = defaultdict(lambda: defaultdict(dict))
    for step, target, metric, labels, value in connection.execute(query):
        values[step][target][metric, unpack_labels(labels)] = value
    return values


def _times(connection: Connection, name: str, axis: str, start: int, end: int, most: int) -> list[StepTime]:
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
    return [StepTime(int(ts), int(step), int(incarnation)) for ts, step, incarnation in rows]
