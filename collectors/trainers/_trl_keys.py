"""TRL's metric keys -> ours (1.16.0: trainer/grpo_trainer.py, experimental/async_grpo/).

Keys without the `train/` that HF's integrations put in front. TRL reduces over the logging window by name: a word
`total` is a sum over the window (so `*_total` are deltas, not counters), `max` and `min` are extremes, else means.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.model import Labels, Sample
from collectors.readers.jsonl import number

Target = tuple[str, Labels, float]
_WALL: Labels = (("basis", "wall"),)
_BUSY: Labels = (("basis", "busy"),)

# Not a key of TRL's: made by `canonical`, and no logger can write it.
NONFINITE = "grad_norm is not finite"

COMMON: Mapping[str, Target] = {
    NONFINITE: ("gradient_nonfinite", (), 1),
    "loss": ("loss_mean", (), 1),
    "grad_norm": ("gradient_norm", (), 1),
    "learning_rate": ("learning_rate", (), 1),
    "entropy": ("entropy_mean", (), 1),
    "reward": ("reward_mean", (), 1),
    "completions/mean_length": ("response_tokens_mean", (), 1),
    "completions/max_length": ("response_tokens_max", (), 1),
    "completions/min_length": ("response_tokens_min", (), 1),
    "completions/clipped_ratio": ("truncation_ratio", (), 1),
    "clip_ratio/region_mean": ("clip_ratio", (), 1),
    "tools/call_frequency": ("tool_calls_mean", (), 1),
    "tools/failure_frequency": ("tool_failure_ratio", (), 1),
    "tools/latency_s": ("tool_call_seconds_mean", (), 1),
    "sampling/sampling_logp_difference/mean": ("mismatch_logprob_difference_mean", (), 1),
    "sampling/sampling_logp_difference/max": ("mismatch_logprob_difference_max", (), 1),
    "sampling/importance_sampling_ratio/mean": ("importance_ratio_mean", (), 1),
}

SYNC: Mapping[str, Target] = {
    **COMMON,
    "step_time": ("trainer_step_seconds", (), 1),
    "frac_reward_zero_std": ("groups_zero_advantage_ratio", (), 1),
    "reward_std": ("reward_std", (), 1),
    "kl": ("reference_kl_mean", (), 1),
}

ASYNC: Mapping[str, Target] = {
    **COMMON,
    "perf/step_s": ("trainer_step_seconds", (), 1),
    "perf/rollout_wait_s": ("trainer_wait_seconds", (), 1),
    "perf/weight_sync_s": ("trainer_weight_sync_seconds", (), 1),
    "perf/weight_sync_pause_s": ("weight_sync_pause_seconds", (), 1),
    "perf/weight_sync_barrier_s": ("weight_sync_barrier_seconds", (), 1),
    "perf/weight_sync_transfer_s": ("weight_sync_transfer_seconds", (), 1),
    "perf/fwd_s": ("trainer_forward_seconds", (), 1),
    "perf/optimizer_s": ("trainer_optimizer_seconds", (), 1),
    # Percent (trainer/utils.py:1834).
    "perf/mfu_wall_clock": ("trainer_mfu_ratio", _WALL, 0.01),
    "perf/mfu_fwd_bwd": ("trainer_mfu_ratio", _BUSY, 0.01),
    "perf/trained_tok_s_wall_clock": ("trainer_tokens_per_second", _WALL, 1),
    "perf/forwarded_tok_s_fwd_bwd": ("trainer_tokens_per_second", _BUSY, 1),
    "batch/samples_per_step": ("trainer_samples", (), 1),
    "batch/groups_per_step": ("trainer_groups", (), 1),
    "batch/trained_tokens_per_step": ("trained_tokens", (), 1),
    "batch/forwarded_tokens_per_step": ("processed_tokens", (), 1),
    "batch/masked_token_frac": ("masked_tokens_ratio", (), 1),
    "batch/packing_ratio": ("packing_ratio", (), 1),
    "batch/pad_frac": ("padding_ratio", (), 1),
    "batch/dropped_oversize_total": ("oversize_dropped_samples", (), 1),
    # In weight syncs, stamped when the group is first dispatched: saturates at max_staleness in every regime.
    "sample/staleness_mean": ("staleness_versions_mean", (), 1),
    "sample/staleness_max": ("staleness_versions_max", (), 1),
    "sample/dropped_stale_total": ("stale_dropped_rollouts", (), 1),
    "sample/rollout_queue_size": ("queue_samples", (), 1),
    "sample/time_in_queue_s": ("queue_age_seconds", (), 1),
    "rollout/score_queue_size": ("score_queue_groups", (), 1),
    "rollout/inflight": ("in_flight_rollouts", (("state", "generating"),), 1),
    "rollout/generated_tok_s": ("rollout_tokens_per_second", (), 1),
    "rollout/duration_s": ("rollout_seconds_mean", (), 1),
    "rollout/turns_mean": ("turns_mean", (), 1),
    "rollout/turns_max": ("turns_max", (), 1),
    "rollout/score_s": ("reward_seconds", (), 1),
    "rollout/score_wait_s": ("score_wait_seconds", (), 1),
    "rollout/score_block_s": ("score_block_seconds", (), 1),
    "rollout/backpressure_s": ("backpressure_seconds", (), 1),
    "rollout/vllm_retry_total": ("rollout_retries", (), 1),
    "env/reset_s": ("rollout_setup_seconds_mean", (), 1),
    "env/reward_s": ("rollout_scoring_seconds_mean", (), 1),
    # The same key as the sync trainer's, but the mean of the groups' own deviations.
    "reward_std": ("reward_group_std_mean", (), 1),
    # Against the policy that generated, not a frozen reference (async_grpo_trainer.py:1588).
    "kl": ("mismatch_kl_mean", (), 1),
    "ratio": ("importance_ratio_mean", (), 1),
}

# Only the async trainer logs these, and it does so from the first step on.
ASYNC_MARKS = ("perf/rollout_wait_s", "sample/rollout_queue_size", "sample/staleness_mean")

_FUNCTION = re.compile(r"rewards/(.+?)(?:/(mean|std))?")
# HF's bookkeeping and extremes of what is read anyway.
_SKIPPED = re.compile(
    r"epoch|global_step|step|num_tokens|num_input_tokens_seen|total_flos|train_(?:runtime|loss|.*_per_second)"
    r"|completions/(?:mean|min|max)_terminated_length|clip_ratio/(?:low_mean|high_mean|low_min|high_max)"
    r"|sampling/importance_sampling_ratio/(?:min|max)|perf/fwd_bwd_s|perf/forwarded_tok_s_wall_clock|eval[/_].*"
)

_PROFILING = "profiling/Time taken: "
GENERATE = frozenset(("vLLM.generate", "transformers.generate", "transformers.generate_batch"))


def canonical(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers only (tables and "NaN" texts go), one leading `train/` taken off.

    A gradient norm that is none is itself a finding: it becomes `NONFINITE`, 1 (and 0 beside a finite one).
    """
    found = {key.removeprefix("train/"): number(value) for key, value in metrics.items()}
    row = {key: value for key, value in found.items() if value is not None}
    if "grad_norm" in found:
        row[NONFINITE] = float(found["grad_norm"] is None)
    return row


def profiled(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(phase, seconds) of a profiling row: `generation`, `reward` or `weight_sync`.

    Names are `<Trainer>.<function>`; only leaves are read, for `_prepare_inputs` contains generation and reward.
    """
    for key, value in canonical(metrics).items():
        if not key.startswith(_PROFILING):
            continue
        function = key.removeprefix(_PROFILING).partition(".")[2]
        if function in GENERATE:
            yield "generation", value
        elif function == "_calculate_rewards":
            yield "reward", value
        elif function == "sync_weights":
            yield "weight_sync", value


def samples(
    row: Mapping[str, float], is_async: bool, ts: float, step: int, unmapped: dict[str, int]
) -> Iterator[Sample]:
    """Samples of one step's row, with those derived from several of its keys."""
    table = ASYNC if is_async else SYNC
    for key, value in row.items():
        if (target := table.get(key)) is not None:
            metric, labels, scale = target
            yield Sample(metric, value * scale, labels, ts, step, "trainer")
        elif (function := _FUNCTION.fullmatch(key)) is not None:
            if function.group(2) != "std":
                labels = (("function", function.group(1)),)
                yield Sample("reward_component_mean", value, labels, ts, step, "trainer")
        elif not key.startswith("profiling/") and not _SKIPPED.fullmatch(key):
            unmapped[key] = unmapped.get(key, 0) + 1
    if is_async:
        if "sample/staleness_mean" in row and "sample/dropped_stale_total" not in row:
            # TRL leaves a window's sum out when nothing happened: here absent does mean none.
            yield Sample("stale_dropped_rollouts", 0.0, (), ts, step, "trainer")
        yield from _async_phases(row, ts, step)


def _async_phases(row: Mapping[str, float], ts: float, step: int) -> Iterator[Sample]:
    """Compute, and the rest of the step. The first step has no `perf/step_s`: no rest then, not a rest of zero."""
    compute = row.get("perf/fwd_bwd_s")
    if compute is None:
        return
    compute += row.get("perf/optimizer_s", 0.0)
    yield Sample("trainer_compute_seconds", compute, (), ts, step, "trainer")
    whole, wait = row.get("perf/step_s"), row.get("perf/rollout_wait_s")
    if whole is not None and wait is not None:
        rest = whole - wait - compute - row.get("perf/weight_sync_s", 0.0)
        yield Sample("trainer_other_seconds", max(0.0, rest), (), ts, step, "trainer")


def sync_phases(step_seconds: float, phases: Mapping[str, float], ts: float, step: int) -> Iterator[Sample]:
    """Phases of a synchronous step from its profiling rows, seconds per step.

    Compute is what is left of the step: log-probs, forward, backward and optimizer. TRL times only parts of them.
    """
    rest = step_seconds
    for phase, metric in (
        ("generation", "generation_seconds"),
        ("reward", "reward_seconds"),
        ("weight_sync", "trainer_weight_sync_seconds"),
    ):
        if phase in phases:
            yield Sample(metric, phases[phase], (), ts, step, "trainer")
            rest -= phases[phase]
    if "generation" in phases:
        yield Sample("trainer_compute_seconds", max(0.0, rest), (), ts, step, "trainer")
