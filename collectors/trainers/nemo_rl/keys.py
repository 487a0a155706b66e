"""NeMo-RL's metric keys -> ours (7ea279abf: nemo_rl/algorithms/{grpo,grpo_sync,single_controller,utils}.py).

A step comes as about six calls of the logger with the same step: rollouts, validation, `train/*`, `performance/*`,
`efficiency/*`, `timing/train/*`. The SingleController also logs `rollout/*` by the clock, with the steps done so far.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from collectors.formats.rows import Logged
from collectors.model import Labels, Sample
from collectors.training_logs.model import TRAINER, Context, Key, Out, Piece

T = "timing/train/"
STEP, WAIT, GENERATION, SYNC = f"{T}total_step_time", f"{T}exposed_generation", f"{T}generation", f"{T}weight_sync"
# The synchronous trainer's own timer of the same phase (utils.py:732).
SYNC_COLOCATED = f"{T}prepare_for_generation/total"
SAVE, VALIDATION = f"{T}checkpointing", f"{T}idle/validation"
COMPUTE = tuple(
    f"{T}{name}"
    for name in (
        "logprob_inference_prep",
        "policy_and_reference_logprobs",
        "advantage_calculation",
        "training_prep",
        "policy_training",
    )
)
NORM = "train/grad_norm"
# Not keys of NeMo-RL: `pieces` adds them, because a gradient norm that is not finite is itself a finding.
NONFINITE = "train/grad_norm is not finite"
NONE, ALL = "train/baseline_reward/pct_0", "train/baseline_reward/pct_1"
LEAST, MOST = "train/min_total_reward", "train/max_total_reward"
BATCHES, SURPLUS = "train/dynamic_sampling_num_gen_batches", "train/dynamic_sampling_num_discarded_valid_samples"
STALE = ("train/evicted_stale_prompt_groups", "train/aborted_stale_inflight_groups")
TURNS, TURNS_EACH, FILTERED = "train/total_turns", "train/avg_turns_per_sample", "train/filtered_reward"
VALID, SEQUENCES, TOKENS = "train/num_valid_samples", "train/global_valid_seqs", "train/global_valid_toks"
RATE = "performance/samples_per_sec"
# Means over the tokens of one update each, added up over the updates of the step (grpo.py:5107).
PER_UPDATE = {
    "train/loss": "loss_mean",
    "train/approx_entropy": "entropy_mean",
    "train/gen_kl_error": "mismatch_kl_mean",
    "train/sampling_importance_ratio": "importance_ratio_mean",
    "train/kl_penalty": "reference_kl_mean",
}
IN_FLIGHT = "rollout/inflight"
# Counted since the process began and logged by the clock.
REPEATED = "rollout/redispatch_total"
FAILURES = re.compile(r"rollout/(?:data_failures|infra_drops)_total/(.+)")
OUTSIDE = re.compile(r"(?:rollout|gen_fleet|router|timing/setup)/.*")

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    STEP: Key("trainer_step_seconds"),
    # Contains `idle/buffer_starvation` and, before a refit, the wait for generations in flight.
    WAIT: Key("trainer_wait_seconds"),
    GENERATION: Key("generation_seconds"),
    SYNC: Key("trainer_weight_sync_seconds"),
    SYNC_COLOCATED: Key("trainer_weight_sync_seconds"),
    f"{T}prepare_for_generation/transfer_and_update_weights": Key("weight_sync_transfer_seconds"),
    SAVE: Key("trainer_checkpoint_seconds"),
    VALIDATION: Key("trainer_eval_seconds"),
    f"{T}data_processing": Key("batch_pack_seconds"),
    f"{T}policy_and_reference_logprobs": Key("trainer_logprob_seconds"),
    "train/buffer_size": Key("queue_groups"),
    # Weight versions, one per step: the trainer's - the mean of those at the groups' start.
    "train/avg_trajectory_age": Key("staleness_versions_mean"),
    "train/reward": Key("reward_mean"),
    "train/mean_gen_tokens_per_sample": Key("response_tokens_mean"),
    "train/max_gen_tokens_per_sample": Key("response_tokens_max"),
    "train/mean_prompt_length": Key("prompt_tokens_mean"),
    "train/truncation_rate": Key("truncation_ratio"),
    TURNS_EACH: Key("turns_mean"),
    "train/max_turns_per_sample": Key("turns_max"),
    "train/invalid_tool_call_rate": Key("tool_failure_ratio"),
    "train/total_num_tokens": Key("processed_tokens"),
    "train/lr": Key("learning_rate"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    "performance/tokens_per_sec": Key("trainer_tokens_per_second", labels=(("basis", "wall"),)),
    "performance/training_worker_group_tokens_per_sec": Key("trainer_tokens_per_second", labels=(("basis", "busy"),)),
    # A ratio already, over the update alone (utils.py:881).
    "performance/train_fp_utilization": Key("trainer_mfu_ratio", labels=(("basis", "busy"),)),
    REPEATED: Key("rollout_retries", reduction="total"),
}

NEEDS = frozenset(
    {STEP, WAIT, GENERATION, SYNC, SYNC_COLOCATED, SAVE, VALIDATION, *COMPUTE, *STALE, *PER_UPDATE, RATE}
    | {NONE, ALL, LEAST, MOST, BATCHES, SURPLUS, VALID, SEQUENCES, TOKENS, TURNS, TURNS_EACH, FILTERED}
)


def _failed(match: re.Match[str]) -> Key:
    """Rollouts of dropped prompts, by the exception."""
    return Key("rollout_errors", labels=(("type", match.group(1)),), reduction="total")


PATTERNS = ((FAILURES, _failed),)
IGNORED = re.compile(
    r"timing/.*|performance/.*|efficiency/.*|validation.*/.*|ray/.*|refit/.*|rollout/.*|gen_fleet/.*|router/.*"
    r"|generation_metrics/.*|payload.*|train/(?:advantages/.*|baseline_reward/.*|probs_ratio\w*|\w+_seq_mult_prob_error"
    r"(?:_after_mask)?|num_masked\w*|masked_correct_pct|(?:mean|max|min)_total_reward|filtered_reward|total_turns"
    r"|turns_per_sample/.*|natural_termination_rate|max_turns_reached_rate|mean_(?:total|env)_tokens_per_sample"
    r"|max_gen_tokens_per_turn/.*|histogram/.*|timing/.*|wd|moe/.*|mtp/.*|\w*token_mult_prob_error|policy_kl_error"
    r"|js_divergence_error|positive_nll_loss|num_mask_sample_filtered|num_invalid_tool_calls|draft_\w+|is_oob_ratio"
    r"|(?:dropped|replaced|promoted)_prompt_groups|generation_logger_metrics.*|total_flops|num_ranks)"
)


def on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Rollouts in flight: the SingleController counts prompts."""
    size = number(context, "group_size")
    if IN_FLIGHT in values and size is not None:
        states: Labels = (("state", "generating"),)
        context.samples.append(Sample("in_flight_rollouts", values[IN_FLIGHT] * size, states, row.ts))


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """One piece per call. Rows logged by the clock make no step: their totals are added to the next step that ends."""
    if row.step is None or row.ts is None:
        return
    _mode(values, context)
    clock: dict[str, float] = context.memory.setdefault("clock", {})
    # The setup is logged as step 0, before any step.
    remaining = {key: value for key, value in values.items() if not OUTSIDE.fullmatch(key)}
    if NORM in row.values:
        remaining[NONFINITE] = float(NORM not in values)
    if STEP in values:
        remaining |= clock
    clock.update(_counters(values, number(context, "group_size")))
    if remaining:
        yield Piece(TRAINER, row.step, row.ts, remaining)


def _counters(values: Mapping[str, float], size: float | None) -> Iterator[tuple[str, float]]:
    """Totals: repeated requests; failed rollouts, of which a dropped prompt has a whole group."""
    for key, value in values.items():
        if key == REPEATED:
            yield key, value
        elif FAILURES.fullmatch(key) and size is not None:
            yield key, value * size


def _mode(values: Mapping[str, float], context: Context) -> None:
    """Detects the loop by its timers if no configuration states it; timers do not show the generators' GPUs."""
    if WAIT in values:
        if context.synchronous or not context.mode:
            context.take({"mode": "async"})
    elif GENERATION in values and not context.synchronous:
        context.take({"mode": "sync_colocated"})


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """Metrics computed from several keys of a step."""
    values = piece.values
    if STEP in values:
        yield from _phases(values)
    yield from _samples(values)
    yield from _groups(values)
    size = number(context, "group_size")
    if size is not None and STALE[0] in values:
        yield "stale_dropped_rollouts", (), sum(values.get(key, 0.0) for key in STALE) * size


def _phases(values: Mapping[str, float]) -> Iterator[Out]:
    compute = sum(values.get(key, 0.0) for key in COMPUTE)
    wait = values.get(WAIT, values.get(GENERATION, 0.0))
    sync = values.get(SYNC, values.get(SYNC_COLOCATED, 0.0))
    yield "trainer_compute_seconds", (), compute
    yield "trainer_other_seconds", (), max(0.0, values[STEP] - wait - compute - sync - values.get(SAVE, 0.0))


def _samples(values: Mapping[str, float]) -> Iterator[Out]:
    """Sums over the updates of a step, divided to means; the batch, for which only the rate is logged."""
    valid, sequences = values.get(VALID), values.get(SEQUENCES)
    updates = max(1.0, float(round(valid / sequences))) if valid and sequences else None
    if updates is not None:
        for key, metric in PER_UPDATE.items():
            if key in values:
                yield metric, (), values[key] / updates
        if TOKENS in values:
            yield "trained_tokens", (), values[TOKENS] * updates
    if STEP in values and (batch := _batch(values) or valid):
        yield "trainer_samples", (), batch


def _batch(values: Mapping[str, float]) -> float | None:
    """Samples of the batch: the logged rate is the configured number over the step's time (utils.py:812)."""
    return float(round(values[RATE] * values[STEP])) if RATE in values and STEP in values else None


def _groups(values: Mapping[str, float]) -> Iterator[Out]:
    """Groups without a gradient: by their baseline, for rewards from 0 to 1; by the batches of dynamic sampling.

    The default baseline leaves the sample itself out, so a group with one right (wrong) answer of N counts as 1/N of
    a wrong (right) one.
    """
    if BATCHES in values or FILTERED in values:
        yield from _sampled(values)
    elif NONE in values and ALL in values and values.get(LEAST, -1.0) >= 0.0 and values.get(MOST, 2.0) <= 1.0:
        yield "groups_none_solved_ratio", (), values[NONE] / 100
        yield "groups_all_solved_ratio", (), values[ALL] / 100


def _sampled(values: Mapping[str, float]) -> Iterator[Out]:
    """Dynamic sampling generates batches until enough groups differ; the turns of a batch give its size."""
    batches, turns, turns_per_sample = (values.get(key) for key in (BATCHES, TURNS, TURNS_EACH))
    batch, surplus = _batch(values), values.get(SURPLUS)
    if batches and turns and turns_per_sample and batch is not None and surplus is not None:
        generated = batches * round(turns / turns_per_sample)
        yield "groups_zero_advantage_ratio", (), max(0.0, 1.0 - (batch + surplus) / generated)


def number(context: Context, fact: str) -> float | None:
    value = context.facts.get(fact)
    return float(value) if isinstance(value, int | float) else None
