"""Facts of a prime-rl run from its resolved configs (configs/rl.json, trainer.json, orchestrator.json).

prime-rl writes the resolved configuration with all defaults. Paths are tried in order, newest layout first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats.jsonl import number

# Bytes. A resolved configuration has 30 kB.
CONFIG_BYTES = 1 << 20
SECTIONS = ("trainer", "orchestrator", "inference")

_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "group_size": ("orchestrator.group_size", "orchestrator.rollouts_per_example"),
    "batch_samples": ("orchestrator.batch_size",),
    "max_staleness_versions": ("orchestrator.max_off_policy_steps",),
    "max_steps": ("max_steps", "trainer.max_steps", "orchestrator.max_steps"),
    "max_in_flight": ("orchestrator.max_inflight_rollouts", "orchestrator.concurrency.max_inflight"),
    "max_response_tokens": (
        "orchestrator.train.sampling.max_completion_tokens",
        "orchestrator.sampling.max_completion_tokens",
        "orchestrator.sampling.max_tokens",
    ),
    "trainer_gpus": ("deployment.num_train_gpus",),
    "generator_gpus": ("deployment.num_infer_gpus",),
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    "model": ("model.name", "trainer.model.name", "orchestrator.model.name"),
    "run_name": ("run.name", "monitors.wandb.name", "wandb.name"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """``modified``: epoch seconds of the oldest config file, which is when the run began; 0 without any."""

    facts: Mapping[str, str | float] = field(default_factory=dict)
    modified: float = 0.0
    batches_tokens: bool = False


def read(folder: Path) -> Config:
    """The facts; an unreadable or broken file counts as absent, because the run can be read without it."""
    document: dict[str, Any] = {}
    times = []
    for name in ("rl", *SECTIONS):
        path = folder / f"{name}.json"
        try:
            modified = path.stat().st_mtime
            with path.open("rb") as file:
                section = jsonl.parse(file.read(CONFIG_BYTES + 1))
        except OSError:
            continue
        # The oldest: a section that was changed later must not move the start.
        times.append(modified)
        if section is not None and name == "rl":
            document |= section
        elif section is not None:
            document.setdefault(name, section)
    batches_tokens = dig(document, "orchestrator.token_batch_size") is not None
    return Config(facts_of(document), min(times, default=0.0), batches_tokens)


def facts_of(document: dict[str, Any]) -> dict[str, str | float]:
    """Facts of a configuration laid out as configs/rl.json is."""
    facts: dict[str, str | float] = {}
    facts |= {fact: value for fact, paths in _NUMBERS.items() if (value := _first_number(document, paths)) is not None}
    facts |= {fact: name for fact, paths in _NAMES.items() if (name := _first_name(document, paths))}
    return facts | _nodes(document)


def dig(document: object, path: str) -> Any:
    """The value at a dotted path, or None."""
    for part in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(part)
    return document


def _first_number(document: dict[str, Any], paths: tuple[str, ...]) -> float | None:
    values = (number(dig(document, path)) for path in paths)
    return next((value for value in values if value is not None and value > 0), None)


def _first_name(document: dict[str, Any], paths: tuple[str, ...]) -> str:
    values = (dig(document, path) for path in paths)
    return next((value for value in values if isinstance(value, str) and value), "")


def _nodes(document: dict[str, Any]) -> dict[str, float]:
    """GPU counts of a multi-node deployment: nodes x GPUs per node, inference replicas counted."""
    per_node = number(dig(document, "deployment.gpus_per_node"))
    train = number(dig(document, "deployment.num_train_nodes"))
    serve = number(dig(document, "deployment.num_infer_nodes"))
    if per_node is None or train is None:
        return {}
    trainer = {"trainer_gpus": train * per_node}
    replicas = number(dig(document, "deployment.num_infer_replicas")) or 1.0
    # Engines that the deployment does not list may run elsewhere; their number is unknown.
    return trainer if serve is None else {**trainer, "generator_gpus": serve * replicas * per_node}
