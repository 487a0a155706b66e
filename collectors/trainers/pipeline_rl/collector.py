"""PipelineRL runs: its own streams and log, without wandb; or the trainer's wandb log.

Read from 58d393458 (2026-06-19). `stats/lag` was renamed to `stats/lag_{min,mean,max}` on 2026-07-15: both are read.

wandb has one run per process. The trainer's run does not define what a version is, so its staleness is unknown.

Not available: when weights were sent (their `timestamp` is the import's), the number of rollouts in flight, MFU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from collectors.formats.wandb import log as wandb_log
from collectors.trainers.pipeline_rl import keys as pipeline_rl_keys
from collectors.trainers.pipeline_rl import streams
from collectors.training_logs.model import Framework
from collectors.training_logs.tail import collector_of

# Bytes. Hydra's resolved configuration has 15 kB.
CONFIG_BYTES = 1 << 20


def _folder_facts(folder: Path) -> Mapping[str, str | float]:
    """Facts of conf/exp_config.yaml; an unreadable or broken file counts as absent."""
    try:
        with (folder / "conf" / "exp_config.yaml").open("rb") as file:
            config: Any = yaml.safe_load(file.read(CONFIG_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return pipeline_rl_keys.facts(config) if isinstance(config, dict) else {}


FRAMEWORK = Framework(
    name="pipeline_rl",
    reads="PipelineRL runs (streams/*.jsonl with the trainer's log; wandb)",
    versions="58d393458 (2026-06) by source",
    sinks=(streams.sink(), wandb_log.SINK),
    keys=pipeline_rl_keys.KEYS,
    needs=pipeline_rl_keys.NEEDS,
    ignored=pipeline_rl_keys.IGNORED,
    marks=("stats/time_waiting_for_data", "throughput/sec_per_pass", "never_success"),
    strip=("actor/",),
    split=pipeline_rl_keys.pieces,
    derive=pipeline_rl_keys.derive,
    facts=pipeline_rl_keys.facts,
    folder_facts=_folder_facts,
    mode="async",
    only_mode=True,
    derives=(
        "prompt_tokens_mean",
        "queue_samples",
        "response_tokens_max",
        "response_tokens_mean",
        "response_tokens_min",
        "reward_std",
        "staleness_versions_max",
        "staleness_versions_mean",
        "trainer_compute_seconds",
        "trainer_other_seconds",
        "trainer_samples",
        "trainer_wait_seconds",
        "turns_max",
    ),
    hints={
        "tool_calls_mean": "no key of its log counts tool calls",
        "trainer_mfu_ratio": "its log has no key for FLOPs or MFU",
        "staleness_versions_max": "add the run directory: wandb's trainer run does not report what a version is",
        "queue_samples": "add the run directory: the queues are in its streams",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
