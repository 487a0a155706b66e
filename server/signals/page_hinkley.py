"""The Page-Hinkley test (Page, Biometrika 1954), two-sided: has the mean of a series of scores moved? Pure.

The test adds up each score's distance to the mean so far, less (or more) the tolerance. It finds a change when the sum
is far enough from its lowest (highest) point; the change began right after that point.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
