"""Rollscope's own counters. Each increase is added exactly once, also over a restart."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan

from collectors.catalog.row import LARGEST
from collectors.model import Labels
from server.ingest.rollouts.totals import leaves
from server.ingest.sandboxes import SandboxArrival
from server.ingest.updates import RolloutArrival
from server.signals import Counter
from server.signals.model import Answer, NotApplicable, Unknown, Value
from server.signals.sandbox_spinup import PARTS as SPINUP
from server.signals.sandbox_window import spinup
from server.signals.window import StepKey

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
                labels = (("cause", arrival.row.record.cause or "unknown"),) if "cause" in counter.by else ()
                self.states[counter.name].add(labels, 1.0)
        if arrival.became_ready:
            self._spun_up(spinup(arrival.row.record))

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
