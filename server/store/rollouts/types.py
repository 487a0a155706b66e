"""Rollouts as the store holds them: rows, groups, and increments of what is counted. Times are epoch ms."""

from dataclasses import dataclass

from collectors.model import Rollout


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A rollout as it is known now, and what follows from that. Times in ms; those of ``record`` in seconds.

    Key: (run, record.rollout_id, life).

    Attributes:
        target: the target that reported it last.
        life: number of the trainer incarnation in which it was generated.
        state: where it is (census) while it has not left, else its exit; ``ended`` when it is over and nobody tells how
            the trainer used it (evaluations; runs that tell no consumption). See `server.rollouts.state`.
        moved_at: newest time in its record, else `first_seen`; pages and windows are ordered by it.
        seconds: dispatched (or started) to its end, as far as reported.
        consumed: newest version it was consumed at; `consumed_at`: when.
        staleness: trajectory level, at its newest consumption, in versions, with its parts where known.
        token_staleness: mean over its loss tokens, versions.
        environment_staleness: mean over its turns, versions, since the oldest mutation; `environment_latest`: since
            the latest one; `environment_bound`: an upper bound, for nobody told which turns changed anything.
        old_state_turns: turns played on state made by an older policy; of `judged_turns`.
        environment_ages: those turns by the age of their state, "versions:turns", ascending ("0:12 1:3"): what lets
            a window say its 95th percentile.
        mixed: made by more than one version.
        unknown: why a staleness is not known, with what to log; "" when all are.
        detailed: turns and spans are kept (they are of a few only: the slow, the failed, the mixed, a sample).
    """

    target: str
    record: Rollout
    life: int
    first_seen: int
    seen_at: int
    state: str
    moved_at: int
    seconds: float | None = None
    turns: int | None = None
    consumed: int | None = None
    consumed_at: int | None = None
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


@dataclass(frozen=True, slots=True)
class RolloutGroupRow:
    """A group, from the records of its members. Times in ms. Key: (run, group_id, life).

    Attributes:
        size: expected number of rollouts; None: not reported.
        members, done, valid: number of members reported; ended; with a valid reward (not failed).
        outcome: ``open``, ``mixed``, ``all_solved``, ``none_solved``, ``equal_unknown``, ``too_few_valid``.
        admitted: any member was trained.
        version: oldest policy version at which a member was consumed; None: none was, or it is not reported.
        first_at: when the first member was dispatched (or began); completed_at: when the last needed one ended.
        solved: members that solved the task, where that is known.
        spread: seconds between the first and the last member's end.
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
    first_at: int
    moved_at: int
    completed_at: int | None
    spread: float | None = None
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class RolloutSum:
    """Amounts to add (or, when negative, to take back) to one cell of the funnel. ``bucket``: ms, of width ``tier``.

    ``told``: number of rollouts whose response tokens are reported.
    """

    tier: int
    bucket: int
    exit: str
    environment: str
    purpose: str
    rollouts: int
    prompt_tokens: int
    response_tokens: int
    loss_tokens: int
    seconds: float
    told: int = 0


@dataclass(frozen=True, slots=True)
class RolloutBin:
    """How many to add to one cell of a distribution over time (``response_tokens``, ``staleness``, ``turns``, ...)."""

    tier: int
    bucket: int
    kind: str
    bin: int
    n: int
