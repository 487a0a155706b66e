"""Times of day in printed logs: dates for lines that have none.

Forward, the day moves on when the clock jumps back. At the start of a log the date is estimated backwards from the
modification time of the file, which is the time of its last line.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

HALF_DAY = 12 * 3600.0
# Difference of the clocks of the machine that prints and of the one that dates the file.
SKEW_SECONDS = 300.0

CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)\b")


@dataclass(slots=True)
class LogClock:
    """Gives dates to times of day.

    Attributes:
        now: epoch seconds of the last dated line; before the first line the anchor, which is the run's start.
        anchored: no line was dated yet, so the first may be slightly before the anchor.
    """

    now: float
    anchored: bool = False

    def date(self, hours: int, minutes: int, seconds: int) -> float:
        """Epoch seconds; the day moves on when the clock jumps back by more than half a day."""
        day = time.localtime(self.now)
        # mktime carries day 32 over into the next month and handles daylight saving time.
        time_of_day = (hours, minutes, seconds, 0, 0, -1)
        stamp = time.mktime((day.tm_year, day.tm_mon, day.tm_mday, *time_of_day))
        if stamp < self.now - HALF_DAY:
            stamp = time.mktime((day.tm_year, day.tm_mon, day.tm_mday + 1, *time_of_day))
        elif self.anchored and stamp > self.now + HALF_DAY:
            stamp = time.mktime((day.tm_year, day.tm_mon, day.tm_mday - 1, *time_of_day))
        self.now, self.anchored = stamp, False
        return stamp


def anchor_backwards(
    lines: list[str], modified: float, is_zone: Callable[[float], bool] = lambda ahead: False
) -> float:
    """The start of a clock whose last line falls on the file's modification time, not after it.

    ``is_zone``: the last line may be this many seconds after it, because the caller corrects the clock of another zone.
    """
    times = [match for line in lines if (match := CLOCK.match(line))]
    if not times:
        return modified
    first = _seconds(times[0])
    days, previous = 0, first
    for match in times[1:]:
        current = _seconds(match)
        days += current < previous - HALF_DAY
        previous = current
    clock = LogClock(modified, anchored=True)
    last = clock.date(*map(int, times[-1].groups()))
    if last > modified + SKEW_SECONDS and not is_zone(last - modified):
        # The file is a copy: it was written on an earlier day at that time.
        last -= 86400
    return last - (days * 86400 + previous - first)


def _seconds(match: re.Match[str]) -> int:
    hours, minutes, seconds = map(int, match.groups())
    return hours * 3600 + minutes * 60 + seconds
