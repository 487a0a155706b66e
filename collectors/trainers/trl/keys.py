"""TRL's metric keys -> ours (1.16.0: trainer/grpo_trainer.py, experimental/async_grpo/).

Keys are without the `train/` of HF's integrations. TRL reduces over the logging window by name: a word `total` is a sum
over the window (so `*_total` are deltas, not counters), `max` and `min` are extremes, others are means.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats.jsonl import number
from collectors.model import Labels
from collectors.trainers.trl.printed import ELAPSED, MAX_STEPS
from collectors.training_logs.model import Context, Key, Out, Piece

_WALL: Labels = (("basis", "wall"),)
_BUSY: Labels = (("basis", "busy"),)

# Not keys of TRL: `collectors.trainers.trl.collector` adds them, and no logger can write them.
NONFINITE = "grad_norm is not finite"
BETWEEN = "time between the rows"
# Length of the samples that the asynchronous trainer trained, and of the rollouts that were scored during the step.
# They differ by a quarter if few rollouts were scored. The second is used if the first is not logged.
TRAINED_LENGTH, SCORED_LENGTH = "sample/trained_tokens_mean", "completions/mean_length"
GENERATION, REWARD, WEIGHT_SYNC = "generation of the step", "rewards of the step", "weight sync of the step"

_COMMON: Mapping[str, Key] = {
    NONFINITE: Key("gradient_nonfinite"),
    "loss": Key("loss_mean"),
    "grad_norm": Key("gradient_norm"),
    "learning_rate": Key("learning_rate"),
    "entropy": Key("entropy_mean"),
    "reward": Key("reward_mean"),
    SCORED_LENGTH: Key("response_tokens_mean"),
    # Until version 0.16 (spring 2025).
    "completion_length": Key("response_tokens_mean"),
    "completions/max_length": Key("response_tokens_max"),
    "completions/min_length": Key("response_tokens_min"),
    "completions/clipped_ratio": Key("truncation_ratio"),
    "clip_ratio/region_mean": Key("clip_ratio"),
    "tools/call_frequency": Key("tool_calls_mean"),
    "tools/failure_frequency": Key("tool_failure_ratio"),
    "tools/latency_s": Key("tool_call_seconds_mean"),
    "sampling/sampling_logp_difference/mean": Key("mismatch_logprob_difference_mean"),
    "sampling/sampling_logp_difference/max": Key("mismatch_logprob_difference_max"),
    "sampling/importance_sampling_ratio/mean": Key("importance_ratio_mean"),
}

_SYNC: Mapping[str, Key] = {
    GENERATION: Key("generation_seconds"),
    REWARD: Key("reward_seconds"),
    WEIGHT_SYNC: Key("trainer_weight_sync_seconds"),
    "step_time": Key("trainer_step_seconds"),
    # Until version 0.16 no key has the duration of a step.
    BETWEEN: Key("trainer_step_seconds"),
    "frac_reward_zero_std": Key("groups_zero_advantage_ratio"),
    "reward_std": Key("reward_std"),
    "kl": Key("reference_kl_mean"),
}

_ASYNC: Mapping[str, Key] = {
    "perf/step_s": Key("trainer_step_seconds"),
    "perf/rollout_wait_s": Key("trainer_wait_seconds"),
    "perf/weight_sync_s": Key("trainer_weight_sync_seconds"),
    "perf/weight_sync_pause_s": Key("weight_sync_pause_seconds"),
    "perf/weight_sync_barrier_s": Key("weight_sync_barrier_seconds"),
    "perf/weight_sync_transfer_s": Key("weight_sync_transfer_seconds"),
    "perf/fwd_s": Key("trainer_forward_seconds"),
    "perf/optimizer_s": Key("trainer_optimizer_seconds"),
    # Percent (trainer/utils.py:1834).
    "perf/mfu_wall_clock": Key("trainer_mfu_ratio", 0.01, labels=_WALL),
    "perf/mfu_fwd_bwd": Key("trainer_mfu_ratio", 0.01, labels=_BUSY),
    "perf/trained_tok_s_wall_clock": Key("trainer_tokens_per_second", labels=_WALL),
    "perf/forwarded_tok_s_fwd_bwd": Key("trainer_tokens_per_second", labels=_BUSY),
    "batch/samples_per_step": Key("trainer_samples"),
    "batch/groups_per_step": Key("trainer_groups"),
    "batch/trained_tokens_per_step": Key("trained_tokens"),
    "batch/forwarded_tokens_per_step": Key("processed_tokens"),
    "batch/masked_token_frac": Key("masked_tokens_ratio"),
    "batch/packing_ratio": Key("packing_ratio"),
    "batch/pad_frac": Key("padding_ratio"),
    "batch/dropped_oversize_total": Key("oversize_dropped_samples"),
    # In weight syncs, stamped at the group's first dispatch: saturates at max_staleness in all modes.
    "sample/staleness_mean": Key("staleness_versions_mean"),
    "sample/staleness_max": Key("staleness_versions_max"),
    "sample/dropped_stale_total": Key("stale_dropped_rollouts"),
    "sample/rollout_queue_size": Key("queue_samples"),
    "sample/time_in_queue_s": Key("queue_age_seconds"),
    TRAINED_LENGTH: Key("response_tokens_mean"),
    "rollout/score_queue_size": Key("score_queue_groups"),
    "rollout/inflight": Key("in_flight_rollouts", labels=(("state", "generating"),)),
    "rollout/generated_tok_s": Key("rollout_tokens_per_second"),
    "rollout/duration_s": Key("rollout_seconds_mean"),
    "rollout/turns_mean": Key("turns_mean"),
    "rollout/turns_max": Key("turns_max"),
    "rollout/score_s": Key("reward_seconds"),
    "rollout/score_wait_s": Key("score_wait_seconds"),
    "rollout/score_block_s": Key("score_block_seconds"),
    "rollout/backpressure_s": Key("backpressure_seconds"),
    "rollout/vllm_retry_total": Key("rollout_retries"),
    "env/reset_s": Key("rollout_setup_seconds_mean"),
    "env/reward_s": Key("rollout_scoring_seconds_mean"),
    "ratio": Key("importance_ratio_mean"),
}

# Keys that both trainers log with different meanings: the asynchronous trainer's under our own names.
ASYNC_NAMES: Mapping[str, str] = {
    # The mean of the groups' standard deviations, not the deviation over all samples.
    "reward_std": "reward_std of groups",
    # Against the policy that generated, not a frozen reference (async_grpo_trainer.py:1588).
    "kl": "kl to the generating policy",
}
_RENAMED: Mapping[str, Key] = {
    ASYNC_NAMES["reward_std"]: Key("reward_group_std_mean"),
    ASYNC_NAMES["kl"]: Key("mismatch_kl_mean"),
}

# Of the synchronous trainer alone, for frameworks that extend it.
SYNC_KEYS: Mapping[str, Key] = {**_COMMON, **_SYNC}
KEYS: Mapping[str, Key] = {**SYNC_KEYS, **_ASYNC, **_RENAMED}

# Only the asynchronous trainer logs these, from the first step on.
ASYNC_MARKS = ("perf/rollout_wait_s", "sample/rollout_queue_size", "sample/staleness_mean")

# Sums over the logging window: the amount of a step follows from the number of steps that the row covers.
DROPPED = "sample/dropped_stale_total"
WINDOW_SUMS = frozenset((DROPPED, "rollout/vllm_retry_total", "batch/dropped_oversize_total"))

NEEDS = frozenset(
    (GENERATION, REWARD, WEIGHT_SYNC, "step_time", SCORED_LENGTH, "perf/step_s", "perf/rollout_wait_s",
     "perf/fwd_bwd_s", "perf/optimizer_s", "perf/weight_sync_s", "sample/staleness_mean", DROPPED)
)  # fmt: skip

# Extremes of values that are read anyway.
IGNORED = re.compile(
    r"num_tokens|num_input_tokens_seen|completions/(?:mean|min|max)_terminated_length"
    r"|clip_ratio/(?:low_mean|high_mean|low_min|high_max)|sampling/importance_sampling_ratio/(?:min|max)"
    r"|perf/fwd_bwd_s|perf/forwarded_tok_s_wall_clock"
)
# HF's and wandb's bookkeeping (parts of a table included): a row with nothing else is no step.
BOOKKEEPING = re.compile(
    rf"{ELAPSED}|{MAX_STEPS}|epoch|global_step|step|total_flos|train_(?:runtime|loss|.*_per_second)|_.*|completions\..*"
)
EVALUATION = re.compile(r"eval[/_].*")
# Keys that no evaluation logs without the prefix: a row with one of them is of a training step.
TRAINED = frozenset(("loss", "grad_norm", "learning_rate", "step_time", "perf/step_s"))

PROFILING = "profiling/Time taken: "
_GENERATE = frozenset(("vLLM.generate", "transformers.generate", "transformers.generate_batch"))


def _component(match: re.Match[str]) -> Key | None:
    if match.group(2) == "std":
        return None
    return Key("reward_component_mean", labels=(("function", match.group(1)),))


PATTERNS = ((re.compile(r"rewards/(.+?)(?:/(mean|std))?"), _component),)


def nonfinite(logged: Mapping[str, Any]) -> dict[str, float]:
    """1 for a gradient norm that is not finite, which is itself a finding; 0 for a finite one; empty without a norm."""
    for key in ("grad_norm", "train/grad_norm"):
        if key in logged:
            return {NONFINITE: float(number(logged[key]) is None)}
    return {}


def profiled(values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """(phase, seconds) of profiling rows.

    Names are `<Trainer>.<function>`; only leaves are read, for `_prepare_inputs` contains generation and reward.
    """
    for key, value in values.items():
        function = key.removeprefix(PROFILING).partition(".")[2]
        if function in _GENERATE:
            yield GENERATION, value
        elif function == "_calculate_rewards":
            yield REWARD, value
        elif function == "sync_weights":
            yield WEIGHT_SYNC, value


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """Work and phases that are computed from several keys of a step."""
    if context.memory.get("async"):
        yield from _async_phases(piece.values)
        # TRL leaves out a window's sum of zero: absent means none, once the step's rows are merged.
        if "sample/staleness_mean" in piece.values and DROPPED not in piece.values:
            yield "stale_dropped_rollouts", (), 0.0
    else:
        yield from _sync_work(piece.values, context.facts)
        yield from _sync_phases(piece.values)


def _async_phases(row: Mapping[str, float]) -> Iterator[Out]:
    """Compute, and the rest of the step. The first step has no `perf/step_s`, so its rest is unknown, not zero."""
    compute = row.get("perf/fwd_bwd_s")
    if compute is None:
        return
    compute += row.get("perf/optimizer_s", 0.0)
    yield "trainer_compute_seconds", (), compute
    step_seconds, wait = row.get("perf/step_s"), row.get("perf/rollout_wait_s")
    if step_seconds is not None and wait is not None:
        rest = step_seconds - wait - compute - row.get("perf/weight_sync_s", 0.0)
        yield "trainer_other_seconds", (), max(0.0, rest)


def _sync_work(row: Mapping[str, float], facts: Mapping[str, str | float]) -> Iterator[Out]:
    batch, length = facts.get("batch_samples"), row.get(SCORED_LENGTH)
    if not isinstance(batch, float) or "step_time" not in row:
        return
    yield "trainer_samples", (), batch
    if length is not None:
        # Every completion token is in the loss; with mask_truncated_completions this is an upper bound.
        yield "trained_tokens", (), batch * length


def _sync_phases(row: Mapping[str, float]) -> Iterator[Out]:
    """Compute is what remains of the step: log-probs, forward, backward and optimizer. TRL times only parts of them.

    Without profiling rows (TensorBoard, the state file) the division of the step is unknown.
    """
    if "step_time" not in row or GENERATION not in row:
        return
    rest = row["step_time"] - sum(row.get(phase, 0.0) for phase in (GENERATION, REWARD, WEIGHT_SYNC))
    yield "trainer_compute_seconds", (), max(0.0, rest)
    # The catalogue has no phase for rewards; without them the phases would not add up to the step.
    yield "trainer_other_seconds", (), row.get(REWARD, 0.0)
