"""The verdict over time: compares the result of one instant with the current verdict. Pure.

Results of single instants flicker, so another outcome must hold for a while before it replaces the current verdict.
Until then the current verdict is rewritten from today's numbers, with little confidence. Numbers that contradict it end
it at once.
"""

from dataclasses import replace
from typing import Any

from server.verdict import steps, throughput
from server.verdict.liveness import STARVING, Situation, hangs, is_down
from server.verdict.model import Evidence, Verdict, VerdictInput
from server.verdict.rules import situation, verdict_for, verdict_of
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
"""JSON: ``outcome``, ``cause``, ``since`` and ``rule`` of the current verdict; ``other``: since when the rules find
another outcome; ``next`` = [outcome, cause, since] of the newest result; ``samples`` of the queue; ``recent`` instants;
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
    case = situation(seen, current.get("outcome", ""))
    if case.n.first is not None and case.n.first != seen.first:
        current["first"] = list(case.n.first)
    verdict, current["samples"], buffer = _with_queue(verdict_for(case), current.get("samples", []), seen)
    verdict = replace(verdict, buffer=buffer)
    if _replaces(current, verdict, case):
        same = verdict.key == (current.get("outcome"), current.get("cause"))
        since = current["since"] if same else current.pop("next", (0, 0, seen.now))[2]
        if verdict.cause in _DATED and seen.fault_since is not None:
            since = seen.fault_since
        current.pop("next", None)
        current.pop("other", None)
        current.update(outcome=verdict.outcome, cause=verdict.cause, rule=verdict.rule, since=since)
        return current, replace(verdict, since=since)
    sure = 0.0 if current["outcome"] == "unknown" else UNSETTLED
    stands = verdict_of(case, current["rule"], current["outcome"], current["cause"], sure)
    return current, replace(stands, confidence=min(stands.confidence, sure), since=current["since"], buffer=buffer)


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
        return replace(verdict, evidence=(text, *verdict.evidence), confidence=sure), rows, state
    return verdict, rows, state


def _batch(seen: VerdictInput) -> float | None:
    trained, step = seen.get("trainer_samples_per_second"), seen.get("trainer_step_seconds")
    return trained * step if trained and step else None
