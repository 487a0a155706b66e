"""Columns of time on a grid of their own: time that goes on adds one and changes the newest, and a tick sends those."""

from dataclasses import dataclass
from math import ceil, floor

from dashboard.state.url import Span

COLUMNS = 60
"""As many as a time is cut into, at most; two more may be cut by its edges."""

# Counts of records are stored by the minute and by the hour: a column of one and a half would have stripes.
_MINUTE, _HOUR = 60.0, 3600.0
# An hour is read again every 5 s; of a week, whose columns are hours wide, not every record at each tick.
_LEAST_SECONDS, _LOOKS_PER_COLUMN = 4.0, 12


@dataclass(frozen=True, slots=True)
class Grid:
    """``count`` columns of ``width`` seconds; column N begins N widths after the epoch. ``first``: its number."""

    first: int
    width: float
    count: int

    @property
    def start(self) -> float:
        return self.first * self.width

    @property
    def end(self) -> float:
        return (self.first + self.count) * self.width

    @property
    def keep_seconds(self) -> float:
        """How long an answer about it may be shown."""
        return max(_LEAST_SECONDS, self.width / _LOOKS_PER_COLUMN)

    def number(self, ts: float) -> int:
        """The column of a time."""
        return floor(ts / self.width)


def grid(span: Span) -> Grid:
    """Whole minutes up to an hour wide, whole hours beyond."""
    length = span.end - span.start
    unit = _MINUTE if length / COLUMNS <= _HOUR else _HOUR
    width = unit * max(1, ceil(length / COLUMNS / unit))
    first = floor(span.start / width)
    return Grid(first, width, floor(span.end / width) - first + 1)
