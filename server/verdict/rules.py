"""The numbered rules in order: liveness, infrastructure, tuning. The first that applies is the verdict. Pure.

`judge` evaluates one instant; `remember` compares it with the current verdict. docs/concepts/verdict-rules.md is
generated from the docstrings of the rules, which begin "Returns OUTCOME: condition."
"""

from dataclasses import replace
from math import log, sqrt
from statistics import stdev
from typing import Any

from msgspec import structs

from server.verdict import explain, steps, throughput
from server.verdict.advice import Bins, advise, engine_curve, load_share, remember_speed, speed_point
from server.verdict.limiters import limiters, slow_by
from server.verdict.liveness import (
    STARVING,
    UNEXPLAINED,
    Rule,
    RuleResult,
    Situation,
    dead_engines,
    evaluates,
    frozen_engines,
    hangs,
    is_down,
    lifecycle,
    no_progress,
    open_step,
    silent_trainer,
    trainer_fault,
)
from server.verdict.model import Evidence, Limiter, Outcome, Verdict, VerdictInput
from server.verdict.thresholds import (
    ARRIVALS_UNKNOWN,
    AT_CAP,
    BELOW_CAP,
    CERTAIN,
    CHANGED_SECONDS,
    CLEAR,
    COMPLETE,
    CONFIDENT,
    CONTRADICTED,
    CONTRADICTION,
    FAILING_CALLS,
    FEW_FLAT,
    FEW_STEPS,
    FIRST_SECONDS,
    HALF,
    HOLD_SECONDS,
    HOLDS,
    IDLE_ENGINES,
    IDLE_SCORER,
    INFERRED,
    LEAST_SHARE,
    LEFT,
    LITTLE_WAIT,
    MISSING_SECONDS,
    MOST_OF,
    MOST_SECONDS,
    MOST_SHARE,
    MOSTLY_INSIDE,
    MOSTLY_WAITS,
    MUCH_HELD,
    MUCH_OVERHEAD,
    MUCH_STALE,
    MUCH_WAIT,
    NEAR,
    NEAR_RIVAL,
    NO_EVIDENCE,
    PLAIN,
    PLAINLY_FULL,
    PLAINLY_QUEUED,
    QUEUED,
    SOME_WAIT,
    STALLED_SECONDS,
    STOCK,
    SURELY_BEYOND,
    SURPLUS,
    SYNC_OTHERS,
    SYNC_TAIL,
    TWICE,
    UNCONTRADICTED,
    UNPROVEN,
    UNSETTLED,
    UNSURE_SECONDS,
    WAITS,
    WORTH,
    ZERO_ADVANTAGE,
)
from server.verdict.throughput import Numbers, numbers

# ---- confidence
# The confidence of a verdict: which missing source, rival or chance could reverse it.


def ahead(case: Situation) -> bool:
    """Returns whether production is clearly ahead of the trainer.

    A hold stops dispatches, not the rollouts in flight: while rollouts take longer than the hold, as many are finished.
    A hold therefore proves something only with free slots below the cap, or if it is long and the queue is never short.
    """
    n = case.n
    if n.arrivals is not None and n.arrivals >= case.worth * max(n.trained or 0.0, n.capacity or 0.0):
        return True
    # Free slots without a hold may come from slow prompts.
    if (n.hold_ratio or 0.0) < HOLDS:
        return False
    # The hold lasts until rollouts in flight have ended, and the queue is never short. A trainer that waits now and
    # then is not limited by a full queue alone.
    is_held = (n.hold_ratio or 0.0) >= MUCH_HELD and (n.batches or 0.0) >= STOCK
    return (n.places is not None and n.places * SURPLUS <= 1.0) or ((n.wait or 0.0) < LITTLE_WAIT and is_held)


def all_in_flight(case: Situation) -> bool:
    """Returns whether nearly all allowed rollouts are in flight in spite of a hold.

    Little's law: throughput is rollouts in flight over their duration, so without the hold only the free slots would be
    added. Not if the window is shorter than a step, or if drops make room for what is held.
    """
    n = case.n
    if n.places is None or n.arrivals is None or not n.step or n.step > MOST_SECONDS or n.stale:
        return False
    largest = max(n.arrivals, n.trained or 0.0) / max(n.places, LEAST_SHARE)
    return largest < case.worth * max(n.trained or 0.0, n.capacity or 0.0)


def calm(case: Situation) -> bool:
    """Returns whether nothing contradicts a balanced verdict."""
    n = case.n
    # Without arrivals the trainer may be the limit. The same holds if a tenth of the arrivals is dropped as stale, or
    # if production is held.
    if n.potential is None or (n.stale or 0.0) >= MUCH_STALE or _held_back(case):
        return False
    # Engines or rollouts that are not reported may be a limit.
    if n.saturated is None or n.places is None:
        return False
    # Beyond the line a balanced verdict only stands. Below it, production that is held while the trainer waits is no
    # balance.
    if (n.wait or 0.0) >= WAITS or _within_chance(n) or (n.gated or 0.0) >= HOLDS:
        return False
    # A gate that is closed most of the time lets through what the trainer frees, so the trainer may set the pace.
    if (n.hold_ratio or 0.0) >= MUCH_HELD and (n.wait or 0.0) >= LITTLE_WAIT:
        return False
    # Three steps are too few, and steps that wait although the queue is stocked belong to two periods.
    if 0 < n.steps <= FEW_STEPS or ((n.wait or 0.0) >= SOME_WAIT and (n.batches or 0.0) >= STOCK):
        return False
    # A fifth of overhead gains as much as production can follow, which does not show while the two take turns.
    return (n.overhead or 0.0) < MUCH_OVERHEAD


def _held_back(case: Situation) -> bool:
    return any(limiter.outcome == "trainer_bound" and limiter.factor >= case.worth for limiter in case.limiters)


def _within_chance(n: Numbers) -> bool:
    """Returns whether chance may have put the wait on the wrong side of the line.

    The margin is two standard errors of the mean beyond the line. Below it one suffices: a wrong balance costs little.
    """
    waits = steps.wait_shares(n.seen.steps)[-n.steps :] if n.steps else []
    chance = stdev(waits) / sqrt(len(waits)) if len(waits) > 1 else 0.0
    wait = n.wait or 0.0
    return wait - SURELY_BEYOND * chance < WAITS <= wait + chance


def barely_full(n: Numbers) -> bool:
    """Returns whether the engines are full, but so narrowly that tools or scoring could limit as much.

    In engines that are just full, rollouts that return from tools or scoring take the room that is left.
    """
    queued = (n.waiting or 0.0) >= max(PLAINLY_QUEUED, QUEUED * (n.running or 0.0))
    full = max(n.busy or 0.0, n.kv or 0.0) >= PLAINLY_FULL
    return bool(n.saturated) and not queued and not full and n.time_shares.get("generating", 0.0) < MOSTLY_INSIDE


def blind(case: Situation, outcome: Outcome) -> float:
    """Returns the factor of confidence for a missing source or chance that could reverse the verdict."""
    n = case.n
    # Half of all groups without a gradient would be the first thing to change. If no source reports the share, the
    # spread of rewards within groups may show that it is smaller.
    unsure = n.zero.share is None or (n.zero.is_sample and n.zero.low < ZERO_ADVANTAGE <= n.zero.high)
    is_open = unsure and (n.zero.upper_bound is None or n.zero.upper_bound >= ZERO_ADVANTAGE)
    if is_open and n.seen.fact("group_size") != 1:
        # A trainer that waits shows that production is slow. A trainer that does not wait may be busy for nothing.
        return UNPROVEN if outcome in STARVING else HALF
    if outcome not in STARVING or n.seen.synchronous:
        return 1.0
    # One step may be chance, and below the line the verdict only stands because it stood before.
    if case.starved and (n.steps == 1 or (n.lacking or 0.0) < WAITS):
        return HALF
    # During a long checkpoint production is held, and later the trainer waits for the missing samples. Only a reported
    # queue distinguishes this from slow production.
    no_queue, long = n.hold_ratio is None and n.arrivals is None, (n.overhead or 0.0) >= MUCH_OVERHEAD
    # A short wait proves little if neither engines nor rollouts are reported.
    unseen = no_queue or n.saturated is None or not n.time_shares
    spells = (n.wait or 0.0) < MUCH_WAIT or 0 < n.steps <= FEW_STEPS
    in_turns = (n.hold_ratio or 0.0) >= HOLDS > (n.gated or 0.0)
    doubtful = (unseen and spells) or ((no_queue or in_turns) and long) or may_pause(n)
    return UNPROVEN if doubtful or _within_chance(n) else 1.0


def may_pause(n: Numbers) -> bool:
    """Returns whether weight updates take a fifth of the step and no source reports if the engines stand still."""
    not_reported = n.seen.get("generator_weight_stall_seconds", stat="mean") is None
    return not_reported and n.overheads.get("weight_sync", 0.0) >= MUCH_OVERHEAD * (n.step or 0.0) > 0.0


def clear(case: Situation, own_limiter: Limiter | None, complete: float) -> float:
    """Returns the factor of confidence for rivals. ``complete``: share of the evidence that is available.

    Two limiters that each fill the gap gain the same; they are compared by the gain of production alone.
    """
    if own_limiter is None or own_limiter.gain <= 1.0:
        return 1.0
    uneven = not case.n.filtered and case.n.zero.certain < ZERO_ADVANTAGE
    rivals = [limiter for limiter in case.limiters if limiter.outcome != own_limiter.outcome]
    rivals = [limiter for limiter in rivals if not (uneven and limiter.outcome == "curriculum_bound")]
    gains = [case.comparable(own_limiter, limiter) for limiter in rivals]
    if uneven and own_limiter.outcome != "curriculum_bound" and (likely := case.n.zero.likely) >= ZERO_ADVANTAGE:
        gains.append((own_limiter.gain, 1 / (1 - min(likely, MOST_SHARE))))
    overhead = case.best("overhead_bound")
    if own_limiter.outcome == "trainer_bound" and overhead is not None and (case.n.overhead or 0.0) >= MUCH_OVERHEAD:
        # If some steps wait and others are held, production may be fast enough; then the overhead gains all of it.
        gains.append((own_limiter.gain, overhead.factor))
    return min((_distance(*both, complete) for both in gains), default=1.0)


def _distance(own_factor: float, rival_factor: float, complete: float) -> float:
    """Compares two gains. With a source missing the gain must be half again as large as the rival's."""
    ratio = log(own_factor) / log(rival_factor) if rival_factor > 1.0 else PLAIN
    return 1.0 if ratio >= PLAIN else NEAR_RIVAL if ratio >= CLEAR and complete > COMPLETE else UNPROVEN


OUTSIDE = ("sandbox_bound", "reward_bound")

# ---- infrastructure


def failing_sandboxes(case: Situation) -> RuleResult:
    """Returns sandbox_bound: all rewards are zero while tools or rollouts fail, or failures gain most.

    This comes before the curriculum, because a dead sandbox makes every reward zero.
    """
    lost = next((limiter for limiter in case.limiters if limiter.cause == "init_failures"), None)
    failing = case.seen.get("failure_ratio") or 0.0
    rewards = case.seen.get("reward", stat="mean")
    if rewards == 0.0 and (failing > FAILING_CALLS or lost is not None):
        return "sandbox_bound", "init_failures", 1.0
    if lost is None or not case.starved:
        return None
    first = case.best("sandbox_bound", "reward_bound", "generator_bound")
    return ("sandbox_bound", "init_failures", 1.0) if first is lost else None


def evaluation(case: Situation) -> RuleResult:
    """Returns overhead_bound: the trainer waits, and at least half of the rollouts in flight are evaluations."""
    return ("overhead_bound", "eval", INFERRED) if case.starved and evaluates(case) else None


def weight_updates(case: Situation) -> RuleResult:
    """Returns overhead_bound: the trainer waits, and engines stood still for new weights for a fifth of the time.

    If no source reports such stops, weights must take a fifth of the step while engines have room, and their removal
    must gain most. Such a verdict is not confident.
    """
    stall = case.seen.get("generator_weight_stall_seconds", stat="mean")
    if not case.starved or (stall is not None and stall < STALLED_SECONDS):
        return None
    if stall is None:
        return ("overhead_bound", "weight_sync", UNPROVEN) if _likely_pauses(case) else None
    return "overhead_bound", "weight_sync", INFERRED


def _likely_pauses(case: Situation) -> bool:
    """Returns whether weight updates likely stop the engines although no source reports it.

    Most engines stand still while they take weights. Engines with room show that more engines would not help. Without
    the pause they would work for that share of the time longer, which must be more than any other limiter gains.
    """
    n, first = case.n, case.first
    if n.saturated is not False or n.seen.synchronous or not n.step or not may_pause(n):
        return False
    share = n.overheads["weight_sync"] / n.step
    return 1 / max(LEAST_SHARE, 1 - share) > (first.gain if first is not None else 1.0)


def gate(case: Situation) -> RuleResult:
    """Returns orchestrator_bound or trainer_bound: the trainer waits while a gate holds production, which costs most.

    If production is held for 40% of the time and a faster trainer likely gains
    more, the verdict is trainer_bound.
    """
    n, first = case.n, case.first
    if not case.starved or n.gated is None or n.gated < HOLDS:
        return None
    if n.places is None and not n.saturated:
        # No source reports the rollouts in flight: they may fill the engines in spite of the hold.
        return "orchestrator_bound", "staleness_gate", UNPROVEN
    if first is None or first.cause != "staleness_gate":
        return None
    # Overheads and a hold follow each other: without the overheads the trainer would wait as long.
    rival = case.best("overhead_bound")
    if rival is not None and rival.gain > first.gain:
        return None
    trainer = _twice_the_trainer(case) if n.hold_ratio is None or n.hold_ratio >= MUCH_HELD else 1.0
    # With a long hold, gate and trainer take turns: a faster trainer gains between nothing and `trainer`.
    if sqrt(trainer) > first.gain:
        return "trainer_bound", slow_by(n), UNPROVEN
    sure = n.saturated is not None and trainer <= first.gain
    return "orchestrator_bound", "staleness_gate", UNCONTRADICTED if sure else UNPROVEN


def _twice_the_trainer(case: Situation) -> float:
    """Returns the largest gain of a trainer twice as fast, if trainer and gate take turns."""
    return TWICE / (1 + (case.n.wait or 0.0))


# ---- tuning: production is too slow


def too_few_dispatched(case: Situation) -> RuleResult:
    """Returns orchestrator_bound: the trainer waits, and fewer rollouts are in flight than allowed.

    The engines have room, nothing holds production, and more prompts gain most.
    """
    n, first = case.n, case.first
    if not case.starved or n.saturated is not False or n.places is None or n.places >= BELOW_CAP:
        return None
    if first is None or first.cause != "prompts":
        return None
    # If no source reports a hold, a gate may keep slots free, and a trainer twice as fast would be held less.
    reported = n.hold_ratio is not None or n.arrivals is not None
    plain = reported or first.gain >= _twice_the_trainer(case)
    return "orchestrator_bound", "prompts", INFERRED if plain else UNPROVEN


def outside_engines(case: Situation) -> RuleResult:
    """Returns sandbox_bound, reward_bound or orchestrator_bound: boots, tools or scoring make the trainer wait.

    Their removal gains more than twice the engines.
    """
    n, first = case.n, case.first
    if not case.starved or first is None or (first.outcome not in OUTSIDE and first.cause != "tool_calls"):
        return None
    if first.cause in ("spin_up", "quota") and n.in_flight.is_limit_open:
        return first.outcome, first.cause, UNPROVEN
    busy = n.extra.get("scoring_busy_ratio")
    if first.outcome == "reward_bound" and busy is not None:
        # Rollouts wait for a scorer with spare time only by chance, and waiting for the group looks the same. A busy
        # scorer may be as fast as generation: only a queue before it, and a clear gap, show that it is the limit.
        inside, scoring = n.time_shares.get("generating", 0.0), n.time_shares.get("scoring", 0.0)
        waits = bool(n.time_shares) and (n.saturated is not None or scoring > inside)
        return first.outcome, first.cause, 1.0 if n.scorer_full and waits and first.gain >= WORTH else UNPROVEN
    return first.outcome, first.cause, 1.0 if n.roomy and n.placed >= MOST_OF else UNPROVEN


def thrown_away(case: Situation) -> RuleResult:
    """Returns curriculum_bound: the trainer waits, and filtered groups without a gradient gain most.

    They are at least a fifth of the completed groups.
    """
    n, first = case.n, case.first
    if not case.starved or first is None or first.outcome != "curriculum_bound" or (n.zero.share or 0.0) < FEW_FLAT:
        return None
    # Engines that are not reported may be full, and rollouts that are not reported may be held.
    proven = n.saturated is not None and (n.saturated or bool(n.time_shares)) and n.batches is not None
    # How much more there would be without a scorer that is never idle is not measured.
    proven = proven and not n.scorer_full
    return "curriculum_bound", first.cause, 1.0 if proven else UNPROVEN


def generation(case: Situation) -> RuleResult:
    """Returns generator_bound or orchestrator_bound: the trainer waits, and no other limiter of production gains more.

    A named cause that gains 1.18 or more comes before the unexplained rest. The rest is orchestrator_bound
    (`concurrency_cap`) if the engines have room and the in-flight limit is used.
    """
    n = case.n
    idle = next((limiter for limiter in case.limiters if limiter.cause == "concurrency_cap"), None)
    # The unexplained part of a gap is often the largest, but an explained cause can be changed. Engines with room would
    # run more of the rollouts that have become longer.
    unexplained = (*UNEXPLAINED, "drift") if idle is not None else UNEXPLAINED
    explained = (
        limiter
        for limiter in case.limiters
        if limiter.outcome == "generator_bound" and limiter.cause not in unexplained
    )
    first = next((limiter for limiter in explained if limiter.gain >= WORTH), None)
    first = first or idle or case.best("generator_bound")
    if not case.starved or first is None:
        return None
    if first is idle:
        return first.outcome, first.cause, _room_is_idle(case)
    if n.saturated or (n.time_shares.get("generating", 0.0) >= MOST_OF):
        # Rollouts count as generating from their dispatch on: engines that are not reported may have room for all.
        # With free slots, room in the engines and no report of a hold, a gate may be the cause.
        is_held = n.hold_ratio is None and not n.saturated and n.places is not None and n.places < AT_CAP
        proven = n.saturated is not None and not is_held and not barely_full(n)
        return "generator_bound", first.cause, 1.0 if proven else UNPROVEN
    if first.cause in ("long_tail", "drift", "preemption"):
        return "generator_bound", first.cause, INFERRED
    if n.time_shares:
        return "generator_bound", first.cause, UNPROVEN
    # The engines have room, and no source places the rollouts: any limiter before the engines is possible.
    return ("generator_bound", first.cause, HALF) if n.saturated is False else None


def _room_is_idle(case: Situation) -> float:
    """Returns the confidence that more rollouts in flight would fill the room of the engines."""
    n = case.n
    if not n.time_shares and n.places is None:
        return HALF
    proven = n.places is not None and n.time_shares.get("generating", 0.0) >= MOST_OF
    return 1.0 if proven else UNPROVEN


def starved_somehow(case: Situation) -> RuleResult:
    """Returns unknown: the trainer waits, and no source shows for what."""
    return ("unknown", "missing", 0.0) if case.starved else None


# ---- tuning: the trainer


def synchronous(case: Situation) -> RuleResult:
    """Returns any tuning outcome: in a synchronous run, the limiter with the largest gain beyond its threshold.

    Such a run has no queue and no wait, but a tail, overheads, scoring and groups without a gradient. Otherwise it is
    balanced.
    """
    if not case.seen.synchronous:
        return None
    needed = {
        "generator_bound": SYNC_TAIL,
        "curriculum_bound": 1 / (1 - ZERO_ADVANTAGE),
        "overhead_bound": 1 / (1 - MUCH_OVERHEAD),
    }
    least = {
        limiter.outcome: needed.get(limiter.outcome, SYNC_OTHERS) * (LEFT if limiter.outcome == case.stands else 1.0)
        for limiter in case.limiters
    }
    first = next((limiter for limiter in case.limiters if limiter.gain >= least[limiter.outcome]), None)
    tail = case.best("generator_bound")
    # Near its line a few more steps may change the result.
    near = tail is not None and abs(log(tail.gain / SYNC_TAIL)) < log(NEAR)
    if first is not None:
        return first.outcome, first.cause, UNPROVEN if near and first is tail else INFERRED
    if case.seen.get("trainer_step_seconds") is None:
        return "unknown", "missing", 0.0
    return "balanced", "", UNPROVEN if near else INFERRED


def no_gradient(case: Situation) -> RuleResult:
    """Returns curriculum_bound: half or more of the groups carry no gradient and occupy the trainer.

    No change of the trainer or its overheads gains more.
    """
    limiter = case.best("curriculum_bound")
    if case.n.filtered or limiter is None or case.n.zero.certain < ZERO_ADVANTAGE:
        return None
    rival = case.best("trainer_bound", "overhead_bound")
    if rival is not None and limiter.gain < rival.gain:
        return None
    # In a run that waits, production may gain more; without a reported wait this is open.
    return "curriculum_bound", limiter.cause, INFERRED if case.n.wait is not None else UNPROVEN


def overhead(case: Situation) -> RuleResult:
    """Returns overhead_bound: weight sync, checkpoints or evaluations take a fifth of the step or more.

    Production could follow, and a faster trainer gains no more.
    """
    first, rival = case.best("overhead_bound"), case.best("trainer_bound")
    share = case.n.overhead
    if first is None or share is None or share < MUCH_OVERHEAD or first.gain < 1.0 + MUCH_OVERHEAD:
        return None
    # A tie goes to the overhead: it is the cheaper one to change.
    if rival is not None and log(rival.gain) > CLEAR * log(first.gain):
        return None
    # A wait, or production that cannot follow, would reverse the verdict.
    return "overhead_bound", first.cause, INFERRED if case.n.wait is not None and ahead(case) else UNPROVEN


def trainer(case: Situation) -> RuleResult:
    """Returns trainer_bound: production could deliver a quarter more than the trainer takes.

    Samples that are dropped as stale count, and so does what a hold prevents. Not if nearly all allowed rollouts are in
    flight in spite of the hold.
    """
    n = case.n
    limiter = case.best("trainer_bound")
    if n.wait is not None and n.wait >= case.waits and not case.starved:
        # Enough arrives and becomes stale in the queue: a faster trainer would take it before it is dropped.
        return "trainer_bound", slow_by(n), INFERRED
    if limiter is not None and limiter.factor >= case.worth:
        proven, matched = n.wait is not None and ahead(case), all_in_flight(case)
        # A hold without free slots limits nothing: neither side is slow.
        if matched and not proven and n.wait is not None:
            return None
        return "trainer_bound", limiter.cause, 1.0 if proven and not matched else UNPROVEN
    if _takes_turns(n):
        return "trainer_bound", slow_by(n), UNPROVEN
    if n.wait is None or n.wait >= case.waits or n.potential is not None:
        return None
    # Arrivals are not reported: a queue that always holds a batch, and engines with room, show that enough arrives.
    if n.wait < LITTLE_WAIT and (n.batches or 0.0) >= STOCK and n.saturated is False:
        return "trainer_bound", "compute", ARRIVALS_UNKNOWN
    return None


def _takes_turns(n: Numbers) -> bool:
    """Returns whether trainer and gate take turns: rollouts start only when a step ends, and the trainer waits.

    A faster trainer opens the gate sooner, and the free slots and engines with room follow it.
    """
    is_held = (n.hold_ratio or 0.0) >= MUCH_HELD and n.places is not None and n.places * SURPLUS <= 1.0
    return is_held and n.saturated is False and (n.wait or 0.0) >= LITTLE_WAIT and not n.seen.synchronous


def balanced(case: Situation) -> RuleResult:
    """Returns balanced: the trainer waits for less than 15% of its step."""
    if case.n.wait is None or case.n.wait >= case.waits:
        return None
    return "balanced", "", UNCONTRADICTED if calm(case) else UNPROVEN


def nothing(case: Situation) -> RuleResult:
    """Returns unknown: no source shows whether the trainer waits."""
    return "unknown", "missing", 0.0


RULES: tuple[tuple[str, Rule], ...] = (
    ("V01", lifecycle), ("V07", trainer_fault), ("V02", frozen_engines), ("V03", no_progress), ("V04", dead_engines),
    ("V05", silent_trainer), ("V06", open_step),
    ("V10", failing_sandboxes), ("V11", evaluation), ("V12", weight_updates), ("V13", gate),
    ("V14", too_few_dispatched), ("V20", outside_engines), ("V22", thrown_away), ("V23", generation),
    ("V24", starved_somehow), ("V30", synchronous), ("V31", no_gradient), ("V32", overhead), ("V33", trainer),
    ("V34", balanced), ("V99", nothing),
)  # fmt: skip
"""In the order of evaluation."""


def situation(seen: VerdictInput, stands: str = "", speeds: Bins = ()) -> Situation:
    """Computes the situation of one instant.

    Args:
        stands: the outcome of the current verdict; speeds: of the engines, as the run has shown them.
    """
    n = numbers(seen)
    engines = n.engines.get("up", 0.0)
    if n.running and engines and len(speeds) > 1:
        n = replace(n, load_share=load_share(speeds, n.running / engines))
    return Situation(n, limiters(n), stands, speeds)


def judge(seen: VerdictInput, stands: str = "") -> Verdict:
    """Returns the verdict of one instant. ``stands``: the outcome of the current verdict."""
    return verdict_for(situation(seen, stands))


def verdict_for(case: Situation) -> Verdict:
    """Returns the result of the first rule that applies."""
    for name, rule in RULES:
        result = rule(case)
        if result is not None:
            return verdict_of(case, name, *result)
    raise AssertionError("the last rule always applies")


def verdict_of(case: Situation, rule: str, outcome: Outcome, cause: str, sure: float) -> Verdict:
    """Builds a verdict with all of its texts from the numbers of one instant.

    ``sure``: confidence before completeness, rivals and contradictions are counted.
    """
    n = case.n
    own_limiter = next(
        (limiter for limiter in case.limiters if (limiter.outcome, limiter.cause) == (outcome, cause)), None
    )
    ranked = tuple(sorted(case.limiters, key=lambda limiter: limiter is not own_limiter))
    complete = explain.completeness(n)
    liveness = rule < "V10"
    disagreements = explain.disagreements(n)
    if not liveness:
        doubt = CONTRADICTION if disagreements or n.contradictions else 1.0
        evidence = NO_EVIDENCE + (1 - NO_EVIDENCE) * complete
        sure *= evidence * clear(case, own_limiter, complete) * doubt * blind(case, outcome)
    changes, lacks = ((), {}) if liveness else advise(n, case.speeds, cause)
    return Verdict(
        outcome=outcome,
        cause=cause or None,
        rule=rule,
        confidence=round(CERTAIN * sure, 2),
        completeness=round(complete, 2),
        summary=explain.summary(outcome, cause, n, own_limiter),
        evidence=explain.evidence(n, ranked, own_limiter),
        limiters=ranked,
        advice=explain.advised(outcome, cause, n, changes),
        advice_lacks=tuple(f"{lever}: {how}" for lever, how in lacks.items()),
        engine_speed=engine_curve(n, case.speeds),
        numbers=n.table(),
        missing=explain.missing(n),
        disagreements=disagreements,
        contradictions=n.contradictions,
        usd_per_hour=explain.idle(n.seen),
        usd_lacks=explain.idle_lacks(n.seen),
    )


# ---- over time
# Results of single instants flicker, so another outcome must hold for a while before it replaces the current verdict.
# Until then the current verdict is rewritten from today's numbers, with little confidence. Numbers that contradict it
# end it at once.

Memory = dict[str, Any]
"""JSON: ``outcome``, ``cause``, ``since`` and ``rule`` of the current verdict; ``other``: since when the rules find
another outcome; ``next`` = [outcome, cause, since] of the newest result; ``samples`` of the queue; ``recent`` instants;
``speeds`` of the engines (`server.verdict.advice.Bins`);
``first`` = [incarnation, number] of the first step of the present; ``hung``: since when most engines hang; ``down``:
since when no engine answers."""

# Causes whose begin the trainer's log dates.
_DATED = ("collective_timeout", "worker_died")
_AT_ONCE = ("over", "paused", "starting", "open_step")


def remember(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
    """Returns (memory, verdict) of one instant. Instants come in order; a repeated instant changes nothing."""
    current: Memory = dict(memory or {})
    window = steps.add([(ts, counts) for ts, counts in current.get("recent", [])], seen)
    current["recent"] = [list(entry) for entry in window]
    first = current.get("first")
    current["hung"] = current.get("hung") or seen.now if hangs(seen) else None
    current["down"] = current.get("down") or seen.now if is_down(seen) else None
    first_step = (first[0], first[1]) if first else None
    seen = replace(seen, instants=window, first=first_step, hung_since=current["hung"], down_since=current["down"])
    case = situation(seen, current.get("outcome", ""), current.get("speeds", ()))
    current["speeds"] = remember_speed(current.get("speeds", ()), speed_point(case.n))
    if case.n.first is not None and case.n.first != seen.first:
        current["first"] = list(case.n.first)
    verdict, current["samples"], buffer = _with_queue(verdict_for(case), current.get("samples", []), seen)
    verdict = structs.replace(verdict, buffer=buffer)
    if _replaces(current, verdict, case):
        same = verdict.key == (current.get("outcome"), current.get("cause"))
        since = current["since"] if same else current.pop("next", (0, 0, seen.now))[2]
        if verdict.cause in _DATED and seen.fault_since is not None:
            since = seen.fault_since
        current.pop("next", None)
        current.pop("other", None)
        current.update(outcome=verdict.outcome, cause=verdict.cause or "", rule=verdict.rule, since=since)
        return current, structs.replace(verdict, since=since)
    sure = 0.0 if current["outcome"] == "unknown" else UNSETTLED
    stands = verdict_of(case, current["rule"], current["outcome"], current["cause"], sure)
    return current, structs.replace(
        stands, confidence=min(stands.confidence, sure), since=current["since"], buffer=buffer
    )


def _replaces(current: Memory, candidate: Verdict, case: Situation) -> bool:
    """Returns whether ``found`` replaces the current verdict; stores since when another one has been found."""
    now, stands = case.seen.now, (current.get("outcome"), current.get("cause"))
    if stands == (None, None) or candidate.key == stands:
        return True
    if stands[1] in _DATED and case.seen.fault_since is None:
        return True  # a new step came: whatever limits the run now, the fault is over
    # A cause that flickers is no reason to doubt the outcome.
    newest = current.get("next")
    since = newest[2] if newest is not None and newest[0] == candidate.outcome else now
    current["next"] = [candidate.outcome, candidate.cause, since]
    # Other outcomes may alternate: what counts is for how long the rules do not find the current one.
    if candidate.outcome == "unknown" and candidate.cause not in _AT_ONCE:
        return bool(now - since >= MISSING_SECONDS)
    if candidate.outcome == stands[0]:
        current.pop("other", None)
    else:
        current["other"] = current.get("other") or now
    if contradicted(case, str(stands[0]), str(stands[1])):
        return True
    if candidate.outcome == stands[0]:
        return bool(now - since >= CHANGED_SECONDS)
    return bool(now - current["other"] >= _hold(str(stands[0]), candidate, case.n.changed))


def _hold(before: str, candidate: Verdict, changed: bool) -> float:
    """Returns the seconds that another verdict must hold. ``changed``: whole steps show a change."""
    if candidate.cause in _AT_ONCE or candidate.outcome == "stalled":
        return 0.0
    if before == "unknown":
        return FIRST_SECONDS
    if changed:
        return CHANGED_SECONDS
    return HOLD_SECONDS if candidate.confidence >= CONFIDENT else UNSURE_SECONDS


def contradicted(case: Situation, outcome: str, cause: str) -> bool:
    """Returns whether today's numbers contradict this verdict by a clear margin, which noise does not reach."""
    n = case.n
    if outcome == "stalled" or cause == "open_step":
        return True  # the rules find another verdict: the run moves again
    if outcome in ("balanced", "trainer_bound"):
        # The last ten steps must show it too, because a few steps may be a burst.
        waits = min(n.lacking or 0.0, n.reported if n.reported is not None else 1.0)
        return (waits >= WAITS + CONTRADICTED or (n.lacking or 0.0) >= MOSTLY_WAITS) and not n.dropped
    if outcome == "curriculum_bound":
        return n.zero.share is not None and n.zero.share < FEW_FLAT
    if outcome not in STARVING:
        return False
    if n.lacking is not None and n.lacking < LITTLE_WAIT and not n.seen.synchronous:
        return True
    return _is_outside(case, outcome, cause)


def _is_outside(case: Situation, outcome: str, cause: str) -> bool:
    """Returns whether the actor that this verdict names is clearly idle."""
    n = case.n
    inside, busy = n.time_shares.get("generating"), n.extra.get("scoring_busy_ratio")
    if outcome == "generator_bound":
        return bool(n.saturated is False and inside is not None and inside < IDLE_ENGINES)
    if outcome == "reward_bound":
        return bool(busy is not None and busy < IDLE_SCORER and n.time_shares.get("scoring", 0.0) < IDLE_ENGINES)
    if cause == "tool_time" and n.in_flight.is_limit_open:
        return True  # tools need a sandbox first
    if outcome == "sandbox_bound":
        outside = sum(n.time_shares.get(phase, 0.0) for phase in ("booting", "in_tool"))
        return bool(cause != "init_failures" and inside is not None and inside >= AT_CAP and outside < 1 - AT_CAP)
    return bool(cause in ("prompts", "staleness_gate") and n.places is not None and n.places >= 1.0)


def _with_queue(
    verdict: Verdict, window: list[list[float]], seen: VerdictInput
) -> tuple[Verdict, list[list[float]], str]:
    """Returns the verdict with the evidence of the queue, the samples of its window, and the state of the queue."""
    samples = [throughput.Sample(*row) for row in window]
    step = seen.get("trainer_step_seconds")
    waiting, version = seen.get("queue_samples_now"), seen.get("policy_version")
    batch = seen.fact("batch_samples") or _batch(seen)
    if waiting is None or version is None or not batch:
        return verdict, window, ""
    samples = throughput.add(samples, throughput.Sample(seen.now, waiting, version, batch), step)
    state = throughput.state(samples, step, verdict.numbers.get("held_ratio"), verdict.numbers.get("wait_ratio"))
    rows = [[row.ts, row.queue, row.version, row.batch] for row in samples]
    if state in ("stall", "stop") and verdict.outcome not in ("stalled", "unknown"):
        text = Evidence(
            throughput.TEXTS[state][0].upper() + throughput.TEXTS[state][1:], "queue_samples_now", waiting, "samples"
        )
        # If nothing moves for steps, the shares of the last steps are outdated. An open step is not.
        sure = verdict.confidence if verdict.cause == "open_step" else round(min(verdict.confidence, UNSETTLED), 2)
        return structs.replace(verdict, evidence=(text, *verdict.evidence), confidence=sure), rows, state
    return verdict, rows, state


def _batch(seen: VerdictInput) -> float | None:
    trained, step = seen.get("trainer_samples_per_second"), seen.get("trainer_step_seconds")
    return trained * step if trained and step else None
