"""Several sources of one number: whose word counts, and when two of them cannot both be right.

Records are believed before a framework's own metric, that before what is worked out from several keys, and among equals
the target that was attached first. The others' numbers stay in the store under their names; in a signal each value is
there once. Pure: no I/O and no clock.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from collectors.catalog import METRICS, rollout, trainer
from collectors.model import Collector, Target
from server.signals.model import STEP_WINDOW
from server.signals.window import Gauge, Step, StepKey

# Loggers round and average differently; a fifth is more than that, and changes what a reader would conclude.
TOLERANCE = 0.2
# Consoles print three or four decimals: below this a difference is the printing's.
ROUNDING, ROUNDING_SECONDS = 1e-3, 0.05
MAX_DISPUTES = 100
# The catalogue begins with the step and its terms: what everything else follows from.
_ORDER = {name: order for order, name in enumerate(METRICS)}

# Of a run there is one queue and one set of rollouts under way: trainers that tell of it tell of the same.
SINGLE = frozenset(row.name for row in (*trainer.ROWS, *rollout.ROWS) if row.reduction == "instant")


@dataclass(frozen=True, slots=True)
class _Dispute:
    incarnation: int
    step: int
    text: str


@dataclass(slots=True)
class _SourceValue:
    """Where a target stands among its run's, and what its collector says of its numbers."""

    order: int
    collector: Collector


@dataclass(slots=True)
class SourcePriority:
    """The ranks of a run's targets, and what they disagree about. Bounded by targets and `MAX_DISPUTES`."""

    _places: dict[str, _SourceValue] = field(default_factory=dict)
    _disputes: dict[str, dict[tuple[str, StepKey], _Dispute]] = field(default_factory=dict)
    _newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    _met: dict[str, Collector] = field(default_factory=dict)

    @classmethod
    def of(cls, targets: Iterable[Target], known: Mapping[str, Collector]) -> "SourcePriority":
        """``targets``: in the order they were attached."""
        return cls({one.name: _SourceValue(order, known[one.collector]) for order, one in enumerate(targets)})

    def meet(self, target: str, collector: Collector) -> None:
        """A target that is forwarded, met while the run goes on: after those attached here, in the order of names."""
        if target in self._places and target not in self._met:
            return
        self._met[target] = collector
        attached = len(self._places.keys() - self._met.keys())
        self._places |= {
            name: _SourceValue(attached + at, self._met[name]) for at, name in enumerate(sorted(self._met))
        }

    def rank(self, target: str, key: StepKey) -> tuple[int, int]:
        """The lower, the more it is believed. Targets nobody attached (pushed, removed) come last."""
        place = self._places.get(target)
        if place is None:
            return (2, len(self._places))
        derived = place.collector.gives.get(key) == "derived"
        return (0 if place.collector.records else 2 if derived else 1, place.order)

    def gives(self, target: str, signal: str) -> bool:
        """Does the signal follow from what the target's format tells? Of one nobody attached it is not known."""
        place = self._places.get(target)
        return place is not None and (signal, ()) in place.collector.gives

    # ---- steps

    def counted(self, kept: Step | None, step: Step) -> dict[StepKey, float]:
        """Of what a target says of a step, that which counts; what contradicts another's word is noted.

        Args:
            kept: what is known of the same step, each value with its teller.
            step: the new words, all of one teller.
        """
        place = (step.incarnation, step.number)
        self._newest[step.axis] = max(place, self._newest.get(step.axis, place))
        if kept is None or not kept.tellers:
            return step.values
        return {key: value for key, value in step.values.items() if self._counts(kept, step, key, value)}

    def _counts(self, kept: Step, step: Step, key: StepKey, value: float) -> bool:
        teller, other = step.tellers[key], kept.tellers.get(key)
        if other is None or other == teller:
            return True
        better = self.rank(teller, key) <= self.rank(other, key)
        loser, winner = (other, teller) if better else (teller, other)
        low, high = (kept.values[key], value) if better else (value, kept.values[key])
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
        """What a target disagrees about within the last window of steps, in words; "" when about nothing."""
        disputes = self._disputes.get(target, {})
        ordered = sorted(disputes.items(), key=lambda item: (_ORDER.get(item[0][1][0], 0), item[0]))
        texts = [one.text for (axis, _), one in ordered if self._recent(axis, one)]
        return f"{texts[0]}{f' (and {len(texts) - 1} more)' if len(texts) > 1 else ''}" if texts else ""

    def _recent(self, axis: str, dispute: _Dispute) -> bool:
        incarnation, step = self._newest[axis]
        return dispute.incarnation == incarnation and dispute.step > step - STEP_WINDOW

    # ---- gauges of the moment

    def told(self, metric: str, gauges: Collection[Gauge], now: float) -> Collection[Gauge]:
        """The series that count: of what a run has once, those of the most believed trainer that still reports."""
        if metric not in SINGLE:
            return gauges
        tellers = {one.target for one in gauges if one.fresh(now) and self._trains(one.target)}
        if not tellers:
            return gauges  # what engines and routers tell of their own parts adds up
        first = min(tellers, key=lambda target: self.rank(target, (metric, ())))
        return [gauge for gauge in gauges if gauge.target == first]

    def _trains(self, target: str) -> bool:
        place = self._places.get(target)
        return place is not None and place.collector.actor == "trainer"


def differ(metric: str, one: float, other: float) -> bool:
    """Can two sources' values for the same step not both be right? Beyond `TOLERANCE` of the larger, and rounding."""
    apart = abs(one - other)
    rounding = ROUNDING_SECONDS if metric.endswith("_seconds") else ROUNDING
    return apart > rounding and apart > TOLERANCE * max(abs(one), abs(other))
