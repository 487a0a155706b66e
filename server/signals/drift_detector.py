"""Detects that a behaviour moved away from the run's own first steps. Pure, and of constant size.

Points come in the order of steps. The first points are burn-in. The next 30 are the baseline: a robust level and
spread, refined with up to 90 points while nothing moves. Then a two-sided Page-Hinkley test checks the distance to the
watched level in units of that spread. A change also needs the last six steps to be 16 % away; less is not reported,
however significant. While the behaviour keeps moving, no further change is reported; its next stable level is watched.

A run may drift from its start. Its first 30 points then contain the drift and are no baseline. Where they have a clear
trend, the first ten stable points are the baseline, and the points after them are tested at once (see `early`).
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, log, sqrt
from statistics import fmean, median
from typing import Any, NamedTuple

from server.rollouts.groups import NORMAL_95

# ---- page hinkley
# The Page-Hinkley test (Page, Biometrika 1954), two-sided: has the mean of a series of scores moved? Pure.

Mark = tuple[int, float]
"""(step, its event time in seconds)."""


@dataclass(slots=True)
class PageHinkley:
    """State of the test; constant size.

    Attributes:
        n, mean: how many scores make the mean so far, and that mean. A start with n=30 and mean 0
            stands for 30 earlier scores with the mean 0.
        up, low: the sum that rises with the scores, and its lowest point; `down`, `high`: the one that falls.
        rising, falling: the first scores after those points; None: they are the newest.
    """

    n: int = 0
    mean: float = 0.0
    up: float = 0.0
    low: float = 0.0
    down: float = 0.0
    high: float = 0.0
    rising: Mark | None = None
    falling: Mark | None = None

    def add(self, mark: Mark, score: float, tolerated: float) -> None:
        """Adds the next score. The score and ``tolerated`` are in units of the spread."""
        self.n += 1
        self.mean += (score - self.mean) / self.n
        self.up += score - self.mean - tolerated
        self.down += score - self.mean + tolerated
        self.rising, self.falling = self.rising or mark, self.falling or mark
        if self.up < self.low:
            self.low, self.rising = self.up, None
        if self.down > self.high:
            self.high, self.falling = self.down, None

    def found(self, threshold: float) -> int:
        """1: the mean has risen, -1: it has fallen, 0: neither."""
        if self.up - self.low > threshold:
            return 1
        return -1 if self.high - self.down > threshold else 0

    def began(self, direction: int) -> Mark | None:
        """The first score of a change."""
        return self.rising if direction > 0 else self.falling

    def saved(self) -> list[Any]:
        """As JSON."""
        return [self.n, self.mean, self.up, self.low, self.down, self.high, self.rising, self.falling]

    @classmethod
    def load(cls, saved: Sequence[Any]) -> "PageHinkley":
        """From `saved`; its marks may be lists after JSON."""
        return cls(*saved)


# ---- trend
# The slope of a few points as the median of the slopes of all pairs (Theil, 1950; Sen, 1968), with its interval.

# Points. With fewer the interval is too wide to be useful.
FEWEST = 8


@dataclass(frozen=True, slots=True)
class Trend:
    """Slope per unit of x, and its interval (95 % unless `trend` was given another)."""

    slope: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Is zero outside the interval?"""
        return self.low > 0 or self.high < 0


def trend(points: Sequence[tuple[float, float]], deviations: float = NORMAL_95) -> Trend | None:
    """Of (x, y); None for fewer than `FEWEST`, or where all have the same x. O(n^2): meant for a few dozen.

    ``deviations``: half the width of the interval in standard deviations; 1.96 is 95 %.
    """
    n = len(points)
    if n < FEWEST:
        return None
    # Points loaded from stored JSON are lists.
    ordered = tuple(sorted([(x, y) for x, y in points]))
    slopes = _slopes(ordered)
    if not slopes:
        return None
    # Kendall's statistic is normal from ten points on. Sen's interval leaves out so many slopes on each side.
    width = deviations * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    cut = max(0, math.floor((len(slopes) - width) / 2))
    middle = len(slopes) // 2
    half = slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2
    found = Trend(half, slopes[cut], slopes[len(slopes) - 1 - cut])
    # Stored last, because another thread may take the list and change it.
    _SLIDING[ordered[1:]] = (ordered[0], slopes)
    while len(_SLIDING) > MOST_SLIDING:
        with suppress(KeyError):
            _SLIDING.popitem(last=False)
    return found


# Cache for windows that slide by one point: from the points that stay to the point that leaves and all ordered slopes.
# Of 435 slopes 58 change, which takes a quarter of the time. Bounded; an entry is removed when it is used.
_SLIDING: OrderedDict[tuple[tuple[float, float], ...], tuple[tuple[float, float], list[float]]] = OrderedDict()
MOST_SLIDING = 256


def _slopes(ordered: tuple[tuple[float, float], ...]) -> list[float]:
    """Slopes of all pairs with different x, ascending."""
    cached = _SLIDING.pop(ordered[:-1], None)
    if cached is None:
        slopes: list[float] = []
        for at, (x, y) in enumerate(ordered):
            slopes += [(value - y) / (step - x) for step, value in ordered[at + 1 :] if step > x]
        slopes.sort()
    else:
        (x, y), slopes = cached
        both = ordered[:-1]
        for slope in [(value - y) / (step - x) for step, value in both if step > x]:
            del slopes[bisect_left(slopes, slope)]
        x, y = ordered[-1]
        # Sorting a sorted list with some values behind it is faster than inserting each.
        slopes += [(y - value) / (x - step) for step, value in both if x > step]
        slopes.sort()
    return slopes


Point = tuple[int, float, float, float | None]
"""(step, event time in seconds, value, share cut at a cap or None)."""

# The first steps compile, fill caches and hold the shortest rollouts of an asynchronous start.
BURN_IN = 5
# 30 points know a spread to about 15 %, 90 to 8 %. Points count when they are 15 steps old: a ramp that begins would
# else widen the spread before it is found.
BASELINE, BASELINE_MOST, BASELINE_STEP, BASELINE_AGE = 30, 90, 10, 15
NEEDED = BURN_IN + BASELINE
# Ten points know a level to a third of the spread. A warm-up of up to ten steps more than the burn-in is passed over.
EARLY, WARM_UP = 10, 10
# A drift that began before the baseline goes on over its last fifteen points; a warm-up has ended.
STILL = 15
# The trend of 30 points is clear at three standard deviations: two would call one flat run in twenty a drift.
CLEAR = 3.0
# Half a spread is tolerated, which is best for a shift of one; 9 of them added up are found. Measured on series of 200
# steps at a variation of 10 %: see tests/signals/test_drift_rates.py.
TOLERATED, THRESHOLD = 0.5, 9.0
# Below so much of the threshold nothing is on its way.
QUIET = 0.4
# One wild step weighs as much as four spreads and no more: five times the length for one step is no drift.
WILDEST = 4.0
# So far from the level watched must the median of the last six be.
MOVED, MOVED_STEPS = 1.16, 6
# Autocorrelation of steps: similar steps wander for longer. Beyond 0.8 a drift cannot be distinguished from that.
ALIKE, ALIKE_MOST = 0.3, 0.8
# Steps that must show no slope before a new level is one.
SETTLED = 20
# What "now" is: as the windows of trainer signals. The slope is over three of them.
NOW, RECENT = 10, 30
KEPT_CHANGES = 8
# A spread below 2 % of the level (every rollout has one turn) would report changes that do not matter.
NARROWEST = 0.02


class ChangePoint(NamedTuple):
    """A change point: where it began, 1 up or -1 down, and by which factor, as known when it was found."""

    step: int
    ts: float
    direction: int
    factor: float


class Baseline(NamedTuple):
    """The run's own first steps.

    Attributes:
        level: the mean of their values cut off at two spreads from the median (which alone is off by a quarter more).
            What factors are against: of the first 30, and final.
        watched: the same of as many points as have stood still since, which know it better.
        spread: robust standard deviation, as a share of the level.
        threshold: of the test, higher where the steps resemble their neighbours.
        cut: mean share cut at a cap, None where it is not reported.
        first, last: the steps it is made of.
    """

    level: float
    watched: float
    spread: float
    threshold: float
    cut: float | None
    first: int
    last: int
    size: int


def baseline(points: Sequence[Point]) -> Baseline:
    """Of at least two points."""
    values = [value for _, _, value, _ in points]
    spread = robust_spread(values)
    level = fmean(cut_off(values, spread))
    spread = max(spread, NARROWEST * abs(level))
    cuts = [cut for *_, cut in points if cut is not None]
    share = spread / abs(level) if level else 0.0
    threshold = THRESHOLD * _alike(values, level, spread)
    first, last = points[0][0], points[-1][0]
    return Baseline(level, level, share, threshold, fmean(cuts) if cuts else None, first, last, len(points))


class Early(NamedTuple):
    """A baseline of a run that moves within its first steps.

    Attributes:
        start: index of its first point.
        moves: a change that follows is no warm-up: the run stood before it, or is still moving at the end.
    """

    base: Baseline
    start: int
    moves: bool


def early(points: Sequence[Point]) -> Early | None:
    """The first ten points that stand, where these (a baseline's) have a clear trend; None where they have none.

    Where no ten of the first twenty stand, the first ten: the run moves since its start.
    """
    line = _line(points, CLEAR)
    here, there = (median(value for _, _, value, _ in part) for part in (points[-EARLY:], points[:EARLY]))
    if line is None or not line.clear or not _apart(here, there, 1 if here > there else -1):
        return None
    starts = range(min(WARM_UP, len(points) - EARLY) + 1)
    stands = (at for at in starts if (part := _line(points[at : at + EARLY])) is None or not part.moved())
    stood = next(stands, None)
    end = _line(points[-STILL:])
    going_on = end is not None and end.clear and (end.end > end.start) == (line.end > line.start)
    start = stood or 0
    base = baseline(points[start : start + EARLY])._replace(threshold=THRESHOLD)
    return Early(base, start, going_on or stood == 0)


def around_change(base: Baseline, before: Sequence[Point], after: Sequence[Point]) -> Baseline:
    """A baseline of ten points with the spread and the threshold of all points around a change.

    Ten points know a spread to a quarter, and nothing of how much a step resembles the one before.
    """
    residuals = [*_without_trend(before), *_without_trend(after)]
    around = robust_spread(residuals)
    spread = max(base.spread, around / abs(base.level) if base.level else 0.0)
    return base._replace(spread=spread, threshold=THRESHOLD * _alike(residuals, 0.0, around))


def _without_trend(points: Sequence[Point]) -> list[float]:
    line = _line(points)
    if line is not None:
        return line.residuals
    values = [value for _, _, value, _ in points]
    return [value - median(values) for value in values]


class _Line(NamedTuple):
    """The trend of some points: its value at the first and at the last, is it clear, and what is left without it."""

    start: float
    end: float
    clear: bool
    residuals: list[float]

    def moved(self) -> bool:
        return _apart(self.end, self.start, 1 if self.end > self.start else -1)


def _line(points: Sequence[Point], deviations: float = NORMAL_95) -> _Line | None:
    pairs = [(float(step), value) for step, _, value, _ in points]
    found = trend(pairs, deviations)
    if found is None:
        return None
    middle = median(value - found.slope * step for step, value in pairs)
    start, end = (middle + found.slope * step for step in (pairs[0][0], pairs[-1][0]))
    return _Line(start, end, found.significant, [value - middle - found.slope * step for step, value in pairs])


# What cutting off a normal sample at two spreads takes from its standard deviation, inverted.
_CLIPPED = 1.0423


def robust_spread(values: Sequence[float]) -> float:
    """Standard deviation that wild values do not widen: of the values cut off at two spreads, starting from the MAD.

    The MAD alone is off by a fifth at 30 points, which was most of the false alarms.
    """
    middle = median(values)
    spread = 1.4826 * median(abs(value - middle) for value in values)
    for _ in range(3):
        clipped = cut_off(values, spread)
        around = fmean(clipped)
        spread = _CLIPPED * (sum((value - around) ** 2 for value in clipped) / (len(clipped) - 1)) ** 0.5
    return spread


def cut_off(values: Sequence[float], spread: float) -> list[float]:
    """Values further from their median than two spreads are as far as that."""
    middle = median(values)
    low, high = middle - 2 * spread, middle + 2 * spread
    return [min(high, max(low, value)) for value in values]


def _alike(values: Sequence[float], level: float, spread: float) -> float:
    """How much longer than independent steps these wander: 1 where they are independent, (1 + r) / (1 - r) else."""
    if spread <= 0:
        return 1.0
    scores = [min(3.0, max(-3.0, (value - level) / spread)) for value in values]
    # Where they vary less than the narrowest spread, what they have in common is nothing either.
    power = max(sum(score * score for score in scores), len(scores))
    r = sum(a * b for a, b in pairwise(scores)) / power
    return 1.0 if r <= ALIKE else (1 + min(r, ALIKE_MOST)) / (1 - min(r, ALIKE_MOST))


@dataclass(slots=True)
class DriftWatch:
    """The state of one series.

    Attributes:
        last: the newest step added.
        first: its first points, until the baseline is final. recent: the last 30.
        level: what is watched now, in the series' unit.
        since: where it left the baseline, None while it stands there. moving: where the present change began.
    """

    last: int = -1
    first: list[Point] = field(default_factory=list)
    recent: list[Point] = field(default_factory=list)
    base: Baseline | None = None
    final: bool = False
    test: PageHinkley = field(default_factory=PageHinkley)
    level: float = 0.0
    since: Mark | None = None
    moving: Mark | None = None
    changes: list[ChangePoint] = field(default_factory=list)

    # ---- adding

    def add(self, point: Point) -> None:
        """The point of a later step than any before; a value that is not finite is skipped."""
        step, ts, value, _ = point
        if not isfinite(value) or step <= self.last:
            return
        self.last = step
        self.recent = [*self.recent[1 - RECENT :], point]
        ready = self.base is not None
        if not self.final:
            self.first.append(point)
            self._rebase()
        if ready and self.base is not None and self.base.level > 0:
            self._look((step, ts), value, self.base)

    def _rebase(self) -> None:
        """A baseline as soon as there can be one, and a better one with every ten steps more."""
        size_now = self.base.size if self.base is not None else 0
        counted = (len(self.first) - BURN_IN - BASELINE_AGE) // BASELINE_STEP * BASELINE_STEP
        size = max(BASELINE, min(BASELINE_MOST, counted))
        if len(self.first) < NEEDED or size == size_now:
            return
        if self.base is None and self._begin_early():
            return
        found = baseline(self.first[BURN_IN : BURN_IN + size])
        if self.base is None:
            self.base, self.test = found, PageHinkley(n=size)
        elif self.test.found(QUIET * self.base.threshold):
            return  # what may be moving is no measure of what stands still
        else:
            # What factors are against stays, and the steps it is of.
            old = self.base
            self.base = found._replace(level=old.level, cut=old.cut, first=old.first, last=old.last)
        self.level = found.level
        if size >= BASELINE_MOST:
            self._finish()

    def _begin_early(self) -> bool:
        """Takes the first points that stand as the baseline, if these 30 have a trend and a change follows in them.

        Without a change the trend was a warm-up: what follows it is the baseline.
        """
        points = self.first[BURN_IN:NEEDED]
        found = early(points)
        if found is None:
            return False
        start, moved = found.start, self._tested(points[found.start :], found.base) if found.moves else None
        if moved is not None:
            split = next(at for at, point in enumerate(points) if point[0] >= moved.changes[0].step)
            base = around_change(found.base, points[start:split], points[split:])
            line = _line(points, CLEAR * sqrt(base.threshold / THRESHOLD))
            moved = self._tested(points[start:], base) if line is not None and line.clear else None
        if moved is not None:
            self.base, self.test, self.level = moved.base, moved.test, moved.level
            self.since, self.moving, self.changes = moved.since, moved.moving, moved.changes
            self._finish()
        elif start:
            self.base = baseline(points[start:])
            self.level, self.test = self.base.level, PageHinkley(n=self.base.size)
        return self.base is not None

    @staticmethod
    def _tested(points: Sequence[Point], base: Baseline) -> "DriftWatch | None":
        """A watch of these points with that baseline, if it finds a change in them."""
        trial = DriftWatch(base=base, test=PageHinkley(n=base.size), level=base.level, final=True)
        for at, point in enumerate(points, 1):
            trial.last, trial.recent = point[0], [*trial.recent[1 - RECENT :], point]
            if at > MOVED_STEPS:
                trial._look(point[:2], point[2], base)
        return trial if trial.changes else None

    def _finish(self) -> None:
        self.final, self.first = True, []

    def _look(self, mark: Mark, value: float, base: Baseline) -> None:
        if self.moving is not None:
            self._settle(base)
            return
        # A level that fell to nothing still has the spread of the narrowest baseline.
        unit = max(base.spread * self.level, NARROWEST * base.level)
        self.test.add(mark, min(WILDEST, max(-WILDEST, (value - self.level) / unit)), TOLERATED)
        direction = self.test.found(base.threshold)
        began = self.test.began(direction)
        if direction == 0 or began is None:
            return
        here = self._median(MOVED_STEPS)
        if not _apart(here, self.level, direction):
            return
        factor = here / self.level if self.level > 0 else here / base.level
        self.changes = [*self.changes[1 - KEPT_CHANGES :], ChangePoint(*began, direction, factor)]
        self.moving, self.since = began, self.since or began
        self._finish()

    def _settle(self, base: Baseline) -> None:
        """Does it stand again? Then that level is watched; back at the baseline's nothing has moved any more."""
        assert self.moving is not None
        here = [point for point in self.recent if point[0] >= self.moving[0]][-SETTLED:]
        found = trend([(step, value) for step, _, value, _ in here]) if len(here) >= SETTLED else None
        if found is None or found.significant:
            return
        self.level, self.moving = median(value for _, _, value, _ in here), None
        self.test = PageHinkley(n=SETTLED)
        if not (_apart(self.level, base.level, 1) or _apart(self.level, base.level, -1)):
            self.level, self.since = base.watched, None

    def rewind(self, step: int) -> None:
        """The run goes on from before ``step``: what was added from there on is of a policy that was thrown away.

        The baseline stays. What the test saw cannot be taken back: it begins again at the baseline's level.
        """
        if step > self.last:
            return
        self.first = [point for point in self.first if point[0] < step]
        self.recent = [point for point in self.recent if point[0] < step]
        self.changes = [change for change in self.changes if change.step < step]
        self.last, self.since, self.moving = step - 1, None, None
        if self.base is not None:
            self._finish()
            self.level, self.test = self.base.watched, PageHinkley(n=self.base.size)

    # ---- results

    def _median(self, count: int) -> float:
        return median([value for _, _, value, _ in self.recent[-count:]])

    @property
    def factor(self) -> float | None:
        """The median of the last ten steps against the baseline; None without one, and against nothing."""
        if self.base is None or self.base.level <= 0 or not self.recent:
            return None
        return self._median(NOW) / self.base.level

    @property
    def cut(self) -> float | None:
        """Share cut at a cap in the last ten steps."""
        cuts = [cut for *_, cut in self.recent[-NOW:] if cut is not None]
        return fmean(cuts) if cuts else None

    # ---- restart

    def saved(self) -> dict[str, Any]:
        """As JSON; shares nothing that changes."""
        return {
            "last": self.last, "first": [*self.first], "recent": self.recent, "base": self.base, "final": self.final,
            "test": self.test.saved(), "level": self.level, "since": self.since, "moving": self.moving,
            "changes": self.changes,
        }  # fmt: skip

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "DriftWatch":
        """From `saved`. Points stay the lists that JSON made, because they are read-only."""
        base = Baseline(*saved["base"]) if saved["base"] else None
        changes = [ChangePoint(*one) for one in saved["changes"]]
        test, first = PageHinkley.load(saved["test"]), [*saved["first"]]
        return cls(**{**saved, "base": base, "changes": changes, "test": test, "first": first})


def _apart(here: float, there: float, direction: int) -> bool:
    """Is ``here`` away from ``there`` by enough, in that direction?"""
    if here <= 0 or there <= 0:
        return here != there and (here > there) == (direction > 0)
    return direction * log(here / there) > log(MOVED)
