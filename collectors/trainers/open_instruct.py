"""open-instruct GRPO runs (grpo_fast.py): wandb, and the status page of its actor manager (`/api/status`).

The page needs no option; its port is in the log ("Dashboard server started at ..."). Only the page has the queues.
`should_stop` on it is set during every weight sync, so it does not show the run's end.

Not available: rollouts in flight, reward deviation, a KL to the generator (`debug/vllm_local_reverse_kl` weighs sampled
tokens by their probability once more). A group is one result of the queue.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx

from collectors.formats import wandb
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged
from collectors.model import Limits, Reading, Sample, ScrapeError, State
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of
from collectors.transport.rest import get_json, total_timeout

STATUS = "/api/status"
RESULTS = "Inference Results Queue"

STEP, TRAINING, WAIT = "time/total", "time/training", "time/trainer_waiting_for_data"
SYNC, SAVE = "time/weight_sync", "time/saving"
NORM = "optim/grad_norm"
# Not a key of open-instruct: `pieces` adds it, because a gradient norm that is not finite is itself a finding.
NONFINITE = "optim/grad_norm is not finite"
OFF, OLDEST, MEAN = "num_steps_off_policy", "model_step_min", "model_step_mean"
GROUPS, LENGTH, DROPPED = "val/total_reward_groups", "val/sequence_lengths", "stale_results_dropped"
FILTERED, KEPT = "batch/filtered_prompts", "batch/total_prompts"
NONE, ALL = "batch/filtered_prompts_zero", "batch/filtered_prompts_solved"
TOOLS = "tools/aggregate/avg_calls_per_rollout"

KEYS: dict[str, Key | tuple[Key, ...]] = {
    STEP: Key("trainer_step_seconds"),
    WAIT: Key("trainer_wait_seconds"),
    SYNC: Key("trainer_weight_sync_seconds"),
    SAVE: Key("trainer_checkpoint_seconds"),
    # How long the preparation of batches waited because the trainer was `async_steps` behind.
    "time/generation_waiting_for_trainer": Key("backpressure_seconds"),
    GROUPS: Key("trainer_groups"),
    "learner_tokens_per_second_step": Key("trainer_tokens_per_second", labels=(("basis", "wall"),)),
    # Percent of the peak, over `time/training`, in which the trainer also waits for data.
    "learner_mfu": Key("trainer_mfu_ratio", 0.01, (("basis", "wall"),)),
    OFF: Key("staleness_versions_mean"),
    "scores": Key("reward_mean"),
    "batch/percent_solved_mean": Key("solve_ratio"),
    FILTERED: Key("filtered_groups"),
    LENGTH: Key("response_tokens_mean"),
    "val/sequence_lengths_max": Key("response_tokens_max"),
    "val/sequence_lengths_min": Key("response_tokens_min"),
    "val/stop_rate": Key("truncation_ratio", -1.0, offset=1.0),
    TOOLS: Key("tool_calls_mean"),
    "tools/aggregate/failure_rate": Key("tool_failure_ratio"),
    "tools/aggregate/avg_runtime": Key("tool_call_seconds_mean"),
    "debug/vllm_vs_local_logprob_diff_mean": Key("mismatch_logprob_difference_mean"),
    "debug/vllm_vs_local_logprob_diff_max": Key("mismatch_logprob_difference_max"),
    "policy/entropy_avg": Key("entropy_mean"),
    "policy/clipfrac_avg": Key("clip_ratio"),
    "objective/kl2_avg": Key("reference_kl_mean"),
    "loss/total_avg": Key("loss_mean"),
    "lr": Key("learning_rate"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
}
NEEDS = frozenset(
    (STEP, TRAINING, WAIT, SYNC, SAVE, OFF, OLDEST, MEAN, GROUPS, LENGTH, DROPPED, FILTERED, KEPT, NONE, ALL, TOOLS)
)
IGNORED = re.compile(
    r"episode|global_step|training_step|epoch|model_step_max|(?:time|val|batch|objective|loss|policy|debug|tools|env|eval"
    r"|rubrics?|optim|beaker)/.*|learner_.*|actor_m[fb]u|.*_ratio|sample_completions|_.*"
)


def facts(config: Mapping[str, Any]) -> Facts:
    """From wandb's configuration, which has all groups of arguments at one level (grpo_fast.py:1061)."""
    settings = Settings(config)
    size, ahead = settings.number("num_samples_per_prompt_rollout"), settings.number("async_steps")
    learners = config.get("num_learners_per_node")
    gpus = sum(count for count in map(number, learners) if count is not None) if isinstance(learners, list) else None
    return facts_of(
        mode="" if ahead is None else "async_colocated" if settings.flag("single_gpu_mode") else "async",
        group_size=size,
        batch_samples=product(settings.number("num_unique_prompts_rollout"), size),
        max_staleness_versions=ahead,
        max_steps=settings.number("num_training_steps"),
        max_response_tokens=settings.number("response_length"),
        trainer_gpus=gpus,
        generator_gpus=product(settings.number("vllm_num_engines"), settings.number("vllm_tensor_parallel_size")),
        model=settings.text("model_name_or_path").rstrip("/").rpartition("/")[2],
    )


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """One piece per row; a row of evaluation alone is no step."""
    if row.step is None or row.ts is None or not any(not key.startswith(("eval/", "_")) for key in values):
        return
    remaining = dict(values)
    if NORM in row.values:
        remaining[NONFINITE] = float(NORM not in values)
    yield Piece(TRAINER, row.step, row.ts, remaining)


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """The phases, the batch, the oldest sample, groups without a gradient."""
    values, size = piece.values, context.facts.get("group_size")
    if STEP in values and TRAINING in values:
        yield from _phases(values)
    if OFF in values and OLDEST in values and MEAN in values:
        # Not `training_step - model_step_min`, because batches are prepared under a separate count.
        yield "staleness_versions_max", (), values[OFF] + values[MEAN] - values[OLDEST]
    if isinstance(size, float):
        yield from _samples(values, size)
    yield from _groups(values, context)


def _phases(values: Mapping[str, float]) -> Iterator[Out]:
    """A learner first sends its weights, then waits for data, then trains; `time/training` covers all three."""
    busy = values[TRAINING] - values.get(WAIT, 0.0) - values.get(SYNC, 0.0)
    yield "trainer_compute_seconds", (), max(0.0, busy)
    yield "trainer_other_seconds", (), max(0.0, values[STEP] - values[TRAINING] - values.get(SAVE, 0.0))


def _samples(values: Mapping[str, float], size: float) -> Iterator[Out]:
    if GROUPS in values:
        yield "trainer_samples", (), values[GROUPS] * size
        if LENGTH in values and TOOLS not in values:
            # With tools a response contains their answers, too, which are masked.
            yield "trained_tokens", (), values[GROUPS] * size * values[LENGTH]
    if DROPPED in values:
        yield "stale_dropped_rollouts", (), values[DROPPED] * size


def _groups(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Groups of equal rewards are filtered out, unless `filter_zero_std_samples` is off: then 0 has no meaning."""
    filtered, remaining = values.get(FILTERED), values.get(KEPT)
    if filtered is None or remaining is None:
        return
    context.memory["filters"] = context.memory.get("filters", False) or filtered > 0
    if not context.memory["filters"] or filtered + remaining <= 0:
        return
    yield "groups_zero_advantage_ratio", (), filtered / (filtered + remaining)
    for key, metric in ((NONE, "groups_none_solved_ratio"), (ALL, "groups_all_solved_ratio")):
        if key in values:
            yield metric, (), values[key] / (filtered + remaining)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """The queues and the rate of generation, from `GET /api/status`; nothing else is requested.

    Raises:
        ScrapeError: as `rest.get_json`; ``garbage`` for an answer of another shape.
    """
    async with total_timeout(limits):
        answer = (await get_json(client, STATUS, {}, limits)).json
    if not _is_status(answer):
        raise ScrapeError("garbage", "the answer is not the status of an open-instruct run")
    samples = tuple(_gauges(answer))
    batch = number(answer.get("batch_size"))
    return Reading(
        samples=samples,
        facts={"framework": "open_instruct", **facts_of(batch_samples=batch)},
        samples_scraped=len(answer["queues"]),
    )


def _gauges(answer: Mapping[str, Any]) -> Iterator[Sample]:
    results = answer["queues"].get(RESULTS)
    if isinstance(results, dict):
        for key, metric in (("current", "queue_groups"), ("maxsize", "queue_capacity_groups")):
            value = number(results.get(key))
            # Ray's queue reports 0 for "no bound".
            if value is not None and math.isfinite(value) and (value > 0 or key == "current"):
                yield Sample(metric, value)
    tokens = answer["token_stats"]
    rate = number(tokens.get("decode_tokens_per_sec"))
    # Before the first sample it reports 0, which is not a rate.
    if rate is not None and number(tokens.get("sample_count")):
        yield Sample("rollout_tokens_per_second", rate)


def _is_status(answer: Any) -> bool:
    return isinstance(answer, dict) and all(isinstance(answer.get(key), dict) for key in ("queues", "token_stats"))


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Returns whether an actor manager answers."""
    try:
        return _is_status((await get_json(client, STATUS, {}, limits)).json)
    except ScrapeError:
        return False


FRAMEWORK = Framework(
    name="open_instruct",
    reads="open-instruct GRPO runs (wandb) and the status page of their actor manager: the queues",
    versions="e6c3044aa (2026-08) by source",
    sinks=(wandb.SINK,),
    keys=KEYS,
    needs=NEEDS,
    ignored=IGNORED,
    evaluations={"evaluation_score": re.compile(r"eval/scores")},
    marks=(WAIT, ("num_steps_off_policy", "batch/filtered_prompts_pct")),
    config_marks=("num_unique_prompts_rollout",),
    split=pieces,
    derive=derive,
    facts=facts,
    mode="async",
    derives=(
        "groups_all_solved_ratio",
        "groups_none_solved_ratio",
        "groups_zero_advantage_ratio",
        "queue_capacity_groups",
        "queue_groups",
        "rollout_tokens_per_second",
        "stale_dropped_rollouts",
        "staleness_versions_max",
        "trained_tokens",
        "trainer_compute_seconds",
        "trainer_other_seconds",
        "trainer_samples",
    ),
    hints={
        "queue_groups": "add the URL of the actor manager's status page, which its log prints at the start",
    },
)
COLLECTOR = collector_of(FRAMEWORK, poll=poll, matches_server=matches_server)
