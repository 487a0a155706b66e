"""Facts from verl's configuration (0.9.1: trainer/config/ppo_trainer.yaml and what the experimental trainers add)."""

from collections.abc import Mapping
from typing import Any

from collectors.training_logs.settings import Facts, Settings, facts_of, product

ROLLOUT = "actor_rollout_ref.rollout"


def facts(config: Mapping[str, Any]) -> Facts:
    """Facts from the whole configuration, as wandb, trackio, MLflow and the console have it."""
    settings = Settings(config)
    mode, size = _mode(settings), settings.number(f"{ROLLOUT}.n")
    model = settings.text("actor_rollout_ref.model.path").rstrip("/").rpartition("/")[2]
    # V1 has the generators' GPUs under the rollout, the experimental trainers at the top level.
    rollout_section = "rollout" if "rollout.nnodes" in settings else ROLLOUT
    return facts_of(
        mode=mode,
        group_size=size,
        batch_samples=product(_batch_groups(settings), size),
        max_staleness_versions=settings.number("trainer.v1.sampler.max_off_policy_threshold")
        if mode in ("async_colocated", "async") and "async_training.staleness_threshold" not in settings
        else None,
        max_steps=settings.number("trainer.total_training_steps"),
        max_response_tokens=settings.number("data.max_response_length"),
        trainer_gpus=_gpus(settings, "trainer"),
        generator_gpus=_gpus(settings, rollout_section) if mode in ("async", "one_step") else None,
        model=model,
        run_name=settings.text("trainer.experiment_name"),
    )


def _mode(settings: Settings) -> str:
    """The mode; "" if the configuration does not state it."""
    if "async_training.trigger_parameter_sync_step" in settings:
        return "async"
    named = {"colocate_async": "async_colocated", "separate_async": "async"}
    trainer = settings.text("trainer.v1.trainer_mode")
    if settings.flag("trainer.use_v1") is not False and trainer in named:
        return named[trainer]
    if settings.flag("actor_rollout_ref.hybrid_engine") is False:
        return "one_step"
    return "sync_colocated" if f"{ROLLOUT}.n" in settings else ""


def _batch_groups(settings: Settings) -> float | None:
    """Groups per logged step: fully_async logs one per published version."""
    if "async_training.trigger_parameter_sync_step" not in settings:
        return settings.number("data.train_batch_size")
    parts = ("actor_rollout_ref.actor.ppo_mini_batch_size", "async_training.require_batches")
    return product(*map(settings.number, (*parts, "async_training.trigger_parameter_sync_step")))


def _gpus(settings: Settings, section: str) -> float | None:
    return product(settings.number(f"{section}.nnodes"), settings.number(f"{section}.n_gpus_per_node"))
