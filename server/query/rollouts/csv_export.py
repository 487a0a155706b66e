"""Rollouts as a table for a spreadsheet. Pure."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from server.query.rollouts.types import RolloutInfo
from server.store.rollouts.fields import RECORD

TIMES = (*(name for name, kind in RECORD.items() if kind == "time"), "consumed_at")
_PLAIN = tuple(field.name for field in fields(RolloutInfo) if field.name not in ("times", "sandbox_ids"))
COLUMNS = (*_PLAIN, *TIMES, "sandbox_ids")
# A spreadsheet takes what begins so for a formula, and runs it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_lines(rows: Sequence[RolloutInfo], *, head: bool = False) -> Iterator[str]:
    """Text of the rows, as one piece; ``head``: with the names of the columns before."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    if head:
        writer.writerow(COLUMNS)
    writer.writerows([safe(value) for value in _values(row)] for row in rows)
    yield buffer.getvalue()


def _values(row: RolloutInfo) -> Iterable[object]:
    yield from (getattr(row, name) for name in _PLAIN)
    yield from (row.times.get(name) for name in TIMES)
    yield " ".join(row.sandbox_ids)


def safe(value: object) -> object:
    """A cell that is not run: texts that look like formulas get an apostrophe before them; None is empty."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value
