"""One rollout as a record: who made it with which policy, what became of it, when. Frozen, standard library only."""

from dataclasses import dataclass
from typing import Literal

Purpose = Literal["train", "eval", "judge"]
Exit = Literal[
    "trained", "aborted_oversample", "truncated_drop", "env_error", "infra_error", "surplus", "stale", "zero_advantage"
]
"""Why a rollout is not in flight any more; the first cause wins. One that is suspended has not left."""

SpanKind = Literal[
    "queued", "boot", "generate", "prefill", "decode", "tool", "scoring", "waiting_group", "in_queue", "suspended"
]
"""What a rollout did for a while: a bar of its timeline."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a rollout, as far as its environment's state and the policy go.

    Attributes:
        version: policy version that acted; None: not told.
        tool_calls: calls it made; None: not told.
        mutated: did it change its environment? None: not told, so that every successful call counts (an upper bound).
        reset: the environment was made anew before it.
        sandbox_id: the environment's identity; "" is the rollout's only one.
        forked_from: the sandbox whose state this one was copied from.
    """

    version: int | None = None
    tool_calls: int | None = None
    mutated: bool | None = None
    reset: bool = False
    sandbox_id: str = ""
    forked_from: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a rollout's time, epoch seconds; ``end`` None: it lasts. ``version``: the policy's, where told."""

    kind: SpanKind
    start: float
    end: float | None = None
    version: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Consumption:
    """One use by the trainer: ``version`` is the policy's just before the first update that uses the rollout."""

    version: int | None = None
    at: float | None = None
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """What is known of one rollout. A record may be partial: later ones add to it, in any order. Epoch seconds.

    Texts and token ids are never kept. None, "" and () mean "not told".

    Attributes:
        rollout_id: its identity within the run.
        group_size: rollouts its group should have.
        incarnation: life of the trainer it was made in.
        version_dispatched, version_start, version_finish: policy version when its group was dispatched, when it
            began to generate, and when it ended.
        token_versions: (policy version, loss tokens it produced) of what was kept, oldest first.
        consumptions: every use by the trainer; replayed rollouts have several.
        turn_count: turns, where `turns` does not list them.
        solved: the task's own word.
        error: type of what ended it, in the framework's words, at most 200 characters.
        exited_at: when it left, where that is told apart from its end: who is dropped as stale had waited before.
        engine: who generated it.
        sampled: its source tells of some rollouts only: nothing may be counted from it.
        spans: its timeline.
    """

    rollout_id: str
    group_id: str = ""
    group_size: int | None = None
    attempt: int | None = None
    incarnation: int | None = None
    purpose: Purpose | None = None
    environment: str = ""
    agent: str = ""
    difficulty: str = ""
    engine: str = ""
    version_dispatched: int | None = None
    version_start: int | None = None
    version_finish: int | None = None
    token_versions: tuple[tuple[int, int], ...] = ()
    consumptions: tuple[Consumption, ...] = ()
    dispatched_at: float | None = None
    started_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    scored_at: float | None = None
    group_complete_at: float | None = None
    exited_at: float | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    loss_tokens: int | None = None
    turns: tuple[Turn, ...] = ()
    turn_count: int | None = None
    tool_calls: int | None = None
    sandbox_ids: tuple[str, ...] = ()
    reward: float | None = None
    max_reward: float | None = None
    advantage: float | None = None
    solved: bool | None = None
    truncated: bool | None = None
    exit: Exit | None = None
    error: str = ""
    sampled: bool = False
    spans: tuple[Span, ...] = ()
