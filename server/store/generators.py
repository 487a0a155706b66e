"""Reads recent values of every engine of a run, in one or two statements independent of the run's length."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, TextClause, bindparam, case, func, select, text

from collectors.model import Labels
from server.signals.model import GONE
from server.store.bulk import unpack_labels
from server.store.engine import Engines
from server.store.retention import expired_before
from server.store.rollup import MINUTE_MS, floor
from server.store.runs import one_run, rolled_until
from server.store.samples import buckets
from server.store.tables import SLOT_MS, latest, runs, series, signal_state, steps, targets
from server.store.types import Bucket, LatestRow, PointState, SeriesKey

RECENT_MS = 300_000
"""How old a sample may be to be one of now."""


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """One series of one engine.

    Attributes:
        last, last_ts: its newest sample within `RECENT_MS`.
        mean: over the last five closed minutes (`rollup`); None without any.
        minutes: (when (ms), value) of the last sample of each of those minutes, oldest first.
    """

    series: int
    target: str
    metric: str
    labels: Labels
    last: float | None = None
    last_ts: int | None = None
    mean: float | None = None
    minutes: tuple[tuple[int, float], ...] = ()


_SCOPE = """SELECT s.id, s.target, s.metric, s.labels FROM series s JOIN runs ON runs.id = s.run
 WHERE runs.name = :run AND s.metric IN :metrics AND s.target <> '' AND s.axis = ''"""

# Two seeks per series: `ORDER BY ts DESC LIMIT 1` over the slots would be a sort of each. Recent is two slots at most.
_SQLITE_NEWEST = f"""WITH scope AS ({_SCOPE}), found AS MATERIALIZED (
  SELECT id, coalesce(
    (SELECT max(x.ts) FROM samples x WHERE x.slot = :slot AND x.series = scope.id AND x.ts <= :at),
    (SELECT max(x.ts) FROM samples x WHERE x.slot = :slot - 1 AND x.series = scope.id)) AS ts FROM scope
)
SELECT found.id, found.ts, x.v FROM found CROSS JOIN samples x
 WHERE x.slot = found.ts / {SLOT_MS} AND x.series = found.id AND x.ts = found.ts AND found.ts > :since"""

_POSTGRES_NEWEST = f"""SELECT scope.id, x.ts, x.v FROM ({_SCOPE}) scope CROSS JOIN LATERAL (
  SELECT ts, v FROM samples WHERE series = scope.id AND ts > :since AND ts <= :at ORDER BY ts DESC LIMIT 1) x"""

_MINUTES = f"""WITH scope AS ({_SCOPE})
SELECT scope.id, r.bucket, r.n, r.total, r.last_ts, r.last FROM scope CROSS JOIN rollups r
 WHERE r.tier = {MINUTE_MS} AND r.series = scope.id AND r.bucket >= :first AND r.bucket < :closed ORDER BY r.bucket"""


class GeneratorStore:
    """A reader; every call is one transaction."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def told(self, run: str, metrics: Sequence[str], at: int) -> list[EngineSeries]:
        """Series of a run's targets of these metrics as of ``at`` (ms), by id; silent ones too."""
        with self._engines.reading() as connection:
            return _told(connection, run, metrics, at)

    def series(self, run: str, metrics: Sequence[str]) -> list[EngineSeries]:
        """The same series without values."""
        with self._engines.reading() as connection:
            return [EngineSeries(*key) for key in _scope(connection, _values(run, metrics))]

    def buckets(self, run: str, series: Sequence[int], start: int, end: int, width: int) -> dict[int, list[Bucket]]:
        """As `SampleStore.buckets`, of several series of a run."""
        with self._engines.reading() as connection:
            found = one_run(connection, run)
            rolled = rolled_until(connection, found.id) if found is not None else None
            expired = expired_before(connection, found.id) if found is not None else 0
            return {n: buckets(connection, n, start, end, width, rolled, expired) for n in series}


def _told(connection: Connection, run: str, metrics: Sequence[str], at: int) -> list[EngineSeries]:
    values = _values(run, metrics)
    newest, means = dict(_newest(connection, values, at)), _minutes(connection, values, run, at)
    return [
        _one(key, newest.get(key[0], (None, None)), means.get(key[0], (None, ()))) for key in _scope(connection, values)
    ]


Key = tuple[int, str, str, Labels]
Minutes = tuple[float | None, tuple[tuple[int, float], ...]]


def _one(key: Key, newest: tuple[float | None, int | None], minutes: Minutes) -> EngineSeries:
    if newest[1] is None and minutes[1]:
        # The raw samples are packed or deleted: the newest is that of the last closed minute.
        ts, value = minutes[1][-1]
        newest = (value, ts)
    return EngineSeries(*key, *newest, *minutes)


def _values(run: str, metrics: Sequence[str]) -> dict[str, object]:
    return {"run": run, "metrics": sorted(set(metrics))}


def _scope(connection: Connection, values: dict[str, object]) -> list[Key]:
    rows = connection.execute(_with_metrics(f"{_SCOPE} ORDER BY s.id"), values)
    return [(n, target, metric, unpack_labels(labels)) for n, target, metric, labels in rows]


def _with_metrics(sql: str) -> TextClause:
    return text(sql).bindparams(bindparam("metrics", expanding=True))


def _newest(connection: Connection, scope: dict[str, object], at: int) -> Iterator[tuple[int, tuple[float, int]]]:
    sql = _SQLITE_NEWEST if connection.dialect.name == "sqlite" else _POSTGRES_NEWEST
    values = scope | {"slot": at // SLOT_MS, "at": at, "since": at - RECENT_MS}
    for n, ts, v in connection.execute(_with_metrics(sql), values):
        yield n, (v, ts)


def _minutes(connection: Connection, scope: dict[str, object], run: str, at: int) -> dict[int, Minutes]:
    """series -> (mean, first and last) of the five minutes before ``at`` that are closed."""
    found = one_run(connection, run)
    rolled = rolled_until(connection, found.id) if found is not None else None
    if rolled is None:
        return {}
    closed = min(floor(at, MINUTE_MS), rolled)
    rows: dict[int, list[tuple[int, float, int | None, float | None]]] = {}
    values = scope | {"first": closed - RECENT_MS, "closed": closed}
    for n, _, count, total, last_ts, last in connection.execute(_with_metrics(_MINUTES), values):
        rows.setdefault(n, []).append((count, total, last_ts, last))
    return {n: _added(minutes) for n, minutes in rows.items()}


def _added(rows: Sequence[tuple[int, float, int | None, float | None]]) -> Minutes:
    count = sum(n for n, *_ in rows)
    bounds = [(ts, last) for _, _, ts, last in rows if ts is not None and last is not None]
    return (sum(total for _, total, _, _ in rows) / count if count else None), tuple(bounds)


# ---- fleet
# All runs at once: what a list of them shows, in a few statements however many there are.

Latest = list[tuple[SeriesKey, LatestRow]]


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """A run's targets, without those that no list names any more: ``up`` of them answer.

    ``answered_at``: when one of them last answered; ``read_at``: when one of them was last read (epoch s).
    """

    up: int
    targets: int
    answered_at: float | None
    read_at: float | None


NO_TARGETS = TargetHealth(0, 0, None, None)


class FleetStore:
    """Reached as `Store.fleet`. Runs by id; times are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def latest(self, ids: Sequence[int], metrics: Collection[str]) -> dict[int, Latest]:
        """run -> the newest points of its signals of these names, by series id."""
        key = (series.c.target, series.c.metric, series.c.labels, series.c.axis)
        c = latest.c
        query = (
            select(c.run, *key, c.series, c.ts, c.v, c.state, c.why, c.source)
            .join(series, (series.c.run == c.run) & (series.c.id == c.series))
            .where(series.c.run.in_(ids), series.c.metric.in_(sorted(metrics)))
            .order_by(c.run, c.series)
        )
        found: dict[int, Latest] = defaultdict(list)
        with self._engines.reading() as connection:
            for run, target, metric, labels, axis, n, ts, v, state, why, source in connection.execute(query):
                row = LatestRow(n, ts, v, PointState(state), why, source)
                found[run].append((SeriesKey(target, metric, unpack_labels(labels), axis), row))
        return found

    def newest(self, ids: Sequence[int], besides: Collection[str]) -> Mapping[int, int]:
        """run -> time of its newest known value, without the signals ``besides``."""
        c = latest.c
        # Not one look per row: the few that do not count are found once.
        skipped = select(series.c.id).where(series.c.run.in_(ids), series.c.metric.in_(sorted(besides)))
        query = (
            select(c.run, func.max(c.ts))
            .where(c.run.in_(ids), c.state == PointState.VALUE.value, c.series.not_in(skipped))
            .group_by(c.run)
        )
        with self._engines.reading() as connection:
            return {run: ts for run, ts in connection.execute(query)}

    def verdicts(self, ids: Sequence[int]) -> Mapping[int, str]:
        """run -> its newest verdict, as `VerdictStore.newest` has it."""
        c = signal_state.c
        query = select(c.run, c.state).where(c.run.in_(ids), c.name == "verdict")
        with self._engines.reading() as connection:
            return {run: state for run, state in connection.execute(query)}

    def steps(self, ids: Sequence[int], axis: str) -> Mapping[int, int]:
        """run -> the newest step of its newest incarnation."""
        c = steps.c
        # A look into the key per run: a maximum over all would read every step there ever was.
        last = select(c.step).where(c.run == runs.c.id, c.axis == axis)
        last = last.order_by(c.incarnation.desc(), c.step.desc()).limit(1)
        query = select(runs.c.id, last.scalar_subquery()).where(runs.c.id.in_(ids))
        with self._engines.reading() as connection:
            return {run: step for run, step in connection.execute(query) if step is not None}

    def targets(self, ids: Sequence[int], now: int, silent_ms: int) -> Mapping[int, TargetHealth]:
        """run -> how its targets answer. One that was not read for ``silent_ms`` + 3 intervals does not answer."""
        c = targets.c
        read = c.last_ts >= now - silent_ms - 3000 * c.interval_seconds
        answers = func.sum(case((c.up & read, 1), else_=0))
        query = select(c.run, answers, func.count(), func.max(c.last_ok_ts), func.max(c.last_ts))
        query = query.where(c.run.in_(ids), c.error_kind != GONE).group_by(c.run)
        with self._engines.reading() as connection:
            return {
                run: TargetHealth(int(up), n, *(ts if ts is None else ts / 1000 for ts in times))
                for run, up, n, *times in connection.execute(query)
            }
