"""The cursor of a tail between calls (small, JSON-able), and the source keys that one call read."""

import zlib
from collections.abc import Mapping
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs
from collectors.model import Cursor

Memory = dict[str, Any]
# Source keys shown per metric. Every reward function has a key of its own; a few are enough.
MAX_ORIGINS = 3


def mark(key: str) -> int:
    """Shortens a key to a number, because the cursor is written at every poll."""
    return zlib.crc32(key.encode())


def copied(cursor: Cursor) -> Memory:
    """Returns a deep copy of a cursor: the caller keeps the old cursor until the new one is committed."""
    return {key: _deep(value) for key, value in cursor.items()}


def _deep(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep(item) for key, item in value.items()}
    return [_deep(item) for item in value] if isinstance(value, list) else value


def whole_steps(logs: Logs) -> None:
    """Removes, and counts, rows whose step is not a whole number (a flag, a text, 2.5, NaN); 3.0 is 3."""
    rows = [row for row in logs.rows if _counted(row)]
    if len(rows) < len(logs.rows):
        logs.why = logs.why or "a step that is not a whole number"
    logs.dropped += len(logs.rows) - len(rows)
    logs.rows = rows


def _counted(row: Logged) -> bool:
    if row.step is None:
        return True
    step = number(row.step)
    if step is None or not step.is_integer():
        return False
    # An int stays: beyond 2^53 the conversion through float would change it.
    row.step = row.step if isinstance(row.step, int) else int(step)
    return True


class Origins:
    """Which raw keys each metric was read from."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, None]] = {}

    def add(self, metric: str, key: str) -> None:
        """Adds a key of a metric, up to `MAX_ORIGINS`."""
        keys = self._keys.setdefault(metric, {})
        if len(keys) < MAX_ORIGINS:
            keys[key] = None

    def as_text(self) -> dict[str, str]:
        """Metric -> its keys, as in `Reading.origins`."""
        return {metric: ", ".join(keys) for metric, keys in self._keys.items()}
