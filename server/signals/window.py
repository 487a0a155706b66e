"""Bounded windows of recent data: a gauge's last minutes and an axis' last steps.

Cost and size do not grow with the run. After a restart `server.derive.driver` fills the windows again from the store.
"""

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise, takewhile

from collectors.model import Labels

# Steps per axis. More than STEP_WINDOW, so that late rows of an older step still find their step.
KEPT_STEPS = 64
TRAINER, EVALUATION = "trainer", "eval"

# Rounding of a gauge's sums stays below 1e-14 of them for so many points dropped.
RENEWED, LITTLE = 64, 1e-2
# Seconds; times are in milliseconds.
TINY = 1e-6

# Missing reports over which a gauge's value is held. One missing page is normal (Ray), three are not.
CARRIED_REPORTS = 3
SHORTEST_CARRY_SECONDS = 15.0

StepKey = tuple[str, Labels]


def carry_seconds(interval: float) -> float:
    """How long a value holds without a new one, of a source that reports every ``interval`` seconds."""
    return max(SHORTEST_CARRY_SECONDS, CARRIED_REPORTS * interval)


@dataclass(slots=True)
class Gauge:
    """One series of the moment: samples of the last `keep` seconds plus the one before them.

    Attributes:
        carry: seconds a value is held without a new sample (Ray exports gauges only into every second page);
            after that the series is stale and its line breaks.
        last, last_ts: the newest sample.
    """

    target: str
    metric: str
    labels: Labels
    carry: float
    keep: float = 300.0
    points: deque[tuple[float, float]] = field(default_factory=deque)
    last: float = math.nan
    last_ts: float = -math.inf
    named: Labels = ()  # its labels with `target`, sorted; cached because every tick reads it
    # Of all intervals between the points: increase, seconds of it, area and seconds covered. Kept as points come and
    # go: adding up sixty of them for every question of every tick was most of what a thousand engines cost.
    _sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    _dropped: int = 0
    _usual: float = 0.0

    def __post_init__(self) -> None:
        self.named = tuple(sorted((*self.labels, ("target", self.target))))
        self._usual = self.carry

    def add(self, ts: float, value: float) -> None:
        """Append; a sample that is not newer than the last is late and stays out of the window."""
        points = self.points
        if points:
            if ts <= self.last_ts:
                return
            # As `_between`, without a call: a thousand engines bring sixteen thousand samples a tick.
            sums, gap, old = self._sums, ts - self.last_ts, self.last
            if gap > self.carry:
                sums[2] += old * self.carry
                sums[3] += self.carry
            else:
                sums[0] += value - old if value >= old else value
                sums[1] += gap
                sums[2] += old * gap
                sums[3] += gap
        points.append((ts, value))
        self.last_ts, self.last = ts, value
        # The sample before the window still holds at its start: keep exactly one.
        begin = ts - self.keep
        while len(points) > 1 and points[1][0] <= begin:
            self._drop()

    def hold(self, seconds: float) -> None:
        """Holds values for so long, but not shorter than its kind: the source reports less often."""
        carry = max(self._usual, seconds)
        if carry != self.carry:
            self.carry = carry
            self._add_up()

    def _add_up(self) -> None:
        parts = [self._between(*pair) for pair in pairwise(self.points)]
        self._sums, self._dropped = [math.fsum(column) for column in zip([0.0] * 4, *parts, strict=False)], 0

    def _drop(self) -> None:
        gone, self._dropped = self.points.popleft(), self._dropped + 1
        left, (grown, gap, area, covered) = self._sums, self._between(gone, self.points[0])
        left[0] -= grown
        left[1] -= gap
        left[2] -= area
        left[3] -= covered
        # What is added and taken away again rounds, most where little is left; what was no number never goes away.
        rounded = abs(left[0]) < LITTLE * abs(grown) or abs(left[2]) < LITTLE * abs(area)
        if rounded or self._dropped >= RENEWED or not math.isfinite(left[0] + left[1] + left[2] + left[3]):
            self._add_up()

    def _between(self, one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float, float, float]:
        """Increase, seconds of it, area and seconds covered between two neighbours."""
        (before, old), (ts, new) = one, other
        gap = ts - before
        if gap > self.carry:
            return 0.0, 0.0, old * self.carry, self.carry
        return (new - old if new >= old else new), gap, old * gap, gap

    def fresh(self, now: float) -> bool:
        return now - self.last_ts <= self.carry

    def mean(self, now: float, seconds: float | None = None) -> float:
        """Time-weighted mean over the last `seconds` (default `keep`).

        Each value holds until the next sample, but no longer than `carry`: without reports for an hour, 200
        requests are not 200 requests for an hour. The mean is over the time that is covered.
        """
        start = now - min(seconds or self.keep, self.keep)
        area, covered = self._covered(start) if seconds is None or seconds >= self.keep else self._added_up(start)
        ts, value = self.points[-1]
        rest = min(now, ts + self.carry) - max(ts, start)
        if rest > 0:
            area, covered = area + value * rest, covered + rest
        return area / covered if covered > TINY else self.last

    def _covered(self, start: float) -> tuple[float, float]:
        """(area, seconds covered) from `start` to the last point: of all, without what lies before."""
        area, covered = self._sums[2:]
        for (before, value), (ts, _) in self._early(start):
            out = min(ts, before + self.carry, start) - before
            area, covered = area - value * out, covered - out
        return area, covered

    def _added_up(self, start: float) -> tuple[float, float]:
        """The same of few points."""
        area = covered = 0.0
        before, value = self.points[0]
        for ts, new in islice(self.points, 1, None):
            if ts > start:
                end = before + self.carry
                span = (ts if ts < end else end) - (before if before > start else start)
                if span > 0:
                    area, covered = area + value * span, covered + span
            before, value = ts, new
        return area, covered

    def _early(self, start: float) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
        """Neighbours of which the first is older than `start`: one pair as a rule, for older ones are dropped."""
        return takewhile(lambda pair: pair[0][0] < start, pairwise(self.points))

    def increase(self, now: float) -> tuple[float, float]:
        """(increase, seconds it took) of a cumulative counter; a decrease is a reset: delta = new value.

        An interval that reaches out of the window counts by its share within. A gap longer than `carry` counts
        neither way: when in it the counter grew is unknown.
        """
        start = now - self.keep
        total, seconds = self._sums[:2]
        for one, other in self._early(start):
            grown, gap, _, _ = self._between(one, other)
            out = min(other[0], start) - one[0]
            if gap > 0:
                total, seconds = total - grown * (out / gap), seconds - out
        return (total, seconds) if seconds > TINY else (0.0, 0.0)


@dataclass(slots=True)
class Step:
    """One step of one axis with its logged values so far. ``sources``: the target of each value, if it is stored."""

    axis: str
    incarnation: int
    number: int
    ts: float
    values: dict[StepKey, float]
    sources: dict[StepKey, str] = field(default_factory=dict)

    def get(self, metric: str, labels: Labels = ()) -> float | None:
        return self.values.get((metric, labels))


def _holds(step: Step, keys: tuple[StepKey, ...]) -> bool:
    values = step.values
    if len(keys) == 1:  # most windows ask for one
        return keys[0] in values
    return all(key in values for key in keys)


class _Axis:
    """The last steps of one axis: by number, their order, and every key any of them ever had.

    Attributes:
        latest_ts: no step is later: a window up to here or beyond takes the axis as it stands.
    """

    __slots__ = ("_holding", "by_number", "incarnation", "keys", "latest_ts", "order")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.by_number: dict[int, Step] = {}
        self.order: list[int] = []
        self.keys: set[StepKey] = set()
        self.latest_ts = -math.inf
        # Window by its keys and length, with the newest step number it contains.
        self._holding: dict[tuple[tuple[StepKey, ...], int], tuple[list[Step], float]] = {}

    @property
    def full(self) -> bool:
        return len(self.order) >= KEPT_STEPS

    def add(self, step: Step) -> None:
        self.by_number[step.number] = step
        self.latest_ts = max(self.latest_ts, step.ts)
        if self.order and step.number < self.order[-1]:
            insort(self.order, step.number)
            self._holding.clear()
        else:
            self.order.append(step.number)
        if len(self.order) > KEPT_STEPS:
            del self.by_number[self.order.pop(0)]

    def update(self, step: Step, values: Mapping[StepKey, float]) -> None:
        """Add values to a step that is there; one that holds more than before may be of windows it was not of."""
        before = len(step.values)
        step.values.update(values)
        if len(step.values) > before:
            self._holding.clear()

    def newest_first(self, until: float) -> Iterator[Step]:
        """Steps not later than `until`."""
        for number in reversed(self.order):
            step = self.by_number[number]
            if step.ts <= until:
                yield step

    def holding(self, keys: tuple[StepKey, ...], count: int) -> list[Step]:
        """The last `count` steps with every key, oldest first. The cost is that of the steps since the last call."""
        rows, upto = self._holding.get((keys, count), _NONE)
        order = self.order
        newest, oldest = order[-1], order[0]
        if upto == newest:
            return rows
        if len(order) > 1 and order[-2] == upto:  # the usual case: one step since the last call
            step = self.by_number[newest]
            if _holds(step, keys):
                rows = [*rows[1 - count :], step] if count > 1 else [step]
        else:
            at = bisect_right(order, upto)
            rows = [*rows, *(step for number in order[at:] if _holds(step := self.by_number[number], keys))][-count:]
        if rows and rows[0].number < oldest:
            rows = [step for step in rows if step.number >= oldest]
        self._holding[(keys, count)] = rows, newest
        return rows


_NONE: tuple[list[Step], float] = ([], -math.inf)


class StepBook:
    """The last steps of every axis, of the newest incarnation only."""

    def __init__(self) -> None:
        self._axes: dict[str, _Axis] = {}
        # Cached windows up to an instant, and other values derived from the steps; several signals use the same.
        self._windows: dict[tuple[tuple[StepKey, ...], int], list[Step]] = {}
        self._until = math.nan
        # The trainer's newest step not later than that instant.
        self._trained: Step | None = None
        self._once: dict[str, float] = {}

    def put(self, axis: str, incarnation: int, number: int, ts: float, values: Mapping[StepKey, float]) -> Step:
        """Add values to a step; its first time wins. A newer incarnation empties the axis, an older one is not kept."""
        self._until = math.nan
        self._once.clear()
        book = self._axes.get(axis)
        if book is None or book.incarnation < incarnation:
            book = self._axes[axis] = _Axis(incarnation)
        if book.incarnation > incarnation:
            return Step(axis, incarnation, number, ts, dict(values))
        step = book.by_number.get(number)
        book.keys.update(values)
        if step is not None:
            book.update(step, values)
            return step
        step = Step(axis, incarnation, number, ts, dict(values))
        if not book.full or number > book.order[0]:
            book.add(step)
        return step

    def once(self, name: str, make: Callable[["StepBook"], float]) -> float:
        """A cached value derived from the steps. It is computed again after each new step."""
        if name not in self._once:
            self._once[name] = make(self)
        return self._once[name]

    def get(self, axis: str, incarnation: int, number: int) -> Step | None:
        """A step that is kept, or None."""
        book = self._axes.get(axis)
        return book.by_number.get(number) if book is not None and book.incarnation == incarnation else None

    def newest(self, axis: str, until: float = math.inf) -> Step | None:
        """The last step of an axis not later than `until`."""
        book = self._axes.get(axis)
        if book is None:
            return None
        return book.by_number[book.order[-1]] if book.latest_ts <= until else next(book.newest_first(until), None)

    def newest_of_all(self) -> Step | None:
        """The trainer's newest step; without a trainer axis the newest of any."""
        found = self.newest(TRAINER)
        if found is not None:
            return found
        others = (self.newest(axis) for axis in self._axes if axis != EVALUATION)
        return max((step for step in others if step is not None), key=lambda step: step.ts, default=None)

    def last(self, count: int) -> list[Step]:
        """The last rows of the axis of `newest_of_all`, oldest first."""
        newest = self.newest_of_all()
        if newest is None:
            return []
        return list(islice(self._axes[newest.axis].newest_first(math.inf), count))[::-1]

    def among_last(self, rows: list[Step], count: int, least: int) -> list[Step]:
        """Those of the rows that are among the last `count` steps up to the newest of them, if `least` are left.

        A metric may be logged only in some steps (ms-swift: those that generate). Otherwise its window would reach
        farther back than that of other metrics.
        """
        if not rows or rows[-1].number - rows[0].number == len(rows) - 1:
            return rows
        order = self._axes[rows[-1].axis].order
        begin = order[max(0, bisect_right(order, rows[-1].number) - count)]
        found = [step for step in rows if step.number >= begin]
        return found if len(found) >= least else rows

    def newest_of(self, metric: str) -> Iterator[tuple[Labels, Step]]:
        """(labels, newest step that has it) of every series of a metric."""
        for book in self._axes.values():
            for name, labels in sorted(key for key in book.keys if key[0] == metric):
                step = next((s for s in book.newest_first(math.inf) if (name, labels) in s.values), None)
                if step is not None:
                    yield labels, step

    def last_of(self, metric: str, count: int, until: float) -> Iterator[tuple[Labels, list[Step]]]:
        """(labels, its last ``count`` steps not later than ``until``, the newest first) of every series of a metric."""
        for book in self._axes.values():
            for key in sorted(key for key in book.keys if key[0] == metric):
                found = list(islice((s for s in book.newest_first(until) if key in s.values), count))
                if found:
                    yield key[1], found

    def rows(self, *keys: StepKey, count: int, until: float = math.inf) -> list[Step]:
        """The last `count` consumed steps holding every one of `keys`, on the axis that logs them most recently.

        An orchestrator logs a batch when it ships it, the trainer when it has trained it: windows end with what
        was consumed, so that all signals speak of the same steps. Without a trainer axis everything counts as
        consumed. Oldest first; not to be changed.
        """
        if until != self._until:
            self._until, self._trained = until, self.newest(TRAINER, until)
            self._windows.clear()
        found = self._windows.get((keys, count))
        if found is None:
            found = self._windows[(keys, count)] = self._rows(keys, count, until)
        return found

    def _rows(self, keys: tuple[StepKey, ...], count: int, until: float) -> list[Step]:
        trained = self._trained
        consumed = math.inf if trained is None else trained.number
        best: list[Step] = []
        for book in self._axes.values():
            # Steps of an earlier incarnation than the trainer's are not of this one.
            left = trained is not None and book.incarnation < trained.incarnation
            if left or not book.keys.issuperset(keys):
                continue
            if book.latest_ts <= until and book.order[-1] <= consumed:
                rows = book.holding(keys, count)
            else:
                rows = self._of_axis(book, keys, count, until, consumed)
            if rows and (not best or rows[-1].ts > best[-1].ts):
                best = rows
        return best

    def _of_axis(self, book: _Axis, keys: tuple[StepKey, ...], count: int, until: float, consumed: float) -> list[Step]:
        holding = (s for s in book.newest_first(until) if s.number <= consumed and _holds(s, keys))
        return list(islice(holding, count))[::-1]
