"""The verdict over time: what the rules say now, held against what they said before. Pure.

An instant alone flickers. A verdict changes when the new one has held for a while, and sooner when it is sure.
"""

from dataclasses import replace
from typing import Any

from server.verdict import buffer, recent
from server.verdict.inputs import Seen
from server.verdict.liveness import hangs
from server.verdict.model import Evidence, Verdict, from_json
from server.verdict.rules import case_of, said_of
from server.verdict.sureness import CONFIDENT

Memory = dict[str, Any]
"""JSON: ``outcome``, ``cause``, ``since``; ``next`` = [outcome, cause, since] that asks to follow; ``samples`` of
the queue; ``recent`` instants; ``first`` = [incarnation, number] of the first step of the present; ``hung``: since when
engines hang; ``said``: the verdict that stands."""

# A change must hold this long: six ticks outlast one late page. One that is not sure waits twice as long.
HOLD_SECONDS, UNSURE_SECONDS = 30.0, 60.0
# Whole steps have shown a change already: three ticks outlast a page that mixes both times.
CHANGED_SECONDS = 15.0
# Of a verdict about a run whose queue stands still: below what is confident.
STILL = 0.5
# Data that is missing for two minutes is no gap between two scrapes any more.
MISSING_SECONDS = 120.0


def remember(memory: Memory | None, seen: Seen) -> tuple[Memory, Verdict]:
    """(memory, verdict) of one instant; instants come in order, and one asked twice changes nothing."""
    kept: Memory = dict(memory or {})
    instants = recent.add([(ts, told) for ts, told in kept.get("recent", [])], seen)
    kept["recent"] = [list(one) for one in instants]
    first = kept.get("first")
    kept["hung"] = kept.get("hung") or seen.now if hangs(seen) else None
    seen = replace(
        seen, recent=recent.means(instants), first=(first[0], first[1]) if first else None, hung_since=kept["hung"]
    )
    case = case_of(seen, kept.get("outcome", ""))
    if case.n.first is not None and case.n.first != seen.first:
        kept["first"] = list(case.n.first)
    found, kept["samples"], window = _buffered(said_of(case), kept.get("samples", []), seen)
    told = replace(found, buffer=window)
    known = (kept.get("outcome"), kept.get("cause"))
    if told.key == known:
        kept.pop("next", None)
    elif _follows(kept, told, seen.now, case.n.changed):
        since = kept.pop("next")[2] if known != (None, None) else seen.now
        kept.update(outcome=told.outcome, cause=told.cause, since=since)
    if told.key == (kept["outcome"], kept["cause"]):
        kept["said"] = replace(told, since=kept["since"]).to_json()
        return kept, replace(told, since=kept["since"])
    return kept, _still(kept, told)


def _follows(kept: Memory, told: Verdict, now: float, changed: bool) -> bool:
    """Has it asked for long enough to follow the one that stands? ``changed``: the steps themselves show a change."""
    if "outcome" not in kept:
        return True
    asks = kept.get("next")
    # A cause that flickers is no reason to doubt the outcome.
    since = asks[2] if asks is not None and asks[0] == told.outcome else now
    kept["next"] = asks = [told.outcome, told.cause, since]
    return now - float(asks[2]) >= _hold(str(kept["outcome"]), told, changed)


def _hold(before: str, told: Verdict, changed: bool) -> float:
    if told.cause in ("over", "paused", "starting") or told.outcome == "stalled":
        return 0.0
    if told.outcome == "unknown":
        return MISSING_SECONDS
    if before in ("unknown", "stalled"):
        return HOLD_SECONDS
    if changed:
        return CHANGED_SECONDS
    return HOLD_SECONDS if told.confidence >= CONFIDENT else UNSURE_SECONDS


def _still(kept: Memory, told: Verdict) -> Verdict:
    """The verdict that stands, with today's numbers and no more confidence than is left of it."""
    stands = from_json(kept["said"])
    return replace(
        stands, confidence=round(min(stands.confidence, 0.5), 2), numbers=told.numbers, missing=told.missing,
        completeness=told.completeness, usd_per_hour=told.usd_per_hour, usd_lacks=told.usd_lacks, buffer=told.buffer,
    )  # fmt: skip


def _buffered(found: Verdict, kept: list[list[float]], seen: Seen) -> tuple[Verdict, list[list[float]], str]:
    """The verdict beside the state of the queue's window."""
    samples = [buffer.Sample(*one) for one in kept]
    step = seen.get("trainer_step_seconds")
    queue, version = seen.get("queue_samples_now"), seen.get("policy_version")
    batch = seen.fact("batch_samples") or _batch(seen)
    if queue is None or version is None or not batch:
        return found, kept, ""
    samples = buffer.add(samples, buffer.Sample(seen.now, queue, version, batch), step)
    state = buffer.state(samples, step, found.numbers.get("held_ratio"), found.numbers.get("reported_wait_ratio"))
    rows = [[one.ts, one.queue, one.version, one.batch] for one in samples]
    if state in ("stall", "stop") and found.outcome not in ("stalled", "unknown"):
        text = Evidence(buffer.WORDS[state][0].upper() + buffer.WORDS[state][1:], "queue_samples_now", queue, "samples")
        # Where nothing moves for steps, the shares of the last ones speak of another time.
        # An open step is of now, and the queue that stands still beside it is the very sign of it.
        sure = found.confidence if found.cause == "open_step" else round(min(found.confidence, STILL), 2)
        return replace(found, evidence=(text, *found.evidence), confidence=sure), rows, state
    return found, rows, state


def _batch(seen: Seen) -> float | None:
    trained, step = seen.get("trainer_samples_per_second"), seen.get("trainer_step_seconds")
    return trained * step if trained and step else None
