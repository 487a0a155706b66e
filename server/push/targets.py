"""Collects what was pushed into one run: bodies from the inbox, target health, lifecycle of runs without configuration.

A pushed target is up while it pushes within its interval, like a heartbeat. A run without configuration is running
while pushes arrive. When they stop, the reason is unknown, so the run is paused (no page) and, after a day, over.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, get_args

from msgspec import structs

from collectors.model import Actor, Cursor, Histogram, Reading, Sample, ScrapeError, Target
from server.ingest.readings import PUSHED, Arrivals, Ingest
from server.push import inbox as push_inbox
from server.push import records as push_records
from server.push.forwarders import Forwards, patience, with_skew
from server.push.inbox import Body, Grown, unpack_body
from server.store import Store
from server.store.types import Batch, Push, Pusher, SeriesKey

# ---- process totals
# Adds up counters and histograms that several processes push for one run.

# Most processes of one target. The state is written with every push of the target.
STREAMS = 2_000
# Most series added up for one target.
SUMMED_SERIES = 1_000
# A process that began at most this long (s) before its first push counts from its start.
RECENT_SECONDS = 300.0
# Assumed start of counting (s before the push) if none is reported: the SDKs' default interval.
DEFAULT_INTERVAL_SECONDS = 60.0
# The store's resolution (s): two values of one series need two instants.
TICK = 0.001
EDGES_CHANGED = "{}: its buckets differ from those of earlier pushes"
TOO_MANY_SUMS = f"more than {SUMMED_SERIES} series to add up"


@dataclass(slots=True)
class ProcessTotals:
    """Running totals of one target.

    Attributes:
        since: shortly before its first push (epoch s); processes that began later are counted from their start. None:
            no push yet.
        at: time of the newest total returned.
        streams: process -> [its newest time, *its counts at that time].
        starts: process -> reported start of counting (epoch s), if any.
        sums: series -> the total, in the order of `_numbers`.
        why: the first reason for `dropped` values.
    """

    since: float | None = None
    at: float = 0.0
    streams: dict[str, list[float]] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    sums: dict[str, list[float]] = field(default_factory=dict)
    dropped: int = 0
    why: str = ""

    @classmethod
    def of(cls, cursor: Mapping[str, Any]) -> "ProcessTotals":
        """Restores totals from the value of `cursor`."""
        streams, starts = cursor.get("streams", {}), cursor.get("starts", {})
        return cls(cursor.get("since"), cursor.get("at", 0.0), streams, starts, cursor.get("sums", {}))

    def cursor(self) -> dict[str, Any]:
        """Returns the state as JSON-able values, to be stored with the totals."""
        if self.since is None:
            return {}
        if len(self.streams) > STREAMS:
            newest = sorted(self.streams.items(), key=lambda item: item[1][0])[-STREAMS:]
            self.streams = dict(newest)
            self.starts = {stream: start for stream, start in self.starts.items() if stream in self.streams}
        found = {"since": self.since, "at": self.at, "streams": self.streams, "sums": self.sums}
        return found | {"starts": self.starts} if self.starts else found

    def add(self, grown: Sequence[Grown], now: float) -> tuple[list[Sample], list[Histogram]]:
        """Adds increases; returns changed totals. A series that begins with an increase gets a zero before it."""
        if not grown:
            return [], []
        first, self.since = self.since is None, now - RECENT_SECONDS if self.since is None else self.since
        found: list[Sample | Histogram] = []
        # Grouped by their own times, because an exporter may send late what it counted earlier.
        for ts, group in groupby(sorted(grown, key=partial(_time, now=now)), key=partial(_time, now=now)):
            found += self._add(group, ts, now, first)
        return [v for v in found if isinstance(v, Sample)], [v for v in found if isinstance(v, Histogram)]

    def _add(self, grown: Iterable[Grown], ts: float, now: float, first: bool) -> list[Sample | Histogram]:
        """Adds increases up to `ts`; returns changed totals."""
        at = max(ts, self.at + TICK)
        changed: dict[str, Sample | Histogram] = {}
        begun: list[Sample | Histogram] = []
        for item in grown:
            key = _key(item.value)
            amount = self._growth(item, now, first)
            if amount is None or not self._fits(key, item.value):
                continue
            if key not in self.sums:
                self.sums[key] = [0.0] * len(amount)
                if self._fresh(item):
                    begun.append(_with_numbers(item.value, self.sums[key], _begun(item, at)))
            self.sums[key] = [a + b for a, b in zip(self.sums[key], amount, strict=True)]
            changed[key] = _with_numbers(item.value, self.sums[key], at)
        self.at = at if changed else self.at
        return [*begun, *changed.values()]

    def _growth(self, item: Grown, now: float, first: bool) -> list[float] | None:
        """Returns the increase of a process since its last push; None: a repeated push."""
        value, ts = _numbers(item.value), item.value.ts if item.value.ts is not None else now
        before = self.streams.get(item.stream)
        if before is not None and ts <= before[0]:
            return None
        self.streams[item.stream] = [ts, *value]
        if item.delta:
            return value
        # A restarted process may have counted more than before, so only its start time shows the restart.
        begun = self.starts.get(item.stream, item.start)
        if item.start:
            self.starts[item.stream] = item.start
        if before is None:
            # When an older process counted its total is unknown, so only its later increases count.
            return value if first or self._fresh(item) else [0.0] * len(value)
        last = before[1:]
        is_restart = 0 < begun < item.start or len(last) != len(value)
        if is_restart or _fell(last[1:] or last, value[1:] or value):
            return value  # the process restarted
        return [new - old for new, old in zip(value, last, strict=True)]

    def _fresh(self, item: Grown) -> bool:
        """Was everything counted since the first push?"""
        return item.delta or item.start >= (self.since or 0.0)

    def _fits(self, key: str, value: Sample | Histogram) -> bool:
        present = key in self.sums
        if not present and len(self.sums) < SUMMED_SERIES:
            same = isinstance(value, Histogram) and any(other.startswith(_family(key)) for other in self.sums)
            why = EDGES_CHANGED.format(value.metric) if same else ""
        else:
            why = "" if present else TOO_MANY_SUMS
        if why:
            self.dropped, self.why = self.dropped + 1, self.why or why
        return not why


def _time(item: Grown, now: float) -> float:
    """Returns when the value was counted; now if its clock is ahead."""
    return min(item.value.ts, now) if item.value.ts is not None else now


def _begun(item: Grown, at: float) -> float:
    """Returns when a series was 0: the start of counting. A later time would turn its count into a spike."""
    start = max(item.start, at - RECENT_SECONDS) if item.start else at - DEFAULT_INTERVAL_SECONDS
    return min(start, at - TICK)


def _fell(last: Sequence[float], value: Sequence[float]) -> bool:
    """Did a count decrease? The sum of a histogram may decrease, because observations can be negative."""
    return any(new < old for new, old in zip(value, last, strict=True))


def _key(value: Sample | Histogram) -> str:
    edges = value.edges if isinstance(value, Histogram) else ()
    return json.dumps([value.metric, value.labels, edges])


def _family(key: str) -> str:
    """Returns the key without the edges."""
    metric, labels, _ = json.loads(key)
    return json.dumps([metric, labels])[:-1] + ", ["


def _numbers(value: Sample | Histogram) -> list[float]:
    """Returns the additive values: a counter's value; a histogram's sum, then its cumulative counts."""
    return [value.value] if isinstance(value, Sample) else [value.total, *value.counts]


def _with_numbers(like: Sample | Histogram, numbers: Sequence[float], ts: float) -> Sample | Histogram:
    if isinstance(like, Sample):
        return structs.replace(like, value=numbers[0], ts=ts)
    return structs.replace(like, total=numbers[0], counts=tuple(numbers[1:]), ts=ts)


# Most runs without configuration. A tick of a run costs some 10 ms, so these fit into the grid's 5 s with the others.
MAX_RUNS = 64

TOO_MANY = (
    f"{MAX_RUNS} runs without configuration received pushes within a day, which is the limit: "
    "configure this one ([run.NAME]), or push to one of those"
)


log = logging.getLogger("rollscope.pushes")

KIND = "push"
# Rows ingested per query of the inbox. The rest waits for the next step, 5 s later, or for time in this step.
ROWS_AT_ONCE = 200_000
# Bytes of bodies per query of the inbox.
BYTES_AT_ONCE = 64 << 20
# Small bodies share a transaction of up to this many records, because a thousand commits would take a whole step.
RECORDS_AT_ONCE = 2_000
_WEIGHT_AT_ONCE = RECORDS_AT_ONCE * push_records.WEIGHT
# Most series of one target: each new label set is a permanent series.
SERIES = 10_000
# A run is paused after this long without any push (s); no step of a trainer and no sandbox start takes longer.
QUIET_SECONDS = 3600.0
# A run is over after this long without any push (s).
OVER_SECONDS = 86_400.0
# Interval (s) at which a silent target is reported again, so that its health stays current.
REPEATED_SECONDS = 30.0
# Fact: source of the run's lifecycle, "pusher" (a client reported it) or "pushes" (they stopped).
FROM = "lifecycle_from"
_OVER = ("finished", "crashed")


class Pushes:
    """Pushed targets of one run. Not thread-safe: one run, one loop.

    Args:
        targets: name -> (target, seconds between its reports); shared with the loop; pushed targets are added.
        adopted: the run has no configuration, so its lifecycle follows from its pushes.
        since: start of this process; earlier pushes could not be received.
        on_forwarded: called with the name and the collector's name of each forwarded target.
    """

    def __init__(
        self, store: Store, run: str, targets: MutableMapping[str, tuple[Target, float]], adopted: bool, since: float,
        on_forwarded: Callable[[str, str], None] = lambda name, kind: None,
    ) -> None:  # fmt: skip
        self._store, self._run, self._targets, self._adopted, self._since = store, run, targets, adopted, since
        self._configured = frozenset(targets)
        self._cursors = store.runs.cursors(run)
        self._series: dict[str, set[SeriesKey]] = {}
        self._down: dict[str, float] = {}
        # Ids of bodies that were refused as a group and are tried one by one.
        self._alone: set[int] = set()
        # Rows of the bodies that the last `take` found.
        self._found = 0
        # Targets without a push since our start that are not overdue yet.
        self._waited: set[str] = set()
        facts = store.runs.facts(run)
        lifecycle, source = facts.get("lifecycle", ""), facts.get(FROM)
        # An end that a trainer or client reported stands; an end inferred from silence may be revoked.
        self._ended = lifecycle in _OVER and source != "pushes"
        self._lifecycle = ""
        self._taken_over = not adopted and source == "pushes" and lifecycle != "running"
        self._forwards, self._on_forwarded = Forwards.of(store, run, since), on_forwarded
        self._pushers = {pusher.target: pusher for pusher in store.pushes.pushers(run)}
        for pusher in self._pushers.values():
            self._register(pusher.target, pusher.actor, pusher.interval_seconds)

    # ---- bodies

    def take(self, ingest: Ingest) -> Iterator[tuple[Batch, Arrivals] | None]:
        """Yields the oldest bodies, each as a batch that removes it from the inbox; record bodies are grouped.

        Yields None before and after a body whose ingest queries the store: earlier batches must be committed first.
        """
        pending: list[Push] = []
        weight = self._found = 0
        for push in self._store.pushes.due(self._run, ROWS_AT_ONCE, BYTES_AT_ONCE):
            self._found += push.rows
            together = push_inbox.has_records(push.body) and push.id not in self._alone
            if pending and (not together or weight + push.rows > _WEIGHT_AT_ONCE):
                yield self._records(ingest, pending)
                pending, weight = [], 0
            if together:
                pending.append(push)
                weight += push.rows
                continue
            yield None
            yield self._one(ingest, push)
            yield None
        if pending:
            yield self._records(ingest, pending)

    @property
    def flooded(self) -> bool:
        """Did the last `take` find so much that as much may have arrived while it was ingested?"""
        return self._found > _WEIGHT_AT_ONCE

    def _records(self, ingest: Ingest, pushes: Sequence[Push]) -> tuple[Batch, Arrivals]:
        """Ingests rollouts and events. They change no target's health, because they arrive irregularly."""
        parts = [push_inbox.unpack_records(push.body, push.received_at / 1000) for push in pushes]
        reading = Reading(
            rollouts=tuple(item for part in parts for item in part.rollouts),
            events=tuple(item for part in parts for item in part.events),
        )
        target = self._register(PUSHED, "generator", pushes[0].interval_seconds)
        batch, arrivals = ingest.records(target, reading, pushes[-1].received_at / 1000)
        batch.taken += [push.id for push in pushes]
        self._alone.difference_update(batch.taken)
        return batch, arrivals

    def _one(self, ingest: Ingest, push: Push) -> tuple[Batch, Arrivals]:
        try:
            return self._records(ingest, [push]) if push_inbox.has_records(push.body) else self._body(ingest, push)
        except ValueError as error:  # packed by another version of Rollscope
            log.warning("run %s: a push for %s is dropped: %s", self._run, push.target, error)
            return Batch(self._run, taken=[push.id]), Arrivals()

    def _body(self, ingest: Ingest, push: Push) -> tuple[Batch, Arrivals]:
        at = push.received_at / 1000
        if push.target in self._configured:
            log.warning("run %s: a push for %s is dropped: that target is configured", self._run, push.target)
            return Batch(self._run, taken=[push.id]), Arrivals()
        if push_inbox.has_reading(push.body):
            batch, arrivals = self._forwarded(ingest, push)
        else:
            target = self._register(push.target, push.actor, push.interval_seconds)
            reading = self._reading(ingest, target, unpack_body(push.body), at)
            batch, arrivals = ingest.reading(target, reading, at, 0.0)
            self._cursors[target.name] = json.dumps(reading.cursor)
        batch.taken.append(push.id)
        # The lifecycle and its source are committed together.
        if "lifecycle" in arrivals.facts:
            batch.facts[FROM] = "pusher"
            self._ended = arrivals.facts["lifecycle"] in _OVER
        elif arrivals.steps:
            self._ended = False
        self._down.pop(push.target, None)
        self._waited.add(push.target)
        return batch, arrivals

    def _forwarded(self, ingest: Ingest, push: Push) -> tuple[Batch, Arrivals]:
        """Ingests a reading of another machine as if its collector had read it here at that time."""
        unpacked = push_inbox.unpack_reading(push.body)
        self._forwards.kinds[push.target] = unpacked.kind
        target, outcome = self._register(push.target, push.actor, push.interval_seconds), unpacked.outcome
        if outcome.reading is None:
            assert outcome.error is not None
            batch, arrivals = ingest.failure(target, outcome.error, outcome.started, outcome.seconds)
        else:
            given = with_skew(outcome.reading, unpacked.skew)
            stored = tuple(self._bounded(target, given.samples))
            if lost := len(given.samples) - len(stored):
                why = given.why_dropped or f"more than {SERIES} series of one target"
                given = structs.replace(given, samples=stored, dropped=given.dropped + lost, why_dropped=why)
            batch, arrivals = ingest.reading(target, given, outcome.started, outcome.seconds)
        self._forwards.ingested(push.target, unpacked, arrivals, push.received_at / 1000)
        return batch, arrivals

    def horizon(self, now: float) -> float:
        """Returns the event time up to which all forwarded data has arrived; infinity if none is in transit."""
        return self._forwards.horizon(now)

    def _reading(self, ingest: Ingest, target: Target, body: Body, at: float) -> Reading:
        totals = ProcessTotals.of(json.loads(self._cursors.get(target.name, "{}")))
        samples, histograms = totals.add(body.grown, at)
        given = body.reading
        found = (*ingest.without_repeats(target.name, given.samples), *samples)
        stored = tuple(self._bounded(target, found))
        lost = len(found) - len(stored) + totals.dropped
        why = given.why_dropped or totals.why or (f"more than {SERIES} series of one target" if lost else "")
        return structs.replace(
            given, samples=stored, histograms=(*given.histograms, *histograms), cursor=_cursor(totals),
            dropped=given.dropped + lost, why_dropped=why,
        )  # fmt: skip

    def _bounded(self, target: Target, samples: tuple[Sample, ...]) -> Iterator[Sample]:
        present = self._series.get(target.name)
        if present is None:
            present = self._series[target.name] = {key for _, key in self._store.series.listed(self._run, target.name)}
        for sample in samples:
            key = SeriesKey(target.name, sample.metric, sample.labels, sample.axis)
            if key in present or len(present) < SERIES:
                present.add(key)
                yield sample

    def _register(self, name: str, actor: str, interval: float) -> Target:
        known_actor: Actor = actor if actor in get_args(Actor) else "trainer"  # type: ignore[assignment]
        kind = self._forwards.kinds.get(name, KIND)
        target = Target(name, self._run, kind, known_actor, interval_seconds=interval)
        if name != PUSHED and name not in self._configured:
            self._targets[name] = (target, max(interval, self._forwards.report_seconds(name)))
            if kind != KIND:
                self._on_forwarded(name, kind)
        return target

    def discard(self, ingest: Ingest, batch: Batch, error: Exception, now: float) -> tuple[Batch, Arrivals]:
        """Returns what replaces a body that the database refused: a failure of its target, and removal from the inbox.

        If a group of record bodies was refused, each is tried separately later.
        """
        if not batch.targets:
            if len(batch.taken) > 1:
                self._alone.update(batch.taken)
                return Batch(self._run), Arrivals()
            return Batch(self._run, taken=batch.taken), Arrivals()
        (row, *_) = batch.targets
        target = self._targets[row.name][0]
        self._cursors = self._store.runs.cursors(self._run)
        cause = type(getattr(error, "orig", None) or error).__name__
        refusal = ScrapeError("refused", f"pushed, but the store did not accept it: {cause}")
        left, arrivals = ingest.failure(target, refusal, now, 0.0)
        left.taken += batch.taken
        return left, arrivals

    # ---- health and lifecycle

    def look(self, ingest: Ingest, now: float) -> Iterator[tuple[Batch, Arrivals]]:
        """Yields health changes of silent targets, and the lifecycle of the run that follows."""
        self._pushers = {pusher.target: pusher for pusher in self._store.pushes.pushers(self._run)}
        for pusher in self._pushers.values():
            # Records arrive irregularly, so their absence is no fault.
            if pusher.target != PUSHED and pusher.target not in self._configured:
                yield from self._target_health(ingest, pusher, now)
        yield from self._run_lifecycle(now)

    def _target_health(self, ingest: Ingest, pusher: Pusher, now: float) -> Iterator[tuple[Batch, Arrivals]]:
        target = self._register(pusher.target, pusher.actor, pusher.interval_seconds)
        last, forwarded = pusher.last_ts / 1000, target.collector != KIND
        allowed = patience(pusher.interval_seconds) if forwarded else pusher.interval_seconds
        if now - max(last, self._since) <= allowed:
            # The forwarded state, up or down, stands until the sender continues.
            if not forwarded and last < self._since and pusher.target not in self._waited:
                self._waited.add(pusher.target)
                yield ingest.push_health(target, last, now)
        elif now - self._down.get(pusher.target, 0.0) >= REPEATED_SECONDS:
            self._down[pusher.target] = now
            how = "forwarded" if forwarded else "pushed"
            text = f"nothing {how} for {now - last:.0f} s; expected every {pusher.interval_seconds:.0f} s"
            yield ingest.failure(target, ScrapeError("silent", text), now, 0.0)

    def _run_lifecycle(self, now: float) -> Iterator[tuple[Batch, Arrivals]]:
        if self._taken_over:
            self._taken_over = False
            yield self._facts({"lifecycle": "running", "lifecycle_why": "", FROM: "configuration"})
        if not self._adopted or self._ended or not self._pushers:
            return
        silent = self.silent(now)
        state = "running" if silent <= self._quiet() else "paused" if silent <= OVER_SECONDS else "crashed"
        if state != self._lifecycle:
            self._lifecycle = state
            why = "" if state == "running" else f"no push for {silent / 3600:.0f} h"
            yield self._facts({"lifecycle": state, "lifecycle_why": why, FROM: "pushes"})

    def _facts(self, facts: dict[str, str | float]) -> tuple[Batch, Arrivals]:
        return Batch(self._run, facts=dict(facts)), Arrivals(facts=dict(facts))

    def _quiet(self) -> float:
        return max(QUIET_SECONDS, *(3 * pusher.interval_seconds for pusher in self._pushers.values()))

    def last_received(self) -> Arrivals:
        """Returns when records were pushed before our start: sandboxes they reported are still valid."""
        pusher = self._pushers.get(PUSHED)
        return Arrivals(heard={PUSHED: (pusher.last_ts / 1000, math.inf)} if pusher else {})

    def over(self, now: float) -> bool:
        """Is the run over by silence, so that it need not be followed?"""
        return self._lifecycle == "crashed" or (self._ended and self.silent(now) > OVER_SECONDS)

    def silent(self, now: float) -> float:
        """Returns the seconds since the last push into the run."""
        return now - max((pusher.last_ts / 1000 for pusher in self._pushers.values()), default=self._since)


def _cursor(totals: ProcessTotals) -> Cursor:
    # Never None, so that unmapped names are counted over all pushes, as for a tailed source.
    return totals.cursor()
