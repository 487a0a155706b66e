"""What of a reading can be meant, and what is to be said against the rest: pure, before anything is stored."""

from dataclasses import replace

from collectors.model import Reading
from server.signals._model import SKEW_SECONDS

# 2000-01-01: nothing we read is older. A day ahead covers wrong time zones; more is another unit.
FIRST_TIME, AHEAD_SECONDS = 946_684_800.0, 86_400.0
LAST_STEP = 10**12


def plausible(reading: Reading, now: float) -> Reading:
    """Without samples and events whose time or step nobody can mean: milliseconds as seconds, a corrupted digit.

    One such number would open a partition of its own, or be refused by the database with all its neighbours.
    """
    if _says_no_time(reading):
        return reading
    samples = tuple(s for s in reading.samples if _in_time(s.ts, now) and -1 <= (s.step or 0) <= LAST_STEP)
    events = tuple(event for event in reading.events if _in_time(event.ts, now))
    histograms = tuple(item for item in reading.histograms if _in_time(item.ts, now))
    refused = len(reading.samples) - len(samples) + len(reading.events) - len(events)
    refused += len(reading.histograms) - len(histograms)
    if not refused:
        return reading
    why = reading.why_dropped or "a time before 2000 or more than a day ahead, or a step beyond 10^12"
    return replace(
        reading,
        samples=samples,
        events=events,
        histograms=histograms,
        dropped=reading.dropped + refused,
        why_dropped=why,
    )


def _says_no_time(reading: Reading) -> bool:
    """Nor a step: as nearly every page."""
    told = any([s.ts is not None or s.step is not None for s in reading.samples])
    return not (told or reading.events or any([item.ts is not None for item in reading.histograms]))


def complaint(reading: Reading) -> str:
    """What is missing from an answer, in a line; "" when nothing is."""
    dropped = f"dropped {reading.dropped}: {reading.why_dropped}" if reading.dropped else ""
    return "; ".join(words for words in (dropped, reading.partial, *reading.gaps) if words)


def ahead(reading: Reading, now: float) -> str:
    """A word on a clock that runs ahead of ours: its numbers show only when we get there."""
    newest = max((sample.ts for sample in reading.samples if sample.ts is not None), default=now)
    return f"its clock is {newest - now:.0f} s ahead of this machine's" if newest - now > SKEW_SECONDS else ""


def _in_time(ts: float | None, now: float) -> bool:
    return ts is None or FIRST_TIME <= ts <= now + AHEAD_SECONDS
