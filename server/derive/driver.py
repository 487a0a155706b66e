"""One run, from readings to answers; drives its event time with `advance`.

Live operation, back-fill, replay, the demo's first hour and catch-up after downtime call it; only the speed of `t`
differs. It feeds committed data to the signals in event order, evaluates the tick signals on the 5 s grid, and writes
answers, states and the watermark in one transaction. Stored answers are therefore always the result of the data up to
the watermark, also after a crash.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from operator import attrgetter, itemgetter

import collectors
from collectors.model import Collector, Event, Reading, ScrapeError, Target
from server import signals
from server.alerts.settings import AlertSettings
from server.derive import recovery
from server.derive.alerts import RunAlerts
from server.derive.deriver import Deriver
from server.derive.results import HISTORY, OVER, VERDICT_STATE, Judge, SignalResults, VerdictTracker
from server.derive.source_priority import SourcePriority
from server.ingest.arrivals import RolloutArrival
from server.ingest.readings import (
    OVERLAP_MS,
    PUSHED,
    Arrivals,
    Ingest,
    SampleArrival,
    StepArrival,
    implausible_reason,
    reads_files,
)
from server.ingest.sandboxes import SandboxArrival, arrivals_of
from server.signals import recorded
from server.signals.aggregates import row_limit
from server.signals.drift import Announced, announced
from server.signals.model import TICK_SECONDS, TICK_WINDOW_SECONDS, TargetState, is_gap
from server.signals.window import TRAINER, carry_seconds
from server.store import Store
from server.store.types import Batch, LatestRow, PointState, RunRow, SandboxRow, SeriesKey

# ---- counted pushes
# Records which changes of pushed sandboxes the stored counters contain, where their time alone cannot decide it.

STATE = "counted_pushes"
_VERSION = 1
# Bytes of a change's hash. Two of 10,000 changes are equal with a probability of 3e-12.
_HASH_BYTES = 8


class CountedPushes:
    """Changes counted in the last `OVERLAP_MS` before the watermark: hash -> time of the change, epoch ms."""

    def __init__(self) -> None:
        self._changes: dict[str, int] = {}
        # Stores of older versions do not have the state; all changes up to the watermark are then considered counted.
        self._recorded = False
        self._watermark = 0

    def add(self, arrival: SandboxArrival) -> None:
        """Records the changes that were counted."""
        row = arrival.row
        if row.target != PUSHED:
            return
        changes = (
            (arrival.created, row.first_seen),
            (arrival.became_ready, row.ready_seen),
            (arrival.failed, row.failed_seen),
        )
        for name, (happened, at) in zip(("created", "ready", "failed"), changes, strict=True):
            if happened and at is not None:
                self._changes[_hash(row, name)] = round(at * 1000)

    def missed(self, row: SandboxRow, name: str, at: float | None) -> bool:
        """Do the restored counters lack this change? ``at``: its time, epoch seconds; None: it did not happen."""
        if at is None or round(at * 1000) > self._watermark:
            return at is not None
        recent = round(at * 1000) > self._watermark - OVERLAP_MS
        return recent and self._recorded and row.target == PUSHED and _hash(row, name) not in self._changes

    def states(self, watermark: float) -> dict[str, tuple[int, str]]:
        """Returns the state, stored in the transaction of the counters. ``watermark``: epoch seconds."""
        start = round(watermark * 1000) - OVERLAP_MS
        self._changes = {change: at for change, at in self._changes.items() if at > start}
        return {STATE: (_VERSION, json.dumps(self._changes))}

    def restore(self, states: Mapping[str, tuple[int, str]], watermark: int) -> None:
        """Loads the stored state. ``watermark``: epoch ms."""
        version, text = states.get(STATE, (0, ""))
        self._watermark, self._recorded = watermark, version == _VERSION
        self._changes = json.loads(text) if self._recorded else {}


def _hash(row: SandboxRow, change: str) -> str:
    return blake2b(f"{row.provider}\0{row.id}\0{change}".encode(), digest_size=_HASH_BYTES).hexdigest()


# ---- drift events
# Turns change points of the drift watch, and changes of a series' source, into events, which charts draw as lines.

SIGNAL = "drift_since_step"


@dataclass(slots=True)
class DriftEvents:
    """Lists change points that are not yet events. After a restart it lists all again; the store drops duplicates."""

    _newest: tuple[str, str, int] | None = None

    def fresh(self, deriver: Deriver) -> list[tuple[int, Event]]:
        """(time in ms, event) of the new change points."""
        changes = announced(deriver.memory(SIGNAL))
        keys = [(change.of, change.environment, change.step) for change in changes]
        # The list is bounded and drops its oldest, so a count would not show which are new.
        listed = keys.index(self._newest) + 1 if self._newest in keys else 0
        self._newest = keys[-1] if keys else self._newest
        return [(round(change.ts * 1000), _event(change)) for change in changes[listed:]]


@dataclass(slots=True)
class SourceEvents:
    """Announces that values come from rollout records which came from the trainer's log before, or the reverse.

    The two have other populations, so a step in a line at this time is no change of behaviour.
    """

    _basis: str = ""

    def fresh(self, deriver: Deriver, ts: float) -> list[tuple[int, Event]]:
        """(time in ms, event) of a change of source; ``ts``: event time, epoch seconds."""
        if not deriver.rollouts.met:
            self._basis = "log"
            return []
        before, self._basis = self._basis, recorded.basis(deriver.view(ts))
        if not before or before == self._basis:
            return []
        names = {"log": "the trainer's log", "records": "rollout records"}
        detail = f"zero advantage, staleness and discarded share come from {names[self._basis]} from here on"
        at = round(ts * 1000)
        return [(at, Event("source", f"source:{self._basis}:{at}", ts, f"{detail}, before from {names[before]}"))]


def _event(change: Announced) -> Event:
    return Event("drift", f"drift:{change.of}:{change.environment}:{change.step}", change.ts, change.message)


# Ticks further apart in history: a chart of three days shows no more, and 10,000 steps of 34 s are 3,400 ticks instead
# of 68,000. (older than, into the run by at least, seconds between ticks); the first that fits. A short run is judged
# as finely as it was live, whenever it is read, and so is an hour that a forwarder sends late.
GRIDS = ((86_400.0, 21_600.0, 300.0), (86_400.0, 0.0, 60.0), (5_400.0, 1_800.0, 60.0))
# Seconds without a step after which a run counts as crashed; no checkpoint, eval or queue takes a day.
ABANDONED_SECONDS = 86_400.0
# The same as a multiple of the stall limit.
ABANDONED_FACTOR = 10.0
# Points per transaction in history: large enough to be fast, small enough to be shown soon.
FLUSH_POINTS = 5_000

# Seconds read back beyond the window, to include the sample that holds at its start.
RECOVERY_SECONDS = 60.0
HISTORY_LATEST = HISTORY + "latest"

Submit = Callable[[Batch], "Future[int]"]


class RunDriver:
    """The signals of one run over time. Single-threaded; `submit` hands batches to the one writer.

    Args:
        carry: target name -> seconds a gauge of it is held.
        stated: facts from the configuration: they win over what collectors find.
        alerts: rules and receivers (default: none, so that what is derived can be looked at alone).
        targets: names of the run's targets now; the health of others is history.
        trust: decides which value counts where several targets report the same (default: the later one).
        judge: computes the verdict (default: `server.verdict.rules.remember`).
        address_of: target -> its address without secrets, or "", for the texts of alerts.
    """

    def __init__(
        self, store: Store, submit: Submit, run: str, carry: Callable[[str], float],
        stated: Mapping[str, str | float] | None = None, alerts: AlertSettings | None = None,
        targets: Container[str] | None = None, trust: SourcePriority | None = None, judge: Judge | None = None,
        address_of: Callable[[str], str] = lambda _: "",
    ) -> None:  # fmt: skip
        self._store, self._submit, self.run = store, submit, run
        self._stated = stated or {}
        self._items = {item.name: item for item in signals.load()}
        self._targets = targets
        self.on_outbox: Callable[[], None] = lambda: None
        row = store.ensure_run(run)
        self._alerts = RunAlerts(store.alerts, run, alerts or AlertSettings(), address_of)
        self.deriver = Deriver(self._items.values(), carry, self._alerts.metrics, trust)
        self._answers, self._verdicts = SignalResults(store, run, self._items, self.deriver), VerdictTracker(run, judge)
        self._marks, self._sources = DriftEvents(), SourceEvents()
        self._samples: deque[SampleArrival] = deque()
        self._steps: deque[StepArrival] = deque()
        self.sandboxes: deque[SandboxArrival] = deque()
        self._counted_pushes = CountedPushes()
        self.rollouts: deque[RolloutArrival] = deque()
        self._published: deque[tuple[float, int]] = deque()
        self._healths: deque[TargetState] = deque()
        self._written: dict[str, object] = {}
        # Whether steps were followed live: since this process began, or before, because the run was derived up to then.
        self._followed = row.watermark is not None
        self._end_reason = ""
        self._revived = ""
        # While history is worked off, readers are shown the present by another driver (`server.scrape.recent_first`):
        # this one then keeps its newest answers and its verdict under names of their own.
        self.holds_back = self._shows = False
        self._counted: dict[int, float] = {}
        self.watermark: float | None = None
        # Event time of the run's first datum.
        self._begun = row.first_ts / 1000 if row.first_ts is not None else -math.inf
        # Set from another thread to end `advance` at its next tick: what it has is written, the rest waits.
        self.stopped = False
        self._recover(row)

    # ---- recovery

    def _recover(self, row: RunRow) -> None:
        """Fill the windows again from the store, so that a restart changes no value."""
        deriver = self.deriver
        deriver.facts.update({**row.facts, **self._stated})
        deriver.mode, deriver.lifecycle = row.mode, row.lifecycle or "starting"
        # The fact is committed with what it was read from, the run's own field only with the tick after it.
        lifecycle = str(row.facts.get("lifecycle", row.lifecycle))
        self._lifecycle = lifecycle if lifecycle in ("finished", "crashed", "paused") else ""
        self._written = {"framework": row.framework, "mode": row.mode, "lifecycle": row.lifecycle}
        states = self._store.runs.states(self.run)
        held = states.get(HISTORY_LATEST, (0, ""))[1]
        if held:
            # The process died while readers were shown the present: the history's own answers are here.
            self._answers.recover(_loaded(held))
            states[VERDICT_STATE] = states.get(HISTORY + VERDICT_STATE, (0, ""))
            self.holds_back = True
        else:
            self._answers.recover(self._store.runs.latest(self.run))
        # Counters may have increased before the first tick, from data that was committed before this start.
        deriver.restore(states)
        if row.watermark is not None:
            self.watermark = row.watermark / 1000
            self._alerts.restore(states, self.watermark)
            self._verdicts.restore(states)
        self._counted_pushes.restore(states, row.watermark or 0)
        # Without a watermark nothing was derived yet, but a process that died early may have committed much.
        self._recover_windows(row.watermark or 0)
        for found in sorted((row for _, row in self._store.runs.targets(self.run)), key=attrgetter("last_ts")):
            # As in `_feed_until`: a tick before a target answered must not know of it.
            if self.watermark is not None and found.last_ts <= self.watermark:
                self._see(found)
            else:
                self._healths.append(found)
        self._recover_sandboxes(row.watermark or 0)
        self._recover_steps()
        self._recover_rollouts(row.watermark or 0)

    def _recover_windows(self, watermark: int) -> None:
        """What the windows held at the watermark, and everything committed after it as just arrived."""
        since = max(0, watermark - round((TICK_WINDOW_SECONDS + RECOVERY_SECONDS) * 1000))
        recovery.histograms(self._store, self.run, self.deriver, since)
        # An engine may have been silent for longer than the window: its counters go on from what they last showed.
        for _, key, ts, value in self._store.samples.newest(self.run, self.deriver.counted_metrics):
            if ts < since and not implausible_reason(key.metric, value):
                self.deriver.sample(ts / 1000, key.target, key.metric, key.labels, value, counted=True)
        for sample in recovery.samples(self._store, self.run, self.deriver, since):
            if sample[0] <= watermark / 1000:
                self.deriver.sample(*sample, counted=True)
            else:
                self._samples.append(sample)

    def _recover_sandboxes(self, watermark: int) -> None:
        """Live ones and the window's, and as just arrived what was committed after the watermark."""
        since = max(0, watermark - round(TICK_WINDOW_SECONDS * 1000))
        self.recovered = sorted(self._store.sandboxes.recent(self.run, since), key=lambda row: row.seen_at)
        for row in self.recovered:
            missed = {
                "created": self._counted_pushes.missed(row, "created", row.first_seen),
                "became_ready": self._counted_pushes.missed(row, "ready", row.ready_seen),
                "failed": self._counted_pushes.missed(row, "failed", row.failed_seen),
            }
            if row.seen_at > watermark / 1000 or any(missed.values()):
                self.sandboxes += arrivals_of(row, **missed)
            else:
                ready = (row.ready_seen or 0) > since / 1000
                arrival = SandboxArrival(row.seen_at, row, row.first_seen > since / 1000, ready, failed=False)
                self.deriver.sandbox(arrival, counted=True)
            health = self.deriver.health.get(row.target)
            if health is not None and health.last_ok_ts is not None and not reads_files(health.collector):
                keep = max(15.0, 3 * health.interval_seconds)
                self.deriver.sandboxes.heard[row.target] = (health.last_ok_ts, keep)

    def _recover_steps(self) -> None:
        """Steps not yet answered as just arrived; the window's last ones before them only remembered.

        Answering those again would be wrong at the window's edge: the steps before them are not here.
        """
        counted, fresh = recovery.steps(self._store, self.run, self.deriver.done)
        for one in counted:
            self.deriver.recall(one.axis, one.incarnation, one.number, one.ts, one.target, one.values)
        self._steps += fresh

    def _recover_rollouts(self, watermark: int) -> None:
        self.rollouts, self._published = recovery.fill(self._store, self.run, self.deriver, watermark)

    # ---- feeding

    def feed(self, arrivals: Arrivals) -> None:
        """Take what was committed. Nothing is derived before `advance`."""
        self._samples += arrivals.samples
        self._steps += arrivals.steps
        self.sandboxes += arrivals.sandboxes
        self.rollouts += arrivals.rollouts
        self._published += arrivals.published
        self.deriver.sandboxes.heard.update(arrivals.heard)
        self._healths += arrivals.health
        facts = {**arrivals.facts, **self._stated}
        self.deriver.facts.update(facts)
        self.deriver.mode = str(facts.get("mode", self.deriver.mode))
        # Steps we know already come again from every further log of the same run.
        fresh = any((s.incarnation, s.number) > self.deriver.done.get(s.axis, (-1, -1)) for s in arrivals.steps)
        if fresh and "lifecycle" not in facts and self._lifecycle in OVER:
            self._lifecycle = self._revived = "running"  # steps after the end: the run was resumed
        self._lifecycle = str(facts.get("lifecycle", self._lifecycle))

    def _see(self, target: TargetState) -> None:
        if target.gone or self._targets is None or target.name in self._targets:
            self.deriver.see(target)

    def _reach_the_present(self, tick: float) -> None:
        """A run is over only when everything it left was fed: its history was lived while it ran."""
        deriver = self.deriver
        if self._steps:
            if deriver.lifecycle in OVER:
                deriver.begin(tick)
        elif self._lifecycle == "running" and deriver.lifecycle != "running":
            deriver.begin(tick)
        elif self._lifecycle and not (self._samples and self._lifecycle in OVER):
            deriver.lifecycle = self._lifecycle
        if deriver.lifecycle == "starting" and deriver.is_running(tick):
            deriver.begin(tick)

    # ---- the driver

    def advance(self, t: float, *, live: bool = False, present: float | None = None) -> None:
        """Bring the run to event time `t`. Idempotent; going back does nothing.

        ``live``: `t` is the present. Only then notifications are sent; history is evaluated without notifications.
        ``present``: the time that ages of history refer to (default: `t`), because a long history comes in pieces.
        """
        self._present = max(t, present or t)
        self._sort()
        batch = Batch(run=self.run)
        waits: list[Future[int]] = []
        tick = self._first_tick(t)
        while tick is not None and tick <= t and not self.stopped:
            has_step = bool(self._steps) and self._steps[0].ts <= tick
            self._feed_until(tick, batch)
            self._note_end(tick, t)
            # A run is judged once more after its last step, before it is over.
            if not has_step:
                self._reach_the_present(tick)
            over = self.deriver.lifecycle in OVER
            # A finished run stands as of its end: what still reports goes on, what fell silent is not news.
            answers = self.deriver.tick(tick, self._grid(tick))
            self._answers.write([answer for answer in answers if not (over and is_gap(answer[2]))], batch)
            batch.events += self._marks.fresh(self.deriver)
            self.watermark = tick
            replayed = not live or t - tick > RECOVERY_SECONDS
            self._verdicts.tick(tick, self.deriver, self._answers, batch, replayed=replayed)
            stale = partial(self._answers.stale, tick)
            self._alerts.tick(tick, self.deriver, self._answers.now(), stale, batch, replayed=replayed)
            if len(batch.points) >= FLUSH_POINTS:
                waits.append(self._send(batch))
                batch = Batch(run=self.run)
            tick = self._next_tick(tick, t)
        if not self.stopped:
            self._late(t, batch)
            self._reach_the_present(t)
        if live and not self.stopped:
            self._show()
            self._alerts.notify(t, batch)
            self._give_up(t)
        self.deriver.forget(t)
        changed = batch.points or self._answers.fresh or batch.alerts or batch.groups
        if changed or waits or self.deriver.alive(t) or self._changed():
            waits.append(self._send(batch))
        for wait in waits:
            wait.result()
        if batch.outbox:
            self.on_outbox()

    def recall(self) -> None:
        """Fills the windows with all that was fed, without answers, for who evaluates signals at one instant."""
        self._sort()
        steps, self._steps = self._steps, deque()
        self._feed_until(math.inf, Batch(self.run))
        for one in steps:
            self.deriver.recall(one.axis, one.incarnation, one.number, one.ts, one.target, one.values)
        self.deriver.rollouts.changed = False
        self.deriver.lifecycle = str(self.deriver.facts.get("lifecycle", self.deriver.lifecycle))

    def _sort(self) -> None:
        self._samples = deque(sorted(self._samples, key=_sample_time))
        self._steps = deque(sorted(self._steps, key=_step_time))
        self.rollouts = deque(sorted(self.rollouts, key=_step_time))
        self._published = deque(sorted(self._published))

    def _note_end(self, tick: float, t: float) -> None:
        """Ends a run whose log was already old when it was attached: nothing shows that the run still exists.

        A log without a closing row looks the same for a run that ended and for one that hangs. If the newest step is
        older than a step may be open, no engine, provider or client answers, and the log reports no fault of the last
        day, the run ended with that step. A run that was followed live has stalled instead.
        """
        newest = self.deriver.book.newest_of_all()
        if self._followed or t < self._present or newest is None or tick <= newest.ts or self._upcoming() is not None:
            return
        answers = any(target.up and not reads_files(target.collector) for target in self._all_health())
        answers = answers or self._present - float(self.deriver.facts.get("fault_since", 0)) < ABANDONED_SECONDS
        age = self._present - newest.ts
        if answers or self._lifecycle in OVER or age <= row_limit(self.deriver.book):
            self._followed = True
            return
        self._lifecycle = "finished"
        self.deriver.facts["lifecycle_why"] = self._end_reason = "its newest step was old when its log was first read"

    def _all_health(self) -> Iterator[TargetState]:
        yield from self.deriver.health.values()
        yield from self._healths

    def _give_up(self, now: float) -> None:
        """Set a run to crashed after a day without a step or an engine, because a killed run does not report its end.

        Otherwise opening an old run would notify of its stall.
        """
        deriver = self.deriver
        newest = deriver.book.newest_of_all()
        if deriver.lifecycle != "running" or newest is None or deriver.alive(now):
            return
        since = max(newest.ts, deriver.running_since or newest.ts)
        if now - since > max(ABANDONED_SECONDS, ABANDONED_FACTOR * row_limit(deriver.book)):
            self._lifecycle = "crashed"
            deriver.facts["lifecycle_why"] = f"no step for {(now - since) / 3600:.0f} h, and no engine answers"

    def _first_tick(self, t: float) -> float | None:
        """The next grid instant: after the watermark, or the first at or after the first datum."""
        if self.watermark is not None:
            return self._next_tick(self.watermark, t)
        first = self._upcoming()
        if first is None or first > t:
            return None
        self._begun = first
        return math.ceil(first / TICK_SECONDS) * TICK_SECONDS

    def _upcoming(self) -> float | None:
        """Event time of the first datum not yet fed."""
        times = []
        if self._samples:
            times.append(self._samples[0][0])
        if self._steps:
            times.append(self._steps[0].ts)
        if self.sandboxes:
            times.append(self.sandboxes[0].ts)
        if self.rollouts:
            times.append(self.rollouts[0].ts)
        return min(times, default=None)

    def _next_tick(self, tick: float, t: float) -> float:
        """The following grid instant; where nothing reports, straight to the next datum (a gap costs nothing)."""
        grid = self._grid(tick)
        following = (math.floor(tick / grid) + 1) * grid
        last = self._steps[-1].ts if self._steps else math.inf
        if t >= self._present and tick < last < following:
            # The last step of a history: what holds at its end must not be as old as a wide grid.
            return math.ceil(last / TICK_SECONDS) * TICK_SECONDS
        if self.deriver.alive(tick):
            return following
        upcoming = self._upcoming()
        return max(following, math.floor(min(t if upcoming is None else upcoming, t) / TICK_SECONDS) * TICK_SECONDS)

    def _grid(self, tick: float) -> float:
        """Seconds from one tick to the next where something reports."""
        age, into = self._present - tick, tick - self._begun
        return next((grid for older, later, grid in GRIDS if age > older and into >= later), TICK_SECONDS)

    def _feed_until(self, tick: float, batch: Batch) -> None:
        """Samples and steps up to `tick`: a tick sees exactly what was there at its instant."""
        while self._samples and self._samples[0][0] <= tick:
            self.deriver.sample(*self._samples.popleft())
        # How a target answered has a time too: a tick before it must not know of it.
        while self._healths and self._healths[0].last_ts <= tick:
            self._see(self._healths.popleft())
        while self.sandboxes and self.sandboxes[0].ts <= tick:
            arrival = self.sandboxes.popleft()
            self.deriver.sandbox(arrival)
            self._counted_pushes.add(arrival)
        while self._published and self._published[0][0] <= tick:
            ts, version = self._published.popleft()
            self.deriver.rollouts.publish(version, ts)
        while self.rollouts and self.rollouts[0].ts <= tick:
            self.deriver.rollout(self.rollouts.popleft())
        self._feed_steps(tick, batch)

    def _feed_steps(self, t: float, batch: Batch) -> None:
        while self._steps and self._steps[0].ts <= t:
            self._feed_step(self._steps.popleft(), t, batch)

    def _feed_step(self, step: StepArrival, tick: float, batch: Batch) -> None:
        newest = self.deriver.book.newest_of_all()
        if newest is None or step.ts > newest.ts:
            self.deriver.step_met = tick
        answers = self.deriver.step(step.axis, step.incarnation, step.number, step.ts, step.target, step.values)
        self._answers.write(answers, batch)
        batch.events += self._marks.fresh(self.deriver)
        if step.axis == TRAINER:
            batch.events += self._sources.fresh(self.deriver, step.ts)

    def _late(self, t: float, batch: Batch) -> None:
        """Steps that wait for a tick beyond `t` are shown at once: a step is an event, not a state."""
        self._feed_steps(t, batch)
        # A signal without data has a reason from the start, and a new one with every new metric.
        silent, missing = self._answers.silent(), self._answers.lacking()
        stale_mode = self._mode_changed()
        gaps = self._answers.known.keys() if stale_mode else missing
        answers = self.deriver.steps_now(t) if silent or gaps else []
        self._answers.write([a for a in answers if a[0] in silent or (a[0] in gaps and is_gap(a[2]))], batch)
        if not self.deriver.gauges and (silent or gaps):
            whole = self._items.keys() if stale_mode else silent
            answers = self.deriver.tick(t)
            self._answers.write([a for a in answers if a[0] in whole or (a[0] in gaps and is_gap(a[2]))], batch)

    def _mode_changed(self) -> bool:
        return self.deriver.mode != self._written.get("mode")

    def _changed(self) -> bool:
        """Is there anything to say about the run that is not yet stored? A finished run costs no write."""
        # A total that is shown but not stored would be lost in a restart.
        counts = self._counts()
        return counts != self._counted or any(
            value != self._written.get(name) for name, value in self._fields().items()
        )

    # ---- writing down

    def _send(self, batch: Batch) -> "Future[int]":
        if self.watermark is not None:
            batch.run_fields["watermark"] = round(self.watermark * 1000)
        batch.run_fields.update(self._changed_fields())
        # History has thousands of answers per series; only the newest is stored.
        self._answers.save(batch)
        verdict = dict(self._verdicts.states())
        if self.holds_back:
            batch.latest = []
            verdict = {HISTORY + name: state for name, state in verdict.items()}
            verdict[HISTORY_LATEST] = (1, _dumped(self._answers.rows()))
        elif self._shows:
            self._shows = False
            verdict |= {HISTORY_LATEST: (1, ""), HISTORY + VERDICT_STATE: (1, "")}
        batch.facts = dict(self._stated)
        if self._end_reason:
            batch.facts["lifecycle_why"], self._end_reason = self._end_reason, ""
        if self._revived:
            batch.facts["lifecycle"], self._revived = self._revived, ""
        pushes = self._counted_pushes.states(self.watermark) if self.watermark is not None else {}
        batch.states = {**self.deriver.states(), **self._alerts.states(), **verdict, **pushes}
        batch.counters = self._changed_counters()
        return self._submit(batch)

    def begin_at(self, ts: float) -> None:
        """Let the first tick be the one after `ts`: what is fed of before only fills windows and step signals."""
        self.watermark = self._begun = math.floor(ts / TICK_SECONDS) * TICK_SECONDS

    def newest(self) -> tuple[list[tuple[SeriesKey, LatestRow]], Mapping[str, tuple[int, str]]]:
        """(the newest answer of every series, the verdict as a state)."""
        return self._answers.rows(), self._verdicts.states()

    def _show(self) -> None:
        """History is derived: from now on readers are shown what this driver answers."""
        if self.holds_back:
            self.holds_back, self._shows = False, True
            self._answers.forget_saved()

    def _changed_counters(self) -> dict[int, float]:
        current = self._counts()
        changed = {series: value for series, value in current.items() if self._counted.get(series) != value}
        self._counted = current
        return changed

    def _counts(self) -> dict[int, float]:
        return {self._answers.series(name, value.labels): value.value for name, value in self.deriver.counter_values()}

    def _changed_fields(self) -> Mapping[str, str]:
        changed = {name: value for name, value in self._fields().items() if value != self._written.get(name)}
        self._written.update(changed)
        return changed

    def _fields(self) -> Mapping[str, str]:
        deriver = self.deriver
        framework = str(deriver.facts.get("framework", ""))
        return {"framework": framework, "mode": deriver.mode, "lifecycle": deriver.lifecycle}


def _dumped(rows: Iterable[tuple[SeriesKey, LatestRow]]) -> str:
    return json.dumps(
        [[key.metric, key.labels, r.series, r.ts, r.value, int(r.state), r.why, r.source] for key, r in rows]
    )


def _loaded(text: str) -> Iterator[tuple[SeriesKey, LatestRow]]:
    for metric, labels, series, ts, value, state, *words in json.loads(text):
        key = SeriesKey("", metric, tuple((name, label) for name, label in labels))
        yield key, LatestRow(series, ts, value, PointState(state), *words)


_sample_time, _step_time = itemgetter(0), attrgetter("ts")


def carry_of(targets: Mapping[str, tuple[Target, float]]) -> Callable[[str], float]:
    """How long gauges of a target are held: three of its reports, at least 15 s.

    Args:
        targets: name -> (target, the collector's `report_seconds`).
    """

    def carry(name: str) -> float:
        target, report = targets.get(name, (None, TICK_SECONDS))
        interval = target.interval_seconds if target else TICK_SECONDS
        return carry_seconds(max(interval, report))

    return carry


# ---- one run, from readings to answers
# The run loop, the view of a long log's end and `rollscope check` read at different times into different stores; what
# follows is the same.


def collector_of(target: Target) -> Collector:
    """Returns the collector of a target, configured by the target's options."""
    collector = collectors.load()[target.collector]
    return collector.configured(dict(target.options)) if collector.configured is not None else collector


@dataclass(slots=True)
class RunTargets:
    """The targets of a run, which come and go.

    Attributes:
        known: name -> (target, seconds between its reports); pushed targets are added with their first push.
        trust: ranks targets that report the same.
        others: further names with a health row: heartbeats, target lists, pending sources.
    """

    known: dict[str, tuple[Target, float]]
    trust: SourcePriority
    others: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, targets: Sequence[Target]) -> "RunTargets":
        known = {target.name: (target, collector_of(target).report_seconds) for target in targets}
        return cls(known, SourcePriority.of(targets, collectors.load()))

    def __contains__(self, name: object) -> bool:
        return name in self.known or name in self.others

    def names(self) -> set[str]:
        return {*self.known, *self.others}

    def add(self, target: Target) -> None:
        collector = collector_of(target)
        if collector.actor == "trainer" or target.path:
            self.trust.meet(target.name, collector)
        self.known[target.name] = (target, collector.report_seconds)

    def rank_forwarded(self, name: str, kind: str) -> None:
        """Ranks a forwarded target like one that is read here. ``kind``: name of its collector."""
        if (collector := collectors.load().get(kind)) is not None:
            self.trust.meet(name, collector)

    def remove(self, name: str) -> None:
        self.known.pop(name, None)
        self.others.discard(name)


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Settings of a pipeline.

    Attributes:
        facts: stated by the user; they win over what collectors find.
        since: pushed rows are read from this time on (default: the watermark).
        address_of: target -> its address without secrets, or "".
        on_outbox: called when a notification waits to be sent.
        carry: target -> seconds a gauge of it is held (default: by its reports).
    """

    facts: Mapping[str, str | float] = field(default_factory=dict)
    alerts: AlertSettings | None = None
    since: float | None = None
    address_of: Callable[[str], str] = lambda _: ""
    on_outbox: Callable[[], None] = lambda: None
    carry: Callable[[str], float] | None = None


class RunPipeline:
    """Owns the `Ingest` and the `RunDriver` of one run. Not thread-safe.

    Args:
        submit: hands a batch to the store's writer (default: written at once).
    """

    def __init__(
        self, store: Store, run: str, targets: RunTargets, settings: PipelineSettings, submit: Submit | None = None
    ) -> None:
        self.run, self.targets, self.settings = run, targets, settings
        self._store, self._submit = store, submit or self._write
        self.driver = self._new_driver()
        self.ingest = Ingest(store, run, settings.since, targets.trust.complaint)
        self.ingest.facts.update(settings.facts)
        self.ingest.mark_recovered(self.driver.recovered)

    def _new_driver(self) -> RunDriver:
        own, targets = self.settings, self.targets
        driver = RunDriver(
            self._store, self._submit, self.run, own.carry or carry_of(targets.known), own.facts, own.alerts,
            targets=targets, trust=targets.trust, address_of=own.address_of,
        )  # fmt: skip
        driver.on_outbox = own.on_outbox
        return driver

    def _write(self, batch: Batch) -> "Future[int]":
        done: Future[int] = Future()
        done.set_result(self._store.write_many([batch])[0])
        return done

    def rows(
        self, target: Target, outcome: Reading | ScrapeError, now: float, seconds: float = 0.0
    ) -> tuple[Batch, Arrivals]:
        """Returns the rows of a reading or a failure, and what the driver is fed when they are committed."""
        if isinstance(outcome, Reading):
            return self.ingest.reading(target, outcome, now, seconds)
        return self.ingest.failure(target, outcome, now, seconds)

    def feed(self, target: Target, outcome: Reading | ScrapeError, now: float, seconds: float = 0.0) -> Arrivals:
        """Commits a reading or a failure, and feeds it to the driver."""
        batch, arrivals = self.rows(target, outcome, now, seconds)
        self._submit(batch).result()
        self.driver.feed(arrivals)
        return arrivals

    def advance(self, t: float, *, live: bool = False, present: float | None = None) -> None:
        """Derives up to event time `t`; see `RunDriver.advance`."""
        self.driver.advance(t, live=live, present=present)

    def newest(self) -> tuple[list[tuple[SeriesKey, LatestRow]], Mapping[str, tuple[int, str]]]:
        """Returns the newest answer of every series, and the verdict as a state."""
        return self.driver.newest()

    def recover(self) -> None:
        """Builds the driver again from the store, because after a failed write it has more than the store."""
        self.driver = self._new_driver()
        self.ingest.mark_recovered(self.driver.recovered)

    def reload(self) -> None:
        """Loads `Ingest` again from the store, because it counted rows that were not stored."""
        self.ingest = self.ingest.reloaded()
