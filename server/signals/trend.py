"""The slope of a few points as the median of the slopes of all pairs (Theil, 1950; Sen, 1968), with its interval. Pure.

One wild point in four does not move it, where least squares follow a single one.
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from server.rollouts.spread import NORMAL_95

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
    known = _SLIDING.pop(ordered[:-1], None)
    if known is None:
        slopes: list[float] = []
        for at, (x, y) in enumerate(ordered):
            slopes += [(value - y) / (step - x) for step, value in ordered[at + 1 :] if step > x]
        slopes.sort()
    else:
        (x, y), slopes = known
        both = ordered[:-1]
        for slope in [(value - y) / (step - x) for step, value in both if step > x]:
            del slopes[bisect_left(slopes, slope)]
        x, y = ordered[-1]
        # Sorting a sorted list with some values behind it is faster than inserting each.
        slopes += [(y - value) / (x - step) for step, value in both if x > step]
        slopes.sort()
    return slopes
