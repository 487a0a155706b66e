"""Bounded memory of recent data: a gauge's last minutes, an axis' last steps.

Cost and size never grow with the run. What is here is a cache of what the store holds: after a restart
`server.drive` fills it again from the store.
"""

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise

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
    named: Labels = ()  # its labels with `target`, sorted: made once, for it is asked at every tick

    def __post_init__(self) -> None:
        self.named = tuple(sorted((*self.labels, ("target", self.target))))

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
        """Time-weighted mean over the last `seconds` (default `keep`).

        Each value holds until the next sample, but no longer than `carry`: what nobody reported for an hour is
        not 200 requests for an hour. The mean is over the time that is covered.
        """
        start = now - min(seconds or self.keep, self.keep)
        area = covered = 0.0
        for held_from, value, until in self._held(now):
            span = min(until, held_from + self.carry) - max(held_from, start)
            if span > 0:
                area += value * span
                covered += span
        return area / covered if covered > 0 else self.last

    def _held(self, now: float) -> Iterator[tuple[float, float, float]]:
        """(time, value, time of the next sample or now) of every sample."""
        ends = [ts for ts, _ in islice(self.points, 1, None)] + [now]
        for (ts, value), end in zip(self.points, ends, strict=True):
            yield ts, value, end

    def increase(self, now: float) -> tuple[float, float]:
        """(increase, seconds it took) of a cumulative counter; a decrease is a reset: delta = new value.

        An interval that reaches out of the window counts by its share within. A gap longer than `carry` counts
        neither way: when in it the counter grew is unknown.
        """
        start = now - self.keep
        total = seconds = 0.0
        for (before, old), (ts, new) in pairwise(self.points):
            span = ts - max(before, start)
            if span <= 0 or ts - before > self.carry:
                continue
            total += (new - old if new >= old else new) * span / (ts - before)
            seconds += span
        return total, seconds


@dataclass(slots=True)
class Step:
    """One step of one axis with what was logged for it so far. ``tellers``: which target said it, where known."""

    axis: str
    incarnation: int
    number: int
    ts: float
    values: dict[StepKey, float]
    tellers: dict[StepKey, str] = field(default_factory=dict)

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

    @property
    def full(self) -> bool:
        return len(self.order) >= KEPT_STEPS

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
            if not book.full or number > book.order[0]:
                book.add(step)
        step.values.update(values)
        book.keys.update(values)
        return step

    def get(self, axis: str, incarnation: int, number: int) -> Step | None:
        """A step that is kept, or None."""
        book = self._axes.get(axis)
        return book.by_number.get(number) if book is not None and book.incarnation == incarnation else None

    def newest(self, axis: str, until: float = math.inf) -> Step | None:
        """The last step of an axis not later than `until`."""
        book = self._axes.get(axis)
        return next(book.newest_first(until), None) if book is not None else None

    def newest_of_all(self) -> Step | None:
        """The trainer's newest step; without a trainer axis the newest of any."""
        found = self.newest(TRAINER)
        if found is not None:
            return found
        others = (self.newest(axis) for axis in self._axes)
        return max((step for step in others if step is not None), key=lambda step: step.ts, default=None)

    def last(self, count: int) -> list[Step]:
        """The last rows of the axis of `newest_of_all`, oldest first."""
        newest = self.newest_of_all()
        if newest is None:
            return []
        return list(islice(self._axes[newest.axis].newest_first(math.inf), count))[::-1]

    def newest_of(self, metric: str) -> Iterator[tuple[Labels, Step]]:
        """(labels, newest step that has it) of every series of a metric."""
        for book in self._axes.values():
            for name, labels in sorted(key for key in book.keys if key[0] == metric):
                step = next((s for s in book.newest_first(math.inf) if (name, labels) in s.values), None)
                if step is not None:
                    yield labels, step

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
            # What an axis logged in a life the trainer has left says nothing about this one.
            left = trained is not None and book.incarnation < trained.incarnation
            if left or not book.keys.issuperset(keys):
                continue
            holding = (s for s in book.newest_first(until) if s.number <= consumed and _holds(s, keys))
            rows = list(islice(holding, count))
            if rows and (not best or rows[0].ts > best[0].ts):
                best = rows
        return best[::-1]
