"""Facts from NeMo-RL's configuration (`log_hyperparams`: wandb nested, TensorBoard's hparams and MLflow dotted)."""

from collections.abc import Mapping
from typing import Any

from collectors.training_logs.settings import Facts, Settings, facts_of, product

CONTROLLER = "async_rl.max_inflight_prompts"
COLOCATED = "policy.generation.colocated"


def facts(config: Mapping[str, Any]) -> Facts:
    """Group and batch, mode, staleness bound, GPUs (examples/configs/grpo_math_1B.yaml and its variants)."""
    settings = Settings(config)
    mode, size = _mode(settings), settings.number("grpo.num_generations_per_prompt")
    trainers, generators = _gpus(settings)
    # The largest age that is trained on: how far the SingleController's sampler lets generation run ahead.
    bound = settings.number(
        "async_rl.sampler.max_lookahead_versions"
        if CONTROLLER in settings
        else "grpo.async_grpo.max_trajectory_age_steps"
    )
    return facts_of(
        mode=mode,
        group_size=size,
        batch_samples=product(settings.number("grpo.num_prompts_per_step"), size),
        max_staleness_versions=bound if mode.startswith("async") else None,
        max_in_flight=product(settings.number(CONTROLLER), size),
        max_response_tokens=settings.number("policy.generation.max_new_tokens"),
        trainer_gpus=trainers,
        generator_gpus=generators,
        max_steps=settings.number("grpo.max_num_steps"),
        model=settings.text("policy.model_name").rstrip("/").rpartition("/")[2],
    )


def _mode(settings: Settings) -> str:
    """The mode; "" if the configuration does not state it."""
    together = settings.flag(f"{COLOCATED}.enabled")
    if CONTROLLER in settings or settings.flag("grpo.async_grpo.enabled"):
        return "async_colocated" if together else "async"
    return "" if together is None else "sync_colocated" if together else "sync_split"


def _gpus(settings: Settings) -> tuple[float | None, float | None]:
    """(trainer's, generators') GPUs as NeMo-RL computes them (algorithms/utils.py:775-793)."""
    all_gpus = product(settings.number("cluster.num_nodes"), settings.number("cluster.gpus_per_node"))
    if settings.flag(f"{COLOCATED}.enabled") is not False:
        return all_gpus, None
    nodes = settings.number(f"{COLOCATED}.resources.num_nodes") or 1.0
    generators = product(settings.number(f"{COLOCATED}.resources.gpus_per_node"), nodes)
    return (
        (all_gpus - generators, generators) if all_gpus is not None and generators is not None else (None, generators)
    )
