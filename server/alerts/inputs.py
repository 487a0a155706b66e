"""What rules see of a run at one instant: tables of signals, metrics and targets. Pure: no I/O, no clock.

A signal's row is its newest answer, a metric's row the newest sample of one target's series. What nobody knows just
now is a gap with its reason; what has ended is no row at all, so that the two are never confused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collectors.model import Labels
from server.alerts.model import Condition, Table
from server.signals.model import TargetHealth
from server.signals.window import Gauge, StepBook

TARGET_UP = "target_up"
"""Not a signal with a file of its own: one row per target, as on `/metrics`."""

HISTORY_POINTS = 120
"""Totals kept per counter for `increase`: a window is known to within a hundredth of its length."""


@dataclass(frozen=True, slots=True)
class SignalState:
    """A signal series' newest answer. ``value`` None: a gap (``why``), or, with ``ended``, not there any more."""

    ts: float
    value: float | None
    why: str = ""
    ended: bool = False


@dataclass(slots=True)
class IncreaseTotals:
    """A counter's past, thinned: enough to say how much it grew within a window. Survives restarts as JSON."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, ts: float, total: float, window: float) -> None:
        if self.points and ts < self.points[-1][0] + window / HISTORY_POINTS:
            return
        self.points.append((ts, total))
        while len(self.points) > 1 and self.points[1][0] <= ts - window:
            self.points.pop(0)

    def increase(self, now: float, total: float, window: float) -> float:
        """Growth since the newest kept total at or before the window's start (or the first known one)."""
        before = total
        for ts, value in self.points:
            if ts <= now - window or before == total:
                before = value
        return max(0.0, total - before)


@dataclass(frozen=True, slots=True)
class RunFrame:
    """See `server.alerts.model.Frame`.

    Args:
        signals: signal -> series -> newest answer.
        stale: (signal, its newest data's time) -> why it is too old to be judged, or "".
        gauges, health, steps, shape: the deriver's.
        totals: (signal, window, labels) -> a counter's past, for ``increase`` of a signal.
    """

    now: float
    run: str
    lifecycle: str
    replayed: bool
    signals: Mapping[str, Mapping[Labels, SignalState]]
    stale: Callable[[str, float], str]
    gauges: Mapping[str, Mapping[tuple[str, Labels], Gauge]]
    health: Mapping[str, TargetHealth]
    steps: StepBook
    shape: int
    totals: Mapping[tuple[str, float, Labels], IncreaseTotals] = field(default_factory=dict)
    # A hundred rules may ask for one table: it is made once an instant.
    made: dict[tuple[str, str, str, float, bool], Table | None] = field(default_factory=dict)

    def table(self, condition: Condition) -> Table | None:
        key = (condition.source, condition.name, condition.of, condition.window, condition.summed)
        if key not in self.made:
            self.made[key] = self._make(condition)
        return self.made[key]

    def _make(self, condition: Condition) -> Table | None:
        if condition.name == TARGET_UP:
            return self._targets()
        found = self._signal(condition) if condition.source == "signal" else self._metric(condition)
        return found.summed() if condition.summed and found is not None else found

    def _targets(self) -> Table | None:
        return _table({(("kind", one.kind), ("target", one.name)): self._health(one) for one in self.health.values()})

    def _health(self, one: TargetHealth) -> SignalState:
        if one.known(self.now):
            return SignalState(one.last_ts, float(one.up))
        return SignalState(one.last_ts, None, "not asked lately: this server did not look")

    def missing(self, condition: Condition, series: Labels) -> str:
        if condition.source != "metric":
            return ""
        health = self.health.get(dict(series).get("target", ""))
        return "" if health is None or health.answers(self.now) else f"target {health.name} does not answer"

    def _signal(self, condition: Condition) -> Table | None:
        known = self.signals.get(condition.name, {})
        rows = {labels: now for labels, now in known.items() if not now.ended}
        if known and not rows:
            return Table((), (), {}, 0)  # it ended, or cannot be (not applicable): false, not unknown
        # Before its first labelled value a signal has one row without labels, which says why.
        named = {labels: now for labels, now in rows.items() if labels} or rows
        return _table({labels: self._judged(condition, labels, now) for labels, now in named.items()})

    def _judged(self, condition: Condition, labels: Labels, now: SignalState) -> SignalState:
        if now.value is None:
            return now
        if stale := self.stale(condition.name, now.ts):
            return SignalState(now.ts, None, stale)
        if condition.of == "value":
            return now
        past = self.totals.get((condition.name, condition.window, labels))
        return SignalState(now.ts, past.increase(self.now, now.value, condition.window) if past else 0.0)

    def _metric(self, condition: Condition) -> Table | None:
        series = self.gauges.get(condition.name)
        if not series:
            return self._step_metric(condition.name)
        labels: list[Labels] = []
        values: list[float] = []
        gaps: dict[int, str] = {}
        skipped: list[int] = []
        # The plain case first: this is 10,000 series at every tick.
        for at, gauge in enumerate(series.values()):
            fresh = self.now - gauge.last_ts <= gauge.carry
            value = _value(condition, gauge, self.now) if fresh else math.nan
            if not fresh and self._ended(gauge):
                skipped.append(at)
                continue
            if value != value:
                gaps[len(values)] = "younger than the window" if fresh else f"target {gauge.target} does not answer"
            labels.append(gauge.named)
            values.append(value)
        # All of them over is something else than no source: it makes every condition false.
        return Table(labels, values, gaps, hash((self.shape, tuple(skipped))))

    def _step_metric(self, name: str) -> Table | None:
        """A metric that comes with steps: its newest value of every series."""
        newest: dict[Labels, SignalState] = {}
        for labels, step in self.steps.newest_of(name):
            newest[labels] = SignalState(step.ts, step.values[(name, labels)])
        return _table(newest)

    def _ended(self, gauge: Gauge) -> bool:
        """Did its target answer without it? That the target was up before is no proof."""
        health = self.health.get(gauge.target)
        if health is None:
            return True
        return health.last_ok_ts is not None and health.last_ok_ts > gauge.last_ts + gauge.carry / 3


def _table(rows: Mapping[Labels, SignalState]) -> Table | None:
    if not rows:
        return None
    labels = list(rows)
    values = [now.value if now.value is not None else math.nan for now in rows.values()]
    gaps = {at: now.why for at, now in enumerate(rows.values()) if now.value is None}
    return Table(labels, values, gaps, hash(tuple(labels)))


def _value(condition: Condition, gauge: Gauge, now: float) -> float:
    return gauge.last if condition.of == "value" else increase(gauge, now - condition.window)


def increase(gauge: Gauge, start: float) -> float:
    """Growth of a cumulative counter since `start`; a decrease is a reset: the new value is the growth.

    NaN while the series is younger than the window: nobody knows what it was at its start.
    """
    # From the newest back, and without a sum: between two resets the growth is the difference of the ends. With
    # pairs and a sum this was more than half of what alerting takes of a tick (bench.alerts).
    grown, end = 0.0, gauge.last
    later = end
    for ts, value in reversed(gauge.points):
        if value > later:
            grown, end = grown + end, value
        if ts <= start:
            return grown + end - value
        later = value
    return math.nan
