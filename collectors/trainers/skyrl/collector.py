"""SkyRL runs: TensorBoard, wandb, MLflow or the console; and the live gauges of a Ray metrics agent.

A run writes only one of the logs (`trainer.logger`); `keys` and `page` describe names and pitfalls.

Not available: truncation, the deviation of rewards, the number of rollouts in flight, MFU. TensorBoard and the console
have no configuration, so they give the share of groups without advantage only if the trainer logs a rate.
"""

import re
from typing import Any

from collectors.formats import console
from collectors.formats.mlflow import database as mlflow_database
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.wandb import log as wandb_log
from collectors.trainers.skyrl import keys as skyrl_keys
from collectors.trainers.skyrl import page as skyrl_page
from collectors.training_logs.model import Framework
from collectors.training_logs.tail import collector_of

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
    sinks=(wandb_log.SINK, tensorboard_log.SINK, mlflow_database.SINK, console.sink(parse_line)),
    keys=skyrl_keys.KEYS,
    needs=skyrl_keys.NEEDS,
    ignored=skyrl_keys.IGNORED,
    marks=("timing/wait_for_generation_buffer", "timing/fwd_logprobs_values_reward", r"reward/avg_pass_at_\d+"),
    config_marks=("trainer.fully_async.max_staleness_steps", "trainer/fully_async/max_staleness_steps"),
    split=skyrl_keys.pieces,
    derive=skyrl_keys.derive,
    facts=skyrl_keys.facts,
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
    parse=skyrl_page.parse,
    poll=skyrl_page.poll,
    matches_page=skyrl_page.matches,
)
