"""Detects that a behaviour moved away from the run's own first steps. Pure, and of constant size.

Points come in the order of steps. The first points are burn-in. The next 30 are the baseline: a robust level and
spread, refined with up to 90 points while nothing moves. Then a two-sided Page-Hinkley test checks the distance to the
watched level in units of that spread. A change also needs the last six steps to be 16 % away; less is not reported,
however significant. While the behaviour keeps moving, no further change is reported; its next stable level is watched.

A run may drift from its start. Its first 30 points then contain the drift and are no baseline. Where they have a clear
trend, the first ten stable points are the baseline, and the points after them are tested at once (see `early`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, log, sqrt
from statistics import fmean, median
from typing import Any, NamedTuple

from server.rollouts.spread import NORMAL_95
from server.signals.page_hinkley import Mark, PageHinkley
from server.signals.trend import trend

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
