"""Pages of rollouts and groups in any order, without offsets: what a page costs does not depend on where it is.

Every order has one index, whose first columns are the run and a class of rows that filters take or leave as a whole
(of rollouts: environment, purpose, state, mixed; of groups: outcome). A page is the merged heads of the classes wanted.
What has no value comes last, whatever the direction. A filter that no class knows (a group, an id, a time) is looked up
by its own index while it fits few rows, and else met often enough on the way through the order.
"""

import base64
import heapq
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Connection

FEW = 5_000
"""Rows that are sorted rather than looked for on the way, wherever they lie: some 15 ms either way at a million."""

TOGETHER = 2
"""So many times more where they lie together: what was written one after the other is read faster."""

BULK = 1_000
"""A page of so many rows is one of an export: it passes every row once, which is what sorting them each time is not."""

_SAMPLE, _GLANCE, _TIES, _BLOCK, _SOME = 500, 200, 25, 64, 16

_WHOLE = 2**63 - 1


class BadKey(ValueError):
    """What was handed in as `after` is no key of this order."""


@dataclass(frozen=True, slots=True)
class Order:
    """How rows are sorted. ``column`` "": by when they moved alone, which all have. ``ties``: its values are few."""

    table: str
    index: str
    klass: str
    column: str
    descending: bool
    ties: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, "moved_at", "id") if self.column else ("moved_at", "id")


@dataclass(frozen=True, slots=True)
class Place:
    """After which row a page begins. ``empty``: it is among those without a value; ``key`` None: before all there."""

    empty: bool = False
    key: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows that an index of its own finds.

    ``name``: the column they lie sorted by there, of which the first of ``values`` is the least; "": none is left out.
    """

    index: str
    sql: str
    values: tuple[Any, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a page may hold.

    Attributes:
        classes: values of the order's class column.
        start, end: moved within, epoch ms.
        sql, values: further conditions.
        lookups: what finds the rows that fit ``met`` (any of them does), a condition with its values.
        window: index of the moves, for orders of another column.
    """

    run: int
    classes: Sequence[Any]
    start: int | None = None
    end: int | None = None
    sql: str = ""
    values: tuple[Any, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    met: tuple[str, tuple[Any, ...]] = ("", ())
    window: str = ""


def pack(order: Order, place: Place) -> str:
    """A place as text for who asks for the next page."""
    said = [order.column, order.descending, place.empty, place.key]
    return base64.urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode().rstrip("=")


def unpack(order: Order, text: str) -> Place:
    """The reverse of `pack`; "" is the beginning.

    Raises:
        BadKey: not made by `pack`, or for another order.
    """
    if not text:
        return Place()
    try:
        column, descending, empty, key = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", True))
        found = Place(empty, None if key is None else tuple(key))
        if (column, descending) == (order.column, order.descending) and _is_key(order, found):
            return found
    except (ValueError, TypeError, RecursionError):
        pass
    raise BadKey("after is not what the page before gave for this order")


def _is_key(order: Order, place: Place) -> bool:
    if not isinstance(place.empty, bool) or (place.empty and not order.column):
        return False
    if place.key is None:
        return place.empty
    *value, moved, number = place.key
    whole = all(isinstance(one, int) and not isinstance(one, bool) and abs(one) <= _WHOLE for one in (moved, number))
    return whole and len(value) == (1 if order.column and not place.empty else 0) and all(map(_is_number, value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and (
        isinstance(value, float) or abs(value) <= _WHOLE
    )  # fmt: skip


Key = tuple[Any, ...]
"""(value, moved_at, id) of a row; (moved_at, id) where the order is that of the moves, or the value is absent."""


Heads = Callable[["Part", Key | None, int], Iterator[Key]]
"""Keys of a part of the rows in order, after one of them, at least so many if there are."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that one walk goes through: with a value, without, or with that very one."""

    sql: str
    values: tuple[Any, ...]
    columns: tuple[str, ...]


def page(
    connection: Connection, order: Order, wanted: Wanted, place: Place, limit: int
) -> tuple[list[int], Place | None]:
    """Ids of the next rows, and where the page after them begins (None: nowhere)."""
    if not wanted.classes:
        return [], None
    rows = list(islice(_walk(order, _way(connection, order, wanted, limit), place, limit + 1), limit + 1))
    ids = [key[-1] for _, key in rows[:limit]]
    return ids, Place(*rows[limit - 1]) if len(rows) > limit else None


def _walk(order: Order, heads: Heads, place: Place, most: int) -> Iterator[tuple[bool, Key]]:
    """(has no value, key) of the rows after a place."""
    if not place.empty:
        valued = Part(f"{order.column} IS NOT NULL" if order.column else "", (), order.columns)
        yield from ((False, key) for key in heads(valued, place.key, most))
    if order.column:
        passed = place.key if place.empty else None
        yield from ((True, key) for key in heads(_rest(order, "IS NULL"), passed, most))


def _rest(order: Order, sql: str, *values: Any) -> Part:
    """Rows whose values do not differ: by when they moved."""
    return Part(f"{order.column} {sql}", values, order.columns[1:])


# ---- which way


def _way(connection: Connection, order: Order, wanted: Wanted, limit: int) -> Heads:
    if wanted.lookups:
        return _looked_up(connection, order, wanted, limit)
    if not wanted.window:
        return partial(_heads, connection, order, wanted)
    low, high = wanted.start if wanted.start is not None else 0, wanted.end if wanted.end is not None else _WHOLE
    window = Lookup(wanted.window, "moved_at >= ? AND moved_at < ?", (low, high))
    if _count(connection, order, wanted, window, TOGETHER * FEW + 1) <= TOGETHER * FEW:
        return partial(_sorted, connection, order, wanted, [window])
    return partial(_by_value if order.ties else _heads, connection, order, wanted)


def _looked_up(connection: Connection, order: Order, wanted: Wanted, limit: int) -> Heads:
    """Sorted while they are few or lie together; else on the way, where that meets them.

    Of ids that lie together far from where the order begins, neither is quick: those that are sorted are the last.
    """
    most = TOGETHER * FEW
    counts = [_count(connection, order, wanted, lookup, most + 1) for lookup in wanted.lookups]
    found = [lookup for lookup, count in zip(wanted.lookups, counts, strict=True) if count]
    together = sum(counts) > FEW and all(_together(_sample(connection, order, wanted, lookup)) for lookup in found)
    if sum(counts) <= (most if together else FEW):
        return partial(_sorted, connection, order, wanted, found)
    capped = together and limit < BULK and all(lookup.name for lookup in found)
    if capped and not _often(connection, order, wanted):
        last = [_last(connection, order, wanted, lookup, most) for lookup in found]
        return partial(_sorted, connection, order, wanted, last)
    sql = " AND ".join(one for one in (wanted.sql, wanted.met[0]) if one)
    return partial(_heads, connection, order, replace(wanted, sql=sql, values=(*wanted.values, *wanted.met[1])))


def _sample(connection: Connection, order: Order, wanted: Wanted, lookup: Lookup) -> list[int]:
    sql = f"SELECT id FROM {_by(connection, order, lookup.index)} WHERE run = ? AND {lookup.sql} LIMIT {_SAMPLE}"
    return [row[0] for row in _rows(connection, sql, (wanted.run, *lookup.values))]


def _together(ids: Sequence[int]) -> bool:
    return 4 * len({one // _BLOCK for one in ids}) <= len(ids)


def _count(connection: Connection, order: Order, wanted: Wanted, lookup: Lookup, most: int) -> int:
    # What the index alone answers.
    classes, values = _classes(connection, order, wanted) if lookup.index == wanted.window else ("", ())
    sql = (
        f"SELECT count(*) FROM (SELECT 1 FROM {_by(connection, order, lookup.index)} "
        f"WHERE run = ? AND {classes}{lookup.sql} LIMIT {most}) AS found"
    )
    return int(_rows(connection, sql, (wanted.run, *values, *lookup.values))[0][0])


def _often(connection: Connection, order: Order, wanted: Wanted) -> bool:
    """Does the order begin with them? Asked of its beginning on every page: all of them go the same way."""
    walk = _walk(order, partial(_heads, connection, order, wanted), Place(), _GLANCE)
    ids = [key[-1] for _, key in islice(walk, _GLANCE)]
    if not ids:
        return True
    table, marks = _by(connection, order, ""), ", ".join("?" * len(ids))
    sql = f"SELECT count(*) FROM {table} WHERE id IN ({marks}) AND {wanted.met[0]}"
    return 10 * int(_rows(connection, sql, (*ids, *wanted.met[1]))[0][0]) >= len(ids)


def _last(connection: Connection, order: Order, wanted: Wanted, lookup: Lookup, most: int) -> Lookup:
    """The rows that come last by name, where there are more."""
    table, name = _by(connection, order, lookup.index), lookup.name
    sql = f"SELECT {name} FROM {table} WHERE run = ? AND {lookup.sql} ORDER BY {name} DESC LIMIT 1 OFFSET {most - 1}"
    first = _rows(connection, sql, (wanted.run, *lookup.values))
    return replace(lookup, values=(first[0][0], *lookup.values[1:])) if first else lookup


# ---- few rows: all of them are read


def _sorted(
    connection: Connection, order: Order, wanted: Wanted, lookups: Sequence[Lookup], part: Part, passed: Key | None,
    most: int,
) -> Iterator[Key]:  # fmt: skip
    conditions, values = _conditions(order, wanted, part, passed)
    classes, numbers = _classes(connection, order, wanted)
    found: set[Key] = set()
    for lookup in lookups:
        sql = (
            f"SELECT {', '.join(part.columns)} FROM {_by(connection, order, lookup.index)} "
            f"WHERE {classes}{conditions} AND {lookup.sql} ORDER BY {_sort(order, part)} LIMIT {most}"
        )
        found.update(_rows(connection, sql, (*numbers, *values, *lookup.values)))
    return iter(sorted(found, reverse=order.descending))


def _classes(connection: Connection, order: Order, wanted: Wanted) -> tuple[str, tuple[Any, ...]]:
    if connection.dialect.name == "postgresql":
        return f"{order.klass} = ANY(CAST(? AS {_type(wanted)}[])) AND ", (list(wanted.classes),)
    return f"{order.klass} IN ({', '.join('?' * len(wanted.classes))}) AND ", tuple(wanted.classes)


def _by(connection: Connection, order: Order, index: str) -> str:
    """The table, for SQLite with the index to use; "": none but that of the numbers."""
    if connection.dialect.name == "postgresql":
        return order.table
    return f"{order.table} INDEXED BY {index}" if index else f"{order.table} NOT INDEXED"


def _sort(order: Order, part: Part) -> str:
    return ", ".join(f"{name} DESC" if order.descending else name for name in part.columns)


# ---- many rows: along the order, as far as the page goes


def _by_value(
    connection: Connection, order: Order, wanted: Wanted, part: Part, passed: Key | None, most: int
) -> Iterator[Key]:
    """Along the order, leaping within each value to where the window begins, while that pays."""
    if len(part.columns) < len(order.columns):
        yield from _heads(connection, order, wanted, part, passed, most)
        return
    value = passed[0] if passed else _next(connection, order, wanted, None)
    within, pays = passed[1:] if passed else None, True
    while value is not None and pays:
        met, last, pays = 0, value, within is not None
        for met, key in enumerate(_heads(connection, order, wanted, _rest(order, "= ?", value), within, most), 1):  # noqa: B007
            yield (value, *key)
        pays, within = pays or met >= _TIES, None
        value = _next(connection, order, wanted, value)
    if value is not None:
        end = -_WHOLE if order.descending else _WHOLE
        yield from _heads(connection, order, wanted, part, (last, end, end), most)


def _next(connection: Connection, order: Order, wanted: Wanted, value: Any) -> Any:
    """The value after this one (None: the first) that any row wanted has, whenever it moved; None: there is none."""
    beyond = f"{'<' if order.descending else '>'} ?" if value is not None else "IS NOT NULL"
    values = () if value is None else (value,)
    way = "DESC" if order.descending else "ASC"
    one = (
        f"SELECT {order.column} FROM {_by(connection, order, order.index)} WHERE run = ? AND {order.klass} = c.klass "
        f"AND {order.column} {beyond} ORDER BY {order.column} {way} LIMIT 1"
    )
    most = "max" if order.descending else "min"
    classes: Any = list(wanted.classes)
    source, told = f"unnest(CAST(? AS {_type(wanted)}[])) AS c (klass)", classes
    if connection.dialect.name == "sqlite":
        source, told = "(SELECT value AS klass FROM json_each(?)) AS c", json.dumps(classes)
    sql = f"SELECT {most}(value) FROM (SELECT ({one}) AS value FROM {source}) AS found"
    return _rows(connection, sql, (wanted.run, *values, told))[0][0]


def _heads(
    connection: Connection, order: Order, wanted: Wanted, part: Part, passed: Key | None, most: int
) -> Iterator[Key]:
    """Keys in order: the classes' own orders merged."""
    if connection.dialect.name == "postgresql":
        return _merged(connection, order, wanted, part, passed, most)
    conditions, values = _conditions(order, wanted, part, passed)
    sql = (
        f"SELECT {', '.join(part.columns)} FROM {order.table} INDEXED BY {order.index} "
        f"WHERE {order.klass} = ? AND {conditions} ORDER BY {_sort(order, part)} LIMIT {most}"
    )
    # Cursors, not lists: of a hundred classes each is read only as far as the page takes from it.
    cursors = [_cursor(connection, sql, (klass, *values)) for klass in wanted.classes]
    return heapq.merge(*cursors, reverse=order.descending)


def _merged(
    connection: Connection, order: Order, wanted: Wanted, part: Part, passed: Key | None, most: int
) -> Iterator[Key]:
    """The same of a server: some of each class at a time, as far as no class may have more in between."""
    some = min(most, max(_SOME, 4 * most // len(wanted.classes)))
    while True:
        conditions, values = _conditions(order, wanted, part, passed)
        sql = (
            f"SELECT h.*, c.klass FROM unnest(CAST(? AS {_type(wanted)}[])) AS c (klass) CROSS JOIN LATERAL ("
            f"SELECT {', '.join(part.columns)} FROM {order.table} WHERE {order.klass} = c.klass AND {conditions} "
            f"ORDER BY {_sort(order, part)} LIMIT {some}) AS h ORDER BY {_sort(order, part)} LIMIT {most}"
        )
        rows = _rows(connection, sql, (list(wanted.classes), *values))
        counts: Counter[Any] = Counter()
        for *key, klass in rows:
            passed = tuple(key)
            yield passed
            counts[klass] += 1
            if counts[klass] == some:
                break
        else:
            if len(rows) < most:
                return


def _type(wanted: Wanted) -> str:
    return "bigint" if isinstance(wanted.classes[0], int) else "text"


def _conditions(order: Order, wanted: Wanted, part: Part, passed: Key | None) -> tuple[str, tuple[Any, ...]]:
    found: list[tuple[str, tuple[Any, ...]]] = [("run = ?", (wanted.run,))]
    found += [(part.sql, part.values)] if part.sql else []
    if passed is not None:
        marks = ", ".join("?" * len(part.columns))
        found.append((f"({', '.join(part.columns)}) {'<' if order.descending else '>'} ({marks})", passed))
    found += [("moved_at >= ?", (wanted.start,))] if wanted.start is not None else []
    found += [("moved_at < ?", (wanted.end,))] if wanted.end is not None else []
    found += [(wanted.sql, wanted.values)] if wanted.sql else []
    return " AND ".join(sql for sql, _ in found), tuple(value for _, values in found for value in values)


def _rows(connection: Connection, sql: str, values: Sequence[Any]) -> list[Key]:
    if connection.dialect.name == "postgresql":
        sql = sql.replace("?", "%s")
    return [tuple(row) for row in connection.exec_driver_sql(sql, tuple(values))]


def _cursor(connection: Connection, sql: str, values: Sequence[Any]) -> Iterator[Key]:
    """SQLite's own cursor, which reads on only when it is asked to."""
    driver: Any = connection.connection.driver_connection
    return iter(driver.execute(sql, tuple(values)))
