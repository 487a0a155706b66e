"""Times for rows whose sink keeps none (verl's JSON lines, console text without a clock): estimated, in order."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from collectors.formats.rows import Logged, Logs

# For rows that do not say how long a step took: any guess keeps the order, and one second does not look precise.
UNKNOWN_STEP_SECONDS = 1.0
# Two rows of one moment need times of their own.
APART_SECONDS = 0.001


def date(logs: Logs, seconds: Callable[[Logged], float | None], last: float | None, now: float) -> bool:
    """Give every row a time, ascending. True when some were estimated.

    A file without times ends when it was last written: the last row is put there and the others step by step before
    it. Of a long file read in parts the rest is reckoned to take as long, byte for byte, as what was read.

    Args:
        seconds: how long the step of a row took, where it says so.
        last: time of the last row of the call before.
    """
    if all(row.ts is not None for row in logs.rows):
        return False
    end = min(logs.modified if logs.modified is not None else now, now)
    _spread(logs.rows, [_length(seconds(row)) for row in logs.rows], end, logs.ahead, last)
    return True


def _spread(rows: Sequence[Logged], lengths: list[float], end: float, ahead: float, last: float | None) -> None:
    total = sum(lengths)
    end -= total * ahead
    start = end - total
    if last is not None and start < last:
        # The estimate reaches into what is dated already: the rows share the room there is, and keep their order.
        start = last
        total = max(end - start, len(rows) * APART_SECONDS)
        lengths = [total / len(rows)] * len(rows)
    for row, passed in zip(rows, accumulate(lengths), strict=True):
        row.ts = row.ts if row.ts is not None else start + passed


def _length(seconds: float | None) -> float:
    return max(seconds, APART_SECONDS) if seconds is not None else UNKNOWN_STEP_SECONDS
