"""Tails append-only JSON lines such as metrics.jsonl.

A line that is not a JSON object is skipped and counted: one incomplete write must not hide the rest of a run.
"""

import json
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.model import Cursor, Limits
from collectors.transport import bytetail

Row = dict[str, Any]


@dataclass(slots=True)
class Rows:
    """Rows appended since the cursor, oldest first; the other fields as in `collectors.model.Reading`."""

    rows: list[Row] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    more: bool = False
    restarted: bool = False
    dropped: int = 0
    why: str = ""


def read(path: Path, cursor: Cursor, limits: Limits) -> Rows:
    """Rows appended since ``cursor``.

    Raises:
        ScrapeError: ``missing``.
    """
    chunk = bytetail.read(path, cursor, limits)
    result = Rows([], chunk.cursor, chunk.more, chunk.restarted, chunk.dropped, chunk.why)
    for offset, line in chunk.lines:
        row = parse(line)
        if row is None:
            result.dropped += 1
            result.why = result.why or f"the line at byte {offset} of {path.name} is not a JSON object"
        else:
            result.rows.append(row)
    return result


def parse(text: bytes | str) -> Row | None:
    """A JSON object, or None. Text nested too deeply (RecursionError) counts as broken."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def number(value: object) -> float | None:
    """A finite number, or None: loggers write NaN as null, as "NaN", or as an object."""
    # bool is an int in Python, but a flag is no measurement.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON integers have no bound, floats have.
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def merge(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[Row]:
    """Rows of one key as one row, in the order the keys first came; a later value of a field replaces an earlier one.

    Trainers write several rows per step (prime-rl five): a row is not a step.
    """
    merged: dict[Hashable, Row] = {}
    for row in rows:
        merged.setdefault(key(row), {}).update(row)
    return list(merged.values())
