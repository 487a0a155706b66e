"""Facts from the arguments of slime (624b824a: slime/utils/arguments.py) and miles, which have the same names."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from collectors.training_logs.settings import Facts, Settings, facts_of, product

# Not an argument: the program that was started, from the console's command line.
PROGRAM = "program"
_COMMAND = re.compile(r"\btrain(?:_async|_multi_lora_async)?\.py(?=\s+--)")
# A launch script's command has a hundred arguments; shlex is slow on long texts.
COMMAND_CHARS = 20_000


def facts(config: Mapping[str, Any]) -> Facts:
    """Facts from all arguments (wandb, MLflow), a part of them (miles' meta.json) or the command line."""
    settings = Settings(config)
    size = settings.number("n_samples_per_prompt")
    mode = _mode(settings)
    model = settings.text("hf_checkpoint").rstrip("/").rpartition("/")[2]
    separate = settings.flag("colocate") is False or mode not in ("", "sync_colocated")
    # train.py and train_async.py with GPUs of their own have the same arguments.
    return facts_of(
        mode=mode,
        usual_mode="one_step" if separate and not mode else "",
        group_size=size,
        batch_samples=product(settings.number("rollout_batch_size"), size),
        max_staleness_versions=settings.number("max_weight_staleness"),
        max_steps=None if settings.flag("wandb_always_use_train_step") else settings.number("num_rollout"),
        max_response_tokens=settings.number("rollout_max_response_len"),
        trainer_gpus=product(settings.number("actor_num_nodes"), settings.number("actor_num_gpus_per_node")),
        generator_gpus=settings.number("rollout_num_gpus") if separate else None,
        model=model,
    )


def _mode(settings: Settings) -> str:
    """The mode; "" if the arguments do not show it: train.py and train_async.py have the same ones."""
    function = settings.text("rollout_function_path")
    if settings.flag("fully_async") or "fully_async" in function:
        return "async"
    program = settings.text(PROGRAM)
    if settings.flag("colocate"):
        return "sync_colocated"
    if program == "train_multi_lora_async.py":
        return "async"
    if program == "train_async.py" or (settings.number("update_weights_interval") or 1) > 1:
        return "one_step"
    return "sync_split" if program else ""


def from_command(text: str) -> dict[str, Any] | None:
    """Arguments of a printed `... train.py --rollout-batch-size 32 ...` (launch scripts run with `set -x`)."""
    match = _COMMAND.search(text)
    if match is None or "--rollout-batch-size" not in text:
        return None
    try:
        arguments = shlex.split(text[match.end() : match.end() + COMMAND_CHARS])
    except ValueError:
        return None
    config: dict[str, Any] = {PROGRAM: match.group()}
    for argument, value in zip(arguments, [*arguments[1:], "--"], strict=True):
        if argument.startswith("--"):
            name, given, inline = argument[2:].partition("=")
            config[name.replace("-", "_")] = inline if given else True if value.startswith("--") else value
    return config
