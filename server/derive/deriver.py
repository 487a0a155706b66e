"""From samples and steps to signals: feeds the windows, asks each signal, folds the counters.

No I/O and no clock: `server.derive.driver` brings data in event order and writes the answers down. What must survive
a restart is in `states()` (counters) or can be fed again from the store (windows).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

from collectors.model import Histogram, Labels
from server.derive import restarts
from server.derive.counters import Counters
from server.derive.evaluator import SignalEvaluator
from server.derive.source_priority import SourcePriority
from server.ingest.sandboxes import SandboxArrival
from server.ingest.updates import RolloutArrival
from server.rollouts.window import RolloutBook
from server.signals import Counter, Signal
from server.signals.model import HEARTBEAT, Answer, TargetHealth, Unknown, Value, View, is_gap, unknown_reason
from server.signals.observed_histograms import Histograms
from server.signals.sandbox_window import SandboxBook
from server.signals.window import TRAINER, Gauge, Step, StepBook, StepKey

Emission = tuple[str, float, Answer]
"""(signal name, event time in seconds, answer)."""

DONE = "steps"
GENERATED = "generator_generated_tokens_total"
# DESIGN: loading and compiling take 10 to 40 minutes. What generates for longer than an hour is at work.
STARTING_SECONDS = 3600.0
SPELL = "spell"


class Deriver:
    """All signals of one run. Feed with `sample` and `step`, ask with `tick`; feed in event order.

    Args:
        carry: target name -> seconds its gauges are held without a new sample.
        watched: further metrics whose series are kept: those that alert rules name.
        trust: whose word counts where several targets tell the same.
    """

    def __init__(
        self, items: Iterable[Signal | Counter], carry: Callable[[str], float], watched: Iterable[str] = (),
        trust: SourcePriority | None = None,
    ) -> None:  # fmt: skip
        self._carry, self._trust, self._asker = carry, trust or SourcePriority(), SignalEvaluator()
        items = tuple(items)
        signals = [item for item in items if isinstance(item, Signal) and not item.judged]
        self._ticks = [signal for signal in signals if signal.cadence == "tick"]
        self._steps = [signal for signal in signals if signal.cadence == "step"]
        self._recorded = [signal for signal in self._steps if signal.records]
        self.counting = Counters(item for item in items if isinstance(item, Counter))
        self.counted_metrics = self.counting.metrics
        read = frozenset(m for signal in self._ticks for m in signal.inputs)
        self.tick_metrics = read | self.counted_metrics | frozenset(watched) | {restarts.STARTED}
        self.gauges: dict[str, dict[tuple[str, Labels], Gauge]] = {}
        self.histograms = Histograms()
        # Grows when a series comes or goes: until then what was worked out of their labels holds.
        self.shape = 0
        self.health: dict[str, TargetHealth] = {}
        self.sandboxes, self.rollouts = SandboxBook(), RolloutBook()
        # When the run last began to run, the newest life seen, and when its newest step was met.
        self.running_since: float | None = None
        self.life = -1
        self.step_met: float | None = None
        self._generating_since: float | None = None
        self.book = StepBook()
        self.facts: dict[str, str | float] = {}
        self.mode = ""
        self.lifecycle = "starting"
        self.sources: dict[str, set[str]] = {}
        self._said: dict[str, str] = {}
        self._step_metrics: set[str] = set()
        self._met = 0
        # What each target's steps have held so far, and the signals to be asked for every step of the trainer.
        self._noted: dict[str, set[StepKey]] = {}
        self._due: list[Signal] | None = None
        self._by_tick = {signal.name: signal for signal in self._ticks}
        # The newest step of each axis that was answered: after a restart the driver goes on behind it.
        self.done: dict[str, tuple[int, int]] = {}

    # ---- feeding

    def sample(
        self, ts: float, target: str, metric: str, labels: Labels, value: float | Histogram, *, counted: bool = False
    ) -> None:
        """One sample of a gauge, a counter or a histogram. Metrics no tick signal reads cost nothing here.

        ``counted``: seen before a restart, already in the stored totals; it is only the base of the next increase.
        """
        if metric not in self.tick_metrics:
            return
        if metric == restarts.STARTED and not isinstance(value, Histogram):
            for zero in restarts.begun(self.gauges, self.histograms, ts, target, labels, value):
                self.sample(*zero, counted=counted)
        series, key = self.gauges.get(metric), (target, labels)
        if series is None or target not in self.sources.get(metric, ()):
            self._tells(metric, target)
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

    def see(self, target: TargetHealth) -> None:
        """How a target answered. Of one that is gone the series end; what was counted stays, for it may come back."""
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
        """One change of a sandbox. ``counted``: known before a restart, already in the stored totals."""
        self.counting.recorded = True
        row = arrival.row
        self.sandboxes.put(
            arrival.ts, row.record, own=row.own, dangling=row.dangling, created=arrival.created,
            became_ready=arrival.became_ready, met=row.first_seen / 1000,
        )  # fmt: skip
        if row.own and not counted:
            self.counting.sandbox(arrival)

    def rollout(self, arrival: RolloutArrival, *, counted: bool = False) -> None:
        """What became known of a rollout. ``counted``: known before a restart, already in the totals."""
        if arrival.row.target not in self.rollouts.tellers:
            self._said.clear()
            # Of a format that tells failures none told is none.
            told = self._trust.gives(arrival.row.target, "infra_failure_ratio")
            self.rollouts.failures_told = self.rollouts.failures_told or told
        self.rollouts.put(arrival.row, arrival.group)
        if not counted:
            self.counting.rollout(arrival)

    def step(
        self, axis: str, incarnation: int, number: int, ts: float, target: str, values: Mapping[StepKey, float]
    ) -> list[Emission]:
        """Values of one step: answers of every step signal that reads one of them, at the step's time."""
        kept = self.book.get(axis, incarnation, number)
        told = self._counted(Step(axis, incarnation, number, ts, _finite(values)), target)
        if kept is not None and kept.values.items() >= told.items():
            return []  # an old row read again says nothing new, nor does one of less weight
        window = self.facts.get("logging_steps") if axis == TRAINER else None
        self.counting.step(axis, incarnation, number, told, window if isinstance(window, (int, float)) else None)
        self._remember(axis, incarnation, number, ts, target, told)
        if self.lifecycle == "starting":
            self.begin(ts)
        if incarnation > self.life:
            # A new life loads and compiles before its first step: its clock starts anew.
            self.running_since = max(ts, self.running_since or ts) if self.life >= 0 else self.running_since
            self.life = incarnation
        if self.book.get(axis, incarnation, number) is None:
            return []  # older than every window
        self.done[axis] = max(self.done.get(axis, (-1, -1)), (incarnation, number))
        metrics = {metric for metric, _ in told}
        trained = self.book.newest(TRAINER)
        if axis == TRAINER or trained is None:
            return self._answers(ts if kept is None else kept.ts, self._step_metrics if axis == TRAINER else metrics)
        # A row of another axis is judged when the trainer has consumed its step; one that comes later, at once.
        return self._answers(trained.ts, metrics) if number <= trained.number else []

    def recall(
        self, axis: str, incarnation: int, number: int, ts: float, target: str, values: Mapping[StepKey, float]
    ) -> None:
        """Remember a step for the windows of later ones, without an answer."""
        told = self._counted(Step(axis, incarnation, number, ts, _finite(values)), target)
        self._remember(axis, incarnation, number, ts, target, told)

    def _counted(self, step: Step, target: str) -> dict[StepKey, float]:
        step.tellers = dict.fromkeys(step.values, target)
        return self._trust.counted(self.book.get(step.axis, step.incarnation, step.number), step)

    def _remember(
        self, axis: str, incarnation: int, number: int, ts: float, target: str, values: Mapping[StepKey, float]
    ) -> None:
        self.book.put(axis, incarnation, number, ts, values).tellers.update(dict.fromkeys(values, target))
        noted = self._noted.setdefault(target, set())
        if not noted.issuperset(values):
            noted.update(values)
            self._step_metrics.update(metric for metric, _ in values)
            self._due = None
            for metric, _ in values if target else ():
                self._tells(metric, target)

    def _tells(self, metric: str, target: str) -> None:
        targets = self.sources.setdefault(metric, set())
        if target not in targets:
            targets.add(target)
            self._said.clear()

    def _answers(self, now: float, metrics: set[str]) -> list[Emission]:
        return self._asker.answers(self._asked(metrics), self.view(now))

    def _asked(self, metrics: set[str]) -> list[Signal]:
        """Step signals that read one of the metrics. Those of all that any step held are asked at every step."""
        if metrics is not self._step_metrics:
            return [signal for signal in self._steps if not metrics.isdisjoint(signal.inputs)]
        if self._due is None:
            self._due = [signal for signal in self._steps if not metrics.isdisjoint(signal.inputs)]
        return self._due

    # ---- asking

    def grown(self) -> bool:
        """Was a metric met since this was asked last?"""
        before, self._met = self._met, len(self._step_metrics) + len(self.gauges)
        return self._met != before

    def reports(self, metric: str) -> bool:
        """Has any target told it?"""
        return metric in self._step_metrics or metric in self.gauges

    @property
    def reported(self) -> tuple[int, int]:
        """Another when `reports` may answer otherwise."""
        return self.shape, len(self._step_metrics)

    def view(self, now: float) -> View:
        gauges = {metric: self._trust.told(metric, series.values(), now) for metric, series in self.gauges.items()}
        targets = tuple(self.health.values())
        return View(
            now, self.mode, self.lifecycle, self.facts, gauges, self.book, targets, self.sandboxes,
            self.running_since, self.step_met, self.histograms.by_metric(), self.rollouts,
        )  # fmt: skip

    def tick(self, now: float, grid: float = 0.0) -> list[Emission]:
        """Answers of every tick signal at `now`, and of those from rollout records when any came since the last.

        ``grid``: seconds between ticks where history is worked off on a wider grid than the live one.
        """
        view, asked = self.view(now), self._ticks
        if self.rollouts.changed:
            self.rollouts.changed, asked = False, [*self._ticks, *self._recorded]
        found = self._asker.answers(asked, view)
        self.counting.answered(found, grid)
        return found

    def steps_now(self, now: float) -> list[Emission]:
        """Answers of every step signal as of `now`: what a run without any step, or of a new mode, has to say."""
        return self._asker.answers(self._steps, self.view(now))

    def alive(self, now: float) -> bool:
        """Does any series still report? If not, further ticks would say the same."""
        gauges = (gauge.fresh(now) for series in self.gauges.values() for gauge in series.values())
        return any(gauges) or self.histograms.fresh(now)

    def works(self, now: float) -> bool:
        """Is a run that says nothing of itself at work? A heartbeat says so, its sandboxes, and engines that generate.

        Beside a trainer that was ever read, engines alone prove nothing (warm-up generates too): until an hour is
        over, in which every run has loaded and compiled.
        """
        trainers = [one for one in self.health.values() if one.actor == "trainer" and one.last_ok_ts is not None]
        # Nobody asks for sandboxes before there are rollouts to run, however long the first step then takes.
        if any(one.kind == HEARTBEAT for one in trainers) or self.sandboxes.own or self.rollouts.met:
            return True
        generated = self.counting.states.get(GENERATED)
        if generated is None or not any(generated.totals.values()):
            return False
        if self._generating_since is None:
            self._generating_since = now
        return bool(self.health) and (not trainers or now - self._generating_since > STARTING_SECONDS)

    def begin(self, now: float) -> None:
        """The run begins (again) to run: what happened before says nothing of how long its open step takes."""
        self.lifecycle, self.running_since = "running", now

    def forget(self, now: float) -> None:
        """Drop series silent for ten windows: engines come and go, memory must not follow.

        Those of a target that is down stay: an alert on one of them holds until somebody knows better.
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
        """What a signal with a memory remembers; None: nothing yet."""
        return self._asker.memory.get(name)

    # ---- surviving a restart

    def states(self) -> dict[str, tuple[int, str]]:
        """Fold states as JSON with their code version, to be stored with the answers they led to."""
        found = self.counting.save()
        spell = {SPELL: (1, json.dumps([self.running_since, self.life]))} if self.running_since is not None else {}
        return found | spell | self._asker.states() | ({DONE: (1, json.dumps(self.done))} if self.done else {})

    def restore(self, states: Mapping[str, tuple[int, str]]) -> None:
        """Take stored states back; one of another code version, or a total that cannot be, begins anew."""
        if SPELL in states:
            self.running_since, self.life = json.loads(states[SPELL][1])
        if DONE in states:
            self.done = {axis: (int(n[0]), int(n[1])) for axis, n in json.loads(states[DONE][1]).items()}
        self.counting.restore(states)
        self._asker.restore([*self._ticks, *self._steps], states)

    def data_time(self, name: str, now: float) -> float:
        """When the newest sample behind a tick signal was taken: what "age" means. `now` for step signals.

        Not the oldest: one engine that died, or one gauge that was pushed once, would age a fleet that reports.
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
        if signal.name not in self._said:
            self._said[signal.name] = self._source(signal)
        return self._said[signal.name]

    def _source(self, signal: Signal | Counter) -> str:
        inputs = signal.inputs if isinstance(signal, Signal) else (signal.metric,)
        names = {target for metric in inputs for target in self.sources.get(metric, ())}
        if signal.of == "rollout" if isinstance(signal, Counter) else signal.records:
            names |= self.rollouts.tellers
        return _listed(sorted(names))


def _finite(values: Mapping[StepKey, float]) -> dict[StepKey, float]:
    """As the store keeps them: what is no number is not told, so that a restart changes nothing."""
    return {key: value for key, value in values.items() if isfinite(value)}


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


__all__ = ["Deriver", "Emission", "Unknown", "is_gap", "unknown_reason"]
