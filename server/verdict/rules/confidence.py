"""The confidence of a verdict: which missing source, rival or chance could reverse it. Pure."""

from math import log, sqrt
from statistics import stdev

from server.verdict.facts import regime
from server.verdict.facts.throughput import Numbers
from server.verdict.model import Limiter, Outcome
from server.verdict.rules.situation import STARVING, Situation
from server.verdict.thresholds import (
    CLEAR,
    FEW_STEPS,
    HALF,
    HOLDS,
    LITTLE_WAIT,
    MOST_SECONDS,
    MOSTLY_INSIDE,
    MUCH_HELD,
    MUCH_OVERHEAD,
    MUCH_STALE,
    MUCH_WAIT,
    PLAIN,
    PLAINLY_FULL,
    SOME_WAIT,
    STOCK,
    SURPLUS,
    UNPROVEN,
    WAITS,
    ZERO_ADVANTAGE,
)


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
    largest = max(n.arrivals, n.trained or 0.0) / max(n.places, 0.05)
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
    waits = regime.waits(n.seen.steps)[-n.steps :] if n.steps else []
    chance = stdev(waits) / sqrt(len(waits)) if len(waits) > 1 else 0.0
    wait = n.wait or 0.0
    return wait - 2 * chance < WAITS <= wait + chance


def barely_full(n: Numbers) -> bool:
    """Returns whether the engines are full, but so narrowly that tools or scoring could limit as much.

    In engines that are just full, rollouts that return from tools or scoring take the room that is left.
    """
    queued = (n.waiting or 0.0) >= max(2.0, 0.2 * (n.running or 0.0))
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
        gains.append((own_limiter.gain, 1 / (1 - min(likely, 0.95))))
    overhead = case.best("overhead_bound")
    if own_limiter.outcome == "trainer_bound" and overhead is not None and (case.n.overhead or 0.0) >= MUCH_OVERHEAD:
        # If some steps wait and others are held, production may be fast enough; then the overhead gains all of it.
        gains.append((own_limiter.gain, overhead.factor))
    return min((_distance(*both, complete) for both in gains), default=1.0)


def _distance(own_factor: float, rival_factor: float, complete: float) -> float:
    """Compares two gains. With a source missing the gain must be half again as large as the rival's."""
    ratio = log(own_factor) / log(rival_factor) if rival_factor > 1.0 else PLAIN
    return 1.0 if ratio >= PLAIN else 0.85 if ratio >= CLEAR and complete > 0.99 else UNPROVEN
