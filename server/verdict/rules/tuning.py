"""The rules, numbered and in order: liveness, infrastructure, then tuning; the first that speaks is the verdict. Pure.

DESIGN section 5. `judge` looks at one instant; what must be remembered is in `server.verdict.judge`.
"""

from math import log, sqrt

from server.verdict.explain import evidence, messages
from server.verdict.explain.limiters import limiters, slow_by
from server.verdict.facts.throughput import numbers
from server.verdict.inputs import VerdictInput
from server.verdict.model import Outcome, Verdict
from server.verdict.rules.confidence import ahead, all_under_way, barely_full, blind, calm, clear, may_pause
from server.verdict.rules.liveness import (
    Rule,
    Said,
    dead_engines,
    evaluates,
    frozen_engines,
    lifecycle,
    no_progress,
    open_step,
    silent_trainer,
)
from server.verdict.rules.situation import UNEXPLAINED, Situation
from server.verdict.thresholds import (
    AT_CAP,
    BELOW_CAP,
    CERTAIN,
    CLEAR,
    CONTRADICTION,
    FEW_FLAT,
    HOLDS,
    LEFT,
    LITTLE_WAIT,
    MOST_OF,
    MUCH_HELD,
    MUCH_OVERHEAD,
    NEAR,
    STALLED_SECONDS,
    STOCK,
    SYNC_TAIL,
    UNPROVEN,
    WORTH,
    ZERO_ADVANTAGE,
)

OUTSIDE = ("sandbox_bound", "reward_bound")

# ---- infrastructure


def failing_sandboxes(case: Situation) -> Said:
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


def evaluation(case: Situation) -> Said:
    """Engines are full and nothing is made for training."""
    return ("overhead_bound", "eval", 0.9) if case.starved and evaluates(case) else None


def weight_updates(case: Situation) -> Said:
    """The engines stand still after each publication, and the trainer then waits for what they did not make."""
    stall = case.seen.get("generator_weight_stall_seconds", stat="mean")
    if not case.starved or (stall is not None and stall < STALLED_SECONDS):
        return None
    if stall is None:
        return ("overhead_bound", "weight_sync", UNPROVEN) if _likely_pauses(case) else None
    return "overhead_bound", "weight_sync", 0.9


def _likely_pauses(case: Situation) -> bool:
    """Nobody tells: most engines stand still while they take weights, and with room in them no more of them would help.

    Without, they would work so much longer; it must be more than anything else gains.
    """
    n, first = case.n, case.first
    if n.saturated is not False or n.seen.synchronous or not n.step or not may_pause(n):
        return False
    share = n.overheads["weight_sync"] / n.step
    return 1 / max(0.05, 1 - share) > (first.gain if first is not None else 1.0)


def gate(case: Situation) -> Said:
    """The trainer waits and production is held at once: dispatched all the time, more were made."""
    n, first = case.n, case.first
    if not case.starved or n.gated is None or n.gated < HOLDS:
        return None
    if n.places is None and not n.saturated:
        # Held from what, nobody tells: what is under way may fill the engines all the same.
        return "orchestrator_bound", "staleness_gate", UNPROVEN
    if first is None or first.cause != "staleness_gate":
        return None
    # Overheads come one after the other with a held production: without them the trainer would wait as long.
    rival = case.best("overhead_bound")
    if rival is not None and rival.gain > first.gain:
        return None
    trainer = _twice_the_trainer(case) if n.held is None or n.held >= MUCH_HELD else 1.0
    # Held most of the time, the two take turns: a trainer twice as fast gains something between nothing and that.
    if sqrt(trainer) > first.gain:
        return "trainer_bound", slow_by(n), UNPROVEN
    sure = n.saturated is not None and trainer <= first.gain
    return "orchestrator_bound", "staleness_gate", 0.95 if sure else UNPROVEN


def _twice_the_trainer(case: Situation) -> float:
    """What a trainer twice as fast could gain at most where it and a gate take turns."""
    return 2 / (1 + (case.n.wait or 0.0))


# ---- tuning: production is too slow


def too_few_dispatched(case: Situation) -> Said:
    """Fewer rollouts are under way than may be, and the engines have room for them."""
    n, first = case.n, case.first
    if not case.starved or n.saturated is not False or n.places is None or n.places >= BELOW_CAP:
        return None
    if first is None or first.cause != "prompts":
        return None
    # What keeps them free nobody tells: of a gate, a trainer twice as fast would be held less.
    told = n.held is not None or n.arrivals is not None
    plain = told or first.gain >= _twice_the_trainer(case)
    return "orchestrator_bound", "prompts", 0.9 if plain else UNPROVEN


def outside_engines(case: Situation) -> Said:
    """Rollouts are in sandboxes, tools or scoring, and without that more were made than with twice the engines."""
    n, first = case.n, case.first
    if not case.starved or first is None or (first.outcome not in OUTSIDE and first.cause != "tool_calls"):
        return None
    if first.cause in ("spin_up", "quota") and n.in_flight.is_limit_open:
        return first.outcome, first.cause, UNPROVEN
    busy = n.extra.get("scoring_busy_ratio")
    if first.outcome == "reward_bound" and busy is not None:
        # One scorer that has time to spare is waited for by chance; who waits for siblings looks the same.
        # A busy one may be as fast as all before it: only what waits for it tells that more were made without it, and
        # a gap of some size.
        inside, scoring = n.place.get("generating", 0.0), n.place.get("scoring", 0.0)
        waits = bool(n.place) and (n.saturated is not None or scoring > inside)
        return first.outcome, first.cause, 1.0 if n.scorer_full and waits and first.gain >= WORTH else UNPROVEN
    return first.outcome, first.cause, 1.0 if n.roomy and n.told >= MOST_OF else UNPROVEN


def thrown_away(case: Situation) -> Said:
    """Filtered groups: most is made for nothing."""
    n, first = case.n, case.first
    if not case.starved or first is None or first.outcome != "curriculum_bound" or (n.zero.share or 0.0) < FEW_FLAT:
        return None
    # Engines that nobody sees may be full, and rollouts that nobody sees may be held or anywhere else.
    proven = n.saturated is not None and (n.saturated or bool(n.place)) and n.batches is not None
    # Of a scorer that is never idle nobody tells how much more there were without it.
    proven = proven and not n.scorer_full
    return "curriculum_bound", first.cause, 1.0 if proven else UNPROVEN


def generation(case: Situation) -> Said:
    """What is left: the engines make too little."""
    n = case.n
    # What nobody explains is the largest part of many gaps; what is explained can be changed.
    known = (one for one in case.found if one.outcome == "generator_bound" and one.cause not in UNEXPLAINED)
    first = next((one for one in known if one.gain >= WORTH), None) or case.best("generator_bound")
    if not case.starved or first is None:
        return None
    if n.saturated or (n.place.get("generating", 0.0) >= MOST_OF):
        # Rollouts count as generating from their dispatch on: engines that nobody sees may have room for all of them.
        # Fewer are under way than may be, the engines have room, and nobody tells whether they are held: a gate may.
        held = n.held is None and not n.saturated and n.places is not None and n.places < AT_CAP
        proven = n.saturated is not None and not held and not barely_full(n)
        return "generator_bound", first.cause, 1.0 if proven else UNPROVEN
    if first.cause in ("long_tail", "drift", "preemption"):
        return "generator_bound", first.cause, 0.9
    if n.place:
        return "generator_bound", first.cause, UNPROVEN
    # Engines with room, and nobody tells where the rollouts are: it may be anything before them.
    return ("generator_bound", first.cause, 0.5) if n.saturated is False else None


def starved_somehow(case: Situation) -> Said:
    """The trainer waits, and nobody tells for what."""
    return ("unknown", "missing", 0.0) if case.starved else None


# ---- tuning: the trainer


def synchronous(case: Situation) -> Said:
    """No queue and no wait: tail, overheads and the share of scoring are what a step loses."""
    if not case.seen.synchronous:
        return None
    needed = {"generator_bound": SYNC_TAIL, "curriculum_bound": 1 / (1 - ZERO_ADVANTAGE), "overhead_bound": 1.25}
    least = {
        one.outcome: needed.get(one.outcome, 1.33) * (LEFT if one.outcome == case.stands else 1.0) for one in case.found
    }
    first = next((one for one in case.found if one.gain >= least[one.outcome]), None)
    tail = case.best("generator_bound")
    # Near its line another few steps may say otherwise.
    near = tail is not None and abs(log(tail.gain / SYNC_TAIL)) < log(NEAR)
    if first is not None:
        return first.outcome, first.cause, UNPROVEN if near and first is tail else 0.9
    if case.seen.get("trainer_step_seconds") is None:
        return "unknown", "missing", 0.0
    return "balanced", "", UNPROVEN if near else 0.9


def no_gradient(case: Situation) -> Said:
    """Most of what the trainer is busy with teaches it nothing."""
    found = case.best("curriculum_bound")
    if case.n.filtered or found is None or case.n.zero.certain < ZERO_ADVANTAGE:
        return None
    rival = case.best("trainer_bound", "overhead_bound")
    if rival is not None and found.gain < rival.gain:
        return None
    # Of a run that waits, production may gain more, and who waits nobody tells.
    return "curriculum_bound", found.cause, 0.9 if case.n.wait is not None else UNPROVEN


def overhead(case: Situation) -> Said:
    """A fifth of the step and more is spent on what neither waits nor trains, and that is worth more than the rest."""
    first, rival = case.best("overhead_bound"), case.best("trainer_bound")
    share = case.n.overhead
    if first is None or share is None or share < MUCH_OVERHEAD or first.gain < 1.0 + MUCH_OVERHEAD:
        return None
    # A tie goes to the overhead: it is the cheaper one to change.
    if rival is not None and log(rival.gain) > CLEAR * log(first.gain):
        return None
    # Who waits, and whether more is on offer, may turn it round.
    return "overhead_bound", first.cause, 0.9 if case.n.wait is not None and ahead(case) else UNPROVEN


def trainer(case: Situation) -> Said:
    """Production could deliver clearly more than the trainer takes."""
    n = case.n
    found = case.best("trainer_bound")
    if n.wait is not None and n.wait >= case.waits and not case.starved:
        # Enough arrives and grows too old in the queue: whoever took it sooner would not wait for what was dropped.
        return "trainer_bound", slow_by(n), 0.9
    if found is not None and found.factor >= case.worth:
        proven, matched = n.wait is not None and ahead(case), all_under_way(case)
        # A hold that keeps no place free keeps nothing back: neither is slow, or it is long, which is not sure either.
        if matched and not proven and n.wait is not None:
            return None
        return "trainer_bound", found.cause, 1.0 if proven and not matched else UNPROVEN
    if n.wait is None or n.wait >= case.waits or n.potential is not None:
        return None
    # Nobody tells what arrives: a queue that is never short of a batch, beside engines with room, is enough of it.
    if n.wait < LITTLE_WAIT and (n.batches or 0.0) >= STOCK and n.saturated is False:
        return "trainer_bound", "compute", 0.7
    return None


def balanced(case: Situation) -> Said:
    if case.n.wait is None or case.n.wait >= case.waits:
        return None
    return "balanced", "", 0.95 if calm(case) else UNPROVEN


def nothing(case: Situation) -> Said:
    return "unknown", "missing", 0.0


RULES: tuple[tuple[str, Rule], ...] = (
    ("V01", lifecycle), ("V02", frozen_engines), ("V03", no_progress), ("V04", dead_engines), ("V05", silent_trainer),
    ("V06", open_step),
    ("V10", failing_sandboxes), ("V11", evaluation), ("V12", weight_updates), ("V13", gate),
    ("V14", too_few_dispatched), ("V20", outside_engines), ("V22", thrown_away), ("V23", generation),
    ("V24", starved_somehow), ("V30", synchronous), ("V31", no_gradient), ("V32", overhead), ("V33", trainer),
    ("V34", balanced), ("V99", nothing),
)  # fmt: skip
"""In the order they are asked."""


def situation(seen: VerdictInput, stands: str = "") -> Situation:
    """One instant, worked out. ``stands``: the outcome that stands."""
    n = numbers(seen)
    return Situation(n, limiters(n), stands)


def judge(seen: VerdictInput, stands: str = "") -> Verdict:
    """What the rules say of one instant. ``stands``: the outcome that stands."""
    return verdict_for(situation(seen, stands))


def verdict_for(case: Situation) -> Verdict:
    """What the rules say of it."""
    for name, rule in RULES:
        said = rule(case)
        if said is not None:
            return verdict_of(case, name, *said)
    raise AssertionError("the last rule always speaks")


def verdict_of(case: Situation, rule: str, outcome: Outcome, cause: str, sure: float) -> Verdict:
    """A verdict of one instant, all of its texts from that instant's numbers.

    ``sure``: confidence before completeness, rivals and contradictions.
    """
    n = case.n
    own = next((one for one in case.found if (one.outcome, one.cause) == (outcome, cause)), None)
    found = tuple(sorted(case.found, key=lambda one: one is not own))
    complete = evidence.completeness(n)
    liveness = rule < "V10"
    says = evidence.disagreements(n)
    if not liveness:
        doubt = CONTRADICTION if says or n.contradictions else 1.0
        sure *= (0.4 + 0.6 * complete) * clear(case, own, complete) * doubt * blind(case, outcome)
    return Verdict(
        outcome=outcome,
        cause=cause,
        rule=rule,
        confidence=round(CERTAIN * sure, 2),
        completeness=round(complete, 2),
        summary=messages.summary(outcome, cause, n, own),
        evidence=evidence.evidence(n, found, own),
        limiters=found,
        advice=messages.advice(outcome, cause, n),
        numbers=n.table(),
        missing=evidence.missing(n),
        disagreements=says,
        contradictions=n.contradictions,
        usd_per_hour=evidence.idle(n.seen),
        usd_lacks=evidence.idle_lacks(n.seen),
    )
