"""`advance(run, t)`: the one driver of event time.

Live operation, back-fill, replay, the demo's first hour and catch-up after downtime all call it; only how
fast `t` grows differs. It feeds what was committed to the signals in event order, asks the tick signals on
the 5 s grid, and writes the answers, the folds' states and the watermark in one transaction. What is stored
is therefore always the result of the data up to the watermark, whatever died in between.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from collectors.model import Labels, Target
from server import signals
from server.derive import Deriver, Emission, is_gap, why
from server.ingest import Arrivals, StepArrival
from server.signals._model import Answer, NotApplicable, Value
from server.store import Store
from server.store.types import Batch, LatestRow, PointState, SeriesKey

TICK_SECONDS = 5.0
# A gauge is carried over this many reports before its line breaks: one missing page is normal (Ray), three
# are not.
CARRIED_REPORTS = 3
# Points per transaction while history is worked off: large enough to be fast, small enough to be seen soon.
FLUSH_POINTS = 5_000

Submit = Callable[[Batch], "Future[int]"]


class RunDriver:
    """The signals of one run over time. Single-threaded; `submit` hands batches to the one writer.

    Args:
        carry: target name -> seconds a gauge of it is held.
        stated: facts from the configuration: they win over what collectors find.
    """

    def __init__(
        self, store: Store, submit: Submit, run: str, carry: Callable[[str], float],
        stated: Mapping[str, str | float] | None = None,
    ) -> None:  # fmt: skip
        self._store, self._submit, self.run = store, submit, run
        self._stated = stated or {}
        self._items = {item.name: item for item in signals.load()}
        self.deriver = Deriver(self._items.values(), carry)
        self._samples: list[tuple[float, str, str, Labels, float]] = []
        self._steps: list[StepArrival] = []
        self._known: dict[str, dict[Labels, PointState]] = {}
        self._words: dict[tuple[str, Labels], tuple[str, str]] = {}
        self._written: dict[str, object] = {}
        self._counted: dict[int, float] = {}
        self.watermark: float | None = None
        self._recover()

    # ---- recovery

    def _recover(self) -> None:
        """Fill the windows again from the store, so that a restart changes no number."""
        row = self._store.ensure_run(self.run)
        deriver = self.deriver
        deriver.facts.update({**row.facts, **self._stated})
        deriver.mode, deriver.lifecycle = row.mode, row.lifecycle or "starting"
        self._written = {"framework": row.framework, "mode": row.mode, "lifecycle": row.lifecycle}
        for key, latest in self._store.latest(self.run):
            self._known.setdefault(key.metric, {})[key.labels] = latest.state
            self._words[(key.metric, key.labels)] = (latest.why, latest.source)
        if row.watermark is None:
            return
        self.watermark = row.watermark / 1000
        deriver.restore(self._store.states(self.run))
        self._recover_windows(row.watermark)
        self._recover_steps()

    def _recover_windows(self, watermark: int) -> None:
        metrics = sorted(self.deriver.tick_metrics)
        since = watermark - int((max(300.0, CARRIED_REPORTS * TICK_SECONDS) + 60) * 1000)
        recent = [
            (ts / 1000, key.target, key.metric, key.labels, value)
            for _, key, points in self._store.window(self.run, metrics, since)
            for ts, value in points
        ]
        recent.sort(key=lambda sample: sample[0])
        for sample in recent:
            if sample[0] <= watermark / 1000:
                self.deriver.sample(*sample, counted=True)
            else:
                self._samples.append(sample)

    def _recover_steps(self) -> None:
        """The last steps again: points are upserts and counters know what they counted, so nothing doubles."""
        for row in self._store.steps(self.run, incarnation=self._store.incarnation(self.run), last=64):
            self._steps.append(StepArrival(row.axis, row.incarnation, row.step, row.ts / 1000, "", row.values))

    # ---- feeding

    def feed(self, arrivals: Arrivals) -> None:
        """Take what was committed. Nothing is derived before `advance`."""
        self._samples += arrivals.samples
        self._steps += arrivals.steps
        facts = {**arrivals.facts, **self._stated}
        self.deriver.facts.update(facts)
        self.deriver.mode = str(facts.get("mode", self.deriver.mode))
        if arrivals.steps and self.deriver.lifecycle in ("finished", "crashed") and "lifecycle" not in facts:
            self.deriver.lifecycle = "running"  # steps after the end: the run was resumed
        self.deriver.lifecycle = str(facts.get("lifecycle", self.deriver.lifecycle))

    # ---- the driver

    def advance(self, t: float) -> None:
        """Bring the run to event time `t`. Idempotent; going back does nothing."""
        self._samples.sort(key=lambda sample: sample[0])
        self._steps.sort(key=lambda step: step.ts)
        batch = Batch(run=self.run)
        waits: list[Future[int]] = []
        tick = self._first_tick(t)
        while tick is not None and tick <= t:
            self._feed_until(tick, batch)
            if self.deriver.lifecycle != "finished" or self.deriver.alive(tick):
                # A finished run's values stand "as of its end": repeating them would draw a line that nobody reported.
                self._write(self.deriver.tick(tick), batch)
            self.watermark = tick
            if len(batch.points) >= FLUSH_POINTS:
                waits.append(self._send(batch))
                batch = Batch(run=self.run)
            tick = self._next_tick(tick, t)
        self._late(t, batch)
        self.deriver.forget(t)
        waits.append(self._send(batch))
        for wait in waits:
            wait.result()

    def _first_tick(self, t: float) -> float | None:
        """The next grid instant: after the watermark, or the first at or after the first datum."""
        if self.watermark is not None:
            return self._next_tick(self.watermark, t)
        first = min([s[0] for s in self._samples[:1]] + [s.ts for s in self._steps[:1]], default=None)
        return None if first is None or first > t else math.ceil(first / TICK_SECONDS) * TICK_SECONDS

    def _next_tick(self, tick: float, t: float) -> float:
        """The following grid instant; where nothing reports, straight to the next datum (a gap costs nothing)."""
        following = (math.floor(tick / TICK_SECONDS) + 1) * TICK_SECONDS
        if self.deriver.alive(tick):
            return following
        upcoming = min([s[0] for s in self._samples[:1]] + [s.ts for s in self._steps[:1]], default=t)
        return max(following, math.floor(min(upcoming, t) / TICK_SECONDS) * TICK_SECONDS)

    def _feed_until(self, tick: float, batch: Batch) -> None:
        """Samples and steps up to `tick`, merged by time: a step signal sees exactly what was before it."""
        done = 0
        for done, sample in enumerate(self._samples):  # noqa: B007
            if sample[0] > tick:
                break
            self.deriver.sample(*sample)
        else:
            done = len(self._samples)
        del self._samples[:done]
        due = [step for step in self._steps if step.ts <= tick]
        del self._steps[: len(due)]
        for step in due:
            self._feed_step(step, batch)

    def _feed_step(self, step: StepArrival, batch: Batch) -> None:
        answers = self.deriver.step(step.axis, step.incarnation, step.number, step.ts, step.target, step.values)
        self._write(answers, batch)

    def _late(self, t: float, batch: Batch) -> None:
        """Steps that wait for a tick beyond `t` are shown at once: a step is an event, not a state."""
        due = [step for step in self._steps if step.ts <= t]
        del self._steps[: len(due)]
        for step in due:
            self._feed_step(step, batch)
        # Words for what has no step yet: a signal without data says why from the first moment on.
        silent = {name for name, item in self._items.items() if isinstance(item, signals.Signal)} - self._known.keys()
        stale_mode = self._mode_changed()
        answers = self.deriver.steps_now(t) if silent or stale_mode else []
        self._write([a for a in answers if a[0] in silent or (stale_mode and is_gap(a[2]))], batch)
        if not self.deriver.gauges:
            self._write([a for a in self.deriver.tick(t) if a[0] in silent or stale_mode], batch)

    def _mode_changed(self) -> bool:
        return self.deriver.mode != self._written.get("mode")

    # ---- writing answers down

    def _write(self, emissions: list[Emission], batch: Batch) -> None:
        for name, ts, answer in emissions:
            if is_gap(answer):
                self._write_gap(name, ts, answer, batch)
            else:
                self._write_values(name, ts, answer, batch)  # type: ignore[arg-type]

    def _write_values(self, name: str, ts: float, values: list[Value], batch: Batch) -> None:
        known = self._known.setdefault(name, {})
        source = self.deriver.source(self._items[name])
        for value in values:
            self._point(name, value.labels, ts, value.value, PointState.VALUE, ("", source), batch)
        named = {value.labels for value in values}
        for labels in [labels for labels, state in known.items() if labels not in named and state is PointState.VALUE]:
            self._point(name, labels, ts, None, PointState.UNKNOWN, ("no longer reported", source), batch)

    def _write_gap(self, name: str, ts: float, answer: Answer, batch: Batch) -> None:
        """A gap breaks a line once, and only where there is one; its words are always the newest."""
        state = PointState.NOT_APPLICABLE if isinstance(answer, NotApplicable) else PointState.UNKNOWN
        words = (why(answer), self.deriver.source(self._items[name]))
        known = self._known.setdefault(name, {})
        for labels in list(known) or [()]:
            if known.get(labels) is PointState.VALUE:
                self._point(name, labels, ts, None, state, words, batch)
            elif known.get(labels) is not state or self._words.get((name, labels)) != words:
                self._latest(name, labels, ts, None, state, words, batch)

    def _point(
        self, name: str, labels: Labels, ts: float, value: float | None, state: PointState, words: tuple[str, str],
        batch: Batch,
    ) -> None:  # fmt: skip
        batch.points.append((self._series(name, labels), round(ts * 1000), value, int(state)))
        self._latest(name, labels, ts, value, state, words, batch)

    def _latest(
        self, name: str, labels: Labels, ts: float, value: float | None, state: PointState, words: tuple[str, str],
        batch: Batch,
    ) -> None:  # fmt: skip
        self._known.setdefault(name, {})[labels] = state
        self._words[(name, labels)] = words
        batch.latest.append(LatestRow(self._series(name, labels), round(ts * 1000), value, state, *words))

    def _series(self, name: str, labels: Labels) -> int:
        return self._store.intern(self.run, [SeriesKey("", name, labels)])[0]

    def _send(self, batch: Batch) -> "Future[int]":
        if self.watermark is not None:
            batch.run_fields["watermark"] = round(self.watermark * 1000)
        batch.run_fields.update(self._changed_fields())
        batch.facts = dict(self._stated)
        batch.states = self.deriver.states()
        batch.counters = self._changed_counters()
        return self._submit(batch)

    def _changed_counters(self) -> dict[int, float]:
        current = {self._series(name, value.labels): value.value for name, value in self.deriver.counter_values()}
        changed = {series: value for series, value in current.items() if self._counted.get(series) != value}
        self._counted = current
        return changed

    def _changed_fields(self) -> Mapping[str, str]:
        current = {
            "framework": str(self.deriver.facts.get("framework", "")),
            "mode": self.deriver.mode,
            "lifecycle": self.deriver.lifecycle,
        }
        changed = {name: value for name, value in current.items() if value != self._written.get(name)}
        self._written.update(changed)
        return changed


def carry_of(targets: Mapping[str, tuple[Target, float]]) -> Callable[[str], float]:
    """How long gauges of a target are held: three of its reports, at least 15 s.

    Args:
        targets: name -> (target, the collector's `report_seconds`).
    """

    def carry(name: str) -> float:
        target, report = targets.get(name, (None, TICK_SECONDS))
        interval = target.interval_seconds if target else TICK_SECONDS
        return max(15.0, CARRIED_REPORTS * max(interval, report))

    return carry
