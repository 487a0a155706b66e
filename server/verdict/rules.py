"""The rules, numbered and in order: liveness, infrastructure, then tuning; the first that speaks is the verdict. Pure.

DESIGN section 5. `judge` looks at one instant; what must be remembered is in `server.verdict.judge`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log

from server.signals._model import HEARTBEAT
from server.verdict import evidence as facts
from server.verdict import words
from server.verdict.inputs import Seen
from server.verdict.limiters import BUSY_SCORER, MOST_SHARE, ZERO_ADVANTAGE, limiters, slow_by
from server.verdict.model import Limiter, Outcome, Verdict
from server.verdict.numbers import Numbers, numbers

# 15 %: what batch noise alone costs a balanced run (the watch band of `trainer_wait_ratio`).
WAITS = 0.15
# Worth changing something for: the same 15 % seen from the other side, 1 / (1 - 0.15).
WORTH = 1.18
# Of the trainer more must be on offer: a run that is held for a sixth of the time, so as not to run ahead, is matched.
SURPLUS = 1.25
# A verdict that stands is left 4 % of the step later than it would be found, one that does not is found 2 % later:
# on the line itself, noise of two per cent then changes nothing.
STAYS, COMES = 0.04, 0.02
# A synchronous verdict stands until its gain is a tenth below the line it crossed: a step's tail is a matter of chance.
LEFT = 0.9
# Gains nearer than that are not told apart (DESIGN section 5: 20 %), by their logarithms.
CLEAR, PLAIN = 1.2, 1.5
# Of a step: overhead that is the first thing to change. The alert on weight sync stands at a quarter.
MUCH_OVERHEAD = 0.20
# A synchronous step has a tail by nature: a third of it lost is where others began to keep partial rollouts.
SYNC_TAIL = 1.5
# Half of the engines that do not work leave a run that crawls.
MOST_ENGINES = 0.5
# A tenth of what arrives is dropped as stale, and what arrives would do but for that tenth: the wait is those drops.
ENOUGH, MUCH_STALE = 0.90, 0.10
# Held for a tenth of the time while the trainer waits is no coincidence.
HELD = 0.10
# Engines that stood still for more than a fifth of the window for weights.
STALLED_SECONDS = 60.0
# Clearly below its cap.
BELOW_CAP = 0.7
# A share of the rollouts in flight that decides.
MOST_OF = 0.5
# Of a verdict with everything there and nothing near it. Nothing measured from outside is certain.
CERTAIN = 0.95
# What one missing source could turn round is no confident verdict, whatever else speaks for it.
UNPROVEN = 0.6
# From here on a verdict is confident: the dashboard says it without "perhaps".
CONFIDENT = 0.6


@dataclass(frozen=True, slots=True)
class Case:
    """One instant, worked out. ``found``: limiters by gain. ``stands``: the outcome that stands, "" for none."""

    n: Numbers
    found: tuple[Limiter, ...]
    stands: str = ""

    @property
    def seen(self) -> Seen:
        return self.n.seen

    @property
    def starved(self) -> bool:
        """Does the trainer wait for want of samples? Not where more arrives than it takes, and grows too old."""
        n = self.n
        if n.wait is None or n.wait < self.waits:
            return False
        enough = n.potential is not None and n.capacity is not None and n.potential >= ENOUGH * n.capacity
        return not (enough and (n.stale or 0.0) >= MUCH_STALE)

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


UNEXPLAINED = ("too_few_engines", "not_told")
STARVING = ("generator_bound", "sandbox_bound", "reward_bound", "orchestrator_bound")

Said = tuple[Outcome, str, float] | None
"""(outcome, cause, confidence before completeness and rivals) or None: the rule does not apply."""

Rule = Callable[[Case], Said]


# ---- liveness


def lifecycle(case: Case) -> Said:
    """Nobody holds back a run that loads, rests or is over."""
    life = case.seen.lifecycle
    if life in ("finished", "crashed"):
        return "unknown", "over", 0.0
    if life == "paused":
        return "unknown", "paused", 0.0
    return ("unknown", "starting", 0.0) if life == "starting" else None


def frozen_engines(case: Case) -> Said:
    """Requests run and not a token comes: the sharpest sign there is."""
    engines = case.n.engines
    return ("stalled", "frozen_engine", 1.0) if _share(engines, "hung") >= MOST_ENGINES else None


def dead_engines(case: Case) -> Said:
    """No engine answers and no step comes. A trainer that goes on proves that only their metrics are gone."""
    if _share(case.n.engines, "down") < 1.0 or not case.n.engines:
        return None
    open_step = case.seen.get("trainer_stall_ratio")
    # Half of the limit is 3 x the median step: more than one step that simply took longer.
    return ("stalled", "dead_engine", 1.0) if open_step is not None and open_step >= 0.5 else None


def no_progress(case: Case) -> Said:
    """The open step is longer than max(6 x median, 30 min)."""
    ratio = case.seen.get("trainer_stall_ratio")
    if ratio is None or ratio < 1.0:
        return None
    engines = case.n.engines
    if engines and _share(engines, "up") == 0 and _share(engines, "down") > 0:
        return "stalled", "dead_engine", 1.0
    return "stalled", "no_progress", 1.0


def silent_trainer(case: Case) -> Said:
    """A heartbeat that should have come."""
    beats = [target for target in case.seen.targets if target.kind == HEARTBEAT and not target.gone]
    silent = bool(beats) and not any(target.up for target in beats)
    return ("stalled", "dead_trainer", 0.9) if silent else None


# ---- infrastructure


def failing_sandboxes(case: Case) -> Said:
    """Before the curriculum: a dead sandbox makes every reward zero."""
    lost = next((one for one in case.found if one.cause == "init_failures"), None)
    failing = case.seen.get("failure_ratio") or 0.0
    rewards = case.seen.get("reward", stat="mean")
    if rewards == 0.0 and (failing > 0.2 or lost is not None):
        return "sandbox_bound", "init_failures", 1.0
    if lost is None or not case.starved:
        return None
    first = case.best("sandbox_bound", "reward_bound", "generator_bound")
    return ("sandbox_bound", "init_failures", 1.0) if first is lost else None


def evaluation(case: Case) -> Said:
    """Engines are full and nothing is made for training."""
    states = {row.get("state", ""): value for row, value in case.seen.rows("in_flight_rollouts")}
    total = sum(states.values())
    busy = total > 0 and states.get("eval", 0.0) / total >= MOST_OF
    return ("overhead_bound", "eval", 0.9) if busy and case.starved else None


def weight_updates(case: Case) -> Said:
    """The engines stand still after each publication, and the trainer then waits for what they did not make."""
    stall = case.seen.get("generator_weight_stall_seconds", stat="mean")
    if stall is None or stall < STALLED_SECONDS or not case.starved:
        return None
    return "overhead_bound", "weight_sync", 0.9


def gate(case: Case) -> Said:
    """The trainer waits and production is held at once: neither is slow."""
    gated, rival = case.n.gated, case.best("overhead_bound", "trainer_bound")
    if not case.starved or gated is None or gated < HELD:
        return None
    # Without the gate the trainer would not wait, and no more than that.
    if rival is not None and rival.outcome == "overhead_bound" and rival.gain > (case.n.gap or 1.0):
        return None
    return "orchestrator_bound", "staleness_gate", 0.95


# ---- tuning: production is too slow


def outside_engines(case: Case) -> Said:
    """Rollouts are in sandboxes, tools or scoring, and the engines have room."""
    if not case.starved:
        return None
    busy = case.n.extra.get("scoring_busy_ratio")
    first = case.best("sandbox_bound", "reward_bound")
    if first is None or first.gain < WORTH:
        return None
    serial = first.outcome == "reward_bound" and busy is not None and busy >= BUSY_SCORER
    # Engines with room speak against the engines, and say nothing of groups that are thrown away.
    rival = case.best("curriculum_bound") if case.n.quiet else case.best("generator_bound", "curriculum_bound")
    thrown = rival is not None and (rival.outcome == "generator_bound" or case.n.filtered)
    if not serial and rival is not None and thrown and rival.gain > first.gain:
        return None
    return first.outcome, first.cause, 1.0 if serial or case.n.roomy else UNPROVEN


def too_few_dispatched(case: Case) -> Said:
    """Fewer rollouts are under way than may be, and the engines have room for them."""
    n, busy = case.n, case.n.extra.get("scoring_busy_ratio")
    if not case.starved or n.saturated is not False or n.cap is None or (busy is not None and busy >= BUSY_SCORER):
        return None
    # Those that are scored may still hold their place, and are not counted as under way.
    places = n.cap / (1.0 - min(n.place.get("scoring", 0.0), MOST_SHARE))
    return ("orchestrator_bound", "prompts", 0.9) if places < BELOW_CAP else None


def thrown_away(case: Case) -> Said:
    """Filtered groups: most is made for nothing."""
    first = case.best("generator_bound", "curriculum_bound")
    if not case.starved or not case.n.filtered or first is None or first.outcome != "curriculum_bound":
        return None
    return ("curriculum_bound", first.cause, 1.0) if first.gain >= WORTH else None


def generation(case: Case) -> Said:
    """What is left: the engines make too little."""
    n = case.n
    # What nobody explains is the largest part of many gaps; what is explained can be changed.
    known = (one for one in case.found if one.outcome == "generator_bound" and one.cause not in UNEXPLAINED)
    first = next((one for one in known if one.gain >= WORTH), None) or case.best("generator_bound")
    if not case.starved or first is None:
        return None
    if n.saturated or (n.place.get("generating", 0.0) >= MOST_OF):
        # Rollouts count as generating from their dispatch on: engines that nobody sees may have room for all of them.
        return "generator_bound", first.cause, 1.0 if n.saturated is not None else UNPROVEN
    if first.cause in ("long_tail", "drift", "preemption"):
        return "generator_bound", first.cause, 0.9
    # Engines with room, and nobody tells where the rollouts are: it may be anything before them.
    return ("generator_bound", first.cause, 0.5) if n.saturated is False else None


def starved_somehow(case: Case) -> Said:
    """The trainer waits, and nobody tells for what."""
    return ("unknown", "missing", 0.0) if case.starved else None


# ---- tuning: the trainer


def synchronous(case: Case) -> Said:
    """No queue and no wait: tail, overheads and the share of scoring are what a step loses."""
    if not case.seen.synchronous:
        return None
    needed = {"generator_bound": SYNC_TAIL, "curriculum_bound": 1 / (1 - ZERO_ADVANTAGE), "overhead_bound": 1.25}
    least = {
        one.outcome: needed.get(one.outcome, 1.33) * (LEFT if one.outcome == case.stands else 1.0) for one in case.found
    }
    first = next((one for one in case.found if one.gain >= least[one.outcome]), None)
    if first is not None:
        return first.outcome, first.cause, 0.9
    if case.seen.get("trainer_step_seconds") is None:
        return "unknown", "missing", 0.0
    return "balanced", "", 0.9


def no_gradient(case: Case) -> Said:
    """Most of what the trainer is busy with teaches it nothing."""
    found = case.best("curriculum_bound")
    if case.n.filtered or found is None or (case.n.zero or 0.0) < ZERO_ADVANTAGE:
        return None
    rival = case.best("trainer_bound", "overhead_bound")
    return ("curriculum_bound", found.cause, 0.9) if rival is None or found.gain >= rival.gain else None


def overhead(case: Case) -> Said:
    """A fifth of the step and more is spent on what neither waits nor trains."""
    first = case.best("overhead_bound")
    share = case.n.overhead
    if first is None or share is None or share < MUCH_OVERHEAD or first.gain < 1.0 + MUCH_OVERHEAD:
        return None
    return "overhead_bound", first.cause, 0.9


def trainer(case: Case) -> Said:
    """Production could deliver clearly more than the trainer takes."""
    n = case.n
    found = case.best("trainer_bound")
    if n.wait is not None and n.wait >= case.waits and not case.starved:
        # Enough arrives and grows too old in the queue: whoever took it sooner would not wait for what was dropped.
        return "trainer_bound", slow_by(n), 0.9
    if found is not None and found.factor >= case.worth:
        # Production that is held at times proves little where nobody tells whether the trainer waits.
        return "trainer_bound", found.cause, 1.0 if n.wait is not None else UNPROVEN
    if n.wait is None or n.wait >= case.waits or n.potential is not None:
        return None
    # Nobody tells what arrives: a queue that is never short of a batch, beside engines with room, is enough of it.
    if n.wait < 0.05 and (n.batches or 0.0) >= 1.5 and n.saturated is False:
        return "trainer_bound", "compute", 0.7
    return None


def balanced(case: Case) -> Said:
    if case.n.wait is None or case.n.wait >= case.waits:
        return None
    # Without a word of what arrives it may as well be the trainer that sets the pace.
    return "balanced", "", 0.95 if case.n.potential is not None else UNPROVEN


def nothing(case: Case) -> Said:
    return "unknown", "missing", 0.0


RULES: tuple[tuple[str, Rule], ...] = (
    ("V01", lifecycle), ("V02", frozen_engines), ("V03", no_progress), ("V04", dead_engines), ("V05", silent_trainer),
    ("V10", failing_sandboxes), ("V11", evaluation), ("V12", weight_updates), ("V13", gate),
    ("V14", too_few_dispatched), ("V20", outside_engines), ("V22", thrown_away), ("V23", generation),
    ("V24", starved_somehow), ("V30", synchronous), ("V31", no_gradient), ("V32", overhead), ("V33", trainer),
    ("V34", balanced), ("V99", nothing),
)  # fmt: skip
"""In the order they are asked."""


def judge(seen: Seen, stands: str = "") -> Verdict:
    """What the rules say of one instant. ``stands``: the outcome that stands."""
    n = numbers(seen)
    case = Case(n, limiters(n), stands)
    for name, rule in RULES:
        said = rule(case)
        if said is not None:
            return _verdict(case, name, *said)
    raise AssertionError("the last rule always speaks")


def _verdict(case: Case, rule: str, outcome: Outcome, cause: str, sure: float) -> Verdict:
    n = case.n
    own = next((one for one in case.found if (one.outcome, one.cause) == (outcome, cause)), None)
    found = tuple(sorted(case.found, key=lambda one: one is not own))
    complete = facts.completeness(n)
    liveness = rule < "V06"
    says = facts.disagreements(n)
    if not liveness:
        # Half of all groups without a gradient would be the first thing to change, and nobody tells of it.
        blind = UNPROVEN if n.zero is None and n.seen.fact("group_size") != 1 else 1.0
        sure *= (0.4 + 0.6 * complete) * _clear(case, own) * (0.8 if says else 1.0) * blind
    return Verdict(
        outcome=outcome,
        cause=cause,
        rule=rule,
        confidence=round(CERTAIN * sure, 2),
        completeness=round(complete, 2),
        summary=words.summary(outcome, n, own),
        evidence=facts.evidence(n, found, own),
        limiters=found,
        advice=words.advice(outcome, cause),
        numbers=n.table(),
        missing=facts.missing(n),
        disagreements=says,
        usd_per_hour=n.seen.total("idle_usd_per_hour"),
    )


def _clear(case: Case, own: Limiter | None) -> float:
    """Is it clearly better than the best of another outcome?"""
    if own is None or own.gain <= 1.0:
        return 1.0
    # A few groups without gradient are worth a line, and are no rival: every run has some.
    uneven = not case.n.filtered and (case.n.zero or 0.0) < ZERO_ADVANTAGE
    rivals = [one for one in case.found if one.outcome != own.outcome]
    best = max((one.gain for one in rivals if not (uneven and one.outcome == "curriculum_bound")), default=1.0)
    ratio = log(own.gain) / log(best) if best > 1.0 else PLAIN
    return 1.0 if ratio >= PLAIN else 0.85 if ratio >= CLEAR else 0.6


def _share(engines: Mapping[str, float], state: str) -> float:
    total = sum(engines.values())
    return engines.get(state, 0.0) / total if total else 0.0
