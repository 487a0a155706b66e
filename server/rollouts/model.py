"""Rollouts and their groups as they are known now: the rows of the store, and what windows and queries are made of."""

from operator import attrgetter
from typing import Any

from msgspec import Struct

from collectors.model import Rollout


class RolloutRow(Rollout, frozen=True, gc=False):
    """A rollout as it is known now, and what follows from that. Times are epoch seconds, in whole milliseconds.

    Key: (run, rollout_id, life).

    Attributes:
        target: the target that reported it last.
        life: number of the trainer incarnation in which it was generated.
        state: where it is (census) while it has not left, else its exit; ``ended`` when it is over and its use by
            the trainer is not reported (evaluations; runs that report no consumption). See `server.rollouts.state`.
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
