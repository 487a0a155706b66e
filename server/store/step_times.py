"""Times of the steps of an axis, for charts with the step on the x axis."""

from sqlalchemy import Connection, select, text

from server.store.tables import runs, steps
from server.store.types import StepTime

# One seek per instant. `DISTINCT` before the join: between two steps many instants have the same. `CROSS JOIN`: SQLite
# would read every step of the run, in order, and look for each among the instants.
_SEEKS = text("""WITH RECURSIVE instants(at) AS (
  SELECT CAST(:start AS BIGINT) UNION ALL SELECT at + :width FROM instants WHERE at + :width <= :end
), newest AS (
  SELECT DISTINCT (SELECT x.ts FROM steps x WHERE x.run = :run AND x.axis = :axis AND x.ts <= instants.at
    ORDER BY x.ts DESC LIMIT 1) AS ts FROM instants
)
SELECT s.ts, s.step, s.incarnation FROM newest CROSS JOIN steps s
 WHERE s.run = :run AND s.axis = :axis AND s.ts = newest.ts ORDER BY s.ts, s.incarnation, s.step""")


def between(connection: Connection, name: str, axis: str, start: int, end: int, most: int) -> list[StepTime]:
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
        rows = list(connection.execute(_SEEKS, values))
    return [StepTime(int(ts), int(step), int(life)) for ts, step, life in rows]
