"""Tables of signals, metrics and targets of a run at one instant, for rules. Pure: no I/O, no clock.

A signal's row is its newest value, a metric's row the newest sample of one target's series. An unknown value is a gap
with its reason; an ended series has no row at all, so that the two differ.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from collectors.model import Labels
from server.alerts.model import Condition, Table
from server.signals.model import TargetState
from server.signals.window import Gauge, StepBook

TARGET_UP = "target_up"
"""Source name that is not a signal: one row per target, as on `/metrics`."""

HISTORY_POINTS = 120
"""Totals stored per counter for `increase`: a window is accurate to a hundredth of its length."""


@dataclass(frozen=True, slots=True)
class SignalState:
    """The newest value of a signal's series. ``value`` None: a gap (``why``), or, with ``ended``, an ended series."""

    ts: float
    value: float | None
    why: str = ""
    ended: bool = False


@dataclass(slots=True)
class IncreaseTotals:
    """A counter's past totals, thinned out: enough for the increase within a window. Stored as JSON."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, ts: float, total: float, window: float) -> None:
        if self.points and ts < self.points[-1][0] + window / HISTORY_POINTS:
            return
        self.points.append((ts, total))
        while len(self.points) > 1 and self.points[1][0] <= ts - window:
            self.points.pop(0)

    def increase(self, now: float, total: float, window: float) -> float:
        """Returns the increase since the newest stored total at or before the window's start (or the first total)."""
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
        stale: (signal, time of its newest data) -> why it is too old to be evaluated, or "".
        gauges, health, steps, shape: the deriver's.
        totals: (signal, window, labels) -> a counter's past, for ``increase`` of a signal.
        address_of: target -> its address without secrets, or "".
    """

    now: float
    run: str
    lifecycle: str
    replayed: bool
    signals: Mapping[str, Mapping[Labels, SignalState]]
    stale: Callable[[str, float], str]
    gauges: Mapping[str, Mapping[tuple[str, Labels], Gauge]]
    health: Mapping[str, TargetState]
    steps: StepBook
    shape: int
    totals: Mapping[tuple[str, float, Labels], IncreaseTotals] = field(default_factory=dict)
    address_of: Callable[[str], str] = lambda _: ""
    # Tables are cached per instant, because a hundred rules may use the same one.
    tables: dict[tuple[str, str, str, float, bool], Table | None] = field(default_factory=dict)

    def table(self, condition: Condition) -> Table | None:
        key = (condition.source, condition.name, condition.of, condition.window, condition.summed)
        if key not in self.tables:
            self.tables[key] = self._read_table(condition)
        return self.tables[key]

    def _read_table(self, condition: Condition) -> Table | None:
        if condition.name == TARGET_UP:
            return self._targets()
        table = self._signal(condition) if condition.source == "signal" else self._metric(condition)
        return table.summed() if condition.summed and table is not None else table

    def _targets(self) -> Table | None:
        return _table(
            {(("kind", one.collector), ("target", one.name)): self._health(one) for one in self.health.values()}
        )

    def _health(self, target: TargetState) -> SignalState:
        if target.known(self.now):
            return SignalState(target.last_ts, float(target.up))
        return SignalState(target.last_ts, None, "no recent answer: this server made no request")

    def missing(self, condition: Condition, series: Labels) -> str:
        if condition.source != "metric":
            return ""
        health = self.health.get(dict(series).get("target", ""))
        return "" if health is None or health.answers(self.now) else f"target {health.name} does not answer"

    def reason(self, series: Labels) -> str:
        health = self.health.get(dict(series).get("target", ""))
        return health.error if health is not None else ""

    def address(self, series: Labels) -> str:
        return self.address_of(dict(series).get("target", ""))

    def _signal(self, condition: Condition) -> Table | None:
        series_states = self.signals.get(condition.name, {})
        rows = {labels: now for labels, now in series_states.items() if not now.ended}
        if series_states and not rows:
            return Table((), (), {}, 0)  # ended or not applicable: false, not unknown
        # Before its first labelled value a signal has one row without labels, which has the reason.
        named = {labels: now for labels, now in rows.items() if labels} or rows
        return _table({labels: self._evaluated(condition, labels, now) for labels, now in named.items()})

    def _evaluated(self, condition: Condition, labels: Labels, now: SignalState) -> SignalState:
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
        # The common case first: this is 10,000 series at every tick.
        for index, gauge in enumerate(series.values()):
            fresh = self.now - gauge.last_ts <= gauge.carry
            value = _value(condition, gauge, self.now) if fresh else math.nan
            if not fresh and self._ended(gauge):
                skipped.append(index)
                continue
            if value != value:
                gaps[len(values)] = "younger than the window" if fresh else f"target {gauge.target} does not answer"
            labels.append(gauge.named)
            values.append(value)
        # An empty table is not the same as no source: it makes every condition false.
        return Table(labels, values, gaps, hash((self.shape, tuple(skipped))))

    def _step_metric(self, name: str) -> Table | None:
        """Returns the newest value of every series of a per-step metric."""
        newest: dict[Labels, SignalState] = {}
        for labels, step in self.steps.newest_of(name):
            newest[labels] = SignalState(step.ts, step.values[(name, labels)])
        return _table(newest)

    def _ended(self, gauge: Gauge) -> bool:
        """Did the target answer without this metric? An earlier `up` is no proof."""
        health = self.health.get(gauge.target)
        if health is None:
            return True
        return health.last_ok_ts is not None and health.last_ok_ts > gauge.last_ts + gauge.carry / 3


def _table(rows: Mapping[Labels, SignalState]) -> Table | None:
    if not rows:
        return None
    labels = list(rows)
    values = [now.value if now.value is not None else math.nan for now in rows.values()]
    gaps = {index: now.why for index, now in enumerate(rows.values()) if now.value is None}
    return Table(labels, values, gaps, hash(tuple(labels)))


def _value(condition: Condition, gauge: Gauge, now: float) -> float:
    return gauge.last if condition.of == "value" else increase(gauge, now - condition.window)


def increase(gauge: Gauge, start: float) -> float:
    """Returns the increase of a cumulative counter since `start`; after a decrease (reset) the new value counts.

    NaN while the series is younger than the window, because its value at the start is unknown.
    """
    # From the newest back, without a sum: between two resets the increase is the difference of the ends. With pairs and
    # a sum this was more than half of alerting's share of a tick (bench.alerts).
    grown, end = 0.0, gauge.last
    later = end
    for ts, value in reversed(gauge.points):
        if value > later:
            grown, end = grown + end, value
        if ts <= start:
            return grown + end - value
        later = value
    return math.nan
