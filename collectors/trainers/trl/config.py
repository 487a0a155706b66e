"""Facts of a TRL run from its configuration, which trackio stores whole (HF's TrainingArguments and the model's)."""

import math
from collections.abc import Mapping
from typing import Any

from collectors.formats.jsonl import number

_NUMBERS: Mapping[str, str] = {
    "group_size": "num_generations",
    "max_staleness_versions": "max_staleness",
    "max_steps": "max_steps",  # -1 when epochs decide
    "max_in_flight": "max_inflight_tasks",  # -1 is "auto"
    "max_response_tokens": "max_completion_length",
}


def facts(config: Mapping[str, Any]) -> dict[str, str | float]:
    """Facts; an absent key, or a value that means "not set", gives none."""
    facts_found: dict[str, str | float] = {}
    for fact, key in _NUMBERS.items():
        value = number(config.get(key))
        if value is not None and value > 0:
            facts_found[fact] = value
    window = _logging_steps(config)
    if window is not None:
        facts_found["logging_steps"] = window
    batch = _batch(config)
    if batch is not None:
        facts_found["batch_samples"] = batch
    model = config.get("_name_or_path")
    if isinstance(model, str) and model:
        # Of a local path only the last part is a name; "Qwen/Qwen3-8B" is a name as a whole.
        facts_found["model"] = model.rstrip("/").rpartition("/")[2] if model.startswith((".", "/")) else model
    if config:
        facts_found["mode"] = _mode(config)
    return facts_found


def _mode(config: Mapping[str, Any]) -> str:
    if "max_staleness" in config:
        return "async"
    split = config.get("use_vllm") is True and config.get("vllm_mode") == "server"
    return "sync_split" if split else "sync_colocated"


def _logging_steps(config: Mapping[str, Any]) -> float | None:
    """Steps that a row covers. A value below one is a share of all steps, as in HF's TrainerState.compute_steps."""
    interval, max_steps = number(config.get("logging_steps")), number(config.get("max_steps"))
    if interval is None or interval <= 0 or config.get("logging_strategy", "steps") != "steps":
        return None
    if interval >= 1:
        return interval
    return float(math.ceil(interval * max_steps)) if max_steps is not None and max_steps > 0 else None


def _batch(config: Mapping[str, Any]) -> float | None:
    """Samples per optimizer step. The world size is in no key, but `generation_batch_size` is
    per_device x world x steps_per_generation, which gives it (async runs log the number themselves)."""
    device = number(config.get("per_device_train_batch_size"))
    accumulation = number(config.get("gradient_accumulation_steps"))
    generation = number(config.get("generation_batch_size"))
    steps = number(config.get("steps_per_generation"))
    if accumulation is None or not device or not generation or not steps:
        return None
    return generation / steps * accumulation
