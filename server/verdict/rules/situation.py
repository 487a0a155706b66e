"""One instant as the rules ask it: who waits, and what gains most. Pure."""

from dataclasses import dataclass
from math import inf

from server.verdict.explain.limiters import twice_the_engines
from server.verdict.facts.throughput import Numbers
from server.verdict.inputs import VerdictInput
from server.verdict.model import Limiter, Outcome
from server.verdict.thresholds import COMES, STAYS, SURPLUS, WAITS

UNEXPLAINED = ("too_few_engines", "not_told")
STARVING = ("generator_bound", "sandbox_bound", "reward_bound", "orchestrator_bound")
FILTERED = ("curriculum_bound", True)


@dataclass(frozen=True, slots=True)
class Situation:
    """One instant, worked out. ``found``: limiters by gain. ``stands``: the outcome that stands, "" for none."""

    n: Numbers
    found: tuple[Limiter, ...]
    stands: str = ""

    @property
    def seen(self) -> VerdictInput:
        return self.n.seen

    @property
    def starved(self) -> bool:
        """Does the trainer wait for want of samples? Not where more arrives than it takes, and grows too old."""
        return self.n.lacking is not None and self.n.lacking >= self.waits and not self.n.dropped

    @property
    def waits(self) -> float:
        """Share of the step from which on the trainer is starved."""
        return WAITS if not self.stands else WAITS - STAYS if self.stands in STARVING else WAITS + COMES

    @property
    def worth(self) -> float:
        """How much more than it takes must be on offer for the trainer to be the limiter."""
        return SURPLUS if not self.stands else SURPLUS - STAYS if self.stands == "trainer_bound" else SURPLUS + COMES

    def best(self, *outcomes: Outcome) -> Limiter | None:
        return next((one for one in self.found if one.outcome in outcomes), None)

    @property
    def first(self) -> Limiter | None:
        """Of what slows production down, what gains most; of two that fill the gap, what would more than fill it."""
        slows = [one for one in self.found if one.outcome in STARVING or (one.outcome, self.n.filtered) == FILTERED]
        return max(slows, key=self._rank, default=None)

    def _rank(self, one: Limiter) -> tuple[float, float, bool]:
        """A tie goes to whoever needs no more engines: it is cheaper to change."""
        return round(one.gain, 2), round(self._alone(one), 1), one.cause not in UNEXPLAINED

    def apart(self, own: Limiter, rival: Limiter) -> tuple[float, float]:
        """What to tell two by: their gains, or what they would gain were the trainer no bound to either."""
        full = (self.n.gap or 1.0) - 0.005
        both = own.gain >= full and rival.gain >= full
        return (self._alone(own), self._alone(rival)) if both else (own.gain, rival.gain)

    def _alone(self, one: Limiter) -> float:
        """How much faster production were without it, however much the trainer could take."""
        if one.outcome == "reward_bound" and self.n.scorer_full:
            return inf
        return twice_the_engines(self.n) or one.gain if one.cause in UNEXPLAINED else one.factor
