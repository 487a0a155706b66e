"""All runs at once: what a list of them shows, in a few statements however many there are."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import case, func, select

from server.store.engine import Engines
from server.store.labels import unpack_labels
from server.store.tables import latest, runs, series, signal_state, steps, targets
from server.store.types import GONE, LatestRow, PointState, SeriesKey

Latest = list[tuple[SeriesKey, LatestRow]]


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """A run's targets, without those that no list names any more: ``up`` of them answer.

    ``answered_at``: when one of them last answered; ``read_at``: when one of them was last read (epoch ms).
    """

    up: int
    targets: int
    answered_at: int | None
    read_at: int | None


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
            return {run: TargetHealth(int(up), *rest) for run, up, *rest in connection.execute(query)}
