"""What of a reading can be meant, and what is to be said against the rest: pure, before anything is stored."""

from dataclasses import replace
from operator import attrgetter

from collectors.catalog import METRICS
from collectors.catalog.row import LARGEST
from collectors.model import Histogram, Reading, Rollout
from server.rollouts.merge import TIMES
from server.signals.model import SKEW_SECONDS

# 2000-01-01: nothing we read is older. A day ahead covers wrong time zones; more is another unit.
FIRST_TIME, AHEAD_SECONDS = 946_684_800.0, 86_400.0
LAST_STEP = 10**12
_COUNTS = ("prompt_tokens", "response_tokens", "loss_tokens", "tool_calls")
COUNTED = dict(zip(_COUNTS, (10**9, 10**9, 10**9, 10**7), strict=True)) | {
    "turns": 10**7, "turns.tool_calls": 10**7, "token_versions: loss tokens": 10**9,
}  # fmt: skip
"""The most that a rollout's count can mean: a database adds up many of them, to 2^63."""

_counts_of = attrgetter(*_COUNTS)
_times_of = attrgetter(*TIMES)


def without_implausible(reading: Reading, now: float) -> Reading:
    """Without samples and events whose value, time or step nobody can mean: milliseconds as seconds, a corrupted digit.

    One such time would open a partition of its own, or be refused by the database with all its neighbours; one such
    value would be most of every sum for five minutes, and of a counter for ever.
    """
    reading = _meant(reading)
    if _says_no_time(reading):
        return reading
    samples = tuple(s for s in reading.samples if _in_time(s.ts, now) and -1 <= (s.step or 0) <= LAST_STEP)
    events = tuple(event for event in reading.events if _in_time(event.ts, now))
    histograms = tuple(item for item in reading.histograms if _in_time(item.ts, now))
    counted = [_too_many(record) for record in reading.rollouts]
    told = zip(reading.rollouts, counted, strict=True)
    rollouts = tuple(record for record, fault in told if not fault and _lived(record, now))
    refused = len(reading.samples) - len(samples) + len(reading.events) - len(events)
    refused += len(reading.histograms) - len(histograms) + len(reading.rollouts) - len(rollouts)
    if not refused:
        return reading
    many = next(filter(None, counted), "")
    why = reading.why_dropped or many or "a time before 2000 or more than a day ahead, or a step beyond 10^12"
    return replace(
        reading,
        samples=samples,
        events=events,
        histograms=histograms,
        rollouts=rollouts,
        dropped=reading.dropped + refused,
        why_dropped=why,
    )


def _says_no_time(reading: Reading) -> bool:
    """Nor a step: as nearly every page."""
    told = any([s.ts is not None or s.step is not None for s in reading.samples])
    return not (told or reading.events or reading.rollouts or any([item.ts is not None for item in reading.histograms]))


def implausible_reason(metric: str, value: float) -> str:
    """Why nobody can mean a value of the metric, in words; "" for one that may be."""
    row = METRICS.get(metric)
    return row.cannot_be(value) if row is not None else ""


def _meant(reading: Reading) -> Reading:
    """Without values that the catalogue's unit rules out."""
    faults = [words for s in reading.samples if (words := implausible_reason(s.metric, s.value))]
    broken = [words for item in reading.histograms if (words := _beyond(item))]
    if not faults and not broken:
        return reading
    return replace(
        reading,
        samples=tuple(s for s in reading.samples if not implausible_reason(s.metric, s.value)),
        histograms=tuple(item for item in reading.histograms if not _beyond(item)),
        dropped=reading.dropped + len(faults) + len(broken),
        implausible=reading.implausible + len(faults) + len(broken),
        why_dropped=reading.why_dropped or (faults + broken)[0],
    )


def _beyond(item: Histogram) -> str:
    """The same of a histogram: of how many it counts, and of their sum."""
    largest = max(item.counts[-1], abs(item.total))
    return f"{item.metric}: {largest:.4g} observed" if largest > LARGEST else ""


def complaint(reading: Reading) -> str:
    """What is missing from an answer, in a line; "" when nothing is."""
    dropped = f"dropped {reading.dropped}: {reading.why_dropped}" if reading.dropped else ""
    return "; ".join(words for words in (dropped, reading.partial, *reading.gaps) if words)


def values_only(reading: Reading) -> bool:
    """Is nothing missing but single values that their unit rules out? All other values of the answer count."""
    return reading.dropped == reading.implausible and not reading.partial and not reading.gaps


def ahead(reading: Reading, now: float) -> str:
    """A word on a clock that runs ahead of ours: its numbers show only when we get there."""
    newest = max((sample.ts for sample in reading.samples if sample.ts is not None), default=now)
    return f"its clock is {newest - now:.0f} s ahead of this machine's" if newest - now > SKEW_SECONDS else ""


def _too_many(record: Rollout) -> str:
    """Why nobody can mean the counts of a rollout, in words; "" where they may be."""
    turns = max([turn.tool_calls or 0 for turn in record.turns], default=0)
    versions = max([tokens for _, tokens in record.token_versions], default=0)
    counts = (*_counts_of(record), record.turn_count, turns, versions)
    told = zip(COUNTED.items(), counts, strict=True)
    found = [limit for limit, count in told if count is not None and count > limit[1]]
    return "{} must be a whole number up to {}".format(*found[0]) if found else ""


def _lived(record: Rollout, now: float) -> bool:
    """Are all of its times such as somebody can mean?"""
    told = [*_times_of(record), *[use.at for use in record.consumptions]]
    for one in record.spans:
        told += (one.start, one.end)
    # `_in_time` of each without a call of each: a record has some twenty times.
    latest = now + AHEAD_SECONDS
    return all([at is None or FIRST_TIME <= at <= latest for at in told])


def _in_time(ts: float | None, now: float) -> bool:
    return ts is None or FIRST_TIME <= ts <= now + AHEAD_SECONDS
