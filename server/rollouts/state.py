"""Derives the state of a rollout: in flight, by what it waits for, or ended, by its exit. Pure."""

from collections.abc import Set
from typing import get_args

from collectors.model import Exit, Rollout

CENSUS = ("waiting_slot", "booting", "generating", "in_tool", "scoring", "waiting_group", "queued", "gated")
"""States of what has not left, in the order a rollout goes through them."""

WAITS = ("waiting_group", "queued")
"""Of these states: what has ended and only waits for its siblings or for the trainer. All others are in flight."""

EXITS: tuple[str, ...] = get_args(Exit)

ENDED = "ended"
"""It ended and its use is not reported: an evaluation, or a run that reports no consumption. No exit."""

OVER = frozenset((*EXITS, ENDED))
# Their reward, if any, does not measure the policy.
FAILED = frozenset(("infra_error", "env_error"))


def state(record: Rollout, *, grouped: bool, complete: bool) -> str:
    """The state of a rollout.

    Args:
        grouped: it has siblings to wait for; complete: they have all ended.
    """
    cause = left(record)
    if cause is not None:
        return cause
    open_spans = {span.kind for span in record.spans if span.end is None}
    if "suspended" in open_spans:
        return "gated"
    if not finished(record):
        return _under_way(record, open_spans)
    if record.purpose in ("eval", "judge"):
        return ENDED
    if not scored(record) and record.group_complete_at is None:
        return "scoring"
    return "waiting_group" if grouped and not complete else "queued"


def _under_way(record: Rollout, open_spans: Set[str]) -> str:
    if "boot" in open_spans:
        return "booting"
    if "tool" in open_spans:
        return "in_tool"
    begun = record.started_at is not None or record.first_token_at is not None or bool(record.turns)
    begun = begun or bool(record.response_tokens or record.token_versions or open_spans - {"queued"})
    waiting = record.dispatched_at is not None or "queued" in open_spans
    return "generating" if begun or not waiting else "waiting_slot"


def finished(record: Rollout) -> bool:
    """Is its generation over?"""
    return record.finished_at is not None or scored(record) or record.group_complete_at is not None


def scored(record: Rollout) -> bool:
    """Has it its reward (or what only follows from one)?"""
    return record.reward is not None or record.scored_at is not None or record.advantage is not None


def left(record: Rollout) -> str | None:
    """Its exit: the reported one, else `trained` if it was used; never cached: the exit may be reported later."""
    return record.exit if record.exit is not None else "trained" if record.consumptions else None


def ended(record: Rollout) -> bool:
    """Need its siblings no longer wait for it?"""
    return record.exit is not None or bool(record.consumptions) or scored(record)


def generated_at(record: Rollout) -> float | None:
    """When its own generation ended, at the latest (epoch seconds); a use does not determine that."""
    if record.finished_at is not None:
        return record.finished_at
    return record.scored_at if record.scored_at is not None else record.group_complete_at


def ended_at(record: Rollout) -> float | None:
    """When it ended, as its siblings see it (epoch seconds)."""
    # What was lost has no score to wait for: it ended when it was given up.
    lost = record.exited_at if record.exit in FAILED else None
    times = [at for at in (record.finished_at, record.scored_at, lost) if at is not None]
    if times:
        return max(times)
    if record.group_complete_at is not None:
        return record.group_complete_at
    return min((use.at for use in record.consumptions if use.at is not None), default=None)
