"""Separates the time and the message of log lines.

Supports dates with or without a zone (without: local time), JSON lines and times of day (loguru). A line without a time
gets that of the line before, else that of the file.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

from collectors.formats import jsonl
from collectors.formats.log_times import LogClock, anchor_backwards
from collectors.transport import rest

# Ray's prefix of each line: (RolloutWorker pid=123, ip=10.0.0.1). "[repeated 3x across cluster]" may follow the line.
_WORKER = re.compile(r"^\([\w.:() -]{0,100}\bpid=\d{1,10}(?:, ip=[\w.:]{1,60})?\)\s?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\s?(?:Z\b|[+-]\d\d:?\d\d\b)?")
_TIME = re.compile(r"^(\d\d):(\d\d):(\d\d)\b")
# Without a terminal rich folds lines at 80 columns, which moves SWE-ReX's longest ids to the next line.
_FOLDED = re.compile(r"sandbox with ID:$")
# Characters in which a date is searched: it precedes the message, after a logger's name at most.
DATE_WITHIN = 60


def dated_lines(lines: Iterable[str], written: float, before: float | None) -> Iterator[tuple[float, str]]:
    """(epoch seconds, message) of each line.

    Args:
        written: modification time of the file; the lines are not much later.
        before: time of the line before the first one; None at the start of a file.
    """
    lines = list(_unfolded(_WORKER.sub("", line) for line in lines))
    clock = LogClock(before) if before is not None else LogClock(anchor_backwards(lines, written), anchored=True)
    for line in lines:
        row = jsonl.parse(line) if line.startswith("{") else None
        if row is not None:
            clock.now = _stamp(row.get("timestamp", row.get("time", row.get("asctime")))) or clock.now
            line = rest.text(row.get("message", row.get("msg")), 2000)
        elif match := _DATE.search(line[:DATE_WITHIN]):
            clock.now = _stamp(match[0]) or clock.now
        elif match := _TIME.match(line):
            clock.date(*map(int, match.groups()))
        yield clock.now, line


def _unfolded(lines: Iterable[str]) -> Iterator[str]:
    begun = ""
    for line in lines:
        if begun:
            yield f"{begun} {line.strip()}"
            begun = ""
        elif _FOLDED.search(line):
            begun = line
        else:
            yield line
    if begun:
        yield begun


def _stamp(value: object) -> float | None:
    if isinstance(value, str):
        try:
            # Without a zone it is local time, as written by Python's logging and by loguru.
            value = datetime.fromisoformat(value.strip().replace(",", ".").replace(" +", "+")).timestamp()
        except (ValueError, OverflowError):
            return None
    return rest.epoch(value)
