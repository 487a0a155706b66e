"""Rollouts and their groups as they are known now: the rows of the store, and what windows and queries are made of."""

from collections.abc import Set
from operator import attrgetter
from typing import Any, get_args

from msgspec import Struct

from collectors.model import Exit, Rollout


class RolloutRow(Rollout, frozen=True, gc=False):
    """A rollout as it is known now, and what follows from that. Times are epoch seconds, in whole milliseconds.

    Key: (run, rollout_id, life).

    Attributes:
        target: the target that reported it last.
        life: number of the trainer incarnation in which it was generated.
        state: where it is (census) while it has not left, else its exit; ``ended`` when it is over and its use by
            the trainer is not reported (evaluations; runs that report no consumption). See `state`.
        moved_at: newest time reported, else `first_seen`; pages and windows are ordered by it.
        seconds: dispatched (or started) to its end, as far as reported.
        consumed: newest version it was consumed at; `consumed_at`: when.
        staleness: trajectory level, at its newest consumption, in versions, with its parts where known.
        token_staleness: mean over its loss tokens, versions.
        environment_staleness: mean over its turns, versions, since the oldest mutation; `environment_latest`: since
            the latest one; `environment_bound`: an upper bound, because no record reports which
            turns changed the state.
        old_state_turns: turns played on state made by an older policy; of `judged_turns`.
        environment_ages: those turns by the age of their state, "versions:turns", ascending ("0:12 1:3"): what lets
            a window say its 95th percentile.
        mixed: made by more than one version.
        unknown: why a staleness is not known, with what to log; "" when all are.
        detailed: turns and spans are kept (they are of a few only: the slow, the failed, the mixed, a sample).
    """

    target: str = ""
    life: int = 0
    first_seen: float = 0.0
    seen_at: float = 0.0
    state: str = ""
    moved_at: float = 0.0
    seconds: float | None = None
    consumed: int | None = None
    consumed_at: float | None = None
    staleness: int | None = None
    in_flight: int | None = None
    in_group: int | None = None
    in_queue: int | None = None
    token_staleness: float | None = None
    environment_staleness: float | None = None
    environment_latest: float | None = None
    environment_bound: bool = False
    old_state_turns: int | None = None
    judged_turns: int | None = None
    environment_ages: str = ""
    mixed: bool | None = None
    unknown: str = ""
    detailed: bool = False

    @classmethod
    def of(cls, record: Rollout, **own: Any) -> "RolloutRow":
        """Returns the row of a record; ``own``: the other fields."""
        return cls(*reported(record), **own)


reported = attrgetter(*Rollout.__struct_fields__)
"""Takes the values of a record, in the order of its fields."""


class RolloutGroupRow(Struct, frozen=True, gc=False):
    """A group, from the records of its members. Times are epoch seconds. Key: (run, group_id, life).

    Attributes:
        size: expected number of rollouts; None: not reported.
        members, done, valid: number of members reported; ended; with a valid reward (not failed).
        outcome: ``open``, ``mixed``, ``all_solved``, ``none_solved``, ``equal_unknown``, ``too_few_valid``.
        admitted: any member was trained.
        version: oldest policy version at which a member was consumed; None: none was, or it is not reported.
        first_at: when the first member was dispatched (or began); completed_at: when the last needed one ended.
        solved: members that solved the task, where that is known.
        spread: seconds between the first and the last member's end.
        solve_ratio: `solved` of the valid members. Not stored.
    """

    group_id: str
    life: int
    environment: str
    purpose: str
    size: int | None
    members: int
    done: int
    valid: int
    reward_min: float | None
    reward_max: float | None
    reward_mean: float | None
    solved: int | None
    outcome: str
    admitted: bool
    version: int | None
    first_at: float
    moved_at: float
    completed_at: float | None
    spread: float | None = None
    sampled: bool = False
    solve_ratio: float | None = None


# ---- state
# Derives the state of a rollout: in flight, by what it waits for, or ended, by its exit.

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
