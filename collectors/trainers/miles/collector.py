"""miles runs (31f1ca961, 2026-08): the dashboard's metrics, the event log, its Prometheus page, and slime's sinks.

Axis ``trainer`` is the rollout, as for slime, of which miles is a fork. Rows of the dashboard and the event log have
the time of the log call; a page has only the last values. The group's size comes from the arguments (wandb, MLflow,
the dashboard's meta.json, the printed command), for a page from the target's ``group_size``.

Not available: the prompt buffer (data_buffer.jsonl counts prompts to generate, not ready samples), the steps of single
adapters in multi-LoRA runs, the dashboard's timeline of phases.
"""

from collections.abc import Mapping
from pathlib import Path

import httpx

from collectors.formats import console, jsonl, jsonl_log
from collectors.formats.mlflow import database as mlflow_database
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.wandb import log as wandb_log
from collectors.model import Limits, Reading, State
from collectors.trainers.miles import events as miles_events
from collectors.trainers.miles import keys as miles_keys
from collectors.trainers.miles import page as miles_page
from collectors.trainers.slime import collector as slime
from collectors.trainers.slime import config as slime_config
from collectors.trainers.slime import keys as slime_keys
from collectors.trainers.slime import log as slime_log
from collectors.training_logs.model import Context, Framework
from collectors.training_logs.settings import Facts
from collectors.training_logs.tail import collector_of
from collectors.transport import http

META = ("dashboard/meta.json", "meta.json")
META_BYTES = 256 << 10


def unpack(row: jsonl.Row) -> Logged | None:
    """A line of `dashboard/metrics.jsonl`: ``{ts, step_key, step, metrics}`` (miles/dashboard/store.py:79)."""
    metrics, key, step = row.get("metrics"), row.get("step_key"), row.get("step")
    if not isinstance(metrics, dict) or "step_key" not in row:
        return None
    steps = {key: step} if isinstance(key, str) and isinstance(step, int) else {}
    return Logged({**metrics, **steps}, None, jsonl.number(row.get("ts")))


def folder_facts(path: Path) -> Facts:
    """Facts from the dashboard's meta.json: a part of the arguments, and the run's name."""
    for name_of_file in META:
        meta = _meta(path / name_of_file)
        arguments = meta.get("args")
        if isinstance(arguments, dict):
            name = meta.get("run_name")
            return {**slime_config.facts(arguments), **({"run_name": name} if isinstance(name, str) else {})}
    return {}


def _meta(path: Path) -> jsonl.Row:
    try:
        with path.open("rb") as file:
            return jsonl.parse(file.read(META_BYTES)) or {}
    except OSError:
        return {}


def on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, and evaluations as events."""
    slime_log.live(row, values, context)
    slime_keys.evaluated(row, values, context)


FRAMEWORK = Framework(
    name="miles",
    reads="miles runs (dashboard and event log of --dump-details, MLflow, wandb, TensorBoard, console) and their page",
    versions="31f1ca961 (2026-08) by source",
    sinks=(
        jsonl_log.sink(("metrics.jsonl",), unpack, name="dashboard"),
        miles_events.SINK,
        mlflow_database.SINK,
        wandb_log.SINK,
        tensorboard_log.SINK,
        console.sink(slime_log.parse),
    ),
    keys=miles_keys.KEYS,
    ignored=miles_keys.IGNORED,
    marks=slime.MILES,
    config_marks=("use_miles_dashboard", "use_miles_router"),
    split=slime_keys.pieces,
    needs=miles_keys.NEEDS,
    derive=miles_keys.derive,
    facts=slime_config.facts,
    folder_facts=folder_facts,
    on_row=on_row,
    seconds=("perf/step_time",),
    first_step=0,
    report_seconds=30.0,
    derives=(
        "generation_seconds",
        "groups_all_solved_ratio",
        "groups_none_solved_ratio",
        "groups_zero_advantage_ratio",
        "in_flight_rollouts",
        "prompt_tokens_mean",
        "queue_groups",
        "queue_samples",
        "rollout_tokens_per_second",
        "stale_dropped_rollouts",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_phase_active",
        "trainer_wait_seconds",
    ),
    hints={
        "turns_mean": "`--log-multi-turn`",
        "queue_samples": "add the job's printed log, or the fact `group_size` if its page is read",
    },
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page of miles' own exporter."""
    return miles_page.parse(FRAMEWORK, body, state, limits)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """One page over HTTP.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return parse(await http.metrics_page(client, limits), state, limits)


COLLECTOR = collector_of(FRAMEWORK, parse=parse, poll=poll, matches_page=miles_page.matches, options=("group_size",))
