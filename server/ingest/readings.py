"""Turns readings of targets into batches for the store: validation, times, series ids, incarnations, target health.

Collectors decide what a number means, signals decide what follows from it; this module decides neither.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, lt
from typing import Any

from msgspec import structs

import collectors
from collectors.catalog import LARGEST, METRICS
from collectors.model import (
    FIRST_TIME,
    MOST_CALLS,
    MOST_TOKENS,
    Histogram,
    Labels,
    Reading,
    Rollout,
    Sample,
    Sandbox,
    ScrapeError,
    Target,
)
from server.ingest.arrivals import Arrivals as Arrivals
from server.ingest.arrivals import SampleArrival as SampleArrival
from server.ingest.arrivals import StepArrival as StepArrival
from server.ingest.incarnations import ReportedRestarts
from server.ingest.rollouts import RolloutFeed
from server.ingest.sandboxes import REMEMBERED_SECONDS, SandboxIngest, arrivals_of
from server.rollouts.merge import TIMES
from server.signals.model import CORRECTED, GONE, IMPLAUSIBLE, SKEW_SECONDS, Origin, TargetState
from server.signals.observed_histograms import WINDOWED
from server.signals.window import StepKey
from server.store import Store
from server.store.types import Batch, SandboxRow, SeriesKey, StepStamp

# ---- validation
# Removes implausible values from a reading before anything is stored, and describes what is missing. Pure.

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


# ---- histograms
# Reduces histograms of engines to one reading per minute before they are stored.

MINUTE_MS = 60_000

Row = tuple[int, int, Histogram]
"""(series, time in ms, reading)."""


@dataclass(slots=True)
class _PendingHistogram:
    ts: int
    item: Histogram
    written: bool


class HistogramThrottle:
    """Holds the newest reading of each series. The first reading of a series is returned at once as the base line."""

    def __init__(self) -> None:
        self._held: dict[str, dict[int, _PendingHistogram]] = {}

    def take(self, target: str, series: int, ts: int, item: Histogram) -> list[Row]:
        """Holds a reading; returns the readings that must be written now."""
        held = self._held.setdefault(target, {})
        before = held.get(series)
        if before is None:
            held[series] = _PendingHistogram(ts, item, True)
            return [(series, ts, item)]
        restarted, rows = _restarted(before.item, item), []
        if not before.written and (restarted or ts // MINUTE_MS != before.ts // MINUTE_MS):
            rows.append((series, before.ts, before.item))
        if restarted:
            # Written at once: later its counts might exceed the old process' counts, which would hide the restart.
            rows.append((series, ts, item))
        before.ts, before.item, before.written = ts, item, restarted
        return rows

    def rest(self, target: str) -> list[Row]:
        """Returns the readings of a target that are not written yet, when the target fails or the run ends."""
        held = self._held.pop(target, {})
        return [(series, pending.ts, pending.item) for series, pending in held.items() if not pending.written]

    @property
    def targets(self) -> list[str]:
        """Returns targets with held readings."""
        return list(self._held)


def _restarted(before: Histogram, item: Histogram) -> bool:
    """Is this a new process? Either the bucket edges differ, or a count decreased."""
    return before.edges != item.edges or any(map(lt, item.counts, before.counts))


# ---- series ids
# Caches series ids per target, so that the store is queried once per series.

# Series ids cached per target; the cache is cleared when it is full, because some targets create labels without end.
MAX_IDS = 20_000
# Key lists cached per target: samples, histograms, health and one spare.
MAX_LISTS = 4
# Longest key list cached, keys (80 B each).
MAX_LIST_LENGTH = 2_000


class SeriesIdCache:
    """Series ids by target, so that a look-up hashes only a metric and its labels. Not thread-safe."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._ids: dict[str, dict[tuple[str, Labels], int]] = {}
        # The last key list per target and length (samples of a page, its histograms, health series), with its ids.
        self._last: dict[str, dict[int, tuple[list[tuple[str, Labels]], list[int]]]] = {}

    def numbers(self, target: str, keys: list[tuple[str, Labels]]) -> list[int]:
        """Returns one id per (metric, labels) of a target; creates missing ids. Callers must not change the lists."""
        last = self._last.setdefault(target, {})
        before = last.get(len(keys))
        # Pages of one layout have identical labels: comparing lists costs a tenth of hashing them.
        if before is not None and before[0] == keys:
            return before[1]
        ids = self._numbers(target, keys)
        if len(last) >= MAX_LISTS:
            last.clear()
        if len(keys) <= MAX_LIST_LENGTH:
            last[len(keys)] = (keys, ids)
        return ids

    def _numbers(self, target: str, keys: Sequence[tuple[str, Labels]]) -> list[int]:
        cached = self._ids.setdefault(target, {})
        try:
            return [cached[key] for key in keys]
        except KeyError:
            pass
        ids = self.intern([SeriesKey(target, *key) for key in keys])
        if len(cached) > MAX_IDS:
            cached.clear()
        cached.update(zip(keys, ids, strict=True))
        return ids

    def intern(self, keys: Sequence[SeriesKey]) -> list[int]:
        """Returns one id per key of any kind."""
        return self._store.series.intern(self._run, keys) if keys else []


# Health series that Rollscope writes per target, named as in Prometheus.
HEALTH_SERIES: list[tuple[str, Labels]] = [("up", ()), ("scrape_duration_seconds", ()), ("scrape_samples_scraped", ())]
# Unmapped keys cached per target (a limit on memory and rows: some targets create new keys without end).
MAX_UNMAPPED_KEYS = 200
# Source name of pushed sandboxes, in place of a target name.
PUSHED = "pushed"
# Pushed rows are read again for this long (ms), because a transaction may commit later than its time stamp.
OVERLAP_MS = 10_000

# Two logs of one run date one step at most this far apart (s): a flush, a clock read twice. A restart takes longer.
SAME_STEP_SECONDS = 5.0
# A source of a gauge is replaced by another source that is this many steps ahead.
QUIET_STEPS = 3


@dataclass(frozen=True, slots=True)
class _Slot:
    """The newest position of an axis: incarnation, step and the step's time."""

    incarnation: int
    number: int
    ts: float


@dataclass(frozen=True, slots=True)
class _Column:
    """One metric of the steps of an axis. ``gauge``: its values are also those of a gauge."""

    series: int
    key: StepKey
    gauge: bool


class Ingest:
    """Turns readings of one run's targets into batches. Not thread-safe: one run, one loop.

    Args:
        complaint: target name -> a further problem of its numbers, or "".
    """

    def __init__(
        self, store: Store, run: str, since: float | None = None, complaint: Callable[[str], str] = lambda _: ""
    ) -> None:
        self._store, self._complaint = store, complaint
        self._series_ids, self._histogram_throttle = SeriesIdCache(store, run), HistogramThrottle()
        self.run = run
        self.incarnation = store.runs.incarnation(run)
        newest = store.steps.newest(run, last=1, incarnation=self.incarnation)
        # Position of each axis at start, and the position each (target, axis) has reached since.
        self._base = {row.axis: _Slot(self.incarnation, row.step, row.ts / 1000) for row in newest}
        self._slots: dict[tuple[str, str], _Slot] = {}
        # (axis, metric, labels) -> the target whose gauge values count, and its newest step.
        self._gauge_sources: dict[tuple[str, str, Labels], tuple[str, int]] = {}
        self._health: dict[str, TargetState] = {row.name: row for _, row in store.runs.targets(run)}
        # Only of targets that discovery found; see `server.targets.discovery`.
        self.origins: dict[str, Origin] = {}
        # Facts of the run. A mode that a source assumes does not replace a mode that a source reported.
        self.facts = store.runs.facts(run)
        own_name = str(self.facts.get("run_name", run))
        row = store.runs.get(run) or store.ensure_run(run)
        # Pushed rows are read from ``since`` on (default: the watermark); `mark_recovered` excludes those already read.
        self._pushed = _ms(since) if since is not None else row.watermark or 0
        self._seen: dict[tuple[str, str], SandboxRow] = {}
        self._rollouts = RolloutFeed(store, run, self.facts, self.incarnation)
        self._restarts = ReportedRestarts(store, run, self._rollouts.incarnations)
        last = self._rollouts.incarnations.last
        self._incarnation_start = -math.inf if last is None else last
        recent = store.sandboxes.recent(run, max(0, (row.watermark or 0) - round(REMEMBERED_SECONDS * 1000)))
        begun = row.first_ts / 1000 if row.first_ts is not None else None
        self._sandboxes = SandboxIngest(recent, {run, own_name}, begun)

    def reading(self, target: Target, reading: Reading, now: float, seconds: float) -> tuple[Batch, Arrivals]:
        """Processes a successful scrape. `now` dates values without a time; `seconds` is the scrape's duration."""
        reading = without_implausible(reading, now)
        self.facts.update(reading.facts)
        batch, arrivals = Batch(run=self.run, facts=dict(reading.facts)), Arrivals(facts=dict(reading.facts))
        self._samples(target, [s for s in reading.samples if s.step is None], now, batch, arrivals)
        self._steps(target, [s for s in reading.samples if s.step is not None], now, batch, arrivals)
        self._histograms(target, reading.histograms, now, batch, arrivals)
        batch.events += [(_ms(event.ts if event.ts is not None else now), event) for event in reading.events]
        if reading.cursor is not None:
            batch.cursors[target.name] = json.dumps(reading.cursor)
        if "run_name" in reading.facts:
            self._sandboxes.keys.add(str(reading.facts["run_name"]))
        if reading.sandboxes or reading.listed:
            self.sandboxes(target, reading.sandboxes, reading.listed, now, batch, arrivals)
        self._rollouts.take(target, reading, now, batch, arrivals)
        arrivals.health.append(self._health_ok(target, reading, now, seconds, batch))
        return batch, arrivals

    def records(self, target: Target, reading: Reading, now: float) -> tuple[Batch, Arrivals]:
        """Processes pushed rollouts and events, as `server.push.records` accepted them: they change no target's health.

        A restart event begins an incarnation at the event's time, once, however late it arrives.
        """
        batch, arrivals = Batch(run=self.run), Arrivals()
        batch.events += [(_ms(event.ts if event.ts is not None else now), event) for event in reading.events]
        if begun := self._restarts.new(reading.events, now):
            for ts in begun:
                self._begin_incarnation(ts, batch)
            self._rollouts.divide(target, begun[0], now, batch, arrivals)
        self._rollouts.take(target, reading, now, batch, arrivals)
        return batch, arrivals

    def sandboxes(
        self, target: Target, records: Iterable[Sandbox], listed: Iterable[str], now: float, batch: Batch,
        arrivals: Arrivals,
    ) -> None:  # fmt: skip
        """Adds changed sandboxes, from a provider or pushed, to the batch and to the arrivals."""
        if key := target.option("run_key"):
            self._sandboxes.keys.add(key)
        records = tuple(records)
        # A provider lists ended sandboxes again, and this process forgets them when it restarts.
        self._sandboxes.recall(self._store.sandboxes.get(self.run, self._sandboxes.unknown(records)))
        changed = self._sandboxes.take(target, records, tuple(listed), self._active_run_keys(), now)
        batch.sandboxes += [arrival.row for arrival in changed]
        arrivals.sandboxes += changed
        if not reads_files(target.collector):
            arrivals.heard[target.name] = (now, max(15.0, 3 * target.interval_seconds))

    def pushed(self, now: float) -> Arrivals:
        """Returns changes of sandboxes that any process has pushed into the store since the last call."""
        arrivals, before = Arrivals(), self._pushed
        if _ms(now) < before - OVERLAP_MS:
            # The clock went back: rows of what is now the future were counted, and are read again until it has passed.
            counted = self._store.sandboxes.heard_since(self.run, PUSHED, _ms(now) + 1)
            self.mark_recovered(row for row in counted if row.seen_at <= (before - OVERLAP_MS) / 1000)
        if self._seen:
            arrivals.heard[PUSHED] = (now, math.inf)
        # Read with an overlap, because a slow transaction commits after its time stamp; equal rows are skipped.
        for row in self._store.sandboxes.heard_since(self.run, PUSHED, before - OVERLAP_MS):
            if self._seen.get((row.provider, row.id)) == row:
                continue
            # A row is stamped before it is written, so a row that took seconds to commit is older than the last call.
            fresh = (before - OVERLAP_MS) / 1000
            stored = self._seen.get((row.provider, row.id))
            self._seen[(row.provider, row.id)] = row
            arrivals.sandboxes += arrivals_of(
                row,
                created=stored is None and row.first_seen > fresh,
                became_ready=(row.ready_seen or 0) > fresh and (stored is None or stored.ready_seen is None),
                failed=(row.failed_seen or 0) > fresh and (stored is None or stored.failed_seen is None),
            )
            arrivals.heard[PUSHED] = (now, math.inf)
        self._pushed = _ms(now)
        # A row last seen before the overlap returns only if it changes, and then the row itself shows the change.
        old = (self._pushed - 2 * OVERLAP_MS) / 1000
        self._seen = {key: row for key, row in self._seen.items() if row.seen_at >= old}
        return arrivals

    def reloaded(self) -> "Ingest":
        """Returns a new `Ingest` of the same run from the store, because this one counted rows that were not stored."""
        copy = Ingest(self._store, self.run, complaint=self._complaint)
        copy._pushed, copy._seen, copy.origins = self._pushed, self._seen, self.origins
        return copy

    def mark_recovered(self, rows: Iterable[SandboxRow]) -> None:
        """Marks pushed rows that the driver has already read: `pushed` reports only later changes of them."""
        self._seen.update({(row.provider, row.id): row for row in rows if row.target == PUSHED})

    def without_repeats(self, target: str, samples: Iterable[Sample]) -> tuple[Sample, ...]:
        """Returns pushed samples sorted by step, without values that are stored already.

        A client repeats a request that was not acknowledged, and sends a step in parts; neither is a restart. Further
        values of a stored or skipped step belong to the current incarnation. Different values of a stored step are a
        restart.
        """
        steps: dict[tuple[str, int], list[Sample]] = {}
        result = []
        for sample in samples:
            if sample.step is None:
                result.append(sample)
            else:
                steps.setdefault((sample.axis, sample.step), []).append(sample)
        for (axis, number), values in sorted(steps.items()):
            result += self._without_stored(target, axis, number, values)
        return tuple(result)

    def _without_stored(self, target: str, axis: str, number: int, values: list[Sample]) -> list[Sample]:
        slot = self._slots.get((target, axis)) or self._base.get(axis)
        if slot is None or number >= slot.number:
            return values
        stored = self._store.steps.newest(self.run, axis, last=1, before=number + 1, incarnation=self.incarnation)
        if not stored:
            return values  # older than every step of this incarnation: the trainer has restarted
        if stored[0].step < number:
            return [structs.replace(value, ts=slot.ts) if value.ts is None else value for value in values]
        present = stored[0].values
        if any(present.get((value.metric, value.labels), value.value) != value.value for value in values):
            return values
        ts = stored[0].ts / 1000
        return [structs.replace(value, ts=ts) for value in values if (value.metric, value.labels) not in present]

    def _active_run_keys(self) -> set[str]:
        """Returns the names by which a provider may label sandboxes of runs that are not over."""
        active = [row for row in self._store.runs.all() if row.lifecycle not in ("finished", "crashed")]
        return {row.name for row in active} | {str(row.facts["run_name"]) for row in active if "run_name" in row.facts}

    def failure(self, target: Target, error: ScrapeError, now: float, seconds: float) -> tuple[Batch, Arrivals]:
        """Processes a failed scrape: `up` is 0 with the cause; earlier values remain."""
        batch = Batch(run=self.run, histograms=self._histogram_throttle.rest(target.name))
        before = self._health.get(target.name)
        row = TargetState(
            name=target.name, collector=target.collector, actor=target.actor, up=False, last_ts=round(now, 3),
            last_ok_ts=before.last_ok_ts if before else None, error=str(error), error_kind=error.kind,
            scrape_seconds=seconds, interval_seconds=target.interval_seconds,
            unmapped=before.unmapped if before else {}, dropped=before.dropped if before else 0,
        )  # fmt: skip
        self._note_health(target, row, batch, now)
        return batch, Arrivals(health=[row])

    def push_health(self, target: Target, last: float | None, now: float) -> tuple[Batch, Arrivals]:
        """Records a pushing target that is in time. ``last``: its newest push (None: none yet, and none due yet)."""
        batch, before = Batch(run=self.run), self._health.get(target.name)
        row = TargetState(
            name=target.name, collector=target.collector, actor=target.actor, up=True, last_ts=round(now, 3),
            last_ok_ts=round(last, 3) if last is not None else None, error="" if last is not None else "no push yet",
            interval_seconds=target.interval_seconds, unmapped=before.unmapped if before else {},
            dropped=before.dropped if before else 0,
        )  # fmt: skip
        self._note_health(target, row, batch, now)
        return batch, Arrivals(health=[row])

    def gone(self, names: Iterable[str], now: float) -> tuple[Batch, Arrivals]:
        """Records targets that discovery no longer lists. Targets that were never read are skipped."""
        batch, arrivals = Batch(self.run), Arrivals()
        for before in filter(None, map(self._health.get, names)):
            removed = before.origin and f"{before.origin.source} no longer lists it"
            reason = removed or "it reported another name and continues under that name"
            row = structs.replace(before, up=False, last_ts=round(now, 3), error=reason, error_kind=GONE)
            batch.targets.append(self.remember(row))
            batch.histograms += self._histogram_throttle.rest(row.name)
            arrivals.health.append(row)
        return batch, arrivals

    def remember(self, row: TargetState) -> TargetState:
        """Caches a health row that was made outside this class."""
        self._health[row.name] = row
        return row

    # ---- parts

    def _histograms(
        self, target: Target, items: Iterable[Histogram], now: float, batch: Batch, arrivals: Arrivals
    ) -> None:
        items, name = list(items), target.name
        ids = self._series_ids.numbers(name, [(item.metric, item.labels) for item in items])
        for series, item in zip(ids, items, strict=True):
            ts = item.ts if item.ts is not None else now
            # A scraped target repeats its totals; a pushing client does not, so its reading is written at once.
            row = (series, _ms(ts), item)
            batch.histograms += self._histogram_throttle.take(name, *row) if target.url else [row]
            if item.metric in WINDOWED:
                arrivals.samples.append((ts, name, item.metric, item.labels, item))

    def rest(self) -> Batch:
        """Returns histogram readings that are not written yet, for the end of the run."""
        rows = [row for name in self._histogram_throttle.targets for row in self._histogram_throttle.rest(name)]
        return Batch(run=self.run, histograms=rows)

    def _samples(self, target: Target, samples: Iterable[Sample], now: float, batch: Batch, arrivals: Arrivals) -> None:
        samples, name, stamp = list(samples), target.name, _ms(now)
        ids = self._series_ids.numbers(name, [(s.metric, s.labels) for s in samples])
        pairs = zip(ids, samples, strict=True)
        batch.samples += [(series, stamp if s.ts is None else _ms(s.ts), s.value) for series, s in pairs]
        arrivals.samples += [(now if s.ts is None else s.ts, name, s.metric, s.labels, s.value) for s in samples]

    def _steps(self, target: Target, samples: list[Sample], now: float, batch: Batch, arrivals: Arrivals) -> None:
        rows: dict[tuple[str, int, int], StepArrival] = {}
        columns, gauges, position, row = self._columns(target.name, samples), [], None, None
        for sample in samples:
            ts = sample.ts if sample.ts is not None else now
            # Samples of one row follow each other, so the incarnation is determined once per row.
            if row is None or position != (sample.axis, sample.step, ts):
                position = (sample.axis, sample.step, ts)
                row = self._row(target.name, sample.axis, int(sample.step or 0), ts, rows, batch)
            column = columns[(sample.metric, sample.labels, sample.axis)]
            row.values[column.key] = sample.value  # type: ignore[index]
            batch.step_values.append((column.series, row.incarnation, row.number, sample.value))
            # A gauge that is reported only with a step (TRL async's queue) is also a gauge at that time.
            if column.gauge and self._counts(target.name, sample):
                gauges.append(sample)
        for row in rows.values():
            batch.steps.append(StepStamp(row.axis, row.incarnation, row.number, _ms(row.ts)))
        arrivals.steps += rows.values()
        self._samples(target, gauges, now, batch, arrivals)

    def _columns(self, target: str, samples: list[Sample]) -> dict[tuple[str, Labels, str], _Column]:
        """Returns what all values of a metric with the same labels and axis share: a long log has few columns."""
        keys = list({(s.metric, s.labels, s.axis): None for s in samples})
        ids = self._series_ids.intern([SeriesKey(target, *key) for key in keys])
        return {
            key: _Column(series, key[:2], METRICS[key[0]].reduction == "instant")
            for key, series in zip(keys, ids, strict=True)
        }

    def _row(
        self, target: str, axis: str, number: int, ts: float, rows: dict[tuple[str, int, int], StepArrival],
        batch: Batch,
    ) -> StepArrival:  # fmt: skip
        key = (axis, self._incarnation_of(target, axis, number, ts, batch), number)
        row = rows.get(key)
        if row is None:
            row = rows[key] = StepArrival(*key, ts, target, {})
        return row

    def _incarnation_of(self, target: str, axis: str, number: int, ts: float, batch: Batch) -> int:
        """Returns the incarnation of a row: a step number that decreases while time goes on begins a new one.

        A row with a smaller number and an earlier time is an old row read again (a rotated or copied file). All axes
        rewind at one restart, each log at its own row: the first begins the incarnation, the others join it. Several
        logs of one run have different positions, so each log is compared with itself.
        """
        own = self._slots.get((target, axis))
        before = own or self._base.get(axis)
        if before is None:
            # Read after its incarnation ended: a chunk of another axis, or another log, was read first.
            incarnation = self.incarnation - 1 if ts < self._incarnation_start else self.incarnation
        elif number < before.number and ts <= before.ts + (0.0 if own else SAME_STEP_SECONDS):
            return before.incarnation
        elif number < before.number:
            if before.incarnation == self.incarnation:
                self._went_back(f"{axis} step went back from {before.number} to {number}", ts, batch)
            incarnation = self.incarnation
        else:
            incarnation = before.incarnation if ts < self._incarnation_start else self.incarnation
        self._slots[(target, axis)] = _Slot(incarnation, number, ts)
        return incarnation

    def _went_back(self, detail: str, ts: float, batch: Batch) -> None:
        self._begin_incarnation(ts, batch)
        batch.events.append((_ms(ts), self._restarts.inferred(self.incarnation, ts, detail)))

    def _begin_incarnation(self, ts: float, batch: Batch) -> None:
        self.incarnation = self._rollouts.incarnations.begin(ts)
        self._incarnation_start = max(self._incarnation_start, ts)
        batch.incarnations.append((self.incarnation, _ms(ts)))

    def _counts(self, target: str, sample: Sample) -> bool:
        """Does this target's value count for a gauge that came with a step? Only one of several logs of a run does.

        Gauges of different targets are added up (engines), so a queue that four logs report would count four times.
        """
        key, step = (sample.axis, sample.metric, sample.labels), int(sample.step or 0)
        source, newest = self._gauge_sources.get(key, (target, step))
        if source != target and step - newest < QUIET_STEPS:
            return False
        self._gauge_sources[key] = (target, step)
        return True

    def _health_ok(self, target: Target, reading: Reading, now: float, seconds: float, batch: Batch) -> TargetState:
        before = self._health.get(target.name)
        unmapped = dict(before.unmapped) if before and reading.cursor is not None else {}
        for key, count in reading.unmapped.items():
            if key in unmapped or len(unmapped) < MAX_UNMAPPED_KEYS:
                unmapped[key] = unmapped.get(key, 0) + count
        own, other = complaint(reading), ahead(reading, now) or self._complaint(target.name)
        kind = IMPLAUSIBLE if own and not other and values_only(reading) else ""
        note = corrected(reading) if not own and not other else ""
        kind = CORRECTED if note else kind
        row = TargetState(
            name=target.name, collector=target.collector, actor=target.actor, up=True, last_ts=round(now, 3),
            last_ok_ts=round(now, 3), error=own or other or note, error_kind=kind, scrape_seconds=seconds,
            samples=reading.samples_scraped, dropped=(before.dropped if before else 0) + reading.dropped,
            interval_seconds=target.interval_seconds, unmapped=unmapped,
        )  # fmt: skip
        self._note_health(target, row, batch, now)
        return row

    def _note_health(self, target: Target, row: TargetState, batch: Batch, now: float) -> None:
        batch.targets.append(self.remember(structs.replace(row, origin=self.origins.get(target.name))))
        values = (float(row.up), row.scrape_seconds, float(row.samples))
        for series, value in zip(self._series_ids.numbers(target.name, HEALTH_SERIES), values, strict=True):
            batch.samples.append((series, _ms(now), value))


def reads_files(collector: str) -> bool:
    """Does the collector read files that a run writes? Files often appear late, so a missing record is not a zero."""
    plugin = collectors.load().get(collector)
    return plugin is not None and plugin.tail is not None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
