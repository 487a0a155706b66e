"""What was pushed into one run, as its loop collects it: bodies out of the inbox, health, and the life of a run that
nobody configured.

A pushed target is up while it is heard within its interval, like a heartbeat. A run that is known by its pushes only
runs while they come; when they end nobody says why, so it is paused (which pages nobody) and, after a day, over.
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import get_args

from collectors.model import Actor, Cursor, Reading, Sample, ScrapeError, Target
from server.ingest.readings import PUSHED, Arrivals, Ingest
from server.push import inbox as push_inbox
from server.push import readings
from server.push import records as push_records
from server.push.body import Body, unpack
from server.push.forwarders import Forwards, patience, with_skew
from server.push.process_totals import ProcessTotals
from server.store import Store
from server.store.types import Batch, Push, Pusher, SeriesKey

# A tick of a run costs some 10 ms: so many fit into the grid's 5 s beside the configured ones.
MAX_RUNS = 64

TOO_MANY = (
    f"{MAX_RUNS} runs that nobody configured were pushed into within a day, which is as many as are followed: "
    "configure this one ([run.NAME]), or push into one of those"
)


log = logging.getLogger("rollscope.pushes")

KIND = "push"
# What is behind these waits for the next step, 5 s later; a step takes as much of them as it has time for.
ROWS_AT_ONCE, BYTES_AT_ONCE = 200_000, 64 << 20
# Bodies with a record or two each share a transaction, or a thousand commits would take a step.
RECORDS_AT_ONCE = 2_000
_WEIGHT_AT_ONCE = RECORDS_AT_ONCE * push_records.WEIGHT
# Every label that nobody saw before is a series for ever: a target that invents them must not fill the store.
SERIES = 10_000
# No trainer's step and no straggling sandbox takes longer without anybody else of the run saying a word.
QUIET_SECONDS, OVER_SECONDS = 3600.0, 86_400.0
# A target that stays silent is said to be so again, or it would look as if nobody listened any more.
REPEATED_SECONDS = 30.0
# Fact: who said that the run is over, "pusher" or "pushes" (that they ended).
FROM = "lifecycle_from"
_OVER = ("finished", "crashed")


class Pushes:
    """Pushed targets of one run. Not thread-safe: one run, one loop.

    Args:
        targets: name -> (target, seconds between its reports), of the loop; pushed ones are added as they are met.
        adopted: nobody configured the run: its life is that of its pushes.
        since: when we began to listen: while we were away nobody could be heard.
        on_forwarded: told the name and the collector's name of each target that is read on another machine.
    """

    def __init__(
        self, store: Store, run: str, targets: MutableMapping[str, tuple[Target, float]], adopted: bool, since: float,
        on_forwarded: Callable[[str, str], None] = lambda name, kind: None,
    ) -> None:  # fmt: skip
        self._store, self._run, self._targets, self._adopted, self._since = store, run, targets, adopted, since
        self._configured = frozenset(targets)
        self._cursors = store.cursors(run)
        self._series: dict[str, set[SeriesKey]] = {}
        self._down: dict[str, float] = {}
        # Bodies of records that were refused together with others.
        self._alone: set[int] = set()
        # Not heard since we listen, and not yet due.
        self._waited: set[str] = set()
        facts = store.facts(run)
        said, source = facts.get("lifecycle", ""), facts.get(FROM)
        # What its own trainer or whoever pushes said of its end stands; that pushes ended is ours to take back.
        self._ended = said in _OVER and source != "pushes"
        self._life = ""
        self._taken_over = not adopted and source == "pushes" and said != "running"
        self._forwards, self._on_forwarded = Forwards.of(store, run, since), on_forwarded
        self._pushers = {one.target: one for one in store.pushes.pushers(run)}
        for one in self._pushers.values():
            self._meet(one.target, one.actor, one.interval_seconds)

    # ---- bodies

    def take(self, ingest: Ingest) -> Iterator[tuple[Batch, Arrivals] | None]:
        """The oldest bodies, each as a batch that takes it out of the inbox; those of records together.

        None: what comes next asks the store for what came before, which must be in it by then.
        """
        held: list[Push] = []
        weight = 0
        for push in self._store.pushes.due(self._run, ROWS_AT_ONCE, BYTES_AT_ONCE):
            together = push_inbox.packed(push.body) and push.id not in self._alone
            if held and (not together or weight + push.rows > _WEIGHT_AT_ONCE):
                yield self._records(ingest, held)
                held, weight = [], 0
            if together:
                held.append(push)
                weight += push.rows
                continue
            yield None
            yield self._records(ingest, [push]) if push_inbox.packed(push.body) else self._one(ingest, push)
            yield None
        if held:
            yield self._records(ingest, held)

    def _records(self, ingest: Ingest, held: Sequence[Push]) -> tuple[Batch, Arrivals]:
        """Rollouts and events: nobody's health depends on them, for they come when something happens."""
        parts = [push_inbox.unpack(push.body, push.received_at / 1000) for push in held]
        reading = Reading(
            rollouts=tuple(one for part in parts for one in part.rollouts),
            events=tuple(one for part in parts for one in part.events),
        )
        target = self._meet(PUSHED, "generator", held[0].interval_seconds)
        batch, arrivals = ingest.records(target, reading, held[-1].received_at / 1000)
        batch.taken += [push.id for push in held]
        self._alone.difference_update(batch.taken)
        return batch, arrivals

    def _one(self, ingest: Ingest, push: Push) -> tuple[Batch, Arrivals]:
        at = push.received_at / 1000
        if push.target in self._configured:
            log.warning("run %s: a push for %s is dropped: that target is configured", self._run, push.target)
            return Batch(self._run, taken=[push.id]), Arrivals()
        if readings.packed(push.body):
            batch, arrivals = self._forwarded(ingest, push)
        else:
            target = self._meet(push.target, push.actor, push.interval_seconds)
            reading = self._reading(ingest, target, unpack(push.body), at)
            batch, arrivals = ingest.reading(target, reading, at, 0.0)
            self._cursors[target.name] = json.dumps(reading.cursor)
        batch.taken.append(push.id)
        # A fact that is said is committed with what it was said with, and so is who said it.
        if "lifecycle" in arrivals.facts:
            batch.facts[FROM] = "pusher"
            self._ended = arrivals.facts["lifecycle"] in _OVER
        elif arrivals.steps:
            self._ended = False
        self._down.pop(push.target, None)
        self._waited.add(push.target)
        return batch, arrivals

    def _forwarded(self, ingest: Ingest, push: Push) -> tuple[Batch, Arrivals]:
        """A reading of another machine: as if its collector had read it here, when it was read there."""
        found = readings.unpack(push.body)
        self._forwards.kinds[push.target] = found.kind
        target, outcome = self._meet(push.target, push.actor, push.interval_seconds), found.outcome
        if outcome.reading is None:
            assert outcome.error is not None
            batch, arrivals = ingest.failure(target, outcome.error, outcome.started, outcome.seconds)
        else:
            given = with_skew(outcome.reading, found.skew)
            kept = tuple(self._bounded(target, given.samples))
            if lost := len(given.samples) - len(kept):
                why = given.why_dropped or f"more than {SERIES} series of one target"
                given = replace(given, samples=kept, dropped=given.dropped + lost, why_dropped=why)
            batch, arrivals = ingest.reading(target, given, outcome.started, outcome.seconds)
        self._forwards.took(push.target, found, arrivals, push.received_at / 1000)
        return batch, arrivals

    def horizon(self, now: float) -> float:
        """Event time up to which everything forwarded is known; infinity where nothing is on its way."""
        return self._forwards.horizon(now)

    def _reading(self, ingest: Ingest, target: Target, body: Body, at: float) -> Reading:
        totals = ProcessTotals.of(json.loads(self._cursors.get(target.name, "{}")))
        samples, histograms = totals.add(body.grown, at)
        given = body.reading
        found = (*ingest.settled(target.name, given.samples), *samples)
        kept = tuple(self._bounded(target, found))
        lost = len(found) - len(kept) + totals.dropped
        why = given.why_dropped or totals.why or (f"more than {SERIES} series of one target" if lost else "")
        return replace(
            given, samples=kept, histograms=(*given.histograms, *histograms), cursor=_cursor(totals),
            dropped=given.dropped + lost, why_dropped=why,
        )  # fmt: skip

    def _bounded(self, target: Target, samples: tuple[Sample, ...]) -> Iterator[Sample]:
        known = self._series.get(target.name)
        if known is None:
            known = self._series[target.name] = {key for _, key in self._store.series(self._run, target.name)}
        for sample in samples:
            key = SeriesKey(target.name, sample.metric, sample.labels, sample.axis)
            if key in known or len(known) < SERIES:
                known.add(key)
                yield sample

    def _meet(self, name: str, actor: str, interval: float) -> Target:
        known: Actor = actor if actor in get_args(Actor) else "trainer"  # type: ignore[assignment]
        kind = self._forwards.kinds.get(name, KIND)
        target = Target(name, self._run, kind, known, interval_seconds=interval)
        if name != PUSHED and name not in self._configured:
            self._targets[name] = (target, max(interval, self._forwards.report_seconds(name)))
            if kind != KIND:
                self._on_forwarded(name, kind)
        return target

    def discard(self, ingest: Ingest, batch: Batch, error: Exception, now: float) -> tuple[Batch, Arrivals]:
        """What is left of a body that no database takes: a word on its target, and an inbox without it.

        Of records that several bodies brought together, each is then tried by itself.
        """
        if not batch.targets:
            if len(batch.taken) > 1:
                self._alone.update(batch.taken)
                return Batch(self._run), Arrivals()
            return Batch(self._run, taken=batch.taken), Arrivals()
        (row, *_) = batch.targets
        target = self._targets[row.name][0]
        self._cursors = self._store.cursors(self._run)
        cause = type(getattr(error, "orig", None) or error).__name__
        refusal = ScrapeError("refused", f"pushed, but the store did not take it: {cause}")
        left, arrivals = ingest.failure(target, refusal, now, 0.0)
        left.taken += batch.taken
        return left, arrivals

    # ---- health and life

    def look(self, ingest: Ingest, now: float) -> Iterator[tuple[Batch, Arrivals]]:
        """Who has fallen silent, and what that says of the run."""
        self._pushers = {one.target: one for one in self._store.pushes.pushers(self._run)}
        for one in self._pushers.values():
            # Records come when something happens: that nothing does is no fault.
            if one.target != PUSHED and one.target not in self._configured:
                yield from self._looked(ingest, one, now)
        yield from self._lived(now)

    def _looked(self, ingest: Ingest, one: Pusher, now: float) -> Iterator[tuple[Batch, Arrivals]]:
        target = self._meet(one.target, one.actor, one.interval_seconds)
        last, forwarded = one.last_ts / 1000, target.collector != KIND
        allowed = patience(one.interval_seconds) if forwarded else one.interval_seconds
        if now - max(last, self._since) <= allowed:
            # What a machine said of its target, up or down, stands until it goes on.
            if not forwarded and last < self._since and one.target not in self._waited:
                self._waited.add(one.target)
                yield ingest.heard(target, last, now)
        elif now - self._down.get(one.target, 0.0) >= REPEATED_SECONDS:
            self._down[one.target] = now
            how = "forwarded" if forwarded else "pushed"
            said = f"nothing {how} for {now - last:.0f} s; expected every {one.interval_seconds:.0f} s"
            yield ingest.failure(target, ScrapeError("silent", said), now, 0.0)

    def _lived(self, now: float) -> Iterator[tuple[Batch, Arrivals]]:
        if self._taken_over:
            self._taken_over = False
            yield self._say({"lifecycle": "running", "lifecycle_why": "", FROM: "configuration"})
        if not self._adopted or self._ended or not self._pushers:
            return
        silent = self.silent(now)
        life = "running" if silent <= self._quiet() else "paused" if silent <= OVER_SECONDS else "crashed"
        if life != self._life:
            self._life = life
            why = "" if life == "running" else f"nothing was pushed for {silent / 3600:.0f} h"
            yield self._say({"lifecycle": life, "lifecycle_why": why, FROM: "pushes"})

    def _say(self, facts: dict[str, str | float]) -> tuple[Batch, Arrivals]:
        return Batch(self._run, facts=dict(facts)), Arrivals(facts=dict(facts))

    def _quiet(self) -> float:
        return max(QUIET_SECONDS, *(3 * one.interval_seconds for one in self._pushers.values()))

    def heard(self) -> Arrivals:
        """That records were pushed before a start: what they said of sandboxes still holds."""
        one = self._pushers.get(PUSHED)
        return Arrivals(heard={PUSHED: (one.last_ts / 1000, math.inf)} if one else {})

    def over(self, now: float) -> bool:
        """Has the end of the run been said, by silence, so that nobody need follow it?"""
        return self._life == "crashed" or (self._ended and self.silent(now) > OVER_SECONDS)

    def silent(self, now: float) -> float:
        """Seconds since anybody pushed into the run."""
        return now - max((one.last_ts / 1000 for one in self._pushers.values()), default=self._since)


def _cursor(totals: ProcessTotals) -> Cursor:
    # Never None: what nobody maps is counted over all pushes, as for a source that is read on and on.
    return totals.cursor()
