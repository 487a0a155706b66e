"""SkyRL runs: TensorBoard, wandb, MLflow or the console; and the live gauges of a Ray metrics agent.

A run writes only one of the logs (`trainer.logger`); `keys` and `page` describe names and pitfalls.

Not available: truncation, the deviation of rewards, the number of rollouts in flight, MFU. TensorBoard and the console
have no configuration, so they give the share of groups without advantage only if the trainer logs a rate.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import httpx

from collectors.formats import console, exposition, mlflow, tensorboard, wandb
from collectors.formats.exposition import Page, Series
from collectors.formats.rows import Logged
from collectors.model import Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of
from collectors.transport import http

# ---- keys
# SkyRL's metric keys -> ours (0.3.0 and a9564572: trainer.py, fully_async_trainer.py, generators/utils.py).

# Only the fully asynchronous trainer has these timers.
ASYNC_MARKS = ("timing/wait_for_generation_buffer", "timing/run_training")
NORM = "policy/grad_norm"
# Not a key of SkyRL: `pieces` adds it, because a gradient norm that is not finite is itself a finding.
NONFINITE = "policy/grad_norm is not finite"

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    "timing/wait_for_generation_buffer": Key("trainer_wait_seconds"),
    # Logged only by the synchronous trainer: the fully asynchronous one generates in parallel with the step.
    "timing/generate": Key("generation_seconds"),
    "timing/sync_weights": Key("trainer_weight_sync_seconds"),
    "timing/fwd_logprobs_values_reward": Key("trainer_logprob_seconds"),
    "timing/convert_to_training_input": Key("batch_pack_seconds"),
    # Versions: the current step - the step when the group was scheduled (fully_async_trainer.py:997).
    "async/staleness_mean": Key("staleness_versions_mean"),
    "async/staleness_max": Key("staleness_versions_max"),
    "async/keep_rate": Key("trainable_ratio"),
    "reward/avg_raw_reward": Key("reward_mean"),
    "generate/batch_num_seq": Key("trainer_samples"),
    "generate/trajectory_completion_time_mean": Key("rollout_seconds_mean"),  # 0.3.0
    "generate/trajectory_completion_time_max": Key("rollout_seconds_max"),
    "generate/trajectory_time_completion_mean": Key("rollout_seconds_mean"),  # since 2026-07
    "generate/trajectory_time_completion_max": Key("rollout_seconds_max"),
    "generate/trajectory_time_llm_mean": Key("rollout_model_seconds_mean"),
    "generate/trajectory_time_env_mean": Key("rollout_harness_seconds_mean"),
    "policy/policy_loss": Key("loss_mean"),
    "policy/policy_entropy": Key("entropy_mean"),
    "policy/policy_kl": Key("reference_kl_mean"),
    "policy/policy_lr": Key("learning_rate"),
    "policy/loss_metrics/clip_ratio": Key("clip_ratio"),
    "policy/rollout_train_logprobs_abs_diff_mean": Key("mismatch_logprob_difference_mean"),
    "policy/rollout_train_logprobs_abs_diff_max": Key("mismatch_logprob_difference_max"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    "vllm/generation_throughput_tok_s": Key("rollout_tokens_per_second"),
    "vllm/train/generation_throughput_tok_s": Key("rollout_tokens_per_second"),
}

NEEDS = frozenset(
    (
        "timing/step",
        "timing/eval",
        "timing/save_checkpoints",
        "timing/save_hf_model",
        "timing/wait_for_generation_buffer",
        "timing/generate",
        "timing/run_training",
        "timing/sync_weights",
        "timing/fwd_logprobs_values_reward",
        "timing/apply_reward_kl_penalty",
        "timing/compute_advantages_and_returns",
        "timing/train_critic_and_policy",
        "async/gen_buffer_qsize_at_wait_start",
        "async/staleness_mean",
        "async/num_groups_dropped",
        "async/keep_rate",
        "reward/num_zero_variance_filtered",
        "trainer/tokens_per_second_per_gpu",
        "generate/batch_num_seq",
        "generate/avg_num_tokens",
        "generate/max_num_tokens",
        "generate/min_num_tokens",
        "generate/avg_assistant_tokens",
        "generate/max_assistant_tokens",
        "generate/min_assistant_tokens",
    )
)

# Parts of a phase that is read as a whole, splits of other values, evaluation, the machine, the engines' means.
IGNORED = re.compile(
    r"trainer/(?:epoch|global_step)|timing/(?:policy_train|critic_train|postprocess_generator_output|log_train_results"
    r"|update_ref_with_policy|cleanup_old_checkpoints|load_checkpoints|eval_.*)|eval/.*|ray/.*|vllm/.*|error/.*"
    r"|trajectories/.*|(?:generate|reward)_(?:kept|dropped)/.*|environment/.*|critic/.*|loss/.*|async/staleness_(?:min"
    r"|ratio|violation_count)|reward/(?:avg_pass_at_\d+|mean_positive_reward)|policy/(?:final_loss|loss_metrics/.*"
    r"|rollout_train_logprobs_abs_diff_(?:min|std)|.*_lr|mtp_.*)|generate/(?:std_(?:num|assistant)_tokens"
    r"|avg_tokens_(?:non_)?zero_rewards|tokens_per_turn_.*|batch_padded_seq_len|num_seq_(?:before|after)_merge"
    r"|group_completion_time_.*|intra_group_.*|trajectory_(?:completion_)?time_.*)"
)
_PASS = re.compile(r"reward/avg_pass_at_(\d+)")
_COMPUTE = (
    "timing/fwd_logprobs_values_reward",
    "timing/apply_reward_kl_penalty",
    "timing/compute_advantages_and_returns",
    "timing/train_critic_and_policy",
)
_SAVES = ("timing/save_checkpoints", "timing/save_hf_model")


def facts(config: Mapping[str, Any]) -> Facts:
    """From the configuration in wandb or MLflow (config.py; dotted or with slashes)."""
    settings = Settings(config)
    group = settings.number("generator.n_samples_per_prompt")
    mode = ""
    if settings.flag("trainer.fully_async.enabled"):
        mode = "async"
    elif (together := settings.flag("trainer.placement.colocate_all")) is not None:
        mode = "sync_colocated" if together else "sync_split"
    return facts_of(
        mode=mode,
        group_size=group,
        # Equal to policy_mini_batch_size in asynchronous runs (asserted there).
        batch_samples=product(settings.number("trainer.train_batch_size"), group),
        max_staleness_versions=settings.number("trainer.fully_async.max_staleness_steps") if mode == "async" else None,
        max_steps=settings.number("trainer.max_training_steps"),
        max_response_tokens=settings.number("generator.sampling_params.max_generate_length"),
        trainer_gpus=product(
            settings.number("trainer.placement.policy_num_nodes"),
            settings.number("trainer.placement.policy_num_gpus_per_node"),
        ),
        model=settings.text("trainer.policy.model.path"),
    )


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """One piece per call of the logger; a row of evaluation alone is no step."""
    if row.step is None or row.ts is None:
        return
    if all(key.startswith(("eval/", "timing/eval", "error/", "trajectories/")) for key in values):
        # Evaluation before training: its timer is not reset, so the first step's `timing/eval` includes it.
        context.memory.setdefault("evaluated_before", row.step + 1)
        return
    context.memory.setdefault("evaluated_before", -1)
    if any(mark in values for mark in ASYNC_MARKS):
        context.take({"mode": "async"})
    for key in values:
        if (match := _PASS.fullmatch(key)) is not None:
            context.facts.setdefault("group_size", float(match.group(1)))
    remaining = dict(values)
    if NORM in row.values:
        remaining[NONFINITE] = float(NORM not in values)
    yield Piece(TRAINER, row.step, row.ts, remaining)


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """Metrics computed from several keys: phases, lengths, the groups' share, the queue in samples."""
    values = piece.values
    if "timing/step" in values:
        yield from _phases(piece, context)
    yield from _lengths(values)
    yield from _groups(values, context)
    if "async/staleness_mean" in values:
        # Pacing bounds the staleness: no code path drops a group for its age; it only warns.
        yield "stale_dropped_rollouts", (), 0.0
    depth = product(values.get("async/gen_buffer_qsize_at_wait_start"), _number(context, "group_size"))
    if depth is not None:
        yield "queue_samples", (), depth


def _phases(piece: Piece, context: Context) -> Iterator[Out]:
    values = piece.values
    asynchronous = "timing/run_training" in values
    step_seconds, saves = values["timing/step"], _sum(values, _SAVES)
    evaluation = values.get("timing/eval", 0.0)
    if piece.step == context.memory.get("evaluated_before"):
        evaluation = 0.0
    step_seconds += evaluation + (saves if asynchronous else 0.0)
    compute = values["timing/run_training"] if asynchronous else _sum(values, _COMPUTE)
    wait = values.get("timing/wait_for_generation_buffer", 0.0) + values.get("timing/generate", 0.0)
    yield "trainer_step_seconds", (), step_seconds
    yield "trainer_compute_seconds", (), compute
    if evaluation:
        yield "trainer_eval_seconds", (), evaluation
    if saves:
        yield "trainer_checkpoint_seconds", (), saves
    rest = step_seconds - wait - compute - saves - values.get("timing/sync_weights", 0.0)
    yield "trainer_other_seconds", (), max(0.0, rest)
    gpus, rate = _number(context, "trainer_gpus"), values.get("trainer/tokens_per_second_per_gpu")
    if gpus is not None and rate is not None:
        # Over the update alone (trainer.py:500), prompts included.
        yield "trainer_tokens_per_second", (("basis", "busy"),), rate * gpus
        yield "processed_tokens", (), rate * gpus * values.get("timing/train_critic_and_policy", 0.0)


def _lengths(values: Mapping[str, float]) -> Iterator[Out]:
    """Tokens of the model's own turns, if logged separately; `num_tokens` includes the answers of tools."""
    separate = "generate/avg_assistant_tokens" in values
    kind = "assistant" if separate else "num"
    for statistic, suffix in (("avg", "mean"), ("max", "max"), ("min", "min")):
        if (value := values.get(f"generate/{statistic}_{kind}_tokens")) is not None:
            yield f"response_tokens_{suffix}", (), value
    untouched = not (values.get("async/num_groups_dropped") or values.get("reward/num_zero_variance_filtered"))
    samples = values.get("generate/batch_num_seq")
    if separate and untouched and samples is not None:
        # With filters the mean is over other rollouts than the trained ones.
        yield "trained_tokens", (), values["generate/avg_assistant_tokens"] * samples


def _groups(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Groups that the run's filters removed, and their share if the number of all groups is known."""
    removed = [
        values[key] for key in ("async/num_groups_dropped", "reward/num_zero_variance_filtered") if key in values
    ]
    if removed:
        yield "filtered_groups", (), sum(removed)
    keep_rate = values.get("async/keep_rate")
    batch, group = _number(context, "batch_samples"), _number(context, "group_size")
    groups = batch / group if batch is not None and group else None
    if keep_rate is not None:
        yield "groups_zero_advantage_ratio", (), 1.0 - keep_rate
    elif groups is None:
        return
    elif (dropped := values.get("async/num_groups_dropped")) is not None:
        # 0.3.0 has no rate. The collecting loop ends with exactly one batch of remaining groups.
        yield "groups_zero_advantage_ratio", (), dropped / (groups + dropped)
        yield "trainable_ratio", (), groups / (groups + dropped)
    elif (filtered := values.get("reward/num_zero_variance_filtered")) is not None:
        yield "groups_zero_advantage_ratio", (), filtered / groups


def _sum(values: Mapping[str, float], keys: Iterable[str]) -> float:
    return sum(values.get(key, 0.0) for key in keys)


def _number(context: Context, fact: str) -> float | None:
    value = context.facts.get(fact)
    return float(value) if isinstance(value, int | float) else None


# ---- page
# SkyRL's live gauges on the page of a Ray metrics agent (a9564572: train/utils/metrics.py, ray.util.metrics).

# SkyRL's macro-phases -> our phases of a step. Generation is not among them: it runs in parallel with all.
PHASES = {
    "wait_for_generation_buffer": "wait",
    "convert_to_training_input": "other",
    "run_training": "compute",
    "sync_weights": "weight_sync",
    "eval": "eval",
    "save_checkpoints": "checkpoint",
    "save_hf_model": "checkpoint",
}
# Groups; the page has no number of rollouts per group.
QUEUES = {
    "ray_skyrl_gen_buffer_qsize": "queue_groups",
    "ray_skyrl_gen_buffer_maxsize": "queue_capacity_groups",
}
# Numbers of a step, which the run's log has with the step.
STEP_NUMBERS = frozenset(("ray_skyrl_mini_batch_size", "ray_skyrl_gen_group_keep_rate"))
_PREFIX = "ray_skyrl_"
_PAGE = re.compile(rb"^ray_skyrl_(?:training_phase|gen_buffer_qsize)\{", re.MULTILINE)

Values = MutableMapping[tuple[str, Labels], float]


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page of the agent; empty when the gauges are missing from it.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page of another system, or a truncated one.
    """
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    if not any(series.name.startswith("ray_") for series, _ in page.samples):
        raise ScrapeError("garbage", "not a page of a Ray metrics agent: it has no ray_ series")
    values: Values = {}
    unmapped: dict[str, int] = {}
    series_values = list(_skyrl_series(page))
    for series, value in series_values:
        if not _gauge(series, value, values) and series.name not in STEP_NUMBERS:
            unmapped[series.name.removeprefix(_PREFIX)] = 1
    return Reading(
        samples=tuple(Sample(metric, value, labels) for (metric, labels), value in values.items()),
        facts={"framework": "skyrl", "mode": "async"} if series_values else {},
        unmapped=unmapped,
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=len(series_values),
    )


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GETs the page, wherever the client's base URL names it (`http.metrics_page`).

    Raises:
        ScrapeError: as `http.metrics_page` and `parse`.
    """
    return parse(await http.metrics_page(client, limits), state, limits)


def matches(body: bytes) -> bool:
    """Returns whether this page has SkyRL's gauges at the moment."""
    return _PAGE.search(body) is not None


def _skyrl_series(page: Page) -> Iterator[tuple[Series, float]]:
    return ((series, value) for series, value in page.samples if series.name.startswith(_PREFIX))


def _gauge(series: Series, value: float, values: Values) -> bool:
    """Adds one gauge; False if it is unknown."""
    if series.name == "ray_skyrl_training_phase":
        phase = PHASES.get(series.label("phase"), "other")
        key = ("trainer_phase_active", (("phase", phase),))
        # Two of SkyRL's phases may map to one of ours, and only one of them is 1.
        values[key] = max(value, values.get(key, 0.0))
        return True
    if series.name not in QUEUES:
        return False
    values[QUEUES[series.name], ()] = value
    return True


# loguru: "2026-08-21 10:00:00.123 | INFO | ... - Step 12: " and the dict over the lines that follow.
_STEP = re.compile(r"(?:.* - )?Step (\d{1,15}): *$")


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """Reads a console message: a step's dict, whose numbers were printed as texts with four decimals."""
    if (match := _STEP.fullmatch(line.text)) is not None:
        memory["step"], memory["ts"] = int(match.group(1)), line.ts
        return None
    step = memory.get("step")
    if step is None or not line.text.startswith("{"):
        return None
    del memory["step"]
    values = console.literal(line.text) or {}
    return Logged({key: _figure(value) for key, value in values.items()}, step, memory.pop("ts", None))


def _figure(value: Any) -> Any:
    return console.figure(value) if isinstance(value, str) else value


FRAMEWORK = Framework(
    name="skyrl",
    reads="SkyRL runs (TensorBoard, wandb, MLflow, console) and its gauges on a Ray metrics agent's page",
    versions="0.3.0 and a9564572 (2026-08) by source; the gauges by recorded pages",
    sinks=(wandb.SINK, tensorboard.SINK, mlflow.SINK, console.sink(parse_line)),
    keys=KEYS,
    needs=NEEDS,
    ignored=IGNORED,
    evaluations={"evaluation_score": re.compile(r"eval/(?P<task>.+)/avg_score")},
    marks=("timing/wait_for_generation_buffer", "timing/fwd_logprobs_values_reward", r"reward/avg_pass_at_\d+"),
    config_marks=("trainer.fully_async.max_staleness_steps", "trainer/fully_async/max_staleness_steps"),
    split=pieces,
    derive=derive,
    facts=facts,
    seconds=("timing/step",),
    derives=(
        "filtered_groups",
        "groups_zero_advantage_ratio",
        "processed_tokens",
        "queue_capacity_groups",
        "queue_groups",
        "queue_samples",
        "response_tokens_max",
        "response_tokens_mean",
        "response_tokens_min",
        "stale_dropped_rollouts",
        "trained_tokens",
        "trainer_checkpoint_seconds",
        "trainer_compute_seconds",
        "trainer_eval_seconds",
        "trainer_other_seconds",
        "trainer_phase_active",
        "trainer_step_seconds",
        "trainer_tokens_per_second",
    ),
    hints={
        "mismatch_kl_mean": "it logs `policy/rollout_train_logprobs_abs_diff_mean`, which is not a KL divergence",
        "tool_calls_mean": "no key of its log counts tool calls",
        "in_flight_rollouts": "its log and gauges report the buffer, not what is being generated",
        "trainer_mfu_ratio": "it logs `trainer/tokens_per_second_per_gpu` but no MFU",
        "truncation_ratio": "its log has no key for rollouts cut at the length limit",
        "turns_mean": "no key of its log counts turns (`generate/tokens_per_turn_mean` is tokens)",
        "queue_groups": "add the URL of a Ray metrics agent (SkyRL after 2026-07-24)",
        "trainer_phase_active": "add the URL of a Ray metrics agent (SkyRL after 2026-07-24)",
        "groups_zero_advantage_ratio": "log to wandb or MLflow, which keep the configuration: the group size is needed",
    },
)
COLLECTOR = collector_of(
    FRAMEWORK,
    parse=parse,
    poll=poll,
    matches_page=matches,
)
