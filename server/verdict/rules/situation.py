"""The situation of one instant: whether the trainer waits, and which limiter gains most. Pure."""

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
    """One instant. ``limiters``: by gain. ``stands``: the outcome of the current verdict, "" if there is none."""

    n: Numbers
    limiters: tuple[Limiter, ...]
    stands: str = ""

    @property
    def seen(self) -> VerdictInput:
        return self.n.seen

    @property
    def starved(self) -> bool:
        """Whether the trainer waits for samples; not if enough samples arrive and are dropped as stale."""
        return self.n.lacking is not None and self.n.lacking >= self.waits and not self.n.dropped

    @property
    def waits(self) -> float:
        """Share of the step from which on the trainer counts as starved."""
        return WAITS if not self.stands else WAITS - STAYS if self.stands in STARVING else WAITS + COMES

    @property
    def worth(self) -> float:
        """Factor by which production must exceed the trainer for the trainer to be the limiter."""
        return SURPLUS if not self.stands else SURPLUS - STAYS if self.stands == "trainer_bound" else SURPLUS + COMES

    def best(self, *outcomes: Outcome) -> Limiter | None:
        return next((limiter for limiter in self.limiters if limiter.outcome in outcomes), None)

    @property
    def first(self) -> Limiter | None:
        """The limiter of production with the largest gain; of two that fill the gap, the one with the larger factor."""
        slows = [
            limiter
            for limiter in self.limiters
            if limiter.outcome in STARVING or (limiter.outcome, self.n.filtered) == FILTERED
        ]
        return max(slows, key=self._rank, default=None)

    def _rank(self, limiter: Limiter) -> tuple[float, float, bool]:
        """Ranks limiters; of two equal ones the one that needs no more engines is higher: it is cheaper to change."""
        return round(limiter.gain, 2), round(self._of_production(limiter), 1), limiter.cause not in UNEXPLAINED

    def comparable(self, own_limiter: Limiter, rival: Limiter) -> tuple[float, float]:
        """Returns the two values to compare: gains, or the gains of production alone if both fill the gap."""
        full = (self.n.gap or 1.0) - 0.005
        both = own_limiter.gain >= full and rival.gain >= full
        return (
            (self._of_production(own_limiter), self._of_production(rival)) if both else (own_limiter.gain, rival.gain)
        )

    def _of_production(self, limiter: Limiter) -> float:
        """Returns the gain of production without this limiter, regardless of what the trainer can take."""
        if limiter.outcome == "reward_bound" and self.n.scorer_full:
            return inf
        return twice_the_engines(self.n) or limiter.gain if limiter.cause in UNEXPLAINED else limiter.factor
