"""What Alembic must not look at."""

from typing import Any

PARTITION_PREFIX = "samples_d"


def include_object(_object: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
    """Hide the daily partitions: they are data, made on demand, and Alembic would propose to drop them."""
    return not (kind == "table" and (name or "").startswith(PARTITION_PREFIX))
