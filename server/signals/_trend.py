"""The slope of a few points as the median of the slopes of all pairs (Theil, 1950; Sen, 1968), with its interval. Pure.

One wild point in four does not move it, where least squares follow a single one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median

from server.signals._spread import NORMAL_95

# Fewer points than this give no interval worth the name.
FEWEST = 8


@dataclass(frozen=True, slots=True)
class Trend:
    """Slope per unit of x, and its interval (95 % unless `trend` was given another)."""

    slope: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Is no change outside the interval?"""
        return self.low > 0 or self.high < 0


def trend(points: Sequence[tuple[float, float]], deviations: float = NORMAL_95) -> Trend | None:
    """Of (x, y); None for fewer than `FEWEST`, or where all have the same x. O(n^2): meant for a few dozen.

    ``deviations``: half the width of the interval in standard deviations; 1.96 is 95 %.
    """
    n = len(points)
    if n < FEWEST:
        return None
    ordered = sorted(points, key=itemgetter(0))
    slopes = sorted(
        (later[1] - one[1]) / (later[0] - one[0])
        for at, one in enumerate(ordered)
        for later in ordered[at + 1 :]
        if later[0] > one[0]
    )
    if not slopes:
        return None
    # Kendall's statistic is normal from ten points on. Sen's interval leaves out so many slopes on each side.
    width = deviations * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    cut = max(0, math.floor((len(slopes) - width) / 2))
    return Trend(median(slopes), slopes[cut], slopes[len(slopes) - 1 - cut])
