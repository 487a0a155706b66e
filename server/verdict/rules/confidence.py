"""How sure a verdict is: what could turn it round, by what is told and by what is not. Pure."""

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
    """Is production known to be clearly ahead of the trainer?

    A hold ends what is dispatched, not what is under way: while rollouts take longer than it lasts, as many are made.
    It proves as much as there is room below the cap, and where it lasts for long beside a queue that is never short.
    """
    n = case.n
    if n.arrivals is not None and n.arrivals >= case.worth * max(n.trained or 0.0, n.capacity or 0.0):
        return True
    # Free places alone may as well be slow prompts: production is ahead where it is a hold that keeps them free.
    if (n.held or 0.0) < HOLDS:
        return False
    # So long that what was under way has ended, beside a queue that is never short. Who waits now and then is not held
    # back by a full queue alone.
    held = (n.held or 0.0) >= MUCH_HELD and (n.batches or 0.0) >= STOCK
    return (n.places is not None and n.places * SURPLUS <= 1.0) or ((n.wait or 0.0) < LITTLE_WAIT and held)


def all_under_way(case: Situation) -> bool:
    """Are nearly all rollouts under way that may be, in spite of a hold?

    What is made is what is under way over how long it takes (Little's law): without the hold no more than the free
    places came to it. Not where the window sees less than a step, and where drops make room for what is held.
    """
    n = case.n
    if n.places is None or n.arrivals is None or not n.step or n.step > MOST_SECONDS or n.stale:
        return False
    most = max(n.arrivals, n.trained or 0.0) / max(n.places, 0.05)
    return most < case.worth * max(n.trained or 0.0, n.capacity or 0.0)


def calm(case: Situation) -> bool:
    """Does nothing speak against a balance?"""
    n = case.n
    # Without a word of what arrives it may as well be the trainer that sets the pace; so it may where a tenth of what
    # arrived is dropped as stale, whatever the queue has lost or gained meanwhile, or where a hold says so.
    if n.potential is None or (n.stale or 0.0) >= MUCH_STALE or _held_back(case):
        return False
    # That nothing holds it back is known of what is seen alone: the engines, and what is under way outside them.
    if n.saturated is None or n.places is None:
        return False
    # Beyond the line it is left to stand, and no more; and below it a held production that is waited for is no balance.
    if (n.wait or 0.0) >= WAITS or _within_chance(n) or (n.gated or 0.0) >= HOLDS:
        return False
    # Three steps without a wait, or some that wait beside a stock, are of two times.
    if 0 < n.steps <= FEW_STEPS or ((n.wait or 0.0) >= SOME_WAIT and (n.batches or 0.0) >= STOCK):
        return False
    # A fifth of overhead is worth as much as production can follow, which nobody sees while the two are in turns.
    return (n.overhead or 0.0) < MUCH_OVERHEAD


def _held_back(case: Situation) -> bool:
    return any(one.outcome == "trainer_bound" and one.factor >= case.worth for one in case.found)


def _within_chance(n: Numbers) -> bool:
    """Is the wait near enough to the line for its steps to have fallen on the wrong side of it?

    Two standard errors of their mean where it is beyond the line; below it one, for a balance costs little.
    """
    told = regime.waits(n.seen.steps)[-n.steps :] if n.steps else []
    chance = stdev(told) / sqrt(len(told)) if len(told) > 1 else 0.0
    wait = n.wait or 0.0
    return wait - 2 * chance < WAITS <= wait + chance


def barely_full(n: Numbers) -> bool:
    """Are the engines full, but not so plainly that what is outside them could not hold back as much?

    At the line full, rollouts come back from outside into what room there is: it is as much the scorer's or the tools'.
    """
    queued = (n.waiting or 0.0) >= max(2.0, 0.2 * (n.running or 0.0))
    full = max(n.busy or 0.0, n.kv or 0.0) >= PLAINLY_FULL
    return bool(n.saturated) and not queued and not full and n.place.get("generating", 0.0) < MOSTLY_INSIDE


def blind(case: Situation, outcome: Outcome) -> float:
    """Would a source that is missing turn it round, whatever else speaks for it?"""
    n = case.n
    # Half of all groups without a gradient would be the first thing to change. Where no source reports the share, the
    # spread of rewards within groups may show that it is less.
    unsure = n.zero.share is None or (n.zero.is_sample and n.zero.low < ZERO_ADVANTAGE <= n.zero.high)
    untold = unsure and (n.zero.most is None or n.zero.most >= ZERO_ADVANTAGE)
    if untold and n.seen.fact("group_size") != 1:
        # A trainer that waits shows at least that production is slow; one that does not may be busy for nothing.
        return UNPROVEN if outcome in STARVING else HALF
    if outcome not in STARVING or n.seen.synchronous:
        return 1.0
    # One step is chance, and below the line a verdict only stands because it stood before.
    if case.starved and (n.steps == 1 or (n.lacking or 0.0) < WAITS):
        return HALF
    # A long checkpoint holds production, and the trainer waits for what was not made meanwhile; a queue that runs full
    # and empty by turns makes it wait for some of them. Who sees the queue can tell either from want.
    untold, long = n.held is None and n.arrivals is None, (n.overhead or 0.0) >= MUCH_OVERHEAD
    # Nor is a short wait plain where nobody sees engines or rollouts: what else would show that something is slow?
    unseen = untold or n.saturated is None or not n.place
    spells = (n.wait or 0.0) < MUCH_WAIT or 0 < n.steps <= FEW_STEPS
    in_turns = (n.held or 0.0) >= HOLDS > (n.gated or 0.0)
    doubtful = (unseen and spells) or ((untold or in_turns) and long) or may_pause(n)
    return UNPROVEN if doubtful or _within_chance(n) else 1.0


def may_pause(n: Numbers) -> bool:
    """Are weights published for a fifth of the step, and nobody tells whether the engines stand still meanwhile?"""
    untold = n.seen.get("generator_weight_stall_seconds", stat="mean") is None
    return untold and n.overheads.get("weight_sync", 0.0) >= MUCH_OVERHEAD * (n.step or 0.0) > 0.0


def clear(case: Situation, own: Limiter | None, complete: float) -> float:
    """Is it clearly better than the best of another outcome? ``complete``: share of the evidence that is there.

    Two that each fill the trainer's gap gain the same: then by how much faster production were with each alone.
    """
    if own is None or own.gain <= 1.0:
        return 1.0
    uneven = not case.n.filtered and case.n.zero.certain < ZERO_ADVANTAGE
    rivals = [one for one in case.found if one.outcome != own.outcome]
    rivals = [one for one in rivals if not (uneven and one.outcome == "curriculum_bound")]
    gains = [case.apart(own, one) for one in rivals]
    if uneven and own.outcome != "curriculum_bound" and (likely := case.n.zero.likely) >= ZERO_ADVANTAGE:
        gains.append((own.gain, 1 / (1 - min(likely, 0.95))))
    overhead = case.best("overhead_bound")
    if own.outcome == "trainer_bound" and overhead is not None and (case.n.overhead or 0.0) >= MUCH_OVERHEAD:
        # What waits in some steps and is held in others may wait for no want: the overhead's gain is all of it then.
        gains.append((own.gain, overhead.factor))
    return min((_apart(*both, complete) for both in gains), default=1.0)


def _apart(own: float, rival: float, complete: float) -> float:
    """With a source missing a rival is known less well: half again as much must be gained, and a fifth is not clear."""
    ratio = log(own) / log(rival) if rival > 1.0 else PLAIN
    return 1.0 if ratio >= PLAIN else 0.85 if ratio >= CLEAR and complete > 0.99 else UNPROVEN
