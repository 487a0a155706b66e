"""Reads JSON of any shape: a value of an unexpected type counts as absent, never as an error."""

from collections.abc import Mapping
from typing import Any

NOTHING: Mapping[str, Any] = {}


def mapping(value: Any, *path: str) -> Mapping[str, Any]:
    """The object at ``path`` under ``value``; empty if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else NOTHING


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, in order; other entries are left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """A whole number not below zero, such as a count, version or step; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value) if value == int(value) else None
