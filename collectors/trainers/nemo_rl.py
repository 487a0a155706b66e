"""NeMo-RL runs (GRPO: synchronous, asynchronous, SingleController): wandb, MLflow, TensorBoard or the printed output.

The first three are off by default (`logger.*_enabled`). The driver prints rewards, lengths and timings of each step,
without times, entropy and gradient norm; the SingleController prints no steps. The samples that NeMo-RL always writes
(`train_data_stepN.jsonl`) have neither times nor rewards by group.

Not available: the largest staleness, groups of equal reward other than 0 and 1, staleness under the SingleController
(printed only), the engines' queues (logged as pictures).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from collectors.formats import console, mlflow, tensorboard, wandb
from collectors.formats.console import ConsoleConfig, ConsoleLine, Parsed, figure, literal
from collectors.formats.rows import Logged
from collectors.model import Labels, Sample
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- config
# Facts from NeMo-RL's configuration (`log_hyperparams`: wandb nested, TensorBoard's hparams and MLflow dotted).

CONTROLLER = "async_rl.max_inflight_prompts"
COLOCATED = "policy.generation.colocated"


def facts(config: Mapping[str, Any]) -> Facts:
    """Group and batch, mode, staleness bound, GPUs (examples/configs/grpo_math_1B.yaml and its variants)."""
    settings = Settings(config)
    mode, size = _mode(settings), settings.number("grpo.num_generations_per_prompt")
    trainers, generators = _gpus(settings)
    # The largest age that is trained on: how far the SingleController's sampler lets generation run ahead.
    bound = settings.number(
        "async_rl.sampler.max_lookahead_versions"
        if CONTROLLER in settings
        else "grpo.async_grpo.max_trajectory_age_steps"
    )
    return facts_of(
        mode=mode,
        group_size=size,
        batch_samples=product(settings.number("grpo.num_prompts_per_step"), size),
        max_staleness_versions=bound if mode.startswith("async") else None,
        max_in_flight=product(settings.number(CONTROLLER), size),
        max_response_tokens=settings.number("policy.generation.max_new_tokens"),
        trainer_gpus=trainers,
        generator_gpus=generators,
        max_steps=settings.number("grpo.max_num_steps"),
        model=settings.text("policy.model_name").rstrip("/").rpartition("/")[2],
    )


def _mode(settings: Settings) -> str:
    """The mode; "" if the configuration does not state it."""
    together = settings.flag(f"{COLOCATED}.enabled")
    if CONTROLLER in settings or settings.flag("grpo.async_grpo.enabled"):
        return "async_colocated" if together else "async"
    return "" if together is None else "sync_colocated" if together else "sync_split"


def _gpus(settings: Settings) -> tuple[float | None, float | None]:
    """(trainer's, generators') GPUs as NeMo-RL computes them (algorithms/utils.py:775-793)."""
    all_gpus = product(settings.number("cluster.num_nodes"), settings.number("cluster.gpus_per_node"))
    if settings.flag(f"{COLOCATED}.enabled") is not False:
        return all_gpus, None
    nodes = settings.number(f"{COLOCATED}.resources.num_nodes") or 1.0
    generators = product(settings.number(f"{COLOCATED}.resources.gpus_per_node"), nodes)
    return (
        (all_gpus - generators, generators) if all_gpus is not None and generators is not None else (None, generators)
    )


# ---- keys
# NeMo-RL's metric keys -> ours (7ea279abf: nemo_rl/algorithms/{grpo,grpo_sync,single_controller,utils}.py).

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
    _mode_of_keys(values, context)
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


def _mode_of_keys(values: Mapping[str, float], context: Context) -> None:
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


# ---- log
# Printed output of NeMo-RL's driver (7ea279abf: algorithms/grpo.py, grpo_sync.py, utils.py; 0.3 to 0.5 alike).

LIVE = "live"
# Not keys of NeMo-RL: 1 while the driver waits for its buffer; the groups in the buffer.
WAITING, BUFFER = "driver/waiting", "driver/buffer_size"
# Seconds that passed since the row before, for the estimate of times.
PASSED = "driver/passed_seconds"
# Updates per step: the printed output has neither of the two numbers of sequences from which `keys` computes them.
UPDATES = "driver/updates"
OWN = re.compile("driver/.*")
# The wait for the first batch is printed about every second, the wait within a step every 0.5 s.
FIRST_WAIT_SECONDS, STEP_WAIT_SECONDS = 1.0, 0.5
# Lines about a wait per row: a wait of hours prints 10,000 lines of the same number.
LINES_PER_ROW = 10

# Digits are bounded, because int() of very many digits is slow and then fails.
_HEADER = re.compile(r"={10,} (Step|Epoch) (\d{1,15})/\d{1,15} ={10,}")
_WAIT = re.compile(
    r"Wait iteration \d{1,15}: (?:buffer_size=(\d{1,15}), step \d{1,15} ready=(True|False)"
    r"|buffer_filled_ratio=(\d{1,15})/(\d{1,15}))"
)
_STARVED = "Buffer empty or not enough groups to form a full step"
_SAMPLED = re.compile(r"Sampled \d{1,15} trajector")
_BATCH = re.compile(r"(?:Generating responses for batch of size|Got trajectory batch \(size:) (\d{1,15})\b")
# A label of the task (`srun --label`) or a date may precede a line.
_BULLET = re.compile(r"(?:^|\s)(?:•|-(?= E2E| Training)) ([A-Za-z][\w/ ().-]*?): (\S+)")
_SECONDS = re.compile(r"(\d{1,15}(?:\.\d+)?)s")
_SECTIONS = {"Training Results:": "results", "Timing:": "timing", "Performance Metrics:": "performance"}
_RESULTS = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    # With dynamic sampling: over all generated rollouts, and over those that are trained on (grpo.py:3463).
    "Avg Total Reward": "train/reward",
    "Avg Filtered Reward": FILTERED,
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Buffer Size": "train/buffer_size",
    "Avg Trajectory Age": "train/avg_trajectory_age",
}
# Only whole groups of GPUs: the metrics of the loggers are not per GPU.
_PERFORMANCE = {
    "E2E (Tokens/sec)": "performance/tokens_per_sec",
    "Training Worker Group (Tokens/sec)": "performance/training_worker_group_tokens_per_sec",
    "Training Model Floating Point Utilization": "performance/train_fp_utilization",
}
_CONFIG = "num_generations_per_prompt"


def parse(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """One block of a step, the state of a wait, or the configuration."""
    text = line.text
    if (header := _HEADER.search(text)) is not None:
        return _begin(header[1], int(header[2]), line, memory)
    section = next((name for title, name in _SECTIONS.items() if text.rstrip().endswith(title)), "")
    if section:
        row = _flush(line, memory)
        memory["section"] = section
        return row
    if memory.get("section") and (bullet := _BULLET.search(text)) is not None:
        _add(bullet[1], bullet[2], memory)
        return None
    if (row := _flush(line, memory)) is not None:
        return row
    if (batch := _BATCH.search(text)) is not None:
        # Dynamic sampling generates several batches for one step, which trains on a part of them.
        memory["batches"] = [*memory.get("batches", [])[-1:], int(batch[1])]
        return None
    if _CONFIG in text and text.lstrip().startswith("{"):
        config = literal(text)
        memory["updates"] = _updates(config or {})
        return ConsoleConfig(config) if config else None
    return _wait(line, memory)


def _begin(unit: str, number: int, line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """Notes a new step or epoch; returns the rest of the step before, or the end of a wait."""
    row = _flush(line, memory)
    memory["section"] = ""
    if unit == "Epoch":
        # Steps of later epochs begin at 1 again.
        memory["offset"] = memory.get("step", 0) if number > 1 else 0
        return row
    memory["step"] = memory.get("offset", 0) + number
    memory["batches"] = []
    return row if row is not None else _waited(line, memory)


def _updates(config: Mapping[str, Any]) -> float:
    """Updates per step by the configuration; one, as in NeMo-RL's examples, if it does not state them."""
    settings = Settings(config)
    size = settings.number("policy.train_global_batch_size")
    batch = product(settings.number("grpo.num_prompts_per_step"), settings.number("grpo.num_generations_per_prompt"))
    return max(1.0, float(round(batch / size))) if batch and size else 1.0


def _add(name: str, value: str, memory: dict[str, Any]) -> None:
    values: dict[str, float | None] = memory.setdefault("values", {})
    section = memory["section"]
    if section == "timing":
        seconds = _SECONDS.fullmatch(value)
        key = STEP if name == "Total step time" else f"{T}{name}"
        if seconds is not None:
            values[key] = float(seconds[1])
    elif section == "results" and name in _RESULTS:
        values[_RESULTS[name]] = figure(value)
    elif section == "performance" and name in _PERFORMANCE:
        share = figure(value[:-1]) if value.endswith("%") else None
        values[_PERFORMANCE[name]] = share / 100 if share is not None else figure(value)


def _flush(line: ConsoleLine, memory: dict[str, Any]) -> Logged | None:
    """The values of the block so far as a row of the step."""
    values = memory.pop("values", {})
    if not values or "step" not in memory:
        return None
    if STEP in values:
        batches = memory.get("batches", [])
        if len(batches) == 1:
            values[VALID] = batches[0]
    else:
        values[PASSED] = 0.0
    if memory["section"] == "results":
        values[UPDATES] = memory.get("updates", 1.0)
    return Logged(values, memory["step"], line.ts)


def _wait(line: ConsoleLine, memory: dict[str, Any]) -> Logged | None:
    """The buffer while the driver waits for it: at its first line, at a change, and every ten lines."""
    size: int | None = None
    ready, seconds = False, 0.0
    if (wait := _WAIT.search(line.text)) is not None:
        size, seconds = int(wait[1] or wait[3]), FIRST_WAIT_SECONDS
        ready = wait[2] == "True" or (wait[4] is not None and size >= int(wait[4]))
    elif _STARVED in line.text:
        seconds = STEP_WAIT_SECONDS
    elif _SAMPLED.search(line.text) is not None:
        return _waited(line, memory)
    else:
        return None
    before = memory.get("wait")
    lines = (before or {}).get("lines", 0) + 1
    if before is not None and not ready and before["size"] == size and lines < LINES_PER_ROW:
        memory["wait"] = {"size": size, "lines": lines}
        return None
    memory["wait"] = {"size": size, "lines": 0} if not ready else None
    buffer = {BUFFER: size} if size is not None else {}
    return Logged({WAITING: int(not ready), **buffer, PASSED: lines * seconds}, None, line.ts, LIVE)


def _waited(line: ConsoleLine, memory: dict[str, Any]) -> Logged | None:
    return Logged({WAITING: 0, PASSED: 0.0}, None, line.ts, LIVE) if memory.pop("wait", None) is not None else None


def derive_printed(piece: Piece) -> Iterator[Out]:
    """Means over the updates of a printed step."""
    if (updates := piece.values.get(UPDATES)) is not None:
        for key, metric in PER_UPDATE.items():
            if key in piece.values:
                yield metric, (), piece.values[key] / updates


def live(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment from a wait. Only the asynchronous loop has a buffer."""
    if row.origin == LIVE and row.step is None:
        mode = str(context.facts.get("mode", ""))
        if not mode.startswith("async"):
            context.take({"mode": "async"})
        context.samples += _state(values, row.ts)


def _state(values: Mapping[str, float], ts: float | None) -> Iterator[Sample]:
    if WAITING in values:
        yield Sample("trainer_phase_active", values[WAITING], (("phase", "wait"),), ts)
    if BUFFER in values:
        yield Sample("queue_groups", values[BUFFER], (), ts)


def _on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    on_row(row, values, context)
    live(row, values, context)


def _derive(piece: Piece, context: Context) -> Iterator[Out]:
    yield from derive(piece, context)
    yield from derive_printed(piece)


FRAMEWORK = Framework(
    name="nemo_rl",
    reads="NeMo-RL runs: synchronous, asynchronous and SingleController (wandb, MLflow, TensorBoard, console)",
    versions="7ea279abf (2026-08) by source",
    sinks=(wandb.SINK, mlflow.SINK, tensorboard.SINK, console.sink(parse)),
    keys=KEYS,
    patterns=PATTERNS,
    ignored=re.compile(f"{OWN.pattern}|{IGNORED.pattern}"),
    evaluations={"evaluation_score": re.compile(r"validation/accuracy")},
    # Supervised and preference runs of NeMo-RL have neither.
    marks=("timing/train/policy_and_reference_logprobs", "train/gen_kl_error", WAITING),
    config_marks=("grpo.num_generations_per_prompt",),
    split=pieces,
    needs=NEEDS | {UPDATES},
    derive=_derive,
    facts=facts,
    on_row=_on_row,
    seconds=(STEP, PASSED),
    # The SingleController's watchdog reports every `stall_watchdog.interval_s`.
    report_seconds=30.0,
    derives=(
        "entropy_mean",
        "groups_all_solved_ratio",
        "groups_none_solved_ratio",
        "groups_zero_advantage_ratio",
        "importance_ratio_mean",
        "in_flight_rollouts",
        "loss_mean",
        "mismatch_kl_mean",
        "reference_kl_mean",
        "rollout_errors",
        "stale_dropped_rollouts",
        "trained_tokens",
        "trainer_compute_seconds",
        "trainer_other_seconds",
        "trainer_phase_active",
        "trainer_samples",
    ),
)
COLLECTOR = collector_of(FRAMEWORK)
