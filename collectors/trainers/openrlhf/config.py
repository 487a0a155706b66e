"""Facts of an OpenRLHF run from the arguments it passes to wandb (0.11.2: utils/config.py, cli/train_ppo_ray.py).

The arguments are nested groups, and wandb stores a group in Python's notation: `namespace(async_enable=True, ...)`.
"""

import ast
from collections.abc import Mapping
from typing import Any

from collectors.formats.jsonl import number
from collectors.training_logs.settings import Facts, Settings, facts_of, product

# Evaluating a literal costs a hundred times the memory of its text; a group of arguments has some thousand characters.
GROUP_CHARS = 64 << 10


def facts(config: Mapping[str, Any]) -> Facts:
    """Facts of the configuration; absent keys give no fact."""
    settings = Settings({key: _group(value) for key, value in config.items()})
    group = settings.number("rollout.n_samples_per_prompt")
    result = facts_of(
        mode=_mode(settings),
        group_size=group,
        batch_samples=product(group, settings.number("rollout.batch_size")),
        max_response_tokens=settings.number("rollout.max_new_tokens"),
        trainer_gpus=product(settings.number("actor.num_nodes"), settings.number("actor.num_gpus_per_node")),
        generator_gpus=product(settings.number("vllm.num_engines"), settings.number("vllm.tensor_parallel_size")),
        # For TensorBoard and wandb; the console has every step.
        logging_steps=settings.number("logger.logging_steps"),
        model=_model(settings.text("actor.model_name_or_path")),
    )
    return result


def _mode(settings: Settings) -> str:
    """The mode; "" if unknown. Asynchronous runs never share the engines' GPUs (train_ppo_ray.py:56)."""
    is_async = settings.flag("train.async_enable")
    if is_async is None:
        return ""
    if is_async:
        return "async"
    return "sync_colocated" if settings.flag("train.colocate_all") else "sync_split"


def _model(path: str) -> str:
    # Of a local path only the last part is a name; "Qwen/Qwen3-8B" is a name as a whole.
    return path.rstrip("/").rpartition("/")[2] if path.startswith((".", "/")) else path


def _group(value: Any) -> Any:
    """A printed namespace as a dict; other values unchanged."""
    if not isinstance(value, str) or not value.lower().startswith("namespace(") or len(value) > GROUP_CHARS:
        return value
    try:
        call = ast.parse(value, mode="eval").body
        pairs = call.keywords if isinstance(call, ast.Call) else []
        return {
            pair.arg: literal_value
            for pair in pairs
            if pair.arg and (literal_value := _literal(pair.value)) is not None
        }
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return value


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None  # inf, nan: not a setting that is read


def batch_share(rate: float, group_size: object) -> float | None:
    """Share of groups that passed the dynamic filter; None while the group size is unknown.

    OpenRLHF logs samples kept per prompt used, times 100 (samples_generator.py:123): 800 when all of 8 pass.
    """
    size = number(group_size)
    return min(1.0, rate / 100.0 / size) if size is not None and size > 0 else None
