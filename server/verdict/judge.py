"""The verdict over time: the rules' answer of one instant against the verdict that stands. Pure.

An instant alone flickers: another outcome must hold for a while before it replaces the one that stands. Until then the
standing verdict is written again from today's numbers, with little confidence. Where today's numbers contradict it, it
ends at once.
"""

from dataclasses import replace
from typing import Any

from server.verdict.facts import instants, queue
from server.verdict.inputs import VerdictInput
from server.verdict.model import Evidence, Verdict
from server.verdict.rules.liveness import hangs, is_down
from server.verdict.rules.situation import STARVING, Situation
from server.verdict.rules.tuning import situation, verdict_for, verdict_of
from server.verdict.thresholds import (
    AT_CAP,
    CHANGED_SECONDS,
    CONFIDENT,
    CONTRADICTED,
    FEW_FLAT,
    FIRST_SECONDS,
    HOLD_SECONDS,
    IDLE_ENGINES,
    IDLE_SCORER,
    LITTLE_WAIT,
    MISSING_SECONDS,
    MOSTLY_WAITS,
    UNSETTLED,
    UNSURE_SECONDS,
    WAITS,
)

Memory = dict[str, Any]
"""JSON: ``outcome``, ``cause``, ``since`` and ``rule`` of the verdict that stands; ``other``: since when the rules find
another outcome; ``next`` = [outcome, cause, since] found now; ``samples`` of the queue; ``recent`` instants;
``first`` = [incarnation, number] of the first step of the present; ``hung``, ``down``: since when
most engines hang, and none answers."""

_AT_ONCE = ("over", "paused", "starting", "open_step")


def remember(memory: Memory | None, seen: VerdictInput) -> tuple[Memory, Verdict]:
    """(memory, verdict) of one instant. Instants come in order; the same instant again changes nothing."""
    kept: Memory = dict(memory or {})
    window = instants.add([(ts, counts) for ts, counts in kept.get("recent", [])], seen)
    kept["recent"] = [list(one) for one in window]
    first = kept.get("first")
    kept["hung"] = kept.get("hung") or seen.now if hangs(seen) else None
    kept["down"] = kept.get("down") or seen.now if is_down(seen) else None
    first_step = (first[0], first[1]) if first else None
    seen = replace(seen, instants=window, first=first_step, hung_since=kept["hung"], down_since=kept["down"])
    case = situation(seen, kept.get("outcome", ""))
    if case.n.first is not None and case.n.first != seen.first:
        kept["first"] = list(case.n.first)
    found, kept["samples"], state = _with_queue(verdict_for(case), kept.get("samples", []), seen)
    found = replace(found, buffer=state)
    if _replaces(kept, found, case):
        same = found.key == (kept.get("outcome"), kept.get("cause"))
        since = kept["since"] if same else kept.pop("next", (0, 0, seen.now))[2]
        kept.pop("next", None)
        kept.pop("other", None)
        kept.update(outcome=found.outcome, cause=found.cause, rule=found.rule, since=since)
        return kept, replace(found, since=since)
    sure = 0.0 if kept["outcome"] == "unknown" else UNSETTLED
    stands = verdict_of(case, kept["rule"], kept["outcome"], kept["cause"], sure)
    return kept, replace(stands, confidence=min(stands.confidence, sure), since=kept["since"], buffer=state)


def _replaces(kept: Memory, found: Verdict, case: Situation) -> bool:
    """Is ``found`` the verdict to show now? Notes since when another one is found."""
    now, stands = case.seen.now, (kept.get("outcome"), kept.get("cause"))
    if stands == (None, None) or found.key == stands:
        return True
    # A cause that flickers is no reason to doubt the outcome.
    asks = kept.get("next")
    since = asks[2] if asks is not None and asks[0] == found.outcome else now
    kept["next"] = [found.outcome, found.cause, since]
    # Other outcomes may take turns: what counts is how long the rules do not find the one that stands.
    if found.outcome == "unknown" and found.cause not in _AT_ONCE:
        return bool(now - since >= MISSING_SECONDS)
    if found.outcome == stands[0]:
        kept.pop("other", None)
    else:
        kept["other"] = kept.get("other") or now
    if contradicted(case, str(stands[0]), str(stands[1])):
        return True
    if found.outcome == stands[0]:
        return bool(now - since >= CHANGED_SECONDS)
    return bool(now - kept["other"] >= _hold(str(stands[0]), found, case.n.changed))


def _hold(before: str, found: Verdict, changed: bool) -> float:
    """Seconds that another verdict must hold. ``changed``: the steps themselves show a change."""
    if found.cause in _AT_ONCE or found.outcome == "stalled":
        return 0.0
    if before == "unknown":
        return FIRST_SECONDS
    if changed:
        return CHANGED_SECONDS
    return HOLD_SECONDS if found.confidence >= CONFIDENT else UNSURE_SECONDS


def contradicted(case: Situation, outcome: str, cause: str) -> bool:
    """Do today's numbers contradict this verdict? Only by a clear margin: noise on a line contradicts nothing."""
    n = case.n
    if outcome == "stalled" or cause == "open_step":
        return True  # the rules find another one: it moves again
    if outcome in ("balanced", "trainer_bound"):
        # By all of the last ten steps, too: a few of them may be a burst.
        waits = min(n.lacking or 0.0, n.reported if n.reported is not None else 1.0)
        return (waits >= WAITS + CONTRADICTED or (n.lacking or 0.0) >= MOSTLY_WAITS) and not n.dropped
    if outcome == "curriculum_bound":
        return n.zero.share is not None and n.zero.share < FEW_FLAT
    if outcome not in STARVING:
        return False
    if n.lacking is not None and n.lacking < LITTLE_WAIT and not n.seen.synchronous:
        return True
    return _elsewhere(case, outcome, cause)


def _elsewhere(case: Situation, outcome: str, cause: str) -> bool:
    """Is the actor that this verdict names clearly idle?"""
    n = case.n
    inside, busy = n.place.get("generating"), n.extra.get("scoring_busy_ratio")
    if outcome == "generator_bound":
        return bool(n.saturated is False and inside is not None and inside < IDLE_ENGINES)
    if outcome == "reward_bound":
        return bool(busy is not None and busy < IDLE_SCORER and n.place.get("scoring", 0.0) < IDLE_ENGINES)
    if cause == "tool_time" and n.in_flight.is_limit_open:
        return True  # tools need a sandbox first
    if outcome == "sandbox_bound":
        outside = sum(n.place.get(phase, 0.0) for phase in ("booting", "in_tool"))
        return bool(cause != "init_failures" and inside is not None and inside >= AT_CAP and outside < 1 - AT_CAP)
    return bool(cause in ("prompts", "staleness_gate") and n.places is not None and n.places >= 1.0)


def _with_queue(found: Verdict, kept: list[list[float]], seen: VerdictInput) -> tuple[Verdict, list[list[float]], str]:
    """The verdict next to the state of the queue's window."""
    samples = [queue.Sample(*one) for one in kept]
    step = seen.get("trainer_step_seconds")
    waiting, version = seen.get("queue_samples_now"), seen.get("policy_version")
    batch = seen.fact("batch_samples") or _batch(seen)
    if waiting is None or version is None or not batch:
        return found, kept, ""
    samples = queue.add(samples, queue.Sample(seen.now, waiting, version, batch), step)
    state = queue.state(samples, step, found.numbers.get("held_ratio"), found.numbers.get("wait_ratio"))
    rows = [[one.ts, one.queue, one.version, one.batch] for one in samples]
    if state in ("stall", "stop") and found.outcome not in ("stalled", "unknown"):
        text = Evidence(queue.WORDS[state][0].upper() + queue.WORDS[state][1:], "queue_samples_now", waiting, "samples")
        # Where nothing moves for steps, the shares of the last ones are of another time. An open step is of now.
        sure = found.confidence if found.cause == "open_step" else round(min(found.confidence, UNSETTLED), 2)
        return replace(found, evidence=(text, *found.evidence), confidence=sure), rows, state
    return found, rows, state


def _batch(seen: VerdictInput) -> float | None:
    trained, step = seen.get("trainer_samples_per_second"), seen.get("trainer_step_seconds")
    return trained * step if trained and step else None
