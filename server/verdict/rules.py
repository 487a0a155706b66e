"""The rules, numbered and in order: liveness, infrastructure, then tuning; the first that speaks is the verdict. Pure.

DESIGN section 5. `judge` looks at one instant; what must be remembered is in `server.verdict.judge`.
"""

from collections.abc import Callable, Mapping
from math import log

from server.signals._model import HEARTBEAT
from server.verdict import evidence as facts
from server.verdict import words
from server.verdict.case import UNEXPLAINED, Case
from server.verdict.inputs import Seen
from server.verdict.limiters import BELOW_CAP, BUSY_SCORER, ZERO_ADVANTAGE, limiters, slow_by
from server.verdict.model import Limiter, Outcome, Verdict
from server.verdict.numbers import numbers
from server.verdict.present import HOLDS

# Worth changing something for: the same 15 % seen from the other side, 1 / (1 - 0.15).
WORTH = 1.18
# A synchronous verdict stands until its gain is a tenth below the line it crossed: a step's tail is a matter of chance.
LEFT = 0.9
# Gains nearer than that are not told apart (DESIGN section 5: 20 %), by their logarithms.
CLEAR, PLAIN = 1.2, 1.5
# Of a step: overhead that is the first thing to change. The alert on weight sync stands at a quarter.
MUCH_OVERHEAD = 0.20
# A synchronous step has a tail by nature: a third of it lost is where others began to keep partial rollouts.
SYNC_TAIL = 1.5
# Half of the limit is 3 x the median step: more than one step that simply took longer.
LATE_STEP = 0.5
# Half of the engines that do not work leave a run that crawls.
MOST_ENGINES = 0.5
# Requests that run for a minute without a token are hung (`generator_engines`).
FROZEN_SECONDS = 60.0
# Engines that stood still for more than a fifth of the window for weights.
STALLED_SECONDS = 60.0
# Batches in the queue, on average: it is never short of one.
STOCK = 1.5
# A share of the rollouts in flight that decides.
MOST_OF = 0.5
# Of a verdict with everything there and nothing near it. Nothing measured from outside is certain.
CERTAIN = 0.95
# What one missing source could turn round is no confident verdict, whatever else speaks for it.
UNPROVEN = 0.6
# From here on a verdict is confident: the dashboard says it without "perhaps".
CONFIDENT = 0.6


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
    """Requests run and not a token comes: the sharpest sign there is. Engines that take in weights do that, too."""
    if _share(case.n.engines, "hung") < MOST_ENGINES:
        return None
    # Who takes a minute for weights hangs in every step: only a step that is far too late then tells the difference.
    pauses = case.n.overheads.get("weight_sync", 0.0) >= FROZEN_SECONDS
    open_step = case.seen.get("trainer_stall_ratio")
    return ("stalled", "frozen_engine", 1.0) if not pauses or (open_step or 0.0) >= LATE_STEP else None


def dead_engines(case: Case) -> Said:
    """No engine answers and no step comes. A trainer that goes on proves that only their metrics are gone."""
    if _share(case.n.engines, "down") < 1.0 or not case.n.engines:
        return None
    open_step = case.seen.get("trainer_stall_ratio")
    return ("stalled", "dead_engine", 1.0) if open_step is not None and open_step >= LATE_STEP else None


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
    return "orchestrator_bound", "staleness_gate", 0.95 if n.saturated is not None else UNPROVEN


# ---- tuning: production is too slow


def too_few_dispatched(case: Case) -> Said:
    """Fewer rollouts are under way than may be, and the engines have room for them."""
    n, first = case.n, case.first
    if not case.starved or n.saturated is not False or n.places is None or n.places >= BELOW_CAP:
        return None
    return ("orchestrator_bound", "prompts", 0.9) if first is not None and first.cause == "prompts" else None


def outside_engines(case: Case) -> Said:
    """Rollouts are in sandboxes, tools or scoring, and without that more were made than with twice the engines."""
    n, first = case.n, case.first
    if not case.starved or first is None or first.outcome not in ("sandbox_bound", "reward_bound"):
        return None
    busy = n.extra.get("scoring_busy_ratio")
    if first.outcome == "reward_bound" and busy is not None:
        # One scorer that has time to spare is waited for by chance; who waits for siblings looks the same.
        return first.outcome, first.cause, 1.0 if busy >= BUSY_SCORER else UNPROVEN
    return first.outcome, first.cause, 1.0 if n.roomy and n.told >= MOST_OF else UNPROVEN


def thrown_away(case: Case) -> Said:
    """Filtered groups: most is made for nothing."""
    n, first = case.n, case.first
    if not case.starved or first is None or first.outcome != "curriculum_bound":
        return None
    # Engines that nobody sees may be full, and rollouts that nobody sees may be held or anywhere else.
    proven = n.saturated is not None and (n.saturated or bool(n.place)) and n.batches is not None
    return "curriculum_bound", first.cause, 1.0 if proven else UNPROVEN


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
    if n.place:
        return "generator_bound", first.cause, UNPROVEN
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
    """A fifth of the step and more is spent on what neither waits nor trains, and that is worth more than the rest."""
    first, rival = case.best("overhead_bound"), case.best("trainer_bound")
    share = case.n.overhead
    if first is None or share is None or share < MUCH_OVERHEAD or first.gain < 1.0 + MUCH_OVERHEAD:
        return None
    # A tie goes to the overhead: it is the cheaper one to change.
    if rival is not None and log(rival.gain) > CLEAR * log(first.gain):
        return None
    # Who waits, and whether more is on offer, may turn it round.
    proven = case.n.wait is not None and (case.n.potential is not None or case.n.held is not None)
    return "overhead_bound", first.cause, 0.9 if proven else UNPROVEN


def ahead(case: Case) -> bool:
    """Is production known to be ahead of the trainer? A hold proves little where nobody tells what is under way."""
    n = case.n
    arrives = n.arrivals is not None and n.arrivals >= case.worth * max(n.trained or 0.0, n.capacity or 0.0)
    return arrives or n.places is not None or (n.batches or 0.0) >= STOCK


def trainer(case: Case) -> Said:
    """Production could deliver clearly more than the trainer takes."""
    n = case.n
    found = case.best("trainer_bound")
    if n.wait is not None and n.wait >= case.waits and not case.starved:
        # Enough arrives and grows too old in the queue: whoever took it sooner would not wait for what was dropped.
        return "trainer_bound", slow_by(n), 0.9
    if found is not None and found.factor >= case.worth:
        return "trainer_bound", found.cause, 1.0 if n.wait is not None and ahead(case) else UNPROVEN
    if n.wait is None or n.wait >= case.waits or n.potential is not None:
        return None
    # Nobody tells what arrives: a queue that is never short of a batch, beside engines with room, is enough of it.
    if n.wait < 0.05 and (n.batches or 0.0) >= STOCK and n.saturated is False:
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
        usd_per_hour=facts.idle(n.seen),
    )


def _clear(case: Case, own: Limiter | None) -> float:
    """Is it clearly better than the best of another outcome?

    Two that each fill the trainer's gap gain the same: then by how much faster production were with each alone.
    """
    if own is None or own.gain <= 1.0:
        return 1.0
    # A few groups without gradient are worth a line, and are no rival: every run has some.
    uneven = not case.n.filtered and (case.n.zero or 0.0) < ZERO_ADVANTAGE
    rivals = [one for one in case.found if one.outcome != own.outcome]
    rivals = [one for one in rivals if not (uneven and one.outcome == "curriculum_bound")]
    return min((_apart(*case.apart(own, one)) for one in rivals), default=1.0)


def _apart(own: float, rival: float) -> float:
    ratio = log(own) / log(rival) if rival > 1.0 else PLAIN
    return 1.0 if ratio >= PLAIN else 0.85 if ratio >= CLEAR else 0.6


def _share(engines: Mapping[str, float], state: str) -> float:
    total = sum(engines.values())
    return engines.get(state, 0.0) / total if total else 0.0
