"""Removes implausible values from a reading before anything is stored, and describes what is missing. Pure."""

from functools import lru_cache
from operator import attrgetter
from typing import Any

from msgspec import structs

from collectors.catalog import LARGEST, METRICS
from collectors.model import FIRST_TIME, MOST_CALLS, MOST_TOKENS, Histogram, Labels, Reading, Rollout
from server.rollouts.merge import TIMES
from server.signals.model import SKEW_SECONDS

# A day ahead covers wrong time zones; a time further ahead has another unit.
AHEAD_SECONDS = 86_400.0
# Largest plausible step number.
LAST_STEP = 10**12
_COUNTS = ("prompt_tokens", "response_tokens", "loss_tokens", "tool_calls")
COUNTED = dict(zip(_COUNTS, (MOST_TOKENS, MOST_TOKENS, MOST_TOKENS, MOST_CALLS), strict=True)) | {
    "turns": MOST_CALLS, "turns.tool_calls": MOST_CALLS, "token_versions: loss tokens": MOST_TOKENS,
}  # fmt: skip
"""The largest plausible counts of a rollout. The database sums many of them in 64 bits."""

_counts_of = attrgetter(*_COUNTS)
_times_of = attrgetter(*TIMES)


def without_implausible(reading: Reading, now: float) -> Reading:
    """Removes samples, events, histograms and rollouts with an implausible value, time or step.

    Examples are milliseconds as seconds and a corrupted digit. Such a time would open a partition of its own or make
    the database refuse the batch; such a value would dominate every sum for five minutes, and a counter permanently.
    """
    reading = _plausible_values(_with_storable_texts(reading))
    if _has_no_times(reading):
        return reading
    # The test of `_in_time` inline, because a long log has a million samples.
    latest = now + AHEAD_SECONDS
    samples = [
        s
        for s in reading.samples
        if (s.ts is None or FIRST_TIME <= s.ts <= latest) and -1 <= (s.step or 0) <= LAST_STEP
    ]
    events = tuple(event for event in reading.events if _in_time(event.ts, now))
    histograms = tuple(item for item in reading.histograms if _in_time(item.ts, now))
    counted = [_excess_count(record) for record in reading.rollouts]
    checked = zip(reading.rollouts, counted, strict=True)
    rollouts = tuple(record for record, fault in checked if not fault and _plausible_times(record, now))
    refused = len(reading.samples) - len(samples) + len(reading.events) - len(events)
    refused += len(reading.histograms) - len(histograms) + len(reading.rollouts) - len(rollouts)
    if not refused:
        return reading
    many = next(filter(None, counted), "")
    why = reading.why_dropped or many or "a time before 2000 or more than a day ahead, or a step beyond 10^12"
    return structs.replace(
        reading,
        samples=tuple(samples),
        events=events,
        histograms=histograms,
        rollouts=rollouts,
        dropped=reading.dropped + refused,
        why_dropped=why,
    )


def _with_storable_texts(reading: Reading) -> Reading:
    """Replaces characters that databases and JSON refuse in labels, facts and names of unmapped metrics.

    The store cleans other texts itself. Labels and facts are used before they are stored.
    """
    changes: dict[str, Any] = {}
    if any([not _fine_labels(sample.labels) for sample in reading.samples]):
        changes["samples"] = tuple(structs.replace(one, labels=_storable_labels(one.labels)) for one in reading.samples)
    if any([not _fine_labels(item.labels) for item in reading.histograms]):
        changes["histograms"] = tuple(
            structs.replace(one, labels=_storable_labels(one.labels)) for one in reading.histograms
        )
    if not all([is_storable(name) and is_storable(value) for name, value in reading.facts.items()]):
        changes["facts"] = {storable(name): storable(value) for name, value in reading.facts.items()}
    if not all(map(is_storable, reading.unmapped)):
        changes["unmapped"] = {storable(name): count for name, count in reading.unmapped.items()}
    if not is_storable(reading.why_dropped):
        changes["why_dropped"] = storable(reading.why_dropped)
    return structs.replace(reading, **changes) if changes else reading


@lru_cache(maxsize=65_536)
def _fine_labels(labels: Labels) -> bool:
    return all(is_storable(text) for pair in labels for text in pair)


def _storable_labels(labels: Labels) -> Labels:
    return tuple((storable(name), storable(value)) for name, value in labels)


def is_storable(value: object) -> bool:
    """Is the value free of NUL and of half a surrogate pair? Printable text is, which is checked fastest."""
    return not isinstance(value, str) or value.isprintable() or value == storable(value)


def storable(value: Any) -> Any:
    """Returns a text without NUL, with "?" for half a surrogate pair; other values as they are."""
    if not isinstance(value, str):
        return value
    return value.replace("\0", "").encode(errors="replace").decode()


def _has_no_times(reading: Reading) -> bool:
    """Is the reading without own times and steps, as nearly every page is?"""
    dated = any([s.ts is not None or s.step is not None for s in reading.samples])
    dated = dated or any([item.ts is not None for item in reading.histograms])
    return not (dated or reading.events or reading.rollouts)


def implausible_reason(metric: str, value: float) -> str:
    """Returns why a value of the metric is implausible, or ""."""
    row = METRICS.get(metric)
    return row.cannot_be(value) if row is not None else ""


def _plausible_values(reading: Reading) -> Reading:
    """Removes values that the unit in the catalogue rules out."""
    faults = [reason for s in reading.samples if (reason := implausible_reason(s.metric, s.value))]
    broken = [reason for item in reading.histograms if (reason := _implausible_histogram(item))]
    if not faults and not broken:
        return reading
    return structs.replace(
        reading,
        samples=tuple(s for s in reading.samples if not implausible_reason(s.metric, s.value)),
        histograms=tuple(item for item in reading.histograms if not _implausible_histogram(item)),
        dropped=reading.dropped + len(faults) + len(broken),
        implausible=reading.implausible + len(faults) + len(broken),
        why_dropped=reading.why_dropped or (faults + broken)[0],
    )


def _implausible_histogram(item: Histogram) -> str:
    """Returns why a histogram's count or sum is implausible, or ""."""
    largest = max(item.counts[-1], abs(item.total))
    return f"{item.metric}: {largest:.4g} observed" if largest > LARGEST else ""


def complaint(reading: Reading) -> str:
    """Returns one line that describes what is missing from an answer, or ""."""
    dropped = f"dropped {reading.dropped}: {reading.why_dropped}" if reading.dropped else ""
    return "; ".join(part for part in (dropped, reading.partial, *reading.gaps) if part)


def values_only(reading: Reading) -> bool:
    """Is nothing missing except single values that their unit rules out? All other values of the answer count."""
    return reading.dropped == reading.implausible and not reading.partial and not reading.gaps


def ahead(reading: Reading, now: float) -> str:
    """Returns a warning if the source's clock is ahead: its numbers appear only when our clock reaches their times."""
    newest = max((sample.ts for sample in reading.samples if sample.ts is not None), default=now)
    return f"its clock is {newest - now:.0f} s ahead of this machine's" if newest - now > SKEW_SECONDS else ""


def corrected(reading: Reading) -> str:
    """Returns a note if the times of the source were corrected because its clock is off, or ""."""
    offset = reading.facts.get("clock_offset_seconds", 0.0)
    if not isinstance(offset, (int, float)) or not offset:
        return ""
    seconds = abs(offset)
    span = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else _hours(seconds)
    direction, zone = "ahead" if offset > 0 else "behind", ", as in another time zone" if offset % 1800 == 0 else ""
    return f"its clock is {span} {direction}{zone}; its times are corrected"


def _hours(seconds: float) -> str:
    return f"{round(seconds / 3600, 1):g} h"


def _excess_count(record: Rollout) -> str:
    """Returns why a count of a rollout is implausible, or ""."""
    turns = max([turn.tool_calls or 0 for turn in record.turns], default=0)
    versions = max([tokens for _, tokens in record.token_versions], default=0)
    counts = (*_counts_of(record), record.turn_count, turns, versions)
    limits = zip(COUNTED.items(), counts, strict=True)
    exceeded = [limit for limit, count in limits if count is not None and count > limit[1]]
    return "{} must be a whole number up to {}".format(*exceeded[0]) if exceeded else ""


def _plausible_times(record: Rollout, now: float) -> bool:
    """Are all times of a rollout plausible?"""
    times = [*_times_of(record), *[use.at for use in record.consumptions]]
    for span in record.spans:
        times += (span.start, span.end)
    # The test of `_in_time` inline, because a record has about twenty times.
    latest = now + AHEAD_SECONDS
    return all([at is None or FIRST_TIME <= at <= latest for at in times])


def _in_time(ts: float | None, now: float) -> bool:
    return ts is None or FIRST_TIME <= ts <= now + AHEAD_SECONDS
