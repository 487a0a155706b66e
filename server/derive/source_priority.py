"""Ranks several sources of one value, and finds values of two sources that contradict each other.

Records rank before a framework's own metric, and that before a value derived from several keys. Among equals the target
that was attached first wins. The other values stay in the store under their targets; a signal counts each value once.
Pure: no I/O and no clock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from collectors import catalog
from collectors.catalog import METRICS
from collectors.model import Collector, Target
from server.signals import recorded
from server.signals.model import STEP_WINDOW
from server.signals.window import Gauge, Step, StepKey

# Share of the larger value. Rounding and averaging of loggers differ by less than a fifth.
TOLERANCE = 0.2
# Absolute difference that rounding explains; consoles print three or four decimals.
ROUNDING = 1e-3
# Seconds; the same for durations.
ROUNDING_SECONDS = 0.05
# Disputes that are kept per target, so that memory is bounded.
MAX_DISPUTES = 100
# The catalogue begins with the step and its terms, from which the other values follow.
_ORDER = {name: order for order, name in enumerate(METRICS)}

# A run has one queue and one set of rollouts in flight, so its trainers report the same values.
SINGLE = frozenset(row.name for row in (*catalog.TRAINER_ROWS, *catalog.ROLLOUT_ROWS) if row.reduction == "instant")


@dataclass(frozen=True, slots=True)
class _Dispute:
    incarnation: int
    step: int
    text: str


@dataclass(slots=True)
class _SourceValue:
    """Position of a target in its run's list, and its collector."""

    order: int
    collector: Collector


@dataclass(slots=True)
class SourcePriority:
    """Ranks the targets of a run and lists their disputes. Bounded by targets and `MAX_DISPUTES`."""

    _targets: dict[str, _SourceValue] = field(default_factory=dict)
    _disputes: dict[str, dict[tuple[str, StepKey], _Dispute]] = field(default_factory=dict)
    _newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    _forwarded: dict[str, Collector] = field(default_factory=dict)

    @classmethod
    def of(cls, targets: Iterable[Target], catalogue: Mapping[str, Collector]) -> "SourcePriority":
        """``targets``: in the order they were attached."""
        return cls({one.name: _SourceValue(order, catalogue[one.collector]) for order, one in enumerate(targets)})

    def meet(self, target: str, collector: Collector) -> None:
        """Add a forwarded target of a running run, after the attached ones and in the order of names."""
        if target in self._targets and target not in self._forwarded:
            return
        self._forwarded[target] = collector
        attached = len(self._targets.keys() - self._forwarded.keys())
        self._targets |= {
            name: _SourceValue(attached + at, self._forwarded[name]) for at, name in enumerate(sorted(self._forwarded))
        }

    def rank(self, target: str, key: StepKey) -> tuple[int, int]:
        """The rank of a target; the lowest wins. Targets that are not attached (pushed, removed) come last."""
        place = self._targets.get(target)
        if place is None:
            return (2, len(self._targets))
        derived = place.collector.gives.get(key) == "derived"
        return (0 if place.collector.records else 2 if derived else 1, place.order)

    def gives(self, target: str, signal: str) -> bool:
        """Can the signal be computed from the target's rollout records? False for targets that are not attached."""
        place = self._targets.get(target)
        return place is not None and not recorded.missing_fields(signal, place.collector.record_fields)

    # ---- steps

    def counted(self, stored: Step | None, step: Step) -> dict[StepKey, float]:
        """The values of a target's step that count. Contradictions with other targets are recorded.

        Args:
            stored: the same step so far, each value with its source.
            step: the new values, all of one source.
        """
        position = (step.incarnation, step.number)
        self._newest[step.axis] = max(position, self._newest.get(step.axis, position))
        if stored is None or not stored.sources:
            return step.values
        return {key: value for key, value in step.values.items() if self._counts(stored, step, key, value)}

    def _counts(self, stored: Step, step: Step, key: StepKey, value: float) -> bool:
        source, other = step.sources[key], stored.sources.get(key)
        if other is None or other == source:
            return True
        better = self.rank(source, key) <= self.rank(other, key)
        loser, winner = (other, source) if better else (source, other)
        low, high = (stored.values[key], value) if better else (value, stored.values[key])
        self._note(step, key, (loser, low), (winner, high))
        return better

    def _note(self, step: Step, key: StepKey, loser: tuple[str, float], winner: tuple[str, float]) -> None:
        disputes = self._disputes.setdefault(loser[0], {})
        before = disputes.get((step.axis, key))
        if before is not None and (before.incarnation, before.step) > (step.incarnation, step.number):
            return
        if not differ(key[0], loser[1], winner[1]):
            disputes.pop((step.axis, key), None)
        elif before is not None or len(disputes) < MAX_DISPUTES:
            text = f"{key[0]} {loser[1]:.4g} against {winner[1]:.4g} at step {step.number}"
            disputes[step.axis, key] = _Dispute(
                step.incarnation, step.number, f"disagrees with {winner[0]}: {text}"
            )  # fmt: skip

    def complaint(self, target: str) -> str:
        """Message on the disputes of a target within the last window of steps; "" for none."""
        disputes = self._disputes.get(target, {})
        ordered = sorted(disputes.items(), key=lambda item: (_ORDER.get(item[0][1][0], 0), item[0]))
        texts = [one.text for (axis, _), one in ordered if self._recent(axis, one)]
        return f"{texts[0]}{f' (and {len(texts) - 1} more)' if len(texts) > 1 else ''}" if texts else ""

    def _recent(self, axis: str, dispute: _Dispute) -> bool:
        incarnation, step = self._newest[axis]
        return dispute.incarnation == incarnation and dispute.step > step - STEP_WINDOW

    # ---- gauges of the moment

    def counted_gauges(self, metric: str, gauges: Collection[Gauge], now: float) -> Collection[Gauge]:
        """The series that count. Of a metric in `SINGLE`, those of the first-ranked trainer that still reports."""
        if metric not in SINGLE:
            return gauges
        sources = {one.target for one in gauges if one.fresh(now) and self._trains(one.target)}
        if not sources:
            return gauges  # engines and routers report their own parts, which add up
        first = min(sources, key=lambda target: self.rank(target, (metric, ())))
        return [gauge for gauge in gauges if gauge.target == first]

    def _trains(self, target: str) -> bool:
        place = self._targets.get(target)
        return place is not None and place.collector.actor == "trainer"


def differ(metric: str, one: float, other: float) -> bool:
    """Do two sources' values of one step contradict each other, beyond `TOLERANCE` and rounding?"""
    difference = abs(one - other)
    rounding = ROUNDING_SECONDS if metric.endswith("_seconds") else ROUNDING
    return difference > rounding and difference > TOLERANCE * max(abs(one), abs(other))
