"""Optional parts of scenarios: losses and evaluations (see `fates`), other stacks. Frozen, as `scenarios`."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class LossPlan:
    """Shares of rollouts that end without a reward. A lost one stays in its group, masked out of the loss."""

    infra: float = 0.015
    environment: float = 0.008


@dataclass(frozen=True)
class EvalPlan:
    """An evaluation on a held-out set every so many versions, on a separate server."""

    environment: str
    every_versions: int = 5
    tasks: int = 8
    samples: int = 4
    # Single answers without a sandbox; far shorter than training responses, so that a mix-up would show.
    response_tokens_median: float = 300.0
    response_sigma: float = 0.4
    prompt_tokens: int = 180
    tokens_per_second: float = 90.0
    scoring_seconds: float = 0.5
    solve_probability: float = 0.6


@dataclass(frozen=True)
class SlimePlan:
    """A run of slime's `train_async.py`: one rollout is generated while the one before is trained on.

    Each rollout begins with `over_sampling_groups` groups; once a batch of them is complete the rest is aborted.
    """

    over_sampling_groups: int
    # GPUs per SGLang server (tensor parallel over nodes).
    engine_gpus: int
    # Parameters used per token, in billions: for a mixture of experts only a part.
    active_parameters_billion: float
    # Layers x attention heads x head dimension.
    attention_width: int
    # The trainer's parts in addition to `train_tokens_per_second_per_gpu`, which covers forward and backward.
    preprocess_seconds: float
    # Old log-probabilities, a forward pass: share of the training time.
    logprob_share: float
    # As on the engine's page.
    context_tokens: int
    weight_gigabytes: float
    kv_gigabytes: float

    def train_flops(self, lengths: Iterable[int]) -> float:
        """Forward and backward of these samples, as slime counts them.

        6 per active parameter and token, and 6 x width x length for a token's causal attention.
        """
        parameters = self.active_parameters_billion * 1e9
        return sum(6 * length * (parameters + self.attention_width * length) for length in lengths)


@dataclass(frozen=True)
class VerlPlan:
    """A synchronous run of verl's V1 trainer: the GPUs generate a batch, then train on it."""

    # GPUs per vLLM server.
    engine_gpus: int
    # The trainer's parts in addition to `train_tokens_per_second_per_gpu`, which covers all its passes over the batch.
    wake_seconds: float
    reward_seconds: float
    advantage_seconds: float
    # Old log-probabilities, a forward pass: share of those passes.
    logprob_share: float


@dataclass(frozen=True)
class AgentPlan:
    """Agents whose tools answer at once, so that an engine has one request per rollout; calls increase over time.

    A run of verl's V1 trainer `separate_async` with `algorithm.filter_groups`: groups of equal rewards are thrown away.
    """

    engine_gpus: int
    # Response tokens for each call of a tool.
    tokens_per_call: float
    # Mean calls of a rollout grow by this factor between two moments (seconds since the run began), evenly.
    growth: float
    grows_from: float
    grows_until: float
    # As in `VerlPlan`.
    logprob_share: float

    def factor(self, now: float) -> float:
        """Of the lengths at the beginning."""
        share = (now - self.grows_from) / (self.grows_until - self.grows_from)
        return 1.0 + (self.growth - 1.0) * min(1.0, max(0.0, share))
