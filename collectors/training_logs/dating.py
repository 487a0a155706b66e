"""Estimates times for rows of sinks without times (verl's JSON lines, console text without a clock), in order."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from collectors.formats.rows import Logged, Logs

# For rows without the duration of their step. Any estimate keeps the order; one second does not look precise.
UNKNOWN_STEP_SECONDS = 1.0
# Smallest distance of two rows of the same moment.
APART_SECONDS = 0.001


def date(logs: Logs, seconds: Callable[[Logged], float | None], last: float | None, now: float) -> bool:
    """Gives every row a time, ascending. Returns True if some times were estimated.

    A file without times ends at its modification time: the last row gets that time, and the rows before it follow
    backwards step by step. The unread rest of a long file is assumed to take as long per byte as the part read.

    Args:
        seconds: returns the duration of the row's step, if the row has one.
        last: time of the last row of the previous call.
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
        # The estimate overlaps rows that have a time already: divide the remaining time evenly, in order.
        start = last
        total = max(end - start, len(rows) * APART_SECONDS)
        lengths = [total / len(rows)] * len(rows)
    for row, passed in zip(rows, accumulate(lengths), strict=True):
        row.ts = row.ts if row.ts is not None else start + passed


def _length(seconds: float | None) -> float:
    return max(seconds, APART_SECONDS) if seconds is not None else UNKNOWN_STEP_SECONDS
