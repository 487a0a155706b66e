"""Bounded memory of recent data: a gauge's last minutes, an axis' last steps.

Cost and size never grow with the run. What is here is a cache of what the store holds: after a restart
`server.drive` fills it again from the store.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collectors.model import Labels

# More than STEP_WINDOW, so that late rows of an older step still find it.
KEPT_STEPS = 64
TRAINER = "trainer"

StepKey = tuple[str, Labels]


@dataclass(slots=True)
class Gauge:
    """One series of the moment: samples of the last `keep` seconds plus the one before them.

    Attributes:
        carry: seconds a value is held without a new sample (Ray exports gauges only into every second page);
            after that the series is stale and its line breaks.
    """

    target: str
    metric: str
    labels: Labels
    carry: float
    keep: float = 300.0
    points: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, ts: float, value: float) -> None:
        """Append; a sample that is not newer than the last is late and stays out of the window."""
        if self.points and ts <= self.points[-1][0]:
            return
        self.points.append((ts, value))
        # The sample before the window still holds at its start: keep exactly one.
        while len(self.points) > 1 and self.points[1][0] <= ts - self.keep:
            self.points.popleft()

    @property
    def last(self) -> float:
        return self.points[-1][1]

    @property
    def last_ts(self) -> float:
        return self.points[-1][0]

    def fresh(self, now: float) -> bool:
        return bool(self.points) and now - self.last_ts <= self.carry

    def mean(self, now: float, seconds: float | None = None) -> float:
        """Time-weighted mean over the last `seconds` (default `keep`): each value holds until the next sample."""
        start = max(now - min(seconds or self.keep, self.keep), self.points[0][0])
        if now <= start:
            return self.last
        area, held_from, held = 0.0, start, self.points[0][1]
        for ts, value in self.points:
            if ts <= start:
                held = value
                continue
            area += held * (ts - held_from)
            held_from, held = ts, value
        return (area + held * (now - held_from)) / (now - start)

    def increase(self, now: float) -> tuple[float, float]:
        """(increase, seconds) of a cumulative counter over the window; a decrease means reset: delta = new value."""
        total, before = 0.0, None
        start = now - self.keep
        first_ts = None
        for ts, value in self.points:
            if before is not None and ts > start:
                total += value - before if value >= before else value
            if first_ts is None or ts <= start:
                first_ts = ts
            before = value
        return total, self.last_ts - (first_ts if first_ts is not None else self.last_ts)


@dataclass(slots=True)
class Step:
    """One step of one axis with what was logged for it so far."""

    axis: str
    incarnation: int
    number: int
    ts: float
    values: dict[StepKey, float]

    def get(self, metric: str, labels: Labels = ()) -> float | None:
        return self.values.get((metric, labels))


class StepBook:
    """The last steps of every axis, oldest first, of the newest incarnation only."""

    def __init__(self) -> None:
        self._axes: dict[str, dict[int, Step]] = {}

    def put(self, axis: str, incarnation: int, number: int, ts: float, values: Mapping[StepKey, float]) -> Step:
        """Add values to a step; its first time wins. A newer incarnation empties the axis, an older one is not kept."""
        steps = self._axes.setdefault(axis, {})
        newest = next(iter(steps.values())).incarnation if steps else incarnation
        if newest > incarnation:
            return Step(axis, incarnation, number, ts, dict(values))
        if newest < incarnation:
            steps.clear()
        step = steps.setdefault(number, Step(axis, incarnation, number, ts, {}))
        step.values.update(values)
        if len(steps) > KEPT_STEPS:
            del steps[min(steps)]
        return step

    def axes(self) -> Iterable[str]:
        return self._axes

    def all(self, axis: str, until: float = math.inf) -> list[Step]:
        """Steps of an axis not later than `until`, oldest first."""
        steps = self._axes.get(axis, {})
        return [steps[number] for number in sorted(steps) if steps[number].ts <= until]

    def consumed(self, until: float = math.inf) -> float:
        """The newest step the trainer has finished; without a trainer axis, everything counts as consumed."""
        steps = self.all(TRAINER, until)
        return steps[-1].number if steps else math.inf

    def rows(self, *keys: StepKey, count: int, until: float = math.inf) -> list[Step]:
        """The last `count` consumed steps holding every one of `keys`, on the axis that logs them most recently.

        An orchestrator logs a batch when it ships it, the trainer when it has trained it: windows end with what
        was consumed, so that all signals speak of the same steps.
        """
        best: list[Step] = []
        consumed = self.consumed(until)
        for axis in self._axes:
            known = [step for step in self.all(axis, until) if step.number <= consumed]
            rows = [step for step in known if all(key in step.values for key in keys)]
            if rows and (not best or rows[-1].ts > best[-1].ts):
                best = rows
        return best[-count:]
