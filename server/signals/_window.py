"""Bounded memory of recent data: a gauge's last minutes, an axis' last steps.

Cost and size never grow with the run. What is here is a cache of what the store holds: after a restart
`server.drive` fills it again from the store.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

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


def _holds(step: Step, keys: tuple[StepKey, ...]) -> bool:
    values = step.values
    return all(key in values for key in keys)


class _Axis:
    """The last steps of one axis: by number, their order, and every key any of them ever had."""

    __slots__ = ("by_number", "incarnation", "keys", "order")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.by_number: dict[int, Step] = {}
        self.order: list[int] = []
        self.keys: set[StepKey] = set()

    def add(self, step: Step) -> None:
        self.by_number[step.number] = step
        insort(self.order, step.number)
        if len(self.order) > KEPT_STEPS:
            del self.by_number[self.order.pop(0)]

    def newest_first(self, until: float) -> Iterator[Step]:
        """Steps not later than `until`."""
        for number in reversed(self.order):
            step = self.by_number[number]
            if step.ts <= until:
                yield step


class StepBook:
    """The last steps of every axis, of the newest incarnation only."""

    def __init__(self) -> None:
        self._axes: dict[str, _Axis] = {}

    def put(self, axis: str, incarnation: int, number: int, ts: float, values: Mapping[StepKey, float]) -> Step:
        """Add values to a step; its first time wins. A newer incarnation empties the axis, an older one is not kept."""
        book = self._axes.get(axis)
        if book is None or book.incarnation < incarnation:
            book = self._axes[axis] = _Axis(incarnation)
        if book.incarnation > incarnation:
            return Step(axis, incarnation, number, ts, dict(values))
        step = book.by_number.get(number)
        if step is None:
            step = Step(axis, incarnation, number, ts, {})
            book.add(step)
        step.values.update(values)
        book.keys.update(values)
        return step

    def newest(self, axis: str, until: float = math.inf) -> Step | None:
        """The last step of an axis not later than `until`."""
        book = self._axes.get(axis)
        return next(book.newest_first(until), None) if book is not None else None

    def rows(self, *keys: StepKey, count: int, until: float = math.inf) -> list[Step]:
        """The last `count` consumed steps holding every one of `keys`, on the axis that logs them most recently.

        An orchestrator logs a batch when it ships it, the trainer when it has trained it: windows end with what
        was consumed, so that all signals speak of the same steps. Without a trainer axis everything counts as
        consumed. Oldest first.
        """
        trained = self.newest(TRAINER, until)
        consumed = math.inf if trained is None else trained.number
        best: list[Step] = []
        for book in self._axes.values():
            if not book.keys.issuperset(keys):
                continue
            holding = (s for s in book.newest_first(until) if s.number <= consumed and _holds(s, keys))
            rows = list(islice(holding, count))
            if rows and (not best or rows[0].ts > best[0].ts):
                best = rows
        return best[::-1]
