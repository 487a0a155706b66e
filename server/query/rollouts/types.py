"""Records of rollouts: frozen, plain, serialisable. Times are epoch seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SORTS = ("moved", "seconds", "response_tokens", "staleness", "reward")
"""Columns a page of rollouts may be sorted by: each has an index."""

Sort = Literal["moved", "seconds", "response_tokens", "staleness", "reward"]


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Which rollouts. Empty fields do not restrict.

    Attributes:
        states: exits and census states.
        find: an id, or the beginning of one; group ids too. Of more than 10,000 that lie together, far from where the
            order begins, those whose ids come last; all of them in pages of 1,000.
        mixed, sampled: only those that are (or are not).
        start, end: moved within, epoch seconds.
    """

    states: tuple[str, ...] = ()
    environment: str = ""
    purpose: str = ""
    group: str = ""
    find: str = ""
    mixed: bool | None = None
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutInfo:
    """One row of the table; attributes as of `server.store.types.RolloutRow`, flat. ``state``: census state or exit.

    ``times``: the reported times of the record, and ``consumed_at`` of its newest use; epoch seconds.
    """

    rollout_id: str
    life: int
    group_id: str
    purpose: str
    environment: str
    agent: str
    engine: str
    target: str
    state: str
    moved_at: float
    seconds: float | None
    prompt_tokens: int | None
    response_tokens: int | None
    loss_tokens: int | None
    turns: int | None
    tool_calls: int | None
    reward: float | None
    advantage: float | None
    version_start: int | None
    version_finish: int | None
    consumed: int | None
    staleness: int | None
    in_flight: int | None
    in_group: int | None
    in_queue: int | None
    token_staleness: float | None
    environment_staleness: float | None
    environment_latest: float | None
    environment_bound: bool
    old_state_turns: int | None
    judged_turns: int | None
    mixed: bool | None
    truncated: bool | None
    error: str
    unknown: str
    sampled: bool
    detailed: bool
    times: Mapping[str, float] = field(default_factory=dict)
    sandbox_ids: tuple[str, ...] = ()
    group_size: int | None = None
    attempt: int | None = None
    incarnation: int | None = None
    difficulty: str = ""
    version_dispatched: int | None = None
    max_reward: float | None = None
    solved: bool | None = None
    exit: str = ""


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """Rows in the requested order. ``after``: pass it for the next page; "": this is the last page.

    ``complete``: the pages hold all matches. False: so many ids begin with ``find`` that only those
    whose ids come last are given (see `RolloutFilter`).
    """

    rows: tuple[RolloutInfo, ...]
    after: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class RolloutDetail:
    """One rollout with its timeline.

    Attributes:
        spans: (kind, start, end or None, version or None, detail), by start; made of the header's times where the
            source reported none; then ``spans_reported`` is False.
        turns: as recorded; empty where they were not stored (`row.detailed`).
        siblings: the group's other members.
    """

    row: RolloutInfo
    token_versions: tuple[tuple[int, int], ...]
    consumptions: tuple[Mapping[str, Any], ...]
    turns: tuple[Mapping[str, Any], ...]
    spans: tuple[tuple[str, float, float | None, int | None, str], ...]
    spans_reported: bool
    siblings: tuple[RolloutInfo, ...]
    sandboxes: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """One group; attributes as of `server.store.types.RolloutGroupRow`. ``solve_ratio``: of the valid members."""

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
    solve_ratio: float | None
    outcome: str
    admitted: bool
    version: int | None
    moved_at: float
    completed_at: float | None
    spread: float | None
    sampled: bool


@dataclass(frozen=True, slots=True)
class FunnelBar:
    """One exit in a window. None: not known (no engine counter, no price). ``derived``: not counted from records.

    Attributes:
        told: how many of ``rollouts`` report their tokens; the amounts cover only these.
        bound: ``lower``: some do not report tokens, so there are more; ``upper``: may include tokens of others.
    """

    exit: str
    rollouts: int
    response_tokens: int | None
    gpu_seconds: float | None
    usd: float | None
    derived: bool = False
    told: int = 0
    bound: Literal["", "lower", "upper"] = ""


@dataclass(frozen=True, slots=True)
class Funnel:
    """Exits within [start, end), and what is in flight now.

    Attributes:
        why: what is unknown, and what to log or configure.
        wasted_usd: dollars of rollouts that were not trained on, as far as reported; None: unknown.
    """

    start: float
    end: float
    bars: tuple[FunnelBar, ...]
    in_flight: int
    why: str = ""
    wasted_usd: float | None = None


@dataclass(frozen=True, slots=True)
class CensusState:
    """How many are in a state now, and for how long the oldest of them."""

    state: str
    rollouts: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class EventInfo:
    """One event. ``version``: the published policy version, if reported."""

    ts: float
    kind: str
    key: str
    detail: str
    version: int | None = None


Cells = Sequence[tuple[float, Mapping[int, int]]]
"""(bucket's start, {bin: how many}), empty buckets left out."""
