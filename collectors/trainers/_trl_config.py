"""Facts of a TRL run from its configuration, which trackio keeps whole (HF's TrainingArguments and the model's)."""

from collections.abc import Mapping
from typing import Any

from collectors.readers.jsonl import number

_NUMBERS: Mapping[str, str] = {
    "group_size": "num_generations",
    "max_staleness_versions": "max_staleness",
    "max_steps": "max_steps",  # -1 when epochs decide
    "max_in_flight": "max_inflight_tasks",  # -1 is "auto"
    "max_response_tokens": "max_completion_length",
}


def facts(config: Mapping[str, Any]) -> dict[str, str | float]:
    """Facts; a key the configuration lacks, or whose value means "not set", gives none."""
    found: dict[str, str | float] = {}
    for fact, key in _NUMBERS.items():
        value = number(config.get(key))
        if value is not None and value > 0:
            found[fact] = value
    batch = _batch(config)
    if batch is not None:
        found["batch_samples"] = batch
    model = config.get("_name_or_path")
    if isinstance(model, str) and model:
        # A local path says nothing to others but its last part; "Qwen/Qwen3-8B" is a name.
        found["model"] = model.rstrip("/").rpartition("/")[2] if model.startswith((".", "/")) else model
    if config:
        found["mode"] = _mode(config)
    return found


def _mode(config: Mapping[str, Any]) -> str:
    if "max_staleness" in config:
        return "async"
    split = config.get("use_vllm") is True and config.get("vllm_mode") == "server"
    return "sync_split" if split else "sync_colocated"


def _batch(config: Mapping[str, Any]) -> float | None:
    """Samples per optimizer step. The world size is in no key: `generation_batch_size` is
    per_device x world x steps_per_generation, so it gives it away (async runs log the number themselves)."""
    device = number(config.get("per_device_train_batch_size"))
    accumulation = number(config.get("gradient_accumulation_steps"))
    generation = number(config.get("generation_batch_size"))
    steps = number(config.get("steps_per_generation"))
    if accumulation is None or not device or not generation or not steps:
        return None
    return generation / steps * accumulation
