"""The record of one rollout: its policy versions, its times, its outcome. Frozen, standard library only."""

from dataclasses import dataclass
from typing import Literal

Purpose = Literal["train", "eval", "judge"]
Exit = Literal[
    "trained", "aborted_oversample", "truncated_drop", "env_error", "infra_error", "surplus", "stale", "zero_advantage"
]
"""Why a rollout is no longer in flight; the first cause counts. A suspended one is still in flight."""

SpanKind = Literal[
    "queued", "boot", "generate", "prefill", "decode", "tool", "scoring", "waiting_group", "in_queue", "suspended"
]
"""What a rollout did for some time: a bar of its timeline."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a rollout, as far as its environment's state and the policy are concerned.

    Attributes:
        version: policy version that acted; None: unknown.
        tool_calls: its tool calls; None: unknown.
        mutated: did it change its environment? None: unknown, so every successful call counts (an upper bound).
        reset: the environment was created again before it.
        sandbox_id: the environment's identity; "" is the rollout's only one.
        forked_from: the sandbox whose state was copied into this one.
    """

    version: int | None = None
    tool_calls: int | None = None
    mutated: bool | None = None
    reset: bool = False
    sandbox_id: str = ""
    forked_from: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a rollout's time, epoch seconds; ``end`` None: it continues. ``version``: the policy's, if reported."""

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

    Texts and token ids are never stored. None, "" and () mean "unknown".

    Attributes:
        rollout_id: its identity within the run.
        group_size: rollouts that its group has when complete.
        incarnation: incarnation of the trainer in which it was made.
        version_dispatched, version_start, version_finish: policy version when its group was dispatched, when it
            began to generate, and when it ended.
        token_versions: (policy version, loss tokens it produced) of the final rollout, oldest first.
        consumptions: every use by the trainer; replayed rollouts have several.
        turn_count: turns, if `turns` does not list them.
        solved: the task's own result.
        error: type of the error that ended it, in the framework's words, at most 200 characters.
        exited_at: when it left, if different from its end: a rollout dropped as stale waited before.
        engine: the engine that generated it.
        sampled: its source reports only some rollouts: nothing may be counted from it.
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
