"""Lines of prime-rl's printed logs with their times; the queue's length and the rollouts in flight.

Only the orchestrator's log has them, in one line every 10 s (orchestrator.py:801, 559b44772):
`Train batch 57/128 (44.5%) (+12 buffered) | env a/b (..%); 512 inflight episodes (train=480, eval=32 | env=..)`.
`queue_samples` = 57 + 12. On a real run this is close, not exact: the buffered samples include arrivals of incomplete
groups, and a batch that was shipped and is held is in neither number (train_sink.py:113-118).
Three formats: loguru `HH:mm:ss LEVEL message` (prime-rl's), loguru's default with a date, NDJSON. A time without
date is local and gets its date from `LogClock`.
"""

import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats import jsonl as textlog
from collectors.formats.log_times import CLOCK, LogClock, anchor_backwards
from collectors.model import Sample
from collectors.training_logs import clocks

# Digits are bounded, because int() of very many digits is slow and then fails.
_DATED = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
# The head of a loguru line. torchrun's `[default0]:`, or a progress bar without a line end, may stand before it.
_HEAD = re.compile(
    r"(?:\d{4}-\d\d-\d\d[ T])?(?<!\d)(?<!\d:)\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: \|)? +"
    r"(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL)\b"
)
# Characters. A progress bar is as wide as a terminal; a head further in belongs to the message.
_HEAD_WITHIN = 400
# Bytes read to date the first line of a log that one call does not read to its end.
ANCHOR_BYTES = 128 << 20
_BATCH = re.compile(r"Train batch (\d{1,15})/(\d{1,15})(?: \([\d.]+%\))?(?: \(\+(\d{1,15}) buffered\))?")
_IN_FLIGHT = re.compile(r"(\d{1,15}) inflight (?:episodes|rollouts)(?: \(train=(\d{1,15})(?:, eval=(\d{1,15}))?)?")
_FINISHED = re.compile(r"\b(?:RL trainer|RL training|Orchestrator) finished\b", re.IGNORECASE)


def messages(lines: Iterable[str]) -> Iterator[str]:
    """The messages of lines, each from its time on; progress bars that a message overwrites are separate messages."""
    for line in lines:
        for part in line.split("\r"):
            head = _HEAD.search(part, 0, _HEAD_WITHIN) if not part.startswith("{") else None
            if text := part[head.start() :] if head is not None else part:
                yield text


def start(path: Path, lines: list[str], whole: bool) -> float:
    """The start of the clock of a log without any date; ``whole``: ``lines`` are all of it, not the first part."""
    status = path.stat()
    if not whole:
        with path.open("rb") as file:
            head = file.read(ANCHOR_BYTES).decode(errors="replace")
        lines = [text for text in messages(map(textlog.strip, head.splitlines())) if CLOCK.match(text)]
    return anchor_backwards(lines, status.st_mtime, clocks.is_other_zone)


def has_local_time(line: str) -> bool:
    """Returns whether the line begins with a time without a zone."""
    return CLOCK.match(line) is not None or _DATED.match(line) is not None


def split(line: str, clock: LogClock) -> tuple[float, str]:
    """(epoch seconds, message). A line without any time continues the one before it."""
    if line.startswith("{") and (row := jsonl.parse(line)) is not None:
        clock.now = _stamp(row.get("timestamp", row.get("time")), clock.now)
        return clock.now, str(row.get("message", ""))
    if dated := _DATED.match(line):
        clock.now = _local(dated, clock.now)
    elif timed := CLOCK.match(line):
        clock.date(*map(int, timed.groups()))
    return clock.now, line


def _local(match: re.Match[str], fallback: float) -> float:
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    try:
        seconds = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return fallback
    return seconds + float(f"0.{match.group(7) or 0}")


def _stamp(value: Any, fallback: float) -> float:
    seconds = jsonl.number(value)
    if seconds is not None:
        return seconds
    try:
        return datetime.fromisoformat(str(value)).timestamp()  # without a zone: local, like the other formats
    except (ValueError, OverflowError, OSError):
        return fallback


def samples(message: str, ts: float, in_rollouts: bool) -> Iterator[Sample]:
    """Queue and in-flight gauges of a pipeline line; nothing from any other line.

    Args:
        in_rollouts: False when the run batches by tokens (`token_batch_size`): a/b counts tokens then.
    """
    batch = _BATCH.search(message)
    if batch is None:
        return
    if in_rollouts:
        yield Sample("queue_samples", float(batch.group(1)) + float(batch.group(3) or 0), (), ts)
    in_flight = _IN_FLIGHT.search(message)
    if in_flight is not None:
        yield Sample(
            "in_flight_rollouts", float(in_flight.group(2) or in_flight.group(1)), (("state", "generating"),), ts
        )
        if in_flight.group(3):
            yield Sample("in_flight_rollouts", float(in_flight.group(3)), (("state", "eval"),), ts)


def is_finish_message(line: str) -> bool:
    """Returns whether it is the closing message of prime-rl's processes (trainer: `RL trainer finished!`)."""
    return _FINISHED.search(line) is not None
