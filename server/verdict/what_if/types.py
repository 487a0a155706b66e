"""Inputs, changes and answers of a what-if. Plain data, JSON by `asdict`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

Side = Literal["trainer", "generator"]
"""``generator``: everything before the queue, so sandboxes, scoring and the orchestrator too."""

Bound = Literal["", "at least", "at most", "about"]


@dataclass(frozen=True, slots=True)
class CurrentNumbers:
    """The numbers of a run at one instant; None: not reported. Samples are the trainer's, ratios 0..1, money USD.

    Attributes:
        outcome: of the verdict ("" without one): what limits the generator's side when engines do not.
        apart: why trainer and generator do not work side by side, so that nothing follows; "" when they do.
        one_pool: why no GPUs can move between them; "" when they can.
        capacity: samples/s the trainer takes when it never waits; compute_capacity: without its overheads too.
        trained: samples/s it does take; wait: share of its step in which it waits.
        oversampling: rollouts begun per one that is not thrown away as a surplus.
        zero_advantage: share of completed groups; filtered: are they dropped before training?
        staleness: mean, in versions; stale_share: dropped for it, of those dropped for it or trained.
        concurrency: rollouts in flight, at most; generating: share of them in the engines; kv_ceiling: requests.
        response_tokens: mean; max_response_tokens: the cap; truncation: share cut there.
        usd_per_million_tokens, idle_usd_per_hour: as the run's own signals say.
    """

    outcome: str = ""
    apart: str = ""
    one_pool: str = ""
    capacity: float | None = None
    compute_capacity: float | None = None
    trained: float | None = None
    wait: float | None = None
    step_seconds: float | None = None
    trainer_gpus: float | None = None
    generator_gpus: float | None = None
    engines: float | None = None
    group_size: float | None = None
    solve_ratio: float | None = None
    oversampling: float | None = None
    zero_advantage: float | None = None
    filtered: bool | None = None
    max_staleness: float | None = None
    staleness: float | None = None
    stale_share: float | None = None
    concurrency: float | None = None
    generating: float | None = None
    kv_ceiling: float | None = None
    response_tokens: float | None = None
    max_response_tokens: float | None = None
    truncation: float | None = None
    usd_per_gpu_hour: float | None = None
    usd_per_million_tokens: float | None = None
    idle_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes; None and 0 change nothing.

    Attributes:
        move_gpus: from the trainer to the generator (negative: back).
        add_engines: additional engines on new GPUs (negative: remove engines).
    """

    move_gpus: int = 0
    add_engines: int = 0
    group_size: int | None = None
    oversampling: float | None = None
    concurrency: int | None = None
    max_response_tokens: int | None = None
    max_staleness: int | None = None
    zero_advantage: float | None = None

    def from_today(self, now: CurrentNumbers) -> Mapping[str, float]:
        """Returns the changes that differ from today, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        moved = {name: values[name] for name in ("move_gpus", "add_engines") if values[name]}
        others = {name: value for name, value in values.items() if value is not None and name not in DELTAS}
        return moved | {name: value for name, value in others.items() if value != getattr(now, name)}


DELTAS = ("move_gpus", "add_engines")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of an answer; ``value`` None: unknown, and ``why`` is the missing input.

    Attributes:
        bound: the true one is at least or at most this, as far as the assumptions go; "about": either.
    """

    value: float | None
    unit: str
    bound: Bound = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunSituation:
    """A run in the model: today's, or after the changes. ``limiter`` None: unknown."""

    limiter: Side | None
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer.

    Attributes:
        changes: those that differ from today.
        assumptions: what the estimate takes for granted, a sentence each.
        missing: input -> its use and how to provide it.
    """

    now: RunSituation
    then: RunSituation
    changes: Mapping[str, float]
    assumptions: tuple[str, ...]
    missing: Mapping[str, str]


FIGURES: Mapping[str, str] = {
    "wait_ratio": "ratio",
    "trained_samples_per_second": "samples/s",
    "useful_samples_per_second": "samples/s",
    "staleness_versions": "versions",
    "step_seconds": "seconds",
    "usd_per_million_tokens": "usd",
    "idle_usd_per_hour": "usd/h",
    "trainer_could_take": "samples/s",
    "generator_could_make": "samples/s",
    "zero_advantage_ratio": "ratio",
    "response_tokens": "tokens",
    "kv_concurrency_limit": "requests",
    "trainer_gpus": "GPUs",
    "generator_gpus": "GPUs",
}
"""Every figure of a state, with its unit."""

NEEDS: Mapping[str, str] = {
    "trained": "how many samples the trainer takes per second: log step time and samples per step",
    "wait": "how long the trainer waits, or its capacity: log a wait time next to the step time",
    "step_seconds": "how long a step takes: log the step time",
    "trainer_gpus": "the trainer's GPUs: state trainer_gpus in [run.NAME.facts]",
    "generator_gpus": "the generator's GPUs: state generator_gpus in [run.NAME.facts]",
    "engines": "how many engines there are: add their /metrics as targets",
    "group_size": "rollouts per group: state group_size in [run.NAME.facts]",
    "solve_ratio": "how often tasks are solved: send rollout records with `solved`",
    "oversampling": "rollouts started per rollout kept: send rollout records with `exit`, or state oversampling in "
    "[run.NAME.facts]",
    "zero_advantage": "the share of groups without a gradient: log it, or send rollout records",
    "filtered": "whether groups without a gradient are dropped before training: state filters_zero_advantage (1 or 0) "
    "in [run.NAME.facts], or send rollout records",
    "max_staleness": "the run's own staleness bound: state max_staleness_versions in [run.NAME.facts]",
    "staleness": "how stale samples are: log it, or send rollout records",
    "concurrency": "how many rollouts are in flight: state max_in_flight in [run.NAME.facts]",
    "kv_ceiling": "the KV ceiling: add the engines' /metrics as targets",
    "response_tokens": "how long responses are: log their mean in tokens",
    "max_response_tokens": "the length cap: state max_response_tokens in [run.NAME.facts]",
    "usd_per_gpu_hour": "the price of a GPU-hour: state usd_per_gpu_hour in [run.NAME.cost]",
}
"""Input -> its description and how to provide it."""
