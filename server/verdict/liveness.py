"""The first rules: does the run make progress, and does each of its actors work? Pure.

Numbered in `server.verdict.rules`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from server.signals.model import HEARTBEAT
from server.verdict import steps
from server.verdict.limiters import twice_the_engines
from server.verdict.model import Limiter, Outcome, VerdictInput
from server.verdict.thresholds import (
    COMES,
    FROZEN_SECONDS,
    HALF,
    HALF_LIMIT,
    IDLE_SECONDS,
    INFERRED,
    LATE_STEP,
    LEAST_IDLE,
    MOST_ENGINES,
    MOST_OF,
    NOTHING_MADE,
    SAME_GAIN,
    SILENT_SECONDS,
    STAYS,
    SURPLUS,
    WAITS,
    WORKER_DIED,
)
from server.verdict.throughput import Numbers

# ---- situation
# The situation of one instant: whether the trainer waits, and which limiter gains most.

UNEXPLAINED = ("too_few_engines", "not_told")
STARVING = ("generator_bound", "sandbox_bound", "reward_bound", "orchestrator_bound")
FILTERED = ("curriculum_bound", True)


@dataclass(frozen=True, slots=True)
class Situation:
    """One instant.

    Attributes:
        limiters: by gain; stands: the outcome of the current verdict, "" if there is none.
        speeds: of the engines, as the run has shown them (`server.verdict.advice.Bins`).
    """

    n: Numbers
    limiters: tuple[Limiter, ...]
    stands: str = ""
    speeds: Sequence[Sequence[float]] = ()

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
        full = (self.n.gap or 1.0) - SAME_GAIN
        both = own_limiter.gain >= full and rival.gain >= full
        return (
            (self._of_production(own_limiter), self._of_production(rival)) if both else (own_limiter.gain, rival.gain)
        )

    def _of_production(self, limiter: Limiter) -> float:
        """Returns the gain of production without this limiter, regardless of what the trainer can take."""
        if limiter.outcome == "reward_bound" and self.n.scorer_full:
            return inf
        return twice_the_engines(self.n) or limiter.gain if limiter.cause in UNEXPLAINED else limiter.factor


RuleResult = tuple[Outcome, str, float] | None
"""(outcome, cause, confidence before completeness and rivals), or None if the rule does not apply."""

Rule = Callable[[Situation], RuleResult]


def lifecycle(case: Situation) -> RuleResult:
    """Returns unknown: the run starts, is paused or is over."""
    state = case.seen.lifecycle
    if state in ("finished", "crashed"):
        return "unknown", "over", 0.0
    if state == "paused":
        return "unknown", "paused", 0.0
    return ("unknown", "starting", 0.0) if state == "starting" else None


def trainer_fault(case: Situation) -> RuleResult:
    """Returns stalled: after its newest step, the trainer's log reports a collective timeout or a worker that died.

    The verdict begins with the fault, and the next step ends it.
    """
    if case.seen.fault_since is None:
        return None
    if case.seen.facts["fault_kind"] == "worker_died":
        return "stalled", "worker_died", WORKER_DIED
    return "stalled", "collective_timeout", 1.0


def frozen_engines(case: Situation) -> RuleResult:
    """Returns stalled: at least half of the engines run requests and generate no token.

    If an engine still works, the open step must be late, as in V06. Engines that load weights for a minute or more look
    the same. They count as frozen only if they stop for longer than the update, or in a very late step.
    """
    hung = _share(case.n.engines, "hung")
    if hung < MOST_ENGINES or (_share(case.n.engines, "up") > 0 and goes_on(case)):
        return None
    # Engines that load weights for a minute stand still in every step, for no longer than that, and not in a late step.
    weights, open_step = case.n.overheads.get("weight_sync", 0.0), case.seen.get("trainer_stall_ratio")
    frozen = case.seen.now - (case.seen.hung_since or case.seen.now)
    pauses = weights >= FROZEN_SECONDS and frozen < weights and (open_step or 0.0) < HALF_LIMIT
    return ("stalled", "frozen_engine", 1.0) if not pauses else None


def hangs(seen: VerdictInput) -> bool:
    """Returns whether at least half of the engines run requests without generating a token."""
    return _share(_engines(seen), "hung") >= MOST_ENGINES


def is_down(seen: VerdictInput) -> bool:
    """Returns whether no engine answers."""
    return _share(_engines(seen), "down") >= 1.0


def _engines(seen: VerdictInput) -> dict[str, float]:
    return {row["state"]: value for row, value in seen.rows("generator_engines") if "state" in row}


def goes_on(case: Situation) -> bool:
    """Returns whether the open step is not late: then the engines that work are enough for some steps."""
    return case.n.opened is not None and not case.n.opened.late


def no_engine(case: Situation) -> bool:
    """Returns whether no engine has answered for longer than one failed read."""
    engines, since = case.n.engines, case.seen.down_since
    down = bool(engines) and _share(engines, "down") >= 1.0
    return down and (since is None or case.seen.now - since >= SILENT_SECONDS)


def dead_engines(case: Situation) -> RuleResult:
    """Returns stalled: no engine has answered for 10 s, and the open step is late.

    A trainer that goes on proves that only the engines' metrics are gone. It also goes on while its queue lasts; once
    the queue has been short of a batch for a step, no more batches will come.
    """
    if not no_engine(case):
        return None
    if case.stands == "stalled" and case.n.stopped:
        return "stalled", "dead_engine", 1.0  # the end of a late step does not prove that engines work
    stall, opened = case.seen.get("trainer_stall_ratio"), case.n.opened
    late = (stall is not None and stall >= HALF_LIMIT) or (opened is not None and (opened.hungry or opened.late))
    return ("stalled", "dead_engine", 1.0) if late else None


def no_progress(case: Situation) -> RuleResult:
    """Returns stalled: the open step is longer than 6 times the median step and longer than 30 min."""
    ratio = case.seen.get("trainer_stall_ratio")
    if ratio is None or ratio < 1.0:
        return None
    engines = case.n.engines
    if engines and _share(engines, "up") == 0 and _share(engines, "down") > 0:
        return "stalled", "dead_engine", 1.0
    return "stalled", "no_progress", 1.0


def silent_trainer(case: Situation) -> RuleResult:
    """Returns stalled: the trainer's heartbeat is missing."""
    beats = [target for target in case.seen.targets if target.collector == HEARTBEAT and not target.gone]
    silent = bool(beats) and not any(target.up for target in beats)
    return ("stalled", "dead_trainer", INFERRED) if silent else None


def open_step(case: Situation) -> RuleResult:
    """Returns trainer_bound or stalled: the open step is late although it had its batch, or while engines are idle.

    It is trainer_bound if batches wait in the queue, or if some steps save checkpoints or evaluate. Idle engines have
    had no request for 40 s. Not during evaluations.
    """
    n, opened = case.n, case.n.opened
    if n.seen.synchronous or opened is None or not opened.late or evaluates(case):
        return None
    if opened.fed:
        slow = opened.saves or opened.batches is not None
        return ("trainer_bound", "open_step", INFERRED) if slow else ("stalled", "no_progress", INFERRED)
    # Without a batch the trainer may wait for production, but the engines show that none is on its way.
    idle = min(opened.seconds, _idle_seconds(case))
    if idle < IDLE_SECONDS:
        return None
    return "stalled", "no_progress", NOTHING_MADE if idle >= LATE_STEP * opened.usual else HALF


def _idle_seconds(case: Situation) -> float:
    """Returns for how many seconds no engine had a request; 0 with fewer than three such instants."""
    idle = list[float]()
    for ts, counts in reversed(case.seen.instants):
        if steps.RUNNING in counts:
            if counts[steps.RUNNING] + counts.get(steps.WAITING, 0.0) > 0.0:
                break
            idle.append(ts)
    return case.seen.now - idle[-1] if len(idle) >= LEAST_IDLE else 0.0


def evaluates(case: Situation) -> bool:
    """Returns whether at least half of the rollouts in flight are evaluations."""
    states = {row.get("state", ""): value for row, value in case.seen.rows("in_flight_rollouts")}
    total = sum(states.values())
    return total > 0 and states.get("eval", 0.0) / total >= MOST_OF


def _share(engines: Mapping[str, float], state: str) -> float:
    total = sum(engines.values())
    return engines.get(state, 0.0) / total if total else 0.0
