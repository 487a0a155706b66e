"""Looks up a run's configuration by dotted keys: nested, flat, or in MLflow's form (slashes, texts)."""

import json
from collections.abc import Mapping
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import flat

Facts = dict[str, str | float]


class Settings:
    """Settings by dotted key, independent of the sink.

    wandb and JSON keep nesting and types. MLflow has one text per key, with ``/`` or ``.`` between the parts.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._values = {key.replace("/", "."): value for key, value in flat(config)}

    def number(self, key: str) -> float | None:
        """A finite number, also one written as text; None for anything else."""
        return number(self._plain(key))

    def text(self, key: str) -> str:
        """A text that is not empty; "" for anything else."""
        value = self._values.get(key)
        return value if isinstance(value, str) and value not in ("None", "null") else ""

    def flag(self, key: str) -> bool | None:
        """True or False, also as text; None when the key is absent or something else."""
        value = self._values.get(key)
        flags = {"true": True, "false": False}
        return value if isinstance(value, bool) else flags.get(value.lower()) if isinstance(value, str) else None

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def _plain(self, key: str) -> Any:
        value = self._values.get(key)
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return None


def facts_of(**facts: str | float | None) -> Facts:
    """Returns facts without None, "" and numbers that are not positive."""
    return {key: value for key, value in facts.items() if value and (isinstance(value, str) or value > 0)}


def product(*factors: float | None) -> float | None:
    """The product, or None if a factor is None."""
    result = 1.0
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result
