"""PipelineRL runs: its own streams and log, with nothing of wandb; or the trainer's wandb log.

Read from 58d393458 (2026-06-19). `stats/lag` was renamed to `stats/lag_{min,mean,max}` on 2026-07-15: both are read.

wandb has one run per process: given the trainer's, staleness is unknown, for nothing there tells what a version is.

Does not know: when weights were sent (their `timestamp` is the import's), how many rollouts are in flight, MFU.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from collectors.readers import wandb_log
from collectors.trainers import _pipeline_keys, _pipeline_streams
from collectors.trainers._framework import collector_of
from collectors.trainers._model import Framework

# Hydra's resolved configuration is 15 kB.
CONFIG_BYTES = 1 << 20


def _folder_facts(folder: Path) -> Mapping[str, str | float]:
    """Facts of conf/exp_config.yaml; an unreadable or broken file counts as absent."""
    try:
        with (folder / "conf" / "exp_config.yaml").open("rb") as file:
            found: Any = yaml.safe_load(file.read(CONFIG_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return _pipeline_keys.facts(found) if isinstance(found, dict) else {}


FRAMEWORK = Framework(
    name="pipeline_rl",
    reads="PipelineRL runs (streams/*.jsonl with the trainer's log; wandb)",
    versions="58d393458 (2026-06) by source",
    sinks=(_pipeline_streams.sink(), wandb_log.SINK),
    keys=_pipeline_keys.KEYS,
    needs=_pipeline_keys.NEEDS,
    ignored=_pipeline_keys.IGNORED,
    marks=("stats/time_waiting_for_data", "throughput/sec_per_pass", "never_success"),
    strip=("actor/",),
    split=_pipeline_keys.pieces,
    derive=_pipeline_keys.derive,
    facts=_pipeline_keys.facts,
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
        "tool_calls": "no key of its log counts tool calls",
        "trainer_mfu_ratio": "its log has no key for FLOPs or MFU",
        "staleness_versions_max": "give the run directory: wandb's trainer run does not report what a version is",
        "queue_samples": "give the run directory: the queues are in its streams",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
