"""verl runs (0.9.1): the V1 trainers (sync, colocate_async, separate_async), V0, fully_async and one_step_off_policy.

All sinks of verl have the same keys under the same step. Axis ``trainer`` is that step: a published version in
fully_async, where several updates make one; an update elsewhere. The JSON lines and the console have no times, so their
steps are dated backwards; every start truncates the JSON file. Between steps the console has queue and rollouts in
flight, once a minute.

Not available: zero-advantage groups without `filter_groups` (no scalar has them), reward deviations, staleness in
fully_async (only whether a trajectory mixes versions). Without a configuration groups cannot be converted to samples,
and V1's colocate_async is taken for the disaggregated kind.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from collectors.formats import console, jsonl, mlflow, tensorboard, trackio, wandb
from collectors.formats.console import ConsoleConfig, ConsoleLine, Ended, Parsed, figure, literal
from collectors.formats.jsonl import Row
from collectors.formats.rows import Logged
from collectors.model import Limits, Sample, ScrapeError
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- config
# Facts from verl's configuration (0.9.1: trainer/config/ppo_trainer.yaml and what the experimental trainers add).

ROLLOUT = "actor_rollout_ref.rollout"


def facts_of_config(config: Mapping[str, Any]) -> Facts:
    """Facts from the whole configuration, as wandb, trackio, MLflow and the console have it."""
    settings = Settings(config)
    mode, size = _mode(settings), settings.number(f"{ROLLOUT}.n")
    model = settings.text("actor_rollout_ref.model.path").rstrip("/").rpartition("/")[2]
    # V1 has the generators' GPUs under the rollout, the experimental trainers at the top level.
    rollout_section = "rollout" if "rollout.nnodes" in settings else ROLLOUT
    return facts_of(
        mode=mode,
        group_size=size,
        batch_samples=product(_batch_groups(settings), size),
        max_staleness_versions=settings.number("trainer.v1.sampler.max_off_policy_threshold")
        if mode in ("async_colocated", "async") and "async_training.staleness_threshold" not in settings
        else None,
        max_steps=settings.number("trainer.total_training_steps"),
        max_response_tokens=settings.number("data.max_response_length"),
        trainer_gpus=_gpus(settings, "trainer"),
        generator_gpus=_gpus(settings, rollout_section) if mode in ("async", "one_step") else None,
        model=model,
        run_name=settings.text("trainer.experiment_name"),
    )


def _mode(settings: Settings) -> str:
    """The mode; "" if the configuration does not state it."""
    if "async_training.trigger_parameter_sync_step" in settings:
        return "async"
    named = {"colocate_async": "async_colocated", "separate_async": "async"}
    trainer = settings.text("trainer.v1.trainer_mode")
    if settings.flag("trainer.use_v1") is not False and trainer in named:
        return named[trainer]
    if settings.flag("actor_rollout_ref.hybrid_engine") is False:
        return "one_step"
    return "sync_colocated" if f"{ROLLOUT}.n" in settings else ""


def _batch_groups(settings: Settings) -> float | None:
    """Groups per logged step: fully_async logs one per published version."""
    if "async_training.trigger_parameter_sync_step" not in settings:
        return settings.number("data.train_batch_size")
    parts = ("actor_rollout_ref.actor.ppo_mini_batch_size", "async_training.require_batches")
    return product(*map(settings.number, (*parts, "async_training.trigger_parameter_sync_step")))


def _gpus(settings: Settings, section: str) -> float | None:
    return product(settings.number(f"{section}.nnodes"), settings.number(f"{section}.n_gpus_per_node"))


# ---- keys
# verl's metric keys -> ours, and metrics computed from several of them (0.9.1: trainer/ppo/{metric_utils.py,v1},
# experimental/{fully_async_policy,one_step_off_policy}).

NORM = "actor/grad_norm"
# Not a key of verl: `pieces` adds it, because a gradient norm that is not finite is itself a finding.
NONFINITE = "actor/grad_norm is not finite"
STALENESS = "training/off_policy/trajectory_staleness_worst/max"
EVICTED = "training/off_policy/evicted_samples"
FILTERED = "training/filter_groups/evicted_samples"
SURPLUS = "training/filter_groups/discarded_surplus_samples"
QUEUE = ("fully_async/monitor/queue/mq_queue_size", "dynamic_resource/mq_size")
SAMPLEABLE = "separate_async/decision/sampleable_count"
CAPACITY = "fully_async/static/max_queue_size"
IN_FLIGHT = "fully_async/monitor/active_tasks_size"
IN_FLIGHT_CAPACITY = "fully_async/static/max_concurrent_samples"
REQUIRED = "fully_async/static/required_samples"
DROPPED = "fully_async/count/dropped_stale_samples"
VERSION = "fully_async/count/current_param_version"
UPDATE = "training/global_step"
ACTIVE, CYCLE = "fully_async/rollouter/active_time", "fully_async/rollouter/version_time"
TOKENS = "perf/total_num_tokens"
SAVE = "timing_s/save_checkpoint"

GIB, MIB = float(1 << 30), float(1 << 20)

# Mean over the responses of a prompt, of each data source (0.9.1: trainer/ppo/metric_utils.py, `val-core`).
EVALUATIONS = {"evaluation_score": re.compile(r"val-core/(?P<task>.+)/(?:acc|reward)/mean@\d+")}

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    "timing_s/step": Key("trainer_step_seconds"),
    "timing_s/reward": Key("reward_seconds"),
    SAVE: Key("trainer_checkpoint_seconds"),
    "timing_s/testing": Key("trainer_eval_seconds"),
    TOKENS: Key("processed_tokens"),
    "perf/mfu/actor": Key("trainer_mfu_ratio", labels=(("basis", "busy"),)),
    # The engine's own metrics get the prefix of the worker (py_functional.py:169); older workers logged them bare.
    "perf/max_memory_allocated_gb": Key("trainer_peak_memory_bytes", GIB),
    "actor/perf/max_memory_allocated_gb": Key("trainer_peak_memory_bytes", GIB),
    # The delta engine alone counts it, in MiB (delta_checkpoint_engine.py).
    "checkpoint_engine/payload_mbytes": Key("weight_sync_bytes", MIB),
    "actor/pg_loss": Key("loss_mean"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    "actor/lr": Key("learning_rate"),
    "actor/pg_clipfrac": Key("clip_ratio"),
    "rollout_corr/rollout_is_mean": Key("importance_ratio_mean"),
    "rollout_corr/rollout_is_eff_sample_size": Key("effective_sample_ratio"),
    # Versions. "worst" counts from the oldest weights that made a token, the key without it from the newest.
    "training/off_policy/trajectory_staleness_worst/mean": Key("staleness_versions_mean"),
    STALENESS: Key("staleness_versions_max"),
    "training/off_policy/trajectory_staleness/mean": Key("staleness_in_queue_versions_mean"),
    "training/off_policy/trajectory_staleness/max": Key("staleness_in_queue_versions_max"),
    # A trajectory of one version has span 1, so no version changed during its generation.
    "training/off_policy/trajectory_spans/mean": Key("staleness_in_flight_versions_mean", offset=-1),
    "training/off_policy/trajectory_spans/max": Key("staleness_in_flight_versions_max", offset=-1),
    "fully_async/partial/partial_ratio": Key("mixed_version_ratio"),
    "training/rollout_failure/evicted_samples": Key("rollout_errors", labels=(("type", "failed_group"),)),
    "critic/score/mean": Key("reward_mean"),
    "response_length/mean": Key("response_tokens_mean"),
    "response_length/max": Key("response_tokens_max"),
    "response_length/min": Key("response_tokens_min"),
    "response_length/clip_ratio": Key("truncation_ratio"),
    # A response without tokens is an aborted request.
    "response/aborted_ratio": Key("rollout_cancelled_ratio"),
    "prompt_length/mean": Key("prompt_tokens_mean"),
    "num_turns/mean": Key("turns_mean"),
    "num_turns/max": Key("turns_max"),
    # Per trajectory, seconds.
    "timing_s/agent_loop/generate_sequences/mean": Key("rollout_model_seconds_mean"),
    "timing_s/agent_loop/compute_score/mean": Key("rollout_scoring_seconds_mean"),
    "fully_async/processing_time/avg": Key("rollout_seconds_mean"),
    "fully_async/processing_time/max": Key("rollout_seconds_max"),
    # verl-tool counts a trajectory without a call as one with only successful calls.
    "verl_tool/tool_call_success/mean": Key("tool_failure_ratio", -1.0, offset=1.0),
}

COMPUTE = tuple(
    f"timing_s/{name}" for name in ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
)
LOGPROB = ("timing_s/old_log_prob", "timing_s/ref")
# The trainer lends its GPUs to generation (V1 and fully async with elastic replicas) and waits.
LENT = ("timing_s/switch_wait", "timing_s/wait_for_enough_samples")
# fully_async's timer is `timing_s/param_sync`, with the prefix of all timers once more.
SYNCS = tuple(
    f"timing_s/{name}" for name in ("timing_s/param_sync", "param_sync", "sync_rollout_weights", "update_weights")
)
# The first existing key is the metric: the others are part of it, or the same value with another name.
FIRST = {
    "trainer_weight_sync_seconds": SYNCS,
    "entropy_mean": ("actor/entropy", "actor/entropy_loss"),
    "mismatch_kl_mean": ("rollout_corr/k3_kl", "rollout_corr/kl"),
    "reference_kl_mean": ("actor/kl_loss", "actor/reward_kl_penalty"),
    "tool_calls_mean": ("tool_call_counts/mean", "verl_tool/valid_action/mean"),
    "rollout_harness_seconds_mean": ("timing_s/agent_loop/tool_calls/mean", "verl_tool/tool_processing_time_sec/mean"),
}
TOOLS = "timing_s/agent_loop/tool_calls/mean"

NEEDS = frozenset(
    {"timing_s/step", "timing_s/gen", SAVE, "tool_call_counts/mean", "perf/time_per_step"}
    | {STALENESS, EVICTED, FILTERED, SURPLUS, SAMPLEABLE, CAPACITY, IN_FLIGHT, IN_FLIGHT_CAPACITY, REQUIRED, DROPPED}
    | {VERSION, UPDATE, ACTIVE, CYCLE, TOKENS, *QUEUE, *COMPUTE, *LENT, *SYNCS}
    | {key for keys in FIRST.values() for key in keys}
)

# Extremes of values that are read anyway, values for verl's own tuning, evaluation, wandb's own columns.
IGNORED = re.compile(
    r"_\w+|timing_per_token_ms/.*|val.*/.*|validation/.*|gdpo/.*|variance_proxy/.*|global_seqlen/.*|rollout/moe/.*"
    r"|.*moe.*/.*|critic/(?!score/mean).*|actor/.*|rollout_corr/.*|response_length_non_aborted/.*"
    r"|prompt_length/.*|num_turns/min|tool_call_counts/.*|training/(?:epoch|num_turns/.*)"
    r"|training/rollout_(?:probs_diff|actor_probs)_.*|training/off_policy/.*"
    r"|timing_s/(?:start_profile|stop_profile|dump_rollout_generations|generate_async|switch_to_\w+|.*agent_loop/.*"
    r"|.*rollouter/.*|testing)|perf/.*|fully_async/.*|dynamic_resource/.*|separate_async/.*|hybrid/.*"
    r"|checkpoint_engine/.*|rollout/spec_.*|verl_tool/.*|train/num_gen_batches"
)


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    """One piece per row; rows of one step (fully_async logs two or three) are merged by their number."""
    if row.step is None or row.ts is None:
        return
    row_values = {**values}
    if NORM in row.values:
        row_values[NONFINITE] = float(NORM not in values)
    _learn_mode(row_values, context)
    if row_values:
        yield Piece(TRAINER, row.step, row.ts, row_values)


def _learn_mode(values: Mapping[str, float], context: Context) -> None:
    """Detects the kind of trainer by keys that only one kind logs, if no configuration states it."""
    if any(key.startswith("fully_async/") for key in values):
        context.memory |= {"mode": "async", "saves_after": True}
    elif "timing_s/sync_rollout_weights" in values or "timing_s/generate_async" in values:
        context.memory |= {"mode": "one_step", "saves_after": True}
    elif any(key.startswith("separate_async/") or key == "timing_s/switch_wait" for key in values):
        context.memory["mode"] = "async"
    elif values.get(STALENESS, 0.0) > 0 and (context.synchronous or not context.mode):
        # Among V1's three trainers only the synchronous one never trains on an older policy.
        context.memory["mode"] = "async"
    if "mode" in context.memory:
        context.take({"mode": context.memory["mode"]})


def groups(count: float, samples_metric: str, groups_metric: str, context: Context) -> Out:
    """A number of groups in rollouts; as groups if the group's size is unknown."""
    size = context.facts.get("group_size")
    return (samples_metric, (), count * size) if isinstance(size, float) else (groups_metric, (), count)


def derive(piece: Piece, context: Context) -> Iterable[Out]:
    values = piece.values
    yield from _phases(values, context)
    yield from _buffer(values, context)
    yield from _work(piece, context)
    yield from _losses(piece, context)
    for metric, keys in FIRST.items():
        value = _first(values, keys)
        if value is not None:
            yield metric, (), value
    calls = values.get("tool_call_counts/mean", 0.0)
    if TOOLS in values and calls > 0:
        # Both are means over the same trajectories, so their ratio is seconds per call.
        yield "tool_call_seconds_mean", (), values[TOOLS] / calls


def _phases(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    step, fetch = values.get("timing_s/step"), values.get("timing_s/gen")
    if fetch is not None:
        # Of an asynchronous trainer this timer is the wait for a batch.
        if context.synchronous or not context.mode:
            yield "generation_seconds", (), fetch
        else:
            fetch += _sum(values, LENT) or 0.0
            yield "trainer_wait_seconds", (), fetch
    compute, logprob = _sum(values, COMPUTE), _sum(values, LOGPROB)
    for metric, seconds in (("trainer_compute_seconds", compute), ("trainer_logprob_seconds", logprob)):
        if seconds is not None:
            yield metric, (), seconds
    if step is not None and fetch is not None and compute is not None:
        sync = _first(values, SYNCS) or 0.0
        saved = 0.0 if context.memory.get("saves_after") else values.get(SAVE, 0.0)
        yield "trainer_other_seconds", (), max(0.0, step - fetch - compute - sync - saved)
    if step is not None and SAVE in values and context.memory.get("saves_after"):
        # fully_async and one-step save after the step's timer has stopped, the others before.
        yield "trainer_step_seconds", (), step + values[SAVE]


def _first(values: Mapping[str, float], keys: Iterable[str]) -> float | None:
    return next((values[key] for key in keys if key in values), None)


def _sum(values: Mapping[str, float], keys: Iterable[str]) -> float | None:
    present = [values[key] for key in keys if key in values]
    return sum(present) if present else None


def _buffer(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    queue = _first(values, (*QUEUE, SAMPLEABLE))
    if queue is not None:
        yield groups(queue, "queue_samples", "queue_groups", context)
    if CAPACITY in values:
        yield groups(values[CAPACITY], "queue_capacity_samples", "queue_capacity_groups", context)
    size = context.facts.get("group_size")
    if isinstance(size, float):
        for key, metric, labels in (
            (IN_FLIGHT, "in_flight_rollouts", (("state", "generating"),)),
            (IN_FLIGHT_CAPACITY, "in_flight_capacity_rollouts", ()),
        ):
            if key in values:
                yield metric, labels, values[key] * size
    if ACTIVE in values and CYCLE in values:
        yield "backpressure_seconds", (), max(0.0, values[CYCLE] - values[ACTIVE])


def _work(piece: Piece, context: Context) -> Iterator[Out]:
    values = piece.values
    if TOKENS in values and values.get("perf/time_per_step", 0.0) > 0:
        # verl's own throughput is per GPU, for a number of GPUs that depends on the trainer.
        yield "trainer_tokens_per_second", (("basis", "wall"),), values[TOKENS] / values["perf/time_per_step"]
    if VERSION in values or UPDATE in values:
        # In fully_async the global step counts updates, several of which make a version.
        asynchronous = any(key.startswith("fully_async/") for key in values)
        if VERSION in values or not asynchronous:
            yield "policy_version", (), values[VERSION] if VERSION in values else values[UPDATE]
    yield from _samples(piece, context)


def _samples(piece: Piece, context: Context) -> Iterator[Out]:
    values = piece.values
    if REQUIRED in values and UPDATE in values:
        updates = _increase(context.memory.setdefault("updates", {}), piece.step, values[UPDATE])
        if updates is not None:
            yield groups(updates * values[REQUIRED], "trainer_samples", "trainer_groups", context)
        return
    batch, size = context.facts.get("batch_samples"), context.facts.get("group_size")
    if "timing_s/step" in values and isinstance(batch, float):
        yield "trainer_samples", (), batch
        if isinstance(size, float):
            yield "trainer_groups", (), batch / size


def _increase(totals: dict[str, float], step: int, total: float) -> float | None:
    """The increase of a total since the previous step; None if that step is not cached. ``totals``: a few steps."""
    for old in [key for key in totals if not step - 4 < int(key) < step]:
        del totals[old]
    before = totals.get(str(step - 1))
    totals[str(step)] = total
    return total - before if before is not None and total >= before else None


def _losses(piece: Piece, context: Context) -> Iterator[Out]:
    """Rollouts that were dropped. V1 logs these keys only in steps with any: where possible, absent is zero."""
    values, size = piece.values, context.facts.get("group_size")
    dropped = values.get(EVICTED, 0.0) if STALENESS in values and context.mode and not context.synchronous else None
    if DROPPED in values:
        dropped = _increase(context.memory.setdefault("dropped", {}), piece.step, values[DROPPED])
    if dropped is not None and isinstance(size, float):
        yield "stale_dropped_rollouts", (), dropped * size
    if FILTERED in values or SURPLUS in values:
        context.memory["filters"] = True
    if context.memory.get("filters") and "timing_s/step" in values:
        yield from _filtered(values, context)


def _filtered(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Groups without a gradient, as a share of all completed ones: verl logs them only with `filter_groups`."""
    filtered = values.get(FILTERED, 0.0)
    yield "filtered_groups", (), filtered
    batch, size = context.facts.get("batch_samples"), context.facts.get("group_size")
    if isinstance(size, float) and isinstance(batch, float):
        yield "groups_zero_advantage_ratio", (), filtered / (filtered + values.get(SURPLUS, 0.0) + batch / size)


def monitor(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Gauges of the moment from the rollouter's statistics of every minute or the replay buffer's line."""
    prefixed = {f"fully_async/{key}": value for key, value in values.items()}
    yield from _buffer(prefixed, context)
    if "finished" in values:
        yield groups(values["finished"], "queue_samples", "queue_groups", context)
    size = context.facts.get("group_size")
    if "running" in values and isinstance(size, float):
        yield "in_flight_rollouts", (("state", "generating"),), values["running"] * size


# ---- log
# Printed lines of verl (0.9.1: utils/logger/aggregate_logger.py:26, fully_async_rollouter.py:1128,
# trainer/ppo/v1/replay_buffer.py:412, main_ppo.py:144).

MONITOR, BUFFER = "monitor", "buffer"
# Digits are bounded, because int() of very many digits is slow and then fails. A progress bar may precede them on
# the line: stdout and stderr go into one file.
_STEP = re.compile(r"\bstep:(\d{1,15}) - (?=\S)")
_STATISTICS = "[MonitorLoop][Statistics]"
_BUFFER = re.compile(r"pending: (\d{1,15}), running: (\d{1,15}), finished: (\d{1,15}), failure: (\d{1,15})")
# `pprint` of the whole configuration at the start: sorted, so this key is among its first.
_CONFIG = re.compile(r"\s*\{'actor_rollout_ref': \{")
_FINAL = "Final validation metrics:"


def parse(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """A logged step, statistics of the moment, the configuration, or the closing message."""
    text = line.text
    if (step := _STEP.search(text)) is not None:
        return Logged(_values(text[step.end() :]), int(step[1]), line.ts)
    if _STATISTICS in text:
        statistics = literal(text)
        return Logged(statistics, None, line.ts, MONITOR) if statistics else None
    if (counts := _BUFFER.search(text)) is not None:
        names = ("pending", "running", "finished", "failure")
        return Logged(dict(zip(names, map(int, counts.groups()), strict=True)), None, line.ts, BUFFER)
    if _CONFIG.match(text):
        config = literal(text)
        return ConsoleConfig(config) if config else None
    return Ended(f"the log contains: {_FINAL.rstrip(':')}") if text.lstrip("\"'").startswith(_FINAL) else None


def _values(text: str) -> dict[str, Any]:
    """`key:value - key:value`. A value that is no number becomes None, because NaN has a meaning, too."""
    pairs = (part.rpartition(":") for part in text.split(" - "))
    return {key.strip(): figure(value) for key, _, value in pairs if key}


CONSOLE = console.sink(parse)
# The configuration is printed first; a folder with logs of many jobs is not one run's.
HEAD = Limits(tail_bytes=1 << 20, tail_rows=4_000)
MAX_LOGS = 8


def unpack(row: Row) -> Logged | None:
    """A line of the file logger: ``{"step": N, "data": {...}}`` (utils/tracking.py:529)."""
    step, data = row.get("step"), row.get("data")
    # A flag is an int in Python, but no step.
    counted = isinstance(step, int) and not isinstance(step, bool)
    return Logged(data, step) if counted and isinstance(data, dict) else None


def on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, from lines without a step."""
    if row.origin in (MONITOR, BUFFER) and row.step is None:
        gauges = monitor(values, context)
        context.samples += [Sample(metric, value, labels, row.ts) for metric, labels, value in gauges]


def folder_facts(path: Path) -> Facts:
    """Facts from the configuration that a job printed into the folder; none if several jobs printed different ones."""
    logs = CONSOLE.find(path)
    printed = [facts for log in logs if (facts := _head(log))] if len(logs) <= MAX_LOGS else []
    return printed[0] if printed and all(other == printed[0] for other in printed) else {}


def _head(log: Path) -> Facts:
    try:
        status = log.stat()
    except OSError:
        return {}
    return _printed(log, status.st_ino, min(status.st_size, HEAD.tail_bytes))


@lru_cache(maxsize=64)
def _printed(log: Path, inode: int, size: int) -> Facts:
    """Cached until the head of the log changes, because every poll needs it."""
    try:
        config = CONSOLE.read(log, {}, HEAD).config
    except ScrapeError:
        return {}
    return facts_of_config(config) if config else {}


FRAMEWORK = Framework(
    name="verl",
    reads="verl runs (MLflow, trackio, wandb, TensorBoard, the file logger's JSON lines, console)",
    versions="0.9.1 by source and recorded logs",
    sinks=(
        mlflow.SINK,
        trackio.SINK,
        wandb.SINK,
        tensorboard.SINK,
        jsonl.sink(("*.jsonl",), unpack),
        CONSOLE,
    ),
    keys=KEYS,
    ignored=IGNORED,
    evaluations=EVALUATIONS,
    marks=("timing_s/step", "timing_s/gen", "fully_async/.+", "monitor/queue/mq_queue_size"),
    config_marks=("actor_rollout_ref.rollout.n", "actor_rollout_ref/rollout/n"),
    split=pieces,
    needs=NEEDS,
    derive=derive,
    facts=facts_of_config,
    folder_facts=folder_facts,
    on_row=on_row,
    seconds=("timing_s/step", "perf/time_per_step"),
    report_seconds=60.0,
    derives=(
        "backpressure_seconds",
        "entropy_mean",
        "filtered_groups",
        "generation_seconds",
        "groups_zero_advantage_ratio",
        "in_flight_capacity_rollouts",
        "in_flight_rollouts",
        "mismatch_kl_mean",
        "policy_version",
        "queue_capacity_groups",
        "queue_capacity_samples",
        "queue_groups",
        "queue_samples",
        "reference_kl_mean",
        "rollout_harness_seconds_mean",
        "stale_dropped_rollouts",
        "tool_call_seconds_mean",
        "tool_calls_mean",
        "trainer_compute_seconds",
        "trainer_groups",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_samples",
        "trainer_tokens_per_second",
        "trainer_wait_seconds",
        "trainer_weight_sync_seconds",
    ),
    hints={
        "turns_mean": "only the agent loop logs it, as `num_turns/mean`",
        "tool_calls_mean": "only runs with tools log it, as `tool_call_counts/mean`",
        "groups_zero_advantage_ratio": "turn on `algorithm.filter_groups`: without it no scalar reports equal rewards",
        "queue_samples": "add the printed log too, or TransferQueue's page (`transfer_queue.metrics.enabled=True`)",
        "mismatch_kl_mean": "set `actor_rollout_ref.rollout.calculate_log_probs=True`: it logs `rollout_corr/*`",
        "stale_dropped_rollouts": "only asynchronous trainers count it; needs `actor_rollout_ref.rollout.n`",
        "trainer_samples": "needs `data.train_batch_size`, which this log does not contain: wandb and MLflow store it",
    },
)

COLLECTOR = collector_of(FRAMEWORK)
