"""prime-rl's resolved configuration: groups, the staleness bound, and which rollouts are not shipped.

Source: prime-rl 559b4477 (configs/orchestrator.py, configs/algorithm.py). An absent key is unknown, because the file
has every default.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats.shapes import mapping, objects, whole
from collectors.model import Purpose
from collectors.transport import rest

# Bytes. A resolved configuration has 30 kB.
CONFIG_BYTES = 1 << 20
# The algorithm that gives no advantage to a reward equal to the group's mean. For others this is not certain.
MEAN_BASED = "grpo"


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes by environment ("" is the default).

    Attributes:
        bound: `max_off_policy_steps`: the most versions a rollout in a batch may be behind; None: unknown.
        pruned: environments ("": all others) whose rollouts without advantage are certainly left out of a batch.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    eval_sizes: Mapping[str, int] = field(default_factory=dict)
    bound: int | None = None
    pruned: Mapping[str, bool] = field(default_factory=dict)

    def group_size(self, environment: str, purpose: Purpose | None) -> int | None:
        """Episodes per group of this environment."""
        if purpose is None:
            return None
        sizes = self.eval_sizes if purpose == "eval" else self.sizes
        return sizes.get(environment, sizes.get(""))

    def prunes(self, environment: str) -> bool:
        """Returns whether a rollout with its group's mean reward is never shipped."""
        return self.pruned.get(environment, self.pruned.get("", False))


def read(path: Path) -> Settings:
    """Reads ``configs/rl.json`` (else ``configs/orchestrator.json``) of a run directory; empty without them."""
    for name in ("rl", "orchestrator"):
        try:
            with (path / "configs" / f"{name}.json").open("rb") as file:
                config = jsonl.parse(file.read(CONFIG_BYTES + 1))
        except OSError:
            continue
        if config is not None:
            return _settings(mapping(config, "orchestrator") if name == "rl" else config)
    return Settings()


def _settings(config: Mapping[str, Any]) -> Settings:
    train, algorithm = mapping(config, "train"), mapping(config, "algo")
    filters = train.get("filter_zero_advantages") is True
    return Settings(
        sizes=_sizes(config, train),
        eval_sizes=_sizes(mapping(config, "eval"), mapping(config, "eval")),
        bound=whole(config.get("max_off_policy_steps")),
        pruned={"": filters and _mean_based(algorithm)}
        | {name: filters and _mean_based(source.get("algo") or algorithm) for name, source in _sources(train)},
    )


def _sizes(default: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, int]:
    """Group sizes of a section's environments, and the size for all others."""
    sizes = {"": whole(default.get("group_size"))}
    sizes |= {name: whole(source.get("group_size")) or sizes[""] for name, source in _sources(section)}
    return {name: size for name, size in sizes.items() if size}


def _sources(section: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Environments by the name in their episodes; an environment without a name counts if it is the only one."""
    sources = objects(section.get("source")) or objects(section.get("env"))
    for source in sources:
        name = rest.text(source.get("name"), 100) or rest.text(source.get("id"), 100)
        if name or len(sources) == 1:
            yield name, source


def _mean_based(algorithm: Any) -> bool:
    return mapping(algorithm).get("type") == MEAN_BASED and mapping(algorithm).get("length_penalty") is None
