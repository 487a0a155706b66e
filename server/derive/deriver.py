"""Derives signals from samples and steps: fills the windows, evaluates each signal, adds up the counters.

No I/O and no clock: `server.derive.driver` feeds data in event order and writes the answers. After a restart, counters
are loaded from `states()` and windows are filled again from the store.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import isfinite, isnan
from typing import Any

from collectors.catalog import LARGEST, METRICS
from collectors.model import Histogram, Labels
from server.derive.source_priority import SourcePriority
from server.ingest.arrivals import RolloutArrival
from server.ingest.rollouts import leaves
from server.ingest.sandboxes import SandboxArrival
from server.rollouts.window import RolloutBook
from server.signals import Counter, Signal
from server.signals.model import (
    HEARTBEAT,
    Answer,
    NotApplicable,
    TargetState,
    Unknown,
    Value,
    View,
    is_gap,
    memory_json,
    unknown_reason,
)
from server.signals.observed_histograms import Histograms
from server.signals.sandbox_spinup import PARTS as SPINUP
from server.signals.sandbox_window import SandboxBook, spinup
from server.signals.window import TRAINER, Gauge, Step, StepBook, StepKey

# ---- evaluator
# Evaluates signals.

log = logging.getLogger("rollscope.signals")

PREFIX = "fold:"


@dataclass(slots=True)
class SignalEvaluator:
    """Evaluates the signals of one run. Each error is logged once and is the reason of every Unknown it causes.

    Attributes:
        memory: by signal name, of the signals with a memory.
    """

    memory: dict[str, Any] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _logged: set[tuple[str, str]] = field(default_factory=set)

    def answers(self, items: Iterable[Signal], view: View) -> list[tuple[str, float, Answer]]:
        """(signal, time, answer) of each signal; Unknown where the computation failed."""
        return [(item.name, view.now, self._answer(item, view)) for item in items]

    def _answer(self, signal: Signal, view: View) -> Answer:
        try:
            answer = signal.compute(view) if signal.remember is None else self._remembered(signal, view)
        except Exception as error:  # noqa: BLE001 - the next tick would fail too; the other signals do not depend on it
            return self._fault(signal.name, type(error).__name__, error)
        if isinstance(answer, (list, tuple)):
            for value in answer:
                if not isfinite(value.value) and not _explained(value):
                    return self._fault(signal.name, "no finite number", None)
        return answer

    def _remembered(self, signal: Signal, view: View) -> Answer:
        assert signal.remember is not None
        self.memory[signal.name], answer = signal.remember(self.memory.get(signal.name), view)
        self._versions[signal.name] = signal.version
        return answer

    # ---- restart

    def states(self) -> dict[str, tuple[int, str]]:
        """Memories as JSON text with the version of the code."""
        return {PREFIX + name: (self._versions[name], memory_json(memory)) for name, memory in self.memory.items()}

    def restore(self, signals: Iterable[Signal], states: Mapping[str, tuple[int, str]]) -> None:
        """Load stored memories. A memory of another version is dropped."""
        for signal in signals:
            version, text = states.get(PREFIX + signal.name, (0, ""))
            if signal.remember is not None and version == signal.version:
                self.memory[signal.name], self._versions[signal.name] = json.loads(text), version

    def _fault(self, name: str, what: str, error: Exception | None) -> Unknown:
        if (name, what) not in self._logged:
            self._logged.add((name, what))
            log.error("signal %s could not be computed: %s", name, error or what, exc_info=error)
        return Unknown(f"{name} could not be computed: {what}")


def _explained(value: Value) -> bool:
    """Is this a missing value that states its reason?"""
    return isnan(value.value) and bool(value.why)


# ---- restarts
# Detects that a source restarted, by the start time of its process.

STARTED = "generator_start_time_seconds"
# Some sources compute their start time from the machine's clock for each page, so it varies.
JITTER_SECONDS = 1.0

Series = Mapping[str, Mapping[tuple[str, Labels], Gauge]]


def begun(
    gauges: Series, histograms: Histograms, ts: float, target: str, labels: Labels, since: float
) -> list[tuple[float, str, str, Labels, float]]:
    """What a page of `ts` that tells this start time says of the time before it: each counter was zero at the start.

    Nothing where the process is one of those known. The next reading of its histograms counts whole.
    """
    at = _began(gauges.get(STARTED, {}).get((target, labels)), ts, since)
    if at is None:
        return []
    histograms.begin(target, labels)
    return [(at, target, metric, own, 0.0) for metric, own in _counting(gauges, target, labels)]


def _began(gauge: Gauge | None, ts: float, since: float) -> float | None:
    """When, on the clock of the pages, a process other than those known began; None: it is one of them.

    Two that answer by turns are no restarts: it must be younger than all of the last minutes.
    """
    if gauge is None or since == gauge.last or since <= max(value for _, value in gauge.points) + JITTER_SECONDS:
        return None
    # By its own machine's clock, where that can be right: after the last page of the one before.
    return since if gauge.last_ts < since < ts else (gauge.last_ts + ts) / 2


def _counting(gauges: Series, target: str, labels: Labels) -> Iterator[tuple[str, Labels]]:
    """(metric, labels) of the counters that the process tells: those of its page, or of its replica."""
    for metric, series in gauges.items():
        if metric in METRICS and METRICS[metric].kind == "counter":
            for name, own in series:
                if name == target and set(labels) <= set(own):
                    yield metric, own


# ---- counters
# Rollscope's own counters.

# Seconds. Between ticks further apart than this, and than their grid, nothing was collected.
WATCHED_SECONDS = 60.0

# Kinds whose last values are stored with the totals. The last values of engines and records are in the store's samples.
_SEEN = ("step", "signal")
# Label sets of one counter. Engines have five finish reasons; further ones are added to "other".
MAX_LABELS = 100


@dataclass(slots=True)
class CounterState:
    """Totals of one counter by its labels, and the last value of each source (a series, or an axis of steps)."""

    totals: dict[str, float] = field(default_factory=dict)
    seen: dict[str | tuple[str, Labels], list[float]] = field(default_factory=dict)

    def add(self, labels: Labels, amount: float) -> None:
        key = _as_text(labels)
        if key not in self.totals and len(self.totals) >= MAX_LABELS:
            key = json.dumps([(name, "other") for name, _ in labels])
        self.totals[key] = self.totals.get(key, 0.0) + amount

    def total(self, labels: Labels) -> float:
        return self.totals.get(_as_text(labels), 0.0)


@lru_cache(maxsize=1024)
def _as_text(labels: Labels) -> str:
    return json.dumps(labels)


class Counters:
    """The counters of one run. ``states``: totals and last values by counter name."""

    def __init__(self, counters: Iterable[Counter]) -> None:
        self._counters = list(counters)
        self.states = {counter.name: CounterState() for counter in self._counters}
        # Does any source report single sandboxes by record?
        self.recorded = False
        self._of_engines: dict[str, list[Counter]] = {}
        for counter in self._counters:
            if metric := counter.metric if counter.of == "counter" else counter.also:
                self._of_engines.setdefault(metric, []).append(counter)
        self.metrics = frozenset(self._of_engines)
        self._of_signals = {counter.metric: counter for counter in self._counters if counter.of == "signal"}

    def sample(self, metric: str, ts: float, key: tuple[str, Labels], value: float, counted: bool) -> None:
        """Add a sample of an engine's counter. ``counted``: it is already in the totals."""
        for counter in self._of_engines.get(metric, ()):
            # A sandbox with a record is counted by the record alone.
            self._sample(counter, ts, key, value, counted or (bool(counter.also) and self.recorded))

    def _sample(self, counter: Counter, ts: float, key: tuple[str, Labels], value: float, counted: bool) -> None:
        """Add the increase since the last sample. A decrease is a reset, and the new value is then the increase."""
        state = self.states[counter.name]
        before = state.seen.get(key)
        if before is not None and ts <= before[0]:
            return
        labels = tuple([pair for pair in key[1] if pair[0] in counter.by]) if counter.by else ()
        increase = 0.0 if before is None else value - before[1] if value >= before[1] else value
        state.add(labels, 0.0 if counted else increase)
        state.seen[key] = [ts, value]

    def sandbox(self, arrival: SandboxArrival) -> None:
        """Count a change of one of the run's sandboxes."""
        happened = {"sandbox_created": arrival.created, "sandbox_failed": arrival.failed}
        for counter in self._counters:
            if counter.of == "sandbox" and happened.get(counter.metric):
                labels = (("cause", arrival.row.cause or "unknown"),) if "cause" in counter.by else ()
                self.states[counter.name].add(labels, 1.0)
        if arrival.became_ready:
            self._spun_up(spinup(arrival.row))

    def _spun_up(self, seconds: float | None) -> None:
        """Add a spin-up to its histogram: cumulative buckets, sum and count are three counters."""
        for counter in self._counters if seconds is not None else ():
            if counter.metric == "sandbox_spinup":
                for labels, amount in SPINUP[counter.name](seconds or 0.0):
                    self.states[counter.name].add(labels, amount)

    def rollout(self, arrival: RolloutArrival) -> None:
        """Count a rollout that left and a group that was closed, each once and with its first outcome.

        A later correction changes the funnel only. A counter that decreases would look like a reset.
        """
        if leaves(arrival.row) and not (arrival.before is not None and leaves(arrival.before)):
            self.happened("rollout_left", arrival.row.state)
        group = arrival.group
        if arrival.closed and group is not None:
            self.happened("group_closed", group.outcome)

    def happened(self, what: str, label: str, times: float = 1.0) -> None:
        """Add to the rollout counter of an event."""
        for counter in self._counters:
            if counter.metric == what:
                self.states[counter.name].add(((counter.by[0], label),), times)

    def happened_yet(self, what: str, label: str) -> float:
        """The count of a rollout event so far."""
        counters = [counter for counter in self._counters if counter.metric == what]
        return sum(self.states[one.name].total(((one.by[0], label),)) for one in counters)

    def step(
        self, axis: str, incarnation: int, number: int, values: Mapping[StepKey, float], window: float | None
    ) -> None:
        """Count each step once, in order; a row that is read again adds nothing.

        ``window``: steps per logged row from the trainer's configuration, at most the steps since the previous row.
        """
        for counter in self._counters:
            amount = values.get((counter.metric, ())) if counter.of == "step" else None
            if amount is None:
                continue
            state = self.states[counter.name]
            last = state.seen.get(axis, [-1.0, -1.0])
            if (incarnation, number) > (last[0], last[1]):
                before = int(last[1]) if last[0] == incarnation else 0
                state.add((), amount * (1.0 if window is None else max(1.0, min(window, float(number - before)))))
                state.seen[axis] = [float(incarnation), float(number)]

    def answered(self, emissions: Iterable[tuple[str, float, Answer]], grid: float = 0.0) -> None:
        """Integrate signals per hour over the time since the previous tick; a repeated tick adds nothing."""
        for name, now, answer in emissions:
            counter = self._of_signals.get(name)
            if counter is not None:
                self._integrate(counter, now, () if isinstance(answer, (Unknown, NotApplicable)) else answer, grid)

    def _integrate(self, counter: Counter, now: float, values: Iterable[Value], grid: float) -> None:
        state = self.states[counter.name]
        (before,) = state.seen.get("tick", [now])
        state.seen["tick"] = [max(now, before)]
        watched = now - before if now - before <= max(WATCHED_SECONDS, grid) else 0.0
        for value in values if watched > 0 else ():
            if not isnan(value.value):
                labels = tuple([pair for pair in value.labels if pair[0] in counter.by])
                state.add(labels, value.value * watched / 3600)

    def values(self) -> list[tuple[str, Value]]:
        """Every counter's totals by its labels."""
        return [
            (name, Value(total, tuple((k, v) for k, v in json.loads(labels))))
            for name, state in self.states.items()
            for labels, total in state.totals.items()
        ]

    # ---- restart

    def save(self) -> dict[str, tuple[int, str]]:
        """Totals as JSON text with the version of the code.

        Last values of engines are read from the store's samples instead. With a thousand engines they would be the
        largest write of a tick.
        """
        return {
            counter.name: (counter.version, json.dumps([state.totals, state.seen if counter.of in _SEEN else {}]))
            for counter in self._counters
            if (state := self.states[counter.name]).seen or state.totals
        }

    def restore(self, states: Mapping[str, tuple[int, str]]) -> None:
        """Load stored states. A state of another version is dropped."""
        for counter in self._counters:
            version, text = states.get(counter.name, (0, ""))
            if version == counter.version:
                totals, seen = json.loads(text)
                # Older versions accepted implausible values; such a total would outweigh all later increases.
                sound = {labels: total for labels, total in totals.items() if abs(total) <= LARGEST}
                self.states[counter.name] = CounterState(sound, seen)


Emission = tuple[str, float, Answer]
"""(signal name, event time in seconds, answer)."""

DONE = "steps"
GENERATED = "generator_generated_tokens_total"
# Gauges that come with steps hold for so many of the longest of so many steps, and for this time (s) at most: a later
# step is late. Of few steps, so that a restart, which knows the last ones only, changes nothing.
HELD_STEPS, HELD_OF, MOST_HELD_SECONDS = 1.5, 10, 1800.0
# Seconds. Loading and compiling take 10 to 40 minutes; engines that generate for an hour serve a run.
STARTING_SECONDS = 3600.0
# Key of the stored state: the start of the run and its incarnation.
RUNNING = "spell"


class Deriver:
    """Derives all signals of one run. Data comes with `sample` and `step` in event order; `tick` evaluates.

    Args:
        carry: target name -> seconds its gauges are held without a new sample.
        watched: further metrics whose series are kept: those that alert rules name.
        priority: decides which value counts where several targets report the same.
    """

    def __init__(
        self, items: Iterable[Signal | Counter], carry: Callable[[str], float], watched: Iterable[str] = (),
        priority: SourcePriority | None = None,
    ) -> None:  # fmt: skip
        self._carry, self._priority, self._evaluator = carry, priority or SourcePriority(), SignalEvaluator()
        items = tuple(items)
        signals = [item for item in items if isinstance(item, Signal) and not item.judged]
        self._ticks = [signal for signal in signals if signal.cadence == "tick"]
        self._steps = [signal for signal in signals if signal.cadence == "step"]
        self._recorded = [signal for signal in self._steps if signal.records]
        self.counting = Counters(item for item in items if isinstance(item, Counter))
        self.counted_metrics = self.counting.metrics
        read = frozenset(m for signal in self._ticks for m in signal.inputs)
        self.tick_metrics = read | self.counted_metrics | frozenset(watched) | {STARTED}
        self.gauges: dict[str, dict[tuple[str, Labels], Gauge]] = {}
        self.histograms = Histograms()
        # Increases when a series comes or goes. What was derived from labels is valid until then.
        self.shape = 0
        self.health: dict[str, TargetState] = {}
        self.sandboxes, self.rollouts = SandboxBook(), RolloutBook()
        # When the run last started, its newest incarnation, and when its newest step was fed.
        self.running_since: float | None = None
        self.incarnation = -1
        self.step_met: float | None = None
        self._generating_since: float | None = None
        self.book = StepBook()
        self.facts: dict[str, str | float] = {}
        self.mode = ""
        self.lifecycle = "starting"
        self.sources: dict[str, set[str]] = {}
        self._source_texts: dict[str, str] = {}
        self._step_metrics: set[str] = set()
        self._metric_count = 0
        # Keys of each target's steps so far, and the signals that every step of the trainer evaluates.
        self._seen_keys: dict[str, set[StepKey]] = {}
        self._trainer_signals: list[Signal] | None = None
        self._by_tick = {signal.name: signal for signal in self._ticks}
        # The newest evaluated step of each axis. After a restart the driver continues with the next one.
        self.done: dict[str, tuple[int, int]] = {}

    # ---- feeding

    def sample(
        self, ts: float, target: str, metric: str, labels: Labels, value: float | Histogram, *, counted: bool = False
    ) -> None:
        """One sample of a gauge, a counter or a histogram. Metrics that no tick signal reads are skipped.

        ``counted``: from before a restart; the stored totals contain it, so it is only the base of the next increase.
        """
        if metric not in self.tick_metrics:
            return
        if metric == STARTED and not isinstance(value, Histogram):
            for zero in begun(self.gauges, self.histograms, ts, target, labels, value):
                self.sample(*zero, counted=counted)
        series, key = self.gauges.get(metric), (target, labels)
        if series is None or target not in self.sources.get(metric, ()):
            self._add_source(metric, target)
            series = self.gauges.setdefault(metric, {})
        if isinstance(value, Histogram):
            self.histograms.read(ts, target, value, self._carry(target))
            return
        if metric in self.counted_metrics:
            self.counting.sample(metric, ts, key, value, counted)
        gauge = series.get(key)
        if gauge is None:
            gauge = series[key] = Gauge(target, metric, labels, self._carry(target))
            self.shape += 1
        gauge.add(ts, value)

    def see(self, target: TargetState) -> None:
        """Record the health of a target. The series of a removed target end; its totals stay, because it may return."""
        if not target.gone:
            self.health[target.name] = target
            return
        self.health.pop(target.name, None)
        for pool in self.histograms.pools.values():
            if ("target", target.name) in pool.labels:
                pool.until = target.last_ts
        for series in self.gauges.values():
            for key in [key for key in series if key[0] == target.name]:
                del series[key]
                self.shape += 1

    def sandbox(self, arrival: SandboxArrival, *, counted: bool = False) -> None:
        """Record a change of a sandbox. ``counted``: from before a restart; the stored totals contain it."""
        self.counting.recorded = True
        row = arrival.row
        self.sandboxes.put(
            arrival.ts, row, own=row.own, dangling=row.dangling, created=arrival.created,
            became_ready=arrival.became_ready, met=row.first_seen,
        )  # fmt: skip
        if row.own and not counted:
            self.counting.sandbox(arrival)

    def rollout(self, arrival: RolloutArrival, *, counted: bool = False) -> None:
        """Record a change of a rollout. ``counted``: from before a restart; the stored totals contain it."""
        if arrival.row.target not in self.rollouts.tellers:
            self._source_texts.clear()
            # A format that reports failures reports zero by having none.
            reported = self._priority.gives(arrival.row.target, "infra_failure_ratio")
            self.rollouts.failures_told = self.rollouts.failures_told or reported
        self.rollouts.put(arrival.row, arrival.group)
        if not counted:
            self.counting.rollout(arrival)

    def step(
        self, axis: str, incarnation: int, number: int, ts: float, target: str, values: Mapping[StepKey, float]
    ) -> list[Emission]:
        """Add values of one step; returns the answers of every step signal that reads one, at the step's time."""
        stored = self.book.get(axis, incarnation, number)
        counted = self._counted(Step(axis, incarnation, number, ts, _finite(values)), target)
        if stored is not None and stored.values.items() >= counted.items():
            return []  # the row was read before, or its values rank lower
        window = self.facts.get("logging_steps") if axis == TRAINER else None
        self.counting.step(axis, incarnation, number, counted, window if isinstance(window, (int, float)) else None)
        self._remember(axis, incarnation, number, ts, target, counted)
        self._hold_gauges(axis, incarnation, number, target, counted)
        if self.lifecycle == "starting":
            self.begin(ts)
        if incarnation > self.incarnation:
            # A new incarnation loads and compiles before its first step, so its time starts again.
            self.running_since = max(ts, self.running_since or ts) if self.incarnation >= 0 else self.running_since
            self.incarnation = incarnation
        if self.book.get(axis, incarnation, number) is None:
            return []  # older than every window
        self.done[axis] = max(self.done.get(axis, (-1, -1)), (incarnation, number))
        if axis == TRAINER:
            return self._answers(ts if stored is None else stored.ts, self._step_metrics)
        metrics, trained = {metric for metric, _ in counted}, self.book.newest(TRAINER)
        if trained is None:
            return self._answers(ts if stored is None else stored.ts, metrics)
        # A row of another axis counts when the trainer has consumed its step; a later row counts at once.
        return self._answers(trained.ts, metrics) if number <= trained.number else []

    def _hold_gauges(self, axis: str, incarnation: int, number: int, target: str, values: Iterable[StepKey]) -> None:
        """Holds gauges that come with a step until the next step: a log of slow steps is not silent in between."""
        gauges = [
            gauge
            for metric, labels in values
            if (gauge := self.gauges.get(metric, {}).get((target, labels))) is not None
        ]
        if gauges:
            last = (self.book.get(axis, incarnation, one) for one in range(number - HELD_OF, number + 1))
            ends = [step.ts for step in last if step is not None]
            held = min(MOST_HELD_SECONDS, HELD_STEPS * max((b - a for a, b in pairwise(ends)), default=0.0))
            for gauge in gauges:
                gauge.hold(held)

    def recall(
        self, axis: str, incarnation: int, number: int, ts: float, target: str, values: Mapping[StepKey, float]
    ) -> None:
        """Add a step to the windows without an evaluation."""
        counted = self._counted(Step(axis, incarnation, number, ts, _finite(values)), target)
        self._remember(axis, incarnation, number, ts, target, counted)
        self._hold_gauges(axis, incarnation, number, target, counted)

    def _counted(self, step: Step, target: str) -> dict[StepKey, float]:
        step.sources = dict.fromkeys(step.values, target)
        return self._priority.counted(self.book.get(step.axis, step.incarnation, step.number), step)

    def _remember(
        self, axis: str, incarnation: int, number: int, ts: float, target: str, values: Mapping[StepKey, float]
    ) -> None:
        self.book.put(axis, incarnation, number, ts, values).sources.update(dict.fromkeys(values, target))
        noted = self._seen_keys.setdefault(target, set())
        if not noted.issuperset(values):
            noted.update(values)
            self._step_metrics.update(metric for metric, _ in values)
            self._trainer_signals = None
            for metric, _ in values if target else ():
                self._add_source(metric, target)

    def _add_source(self, metric: str, target: str) -> None:
        targets = self.sources.setdefault(metric, set())
        if target not in targets:
            targets.add(target)
            self._source_texts.clear()

    def _answers(self, now: float, metrics: set[str]) -> list[Emission]:
        return self._evaluator.answers(self._signals_reading(metrics), self.view(now))

    def _signals_reading(self, metrics: set[str]) -> list[Signal]:
        """Step signals that read one of the metrics. The list for a trainer's step is cached."""
        if metrics is not self._step_metrics:
            return [signal for signal in self._steps if not metrics.isdisjoint(signal.inputs)]
        if self._trainer_signals is None:
            self._trainer_signals = [signal for signal in self._steps if not metrics.isdisjoint(signal.inputs)]
        return self._trainer_signals

    # ---- evaluation

    def has_new_metrics(self) -> bool:
        """Did a new metric appear since the last call?"""
        before, self._metric_count = self._metric_count, len(self._step_metrics) + len(self.gauges)
        return self._metric_count != before

    def reports(self, metric: str) -> bool:
        """Has any target reported the metric?"""
        return metric in self._step_metrics or metric in self.gauges

    @property
    def reported(self) -> tuple[int, int]:
        """A value that changes when the result of `reports` may change."""
        return self.shape, len(self._step_metrics)

    def view(self, now: float) -> View:
        gauges = {
            metric: self._priority.counted_gauges(metric, series.values(), now)
            for metric, series in self.gauges.items()
        }
        targets = tuple(self.health.values())
        return View(
            now, self.mode, self.lifecycle, self.facts, gauges, self.book, targets, self.sandboxes,
            self.running_since, self.step_met, self.histograms.by_metric(), self.rollouts,
        )  # fmt: skip

    def tick(self, now: float, grid: float = 0.0) -> list[Emission]:
        """Answers of every tick signal at `now`, and of signals from rollout records when new ones came.

        ``grid``: seconds between ticks in history, where it is wider than the live one.
        """
        view, signals = self.view(now), self._ticks
        if self.rollouts.changed:
            self.rollouts.changed, signals = False, [*self._ticks, *self._recorded]
        answers = self._evaluator.answers(signals, view)
        self.counting.answered(answers, grid)
        return answers

    def steps_now(self, now: float) -> list[Emission]:
        """Answers of every step signal at `now`, for a run without any step or with a new mode."""
        return self._evaluator.answers(self._steps, self.view(now))

    def alive(self, now: float) -> bool:
        """Does any series still report? Without one, further ticks would have the same answers."""
        gauges = (gauge.fresh(now) for series in self.gauges.values() for gauge in series.values())
        return any(gauges) or self.histograms.fresh(now)

    def is_running(self, now: float) -> bool:
        """Is a run without steps running? Evidence is a heartbeat, its sandboxes, or engines that generate.

        Where a trainer was read, engines count only after an hour of generation, because warm-up generates too.
        """
        trainers = [one for one in self.health.values() if one.actor == "trainer" and one.last_ok_ts is not None]
        # Sandboxes are requested only when there are rollouts to run.
        if any(one.collector == HEARTBEAT for one in trainers) or self.sandboxes.own or self.rollouts.met:
            return True
        generated = self.counting.states.get(GENERATED)
        if generated is None or not any(generated.totals.values()):
            return False
        if self._generating_since is None:
            self._generating_since = now
        return bool(self.health) and (not trainers or now - self._generating_since > STARTING_SECONDS)

    def begin(self, now: float) -> None:
        """Set the run to running from `now`; the duration of its open step counts from here."""
        self.lifecycle, self.running_since = "running", now

    def forget(self, now: float) -> None:
        """Drop series without a sample for ten windows, so that memory does not grow as engines come and go.

        The series of a target that is down stay, so that an alert on one of them does not resolve.
        """
        self.histograms.forget(now)
        for series in self.gauges.values():
            old = [(key, gauge.target) for key, gauge in series.items() if now - gauge.last_ts > 10 * gauge.keep]
            for key in [key for key, target in old if target not in self.health or self.health[target].up]:
                del series[key]
                self.shape += 1

    def counter_values(self) -> list[tuple[str, Value]]:
        """Every counter's totals by its labels."""
        return self.counting.values()

    def memory(self, name: str) -> Any:
        """The memory of a signal; None before its first evaluation."""
        return self._evaluator.memory.get(name)

    # ---- restart

    def states(self) -> dict[str, tuple[int, str]]:
        """States as JSON text with the version of the code; stored in the transaction of the answers."""
        found = self.counting.save()
        running = (
            {RUNNING: (1, json.dumps([self.running_since, self.incarnation]))} if self.running_since is not None else {}
        )
        return found | running | self._evaluator.states() | ({DONE: (1, json.dumps(self.done))} if self.done else {})

    def restore(self, states: Mapping[str, tuple[int, str]]) -> None:
        """Load stored states. A state of another version and an implausible total are dropped."""
        if RUNNING in states:
            self.running_since, self.incarnation = json.loads(states[RUNNING][1])
        if DONE in states:
            self.done = {axis: (int(n[0]), int(n[1])) for axis, n in json.loads(states[DONE][1]).items()}
        self.counting.restore(states)
        self._evaluator.restore([*self._ticks, *self._steps], states)

    def data_time(self, name: str, now: float) -> float:
        """Time of the newest sample of a tick signal's inputs; `now` for step signals.

        With the oldest sample, one dead engine or one gauge that was pushed once would make a reporting fleet stale.
        """
        signal = self._by_tick.get(name)
        if signal is None:
            return now
        series = [self.gauges[metric].values() for metric in signal.inputs if metric in self.gauges]
        pools = (pool for pool in self.histograms.pools.values() if pool.metric in signal.inputs)
        # As `Gauge.fresh`, without a call for each of ten thousand.
        times = [one.last_ts for gauges in series for one in gauges if now - one.last_ts <= one.carry]
        times += [pool.last_ts for pool in pools if pool.fresh(now)]
        return max(times, default=now)

    def source(self, signal: Signal | Counter) -> str:
        """The targets behind a signal's inputs, the first three by name."""
        if signal.name not in self._source_texts:
            self._source_texts[signal.name] = self._source(signal)
        return self._source_texts[signal.name]

    def _source(self, signal: Signal | Counter) -> str:
        inputs = signal.inputs if isinstance(signal, Signal) else (signal.metric,)
        names = {target for metric in inputs for target in self.sources.get(metric, ())}
        if signal.of == "rollout" if isinstance(signal, Counter) else signal.records:
            names |= self.rollouts.tellers
        return _listed(sorted(names))


def _finite(values: Mapping[StepKey, float]) -> dict[StepKey, float]:
    """Only finite values. The store has no others, so a restart changes nothing."""
    return {key: value for key, value in values.items() if isfinite(value)}


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


__all__ = ["Deriver", "Emission", "Unknown", "is_gap", "unknown_reason"]
