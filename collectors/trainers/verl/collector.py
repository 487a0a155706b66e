"""verl runs (0.9.1): the V1 trainers (sync, colocate_async, separate_async), V0, fully_async and one_step_off_policy.

All sinks of verl have the same keys under the same step. Axis ``trainer`` is that step: a published version in
fully_async, where several updates make one; an update elsewhere. The JSON lines and the console have no times, so their
steps are dated backwards; every start truncates the JSON file. Between steps the console has queue and rollouts in
flight, once a minute.

Not available: zero-advantage groups without `filter_groups` (no scalar has them), reward deviations, staleness in
fully_async (only whether a trajectory mixes versions). Without a configuration groups cannot be converted to samples,
and V1's colocate_async is taken for the disaggregated kind.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from collectors.formats import console, jsonl_log
from collectors.formats.jsonl import Row
from collectors.formats.mlflow import database as mlflow_database
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.trackio import log as trackio_log
from collectors.formats.wandb import log as wandb_log
from collectors.model import Limits, Sample, ScrapeError
from collectors.trainers.verl import config as verl_config
from collectors.trainers.verl import keys as verl_keys
from collectors.trainers.verl import log as verl_log
from collectors.training_logs.model import Context, Framework
from collectors.training_logs.settings import Facts
from collectors.training_logs.tail import collector_of

CONSOLE = console.sink(verl_log.parse)
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
    if row.origin in (verl_log.MONITOR, verl_log.BUFFER) and row.step is None:
        gauges = verl_keys.monitor(values, context)
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
    return verl_config.facts(config) if config else {}


FRAMEWORK = Framework(
    name="verl",
    reads="verl runs (MLflow, trackio, wandb, TensorBoard, the file logger's JSON lines, console)",
    versions="0.9.1 by source and recorded logs",
    sinks=(
        mlflow_database.SINK,
        trackio_log.SINK,
        wandb_log.SINK,
        tensorboard_log.SINK,
        jsonl_log.sink(("*.jsonl",), unpack),
        CONSOLE,
    ),
    keys=verl_keys.KEYS,
    ignored=verl_keys.IGNORED,
    marks=("timing_s/step", "timing_s/gen", "fully_async/.+", "monitor/queue/mq_queue_size"),
    config_marks=("actor_rollout_ref.rollout.n", "actor_rollout_ref/rollout/n"),
    split=verl_keys.pieces,
    needs=verl_keys.NEEDS,
    derive=verl_keys.derive,
    facts=verl_config.facts,
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
