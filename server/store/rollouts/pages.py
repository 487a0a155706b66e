"""Pages of rollouts and groups in any order, without offsets: what a page costs does not depend on where it is.

Every order has one index, whose first columns are the run and a class of rows that filters take or leave as a whole
(of rollouts: environment, purpose, state, mixed; of groups: outcome). A page is the merged heads of the classes wanted.
What has no value comes last, whatever the direction. A filter that no class knows (a group, an id, a time) is looked up
by its own index while it fits few rows, and else met often enough on the way through the order.
"""

import base64
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from server.store.rollouts.walk import (
    WHOLE,
    Heads,
    Key,
    Lookup,
    Met,
    Order,
    RowFilter,
    WalkPart,
    alike,
    by_value,
    classes_of,
    conditions,
    fetched,
    heads,
    held,
    sorting,
    source,
)

FEW = 5_000
"""Rows that are sorted rather than looked for on the way, wherever they lie: some 15 ms either way at a million."""

TOGETHER = 2
"""So many times more where they lie together: what was written one after the other is read faster."""

BULK = 1_000
"""A page of so many rows is one of an export: it passes every row once, which is what sorting them each time is not."""

_SAMPLE, _GLANCE, _BLOCK = 500, 200, 64


class BadKey(ValueError):
    """The value of `after` is no key of this order."""


@dataclass(frozen=True, slots=True)
class PagePosition:
    """After which row a page begins. ``empty``: it is among those without a value; ``key`` None: before all there."""

    empty: bool = False
    key: tuple[Any, ...] | None = None


def pack(order: Order, place: PagePosition) -> str:
    """A position in an order as text, for the request of the next page."""
    said = [order.column, order.descending, place.empty, place.key]
    return base64.urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode().rstrip("=")


def unpack(order: Order, text: str) -> PagePosition:
    """The reverse of `pack`; "" is the beginning.

    Raises:
        BadKey: not made by `pack`, or for another order.
    """
    if not text:
        return PagePosition()
    try:
        column, descending, empty, key = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", True))
        found = PagePosition(empty, None if key is None else tuple(key))
        if (column, descending) == (order.column, order.descending) and _is_key(order, found):
            return found
    except (ValueError, TypeError, RecursionError):
        pass
    raise BadKey("after is not the value that a previous page of this order returned")


def _is_key(order: Order, place: PagePosition) -> bool:
    if not isinstance(place.empty, bool) or (place.empty and not order.column):
        return False
    if place.key is None:
        return place.empty
    *value, moved, number = place.key
    whole = all(isinstance(one, int) and not isinstance(one, bool) and abs(one) <= WHOLE for one in (moved, number))
    return whole and len(value) == (1 if order.column and not place.empty else 0) and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and (
        isinstance(value, float) or abs(value) <= WHOLE
    )  # fmt: skip


def page(
    connection: Connection, order: Order, wanted: RowFilter, place: PagePosition, limit: int
) -> tuple[list[int], PagePosition | None, bool]:
    """Ids of the next rows, where the page after them begins (None: nowhere), and whether this order leads to all."""
    way, complete = _way(connection, order, wanted, limit) if wanted.classes else (lambda *_: iter(()), True)
    rows = list(islice(_walk(order, way, place, limit + 1), limit + 1))
    ids = [key[-1] for _, key in rows[:limit]]
    return ids, PagePosition(*rows[limit - 1]) if len(rows) > limit else None, complete


def _walk(order: Order, way: Heads, place: PagePosition, most: int) -> Iterator[tuple[bool, Key]]:
    """(has no value, key) of the rows after a place."""
    if not place.empty:
        valued = WalkPart(f"{order.column} IS NOT NULL" if order.column else "", (), order.columns)
        yield from ((False, key) for key in way(valued, place.key, most))
    if order.column:
        passed = place.key if place.empty else None
        yield from ((True, key) for key in way(alike(order, "IS NULL"), passed, most))


# ---- which way


def _way(connection: Connection, order: Order, wanted: RowFilter, limit: int) -> tuple[Heads, bool]:
    """How to go, and whether that meets all of them."""
    if wanted.lookups:
        return _looked_up(connection, order, wanted, limit)
    if not wanted.window:
        return partial(heads, connection, order, wanted), True
    low, high = wanted.start if wanted.start is not None else 0, wanted.end if wanted.end is not None else WHOLE
    window = Lookup(wanted.window, "moved_at >= ? AND moved_at < ?", (low, high))
    if sum(_counts(connection, order, wanted, [window], TOGETHER * FEW + 1)) <= TOGETHER * FEW:
        return partial(_sorted, connection, order, wanted, [window]), True
    return partial(by_value if order.ties else heads, connection, order, wanted), True


def _looked_up(connection: Connection, order: Order, wanted: RowFilter, limit: int) -> tuple[Heads, bool]:
    """Sorted while they are few or lie together; else on the way, where that meets them.

    Of ids that lie together far from where the order begins, neither is quick: those that are sorted are the last.
    """
    most = TOGETHER * FEW
    counts = _counts(connection, order, wanted, wanted.lookups, most + 1)
    found = [lookup for lookup, count in zip(wanted.lookups, counts, strict=True) if count]
    together = sum(counts) > FEW and all(_together(_sample(connection, order, wanted, lookup)) for lookup in found)
    if sum(counts) <= (most if together else FEW):
        return partial(_sorted, connection, order, wanted, found), True
    capped = together and limit < BULK and all(lookup.name for lookup in found)
    known = _often(connection, order, wanted) if capped else None
    if capped and known is None:
        last = [_last(connection, order, wanted, lookup, most) for lookup in found]
        return partial(_sorted, connection, order, wanted, last), False
    return partial(heads, connection, order, wanted.also(*wanted.met), known=known), True


def _sample(connection: Connection, order: Order, wanted: RowFilter, lookup: Lookup) -> list[int]:
    sql = f"SELECT id FROM {source(connection, order, lookup.index)} WHERE run = ? AND {lookup.sql}"
    # PostgreSQL has no INDEXED BY, and takes many rows for close at hand wherever they are in the table.
    sql += f" ORDER BY {lookup.name} LIMIT {_SAMPLE}" if lookup.name else f" LIMIT {_SAMPLE}"
    return [row[0] for row in fetched(connection, sql, (wanted.run, *lookup.values))]


def _together(ids: Sequence[int]) -> bool:
    return 4 * len({one // _BLOCK for one in ids}) <= len(ids)


def _counts(
    connection: Connection, order: Order, wanted: RowFilter, lookups: Sequence[Lookup], most: int
) -> tuple[int, ...]:
    # What the indexes alone answer, in one question.
    parts: list[str] = []
    told: list[Any] = []
    for lookup in lookups:
        classes, values = classes_of(connection, order, wanted) if lookup.index == wanted.window else ("", ())
        parts.append(
            f"(SELECT count(*) FROM (SELECT 1 FROM {source(connection, order, lookup.index)} "
            f"WHERE run = ? AND {classes}{lookup.sql} LIMIT {most}) AS found)"
        )
        told += (wanted.run, *values, *lookup.values)
    return fetched(connection, f"SELECT {', '.join(parts)}", told)[0]


def _often(connection: Connection, order: Order, wanted: RowFilter) -> Met | None:
    """What its beginning holds, if the order begins with them. Asked on every page: all of them go the same way."""
    walk = _walk(order, partial(heads, connection, order, wanted), PagePosition(), _GLANCE)
    ids = [key[-1] for _, key in islice(walk, _GLANCE)]
    met = held(connection, order, wanted, ids)
    return met if 10 * met.fit >= len(ids) else None


def _last(connection: Connection, order: Order, wanted: RowFilter, lookup: Lookup, most: int) -> Lookup:
    """The rows that come last by name, where there are more."""
    table, name = source(connection, order, lookup.index), lookup.name
    sql = f"SELECT {name} FROM {table} WHERE run = ? AND {lookup.sql} ORDER BY {name} DESC LIMIT 1 OFFSET {most - 1}"
    first = fetched(connection, sql, (wanted.run, *lookup.values))
    return replace(lookup, values=(first[0][0], *lookup.values[1:])) if first else lookup


# ---- few rows: all of them are read


def _sorted(
    connection: Connection,
    order: Order,
    wanted: RowFilter,
    lookups: Sequence[Lookup],
    part: WalkPart,
    passed: Key | None,
    most: int,
) -> Iterator[Key]:
    sql_part, values = conditions(order, wanted, part, passed)
    classes, numbers = classes_of(connection, order, wanted)
    found: set[Key] = set()
    for lookup in lookups:
        sql = (
            f"SELECT {', '.join(part.columns)} FROM {source(connection, order, lookup.index)} "
            f"WHERE {classes}{sql_part} AND {lookup.sql} ORDER BY {sorting(order, part)} LIMIT {most}"
        )
        found.update(fetched(connection, sql, (*numbers, *values, *lookup.values)))
    return iter(sorted(found, reverse=order.descending))
