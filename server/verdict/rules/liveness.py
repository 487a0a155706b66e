"""The rules that are asked first: does the run live, and does each of its actors? Pure.

Numbered in `server.verdict.rules.tuning`.
"""

from collections.abc import Callable, Mapping

from server.signals.model import HEARTBEAT
from server.verdict.facts import instants
from server.verdict.inputs import VerdictInput
from server.verdict.model import Outcome
from server.verdict.rules.situation import Situation
from server.verdict.thresholds import (
    FROZEN_SECONDS,
    HALF,
    HALF_LIMIT,
    IDLE_SECONDS,
    LATE_STEP,
    LEAST_IDLE,
    MOST_ENGINES,
    MOST_OF,
    NOTHING_MADE,
    SILENT_SECONDS,
)

Said = tuple[Outcome, str, float] | None
"""(outcome, cause, confidence before completeness and rivals) or None: the rule does not apply."""

Rule = Callable[[Situation], Said]


def lifecycle(case: Situation) -> Said:
    """Nobody holds back a run that loads, rests or is over."""
    life = case.seen.lifecycle
    if life in ("finished", "crashed"):
        return "unknown", "over", 0.0
    if life == "paused":
        return "unknown", "paused", 0.0
    return ("unknown", "starting", 0.0) if life == "starting" else None


def frozen_engines(case: Situation) -> Said:
    """Requests run and not a token comes: the sharpest sign there is. Engines that take in weights do that, too."""
    hung = _share(case.n.engines, "hung")
    if hung < MOST_ENGINES or (_share(case.n.engines, "up") > 0 and goes_on(case)):
        return None
    # Who takes a minute for weights hangs in every step: for no longer than they take, and not in a step far too late.
    weights, open_step = case.n.overheads.get("weight_sync", 0.0), case.seen.get("trainer_stall_ratio")
    frozen = case.seen.now - (case.seen.hung_since or case.seen.now)
    pauses = weights >= FROZEN_SECONDS and frozen < weights and (open_step or 0.0) < HALF_LIMIT
    return ("stalled", "frozen_engine", 1.0) if not pauses else None


def hangs(seen: VerdictInput) -> bool:
    """Do half of the engines and more run requests without a token?"""
    return _share(_engines(seen), "hung") >= MOST_ENGINES


def is_down(seen: VerdictInput) -> bool:
    """Does no engine answer?"""
    return _share(_engines(seen), "down") >= 1.0


def _engines(seen: VerdictInput) -> dict[str, float]:
    return {row["state"]: value for row, value in seen.rows("generator_engines") if "state" in row}


def goes_on(case: Situation) -> bool:
    """Does the trainer make its steps as ever? Then what still works is enough for some of them."""
    return case.n.opened is not None and not case.n.opened.late


def no_engine(case: Situation) -> bool:
    """Has no engine answered for long enough to be more than one failed read?"""
    engines, since = case.n.engines, case.seen.down_since
    down = bool(engines) and _share(engines, "down") >= 1.0
    return down and (since is None or case.seen.now - since >= SILENT_SECONDS)


def dead_engines(case: Situation) -> Said:
    """No engine answers, and the open step is late. A trainer that goes on proves that only their metrics are gone.

    It goes on while its queue lasts: once that is short of a batch, and has been for a step, nothing else will come.
    """
    if not no_engine(case):
        return None
    if case.stands == "stalled" and case.n.stopped:
        return "stalled", "dead_engine", 1.0  # a step that ended late proves nothing yet of the engines
    stall, opened = case.seen.get("trainer_stall_ratio"), case.n.opened
    late = (stall is not None and stall >= HALF_LIMIT) or (opened is not None and (opened.hungry or opened.late))
    return ("stalled", "dead_engine", 1.0) if late else None


def no_progress(case: Situation) -> Said:
    """The open step is longer than max(6 x median, 30 min)."""
    ratio = case.seen.get("trainer_stall_ratio")
    if ratio is None or ratio < 1.0:
        return None
    engines = case.n.engines
    if engines and _share(engines, "up") == 0 and _share(engines, "down") > 0:
        return "stalled", "dead_engine", 1.0
    return "stalled", "no_progress", 1.0


def silent_trainer(case: Situation) -> Said:
    """A heartbeat that should have come."""
    beats = [target for target in case.seen.targets if target.kind == HEARTBEAT and not target.gone]
    silent = bool(beats) and not any(target.up for target in beats)
    return ("stalled", "dead_trainer", 0.9) if silent else None


def open_step(case: Situation) -> Said:
    """The open step is late, and the trainer has its batch: it hangs, or works on something else.

    Before all tuning: production behind a full queue is held, idle and below every cap. Where batches are seen to wait,
    or steps save and evaluate now and then, the trainer is what takes long; else the run stands still.
    """
    n, opened = case.n, case.n.opened
    if n.seen.synchronous or opened is None or not opened.late or evaluates(case):
        return None
    if opened.fed:
        slow = opened.saves or opened.batches is not None
        return ("trainer_bound", "open_step", 0.9) if slow else ("stalled", "no_progress", 0.9)
    # Without a batch the trainer may wait for production, but the engines show that none is on its way.
    idle = min(opened.seconds, _idle_seconds(case))
    if idle < IDLE_SECONDS:
        return None
    return "stalled", "no_progress", NOTHING_MADE if idle >= LATE_STEP * opened.usual else HALF


def _idle_seconds(case: Situation) -> float:
    """Seconds since the first of the newest instants that have no request in any engine; 0 with fewer than three."""
    idle = list[float]()
    for ts, counts in reversed(case.seen.instants):
        if instants.RUNNING in counts:
            if counts[instants.RUNNING] + counts.get(instants.WAITING, 0.0) > 0.0:
                break
            idle.append(ts)
    return case.seen.now - idle[-1] if len(idle) >= LEAST_IDLE else 0.0


def evaluates(case: Situation) -> bool:
    """Are most of what is in flight evaluations?"""
    states = {row.get("state", ""): value for row, value in case.seen.rows("in_flight_rollouts")}
    total = sum(states.values())
    return total > 0 and states.get("eval", 0.0) / total >= MOST_OF


def _share(engines: Mapping[str, float], state: str) -> float:
    total = sum(engines.values())
    return engines.get(state, 0.0) / total if total else 0.0
