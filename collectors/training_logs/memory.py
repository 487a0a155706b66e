"""What a tail keeps: between calls (JSON-able, small, its own copy), and of one call the keys it met."""

import zlib
from collections.abc import Mapping
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs
from collectors.model import Cursor

Memory = dict[str, Any]
# Every reward function has a key of its own: a few show where a metric comes from.
KEPT_ORIGINS = 3


def mark(key: str) -> int:
    """A key as a small number: the cursor is written at every poll."""
    return zlib.crc32(key.encode())


def copied(cursor: Cursor) -> Memory:
    """A cursor of one's own, deep: the caller keeps the old one until the new one is committed."""
    return {key: _deep(value) for key, value in cursor.items()}


def _deep(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep(item) for key, item in value.items()}
    return [_deep(item) for item in value] if isinstance(value, list) else value


def whole_steps(logs: Logs) -> None:
    """Takes out, counted, the rows whose step is no whole number (a flag, a text, 2.5, NaN); 3.0 is 3."""
    rows = [row for row in logs.rows if _counted(row)]
    if len(rows) < len(logs.rows):
        logs.why = logs.why or "a step that is no whole number"
    logs.dropped += len(logs.rows) - len(rows)
    logs.rows = rows


def _counted(row: Logged) -> bool:
    if row.step is None:
        return True
    step = number(row.step)
    if step is None or not step.is_integer():
        return False
    # Not of an int: beyond 2^53 its neighbour would come back.
    row.step = row.step if isinstance(row.step, int) else int(step)
    return True


class Origins:
    """Which raw keys each metric was read from."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, None]] = {}

    def add(self, metric: str, key: str) -> None:
        """One more key of a metric, unless there are enough."""
        keys = self._keys.setdefault(metric, {})
        if len(keys) < KEPT_ORIGINS:
            keys[key] = None

    def said(self) -> dict[str, str]:
        """Metric -> its keys, as in `Reading.origins`."""
        return {metric: ", ".join(keys) for metric, keys in self._keys.items()}
