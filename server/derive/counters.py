"""Counters of ours: what increases, added up exactly once, and what must be remembered for that over a restart."""

import json
from collections.abc import Iterable, Mapping
from math import isnan

from collectors.catalog.row import LARGEST
from collectors.model import Labels
from server.derive.counter_state import CounterState
from server.ingest.rollouts.counted import leaves
from server.ingest.sandboxes import SandboxArrival
from server.ingest.updates import RolloutArrival
from server.signals import Counter
from server.signals.model import Answer, NotApplicable, Unknown, Value
from server.signals.sandbox_window import spinup
from server.signals.spinup_histogram import PARTS as SPINUP
from server.signals.window import StepKey

# Ticks further apart than this, and than the grid they are on, have a time between them in which nothing was collected.
WATCHED_SECONDS = 60.0

# Kinds that remember by themselves what they saw last; what was seen of an engine or a record is in the store.
_SEEN = ("step", "signal")


class Counters:
    """The counters of one run. ``states``: their memory by name."""

    def __init__(self, counters: Iterable[Counter]) -> None:
        self._counters = list(counters)
        self.states = {counter.name: CounterState() for counter in self._counters}
        # Was any sandbox told by a record of its own?
        self.recorded = False
        self._of_engines: dict[str, list[Counter]] = {}
        for counter in self._counters:
            if metric := counter.metric if counter.of == "counter" else counter.also:
                self._of_engines.setdefault(metric, []).append(counter)
        self.metrics = frozenset(self._of_engines)
        self._of_signals = {counter.metric: counter for counter in self._counters if counter.of == "signal"}

    def sample(self, metric: str, ts: float, key: tuple[str, Labels], value: float, counted: bool) -> None:
        """A sample of an engine's counter (target, labels); ``counted``: in the totals, and only a base of the next."""
        for counter in self._of_engines.get(metric, ()):
            # A sandbox that is told by its record counts once.
            self._sample(counter, ts, key, value, counted or (bool(counter.also) and self.recorded))

    def _sample(self, counter: Counter, ts: float, key: tuple[str, Labels], value: float, counted: bool) -> None:
        """Prometheus' rule: a decrease is a reset, the new value is the increase; the first sample is the base."""
        state = self.states[counter.name]
        before = state.seen.get(key)
        if before is not None and ts <= before[0]:
            return
        kept = tuple([pair for pair in key[1] if pair[0] in counter.by]) if counter.by else ()
        grown = 0.0 if before is None else value - before[1] if value >= before[1] else value
        state.add(kept, 0.0 if counted else grown)
        state.seen[key] = [ts, value]

    def sandbox(self, arrival: SandboxArrival) -> None:
        """What happened to a sandbox of the run."""
        happened = {"sandbox_created": arrival.created, "sandbox_failed": arrival.failed}
        for counter in self._counters:
            if counter.of == "sandbox" and happened.get(counter.metric):
                labels = (("cause", arrival.row.record.cause or "unknown"),) if "cause" in counter.by else ()
                self.states[counter.name].add(labels, 1.0)
        if arrival.became_ready:
            self._spun_up(spinup(arrival.row.record))

    def _spun_up(self, seconds: float | None) -> None:
        """The histogram of spin-ups, as its cumulative buckets, sum and count: three counters of ours."""
        for counter in self._counters if seconds is not None else ():
            if counter.metric == "sandbox_spinup":
                for labels, amount in SPINUP[counter.name](seconds or 0.0):
                    self.states[counter.name].add(labels, amount)

    def rollout(self, arrival: RolloutArrival) -> None:
        """A rollout that left, and a group that was closed: each once, as what it was first known to be.

        What is corrected later is right in the funnel; a counter that took one back would seem to have begun anew.
        """
        if leaves(arrival.row) and not (arrival.before is not None and leaves(arrival.before)):
            self.happened("rollout_left", arrival.row.state)
        group = arrival.group
        if arrival.closed and group is not None:
            self.happened("group_closed", group.outcome)

    def happened(self, what: str, label: str, times: float = 1.0) -> None:
        """It happened to rollouts so many times."""
        for counter in self._counters:
            if counter.metric == what:
                self.states[counter.name].add(((counter.by[0], label),), times)

    def happened_yet(self, what: str, label: str) -> float:
        """How often it has happened, as far as counted."""
        counters = [counter for counter in self._counters if counter.metric == what]
        return sum(self.states[one.name].total(((one.by[0], label),)) for one in counters)

    def step(
        self, axis: str, incarnation: int, number: int, values: Mapping[StepKey, float], window: float | None
    ) -> None:
        """Each step is counted once, in order: a row re-read after a crash adds nothing.

        ``window``: steps a row is logged for, as the trainer's configuration says: at most those since the row before.
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
        """What signals said at a tick, per hour, over the time since the tick before; one asked twice adds nothing."""
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
                kept = tuple([pair for pair in value.labels if pair[0] in counter.by])
                state.add(kept, value.value * watched / 3600)

    def values(self) -> list[tuple[str, Value]]:
        """Every counter's totals by its labels."""
        return [
            (name, Value(total, tuple((k, v) for k, v in json.loads(labels))))
            for name, state in self.states.items()
            for labels, total in state.totals.items()
        ]

    # ---- surviving a restart

    def save(self) -> dict[str, tuple[int, str]]:
        """The memory as JSON with its code version.

        What was last seen of an engine is not in it: it is in the store's samples, and a thousand engines
        would make this the largest write of a tick.
        """
        return {
            counter.name: (counter.version, json.dumps([state.totals, state.seen if counter.of in _SEEN else {}]))
            for counter in self._counters
            if (state := self.states[counter.name]).seen or state.totals
        }

    def restore(self, states: Mapping[str, tuple[int, str]]) -> None:
        """Take stored states back; one of another code version is dropped and begins anew."""
        for counter in self._counters:
            version, text = states.get(counter.name, (0, ""))
            if version == counter.version:
                totals, seen = json.loads(text)
                # One of before such values were refused would outweigh everything that comes.
                sound = {labels: total for labels, total in totals.items() if abs(total) <= LARGEST}
                self.states[counter.name] = CounterState(sound, seen)
