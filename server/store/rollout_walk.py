"""Along an order of rows: its classes' own orders merged, and what of them fits further conditions."""

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

from sqlalchemy import Connection

_TIES, _SOME = 25, 16
# Of keys that are looked up together: a page's worth first, for most filters fit often.
_LOOK = 4_096
# Of so few classes each is searched by the database itself: beyond, that finds far more than a page takes.
_CLASSES = 16

WHOLE = 2**63 - 1


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
        sql, values: further conditions; ``beside``: the order's index does not tell them.
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
    beside: bool = False

    def also(self, sql: str, values: Sequence[Any]) -> "Wanted":
        """The same with one more condition, which rows tell and the order's index does not."""
        whole = f"{self.sql} AND {sql}" if self.sql else sql
        return replace(self, sql=whole, values=(*self.values, *values), beside=True)


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


def alike(order: Order, sql: str, *values: Any) -> Part:
    """Rows whose values do not differ: by when they moved."""
    return Part(f"{order.column} {sql}", values, order.columns[1:])


def classes_of(connection: Connection, order: Order, wanted: Wanted) -> tuple[str, tuple[Any, ...]]:
    if connection.dialect.name == "postgresql":
        return f"{order.klass} = ANY(CAST(? AS {_type(wanted)}[])) AND ", (list(wanted.classes),)
    return f"{order.klass} IN ({', '.join('?' * len(wanted.classes))}) AND ", tuple(wanted.classes)


def source(connection: Connection, order: Order, index: str) -> str:
    """The table, for SQLite with the index to use; "": none but that of the numbers."""
    if connection.dialect.name == "postgresql":
        return order.table
    return f"{order.table} INDEXED BY {index}" if index else f"{order.table} NOT INDEXED"


def sorting(order: Order, part: Part) -> str:
    return ", ".join(f"{name} DESC" if order.descending else name for name in part.columns)


# ---- many rows: along the order, as far as the page goes


def by_value(
    connection: Connection, order: Order, wanted: Wanted, part: Part, passed: Key | None, most: int
) -> Iterator[Key]:
    """Along the order, leaping within each value to where the window begins, while that pays."""
    if len(part.columns) < len(order.columns):
        yield from heads(connection, order, wanted, part, passed, most)
        return
    value = passed[0] if passed else _next(connection, order, wanted, None)
    within, pays = passed[1:] if passed else None, True
    while value is not None and pays:
        met, last, pays = 0, value, within is not None
        for met, key in enumerate(heads(connection, order, wanted, alike(order, "= ?", value), within, most), 1):  # noqa: B007
            yield (value, *key)
        pays, within = pays or met >= _TIES, None
        value = _next(connection, order, wanted, value)
    if value is not None:
        end = -WHOLE if order.descending else WHOLE
        yield from heads(connection, order, wanted, part, (last, end, end), most)


def _next(connection: Connection, order: Order, wanted: Wanted, value: Any) -> Any:
    """The value after this one (None: the first) that any row wanted has, whenever it moved; None: there is none."""
    beyond = f"{'<' if order.descending else '>'} ?" if value is not None else "IS NOT NULL"
    values = () if value is None else (value,)
    way = "DESC" if order.descending else "ASC"
    table = source(connection, order, order.index)
    one = (
        f"SELECT {order.column} FROM {table} WHERE run = ? AND {order.klass} = c.klass "
        f"AND {order.column} {beyond} ORDER BY {order.column} {way} LIMIT 1"
    )
    most = "max" if order.descending else "min"
    classes: Any = list(wanted.classes)
    listed, told = f"unnest(CAST(? AS {_type(wanted)}[])) AS c (klass)", classes
    if connection.dialect.name == "sqlite":
        listed, told = "(SELECT value AS klass FROM json_each(?)) AS c", json.dumps(classes)
    sql = f"SELECT {most}(value) FROM (SELECT ({one}) AS value FROM {listed}) AS found"
    return fetched(connection, sql, (wanted.run, *values, told))[0][0]


def heads(
    connection: Connection, order: Order, wanted: Wanted, part: Part, passed: Key | None, most: int
) -> Iterator[Key]:
    """Keys in order: the classes' own orders merged."""
    if wanted.beside and len(wanted.classes) > _CLASSES:
        return _looked_at(connection, order, wanted, heads(connection, order, _plain(wanted), part, passed, most), most)
    if connection.dialect.name == "postgresql":
        return _merged(connection, order, wanted, part, passed, most)
    where, values = conditions(order, wanted, part, passed)
    sql = (
        f"SELECT {', '.join(part.columns)} FROM {order.table} INDEXED BY {order.index} "
        f"WHERE {order.klass} = ? AND {where} ORDER BY {sorting(order, part)}"
    )
    # Cursors, not lists: of a hundred classes each is read only as far as the page takes from it.
    cursors = [cursor_of(connection, sql, (klass, *values)) for klass in wanted.classes]
    return heapq.merge(*cursors, reverse=order.descending)


def _plain(wanted: Wanted) -> Wanted:
    return replace(wanted, sql="", values=(), beside=False)


def _looked_at(connection: Connection, order: Order, wanted: Wanted, keys: Iterator[Key], most: int) -> Iterator[Key]:
    """Those whose rows fit, some at a time: else every class would be searched for what the page takes from few."""
    size = most
    while some := list(islice(keys, size)):
        fit = _fitting(connection, order, wanted, [key[-1] for key in some])
        yield from (key for key in some if key[-1] in fit)
        size = min(2 * size, _LOOK)


def _fitting(connection: Connection, order: Order, wanted: Wanted, ids: list[int]) -> set[int]:
    table, listed, told = order.table, "= ANY(CAST(? AS bigint[]))", cast("object", ids)
    if connection.dialect.name == "sqlite":
        table, listed, told = f"{table} NOT INDEXED", "IN (SELECT value FROM json_each(?))", json.dumps(ids)
    sql = f"SELECT id FROM {table} WHERE id {listed} AND {wanted.sql}"
    return {row[0] for row in fetched(connection, sql, (told, *wanted.values))}


def _merged(
    connection: Connection, order: Order, wanted: Wanted, part: Part, passed: Key | None, most: int
) -> Iterator[Key]:
    """The same of a server: some of each class at a time, as far as no class may have more in between."""
    some = min(most, max(_SOME, 4 * most // len(wanted.classes)))
    while True:
        where, values = conditions(order, wanted, part, passed)
        sql = (
            f"SELECT h.*, c.klass FROM unnest(CAST(? AS {_type(wanted)}[])) AS c (klass) CROSS JOIN LATERAL ("
            f"SELECT {', '.join(part.columns)} FROM {order.table} WHERE {order.klass} = c.klass AND {where} "
            f"ORDER BY {sorting(order, part)} LIMIT {some}) AS h ORDER BY {sorting(order, part)} LIMIT {most}"
        )
        rows = fetched(connection, sql, (list(wanted.classes), *values))
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
        # Whoever reads on reads more: then it is the rows that cost, not the questions.
        some, most = min(2 * some, _LOOK), min(2 * most, _LOOK)


def _type(wanted: Wanted) -> str:
    return "bigint" if isinstance(wanted.classes[0], int) else "text"


def conditions(order: Order, wanted: Wanted, part: Part, passed: Key | None) -> tuple[str, tuple[Any, ...]]:
    found: list[tuple[str, tuple[Any, ...]]] = [("run = ?", (wanted.run,))]
    found += [(part.sql, part.values)] if part.sql else []
    if passed is not None:
        marks = ", ".join("?" * len(part.columns))
        found.append((f"({', '.join(part.columns)}) {'<' if order.descending else '>'} ({marks})", passed))
    found += [("moved_at >= ?", (wanted.start,))] if wanted.start is not None else []
    found += [("moved_at < ?", (wanted.end,))] if wanted.end is not None else []
    found += [(wanted.sql, wanted.values)] if wanted.sql else []
    return " AND ".join(sql for sql, _ in found), tuple(value for _, values in found for value in values)


def fetched(connection: Connection, sql: str, values: Sequence[Any]) -> list[Key]:
    if connection.dialect.name == "postgresql":
        sql = sql.replace("?", "%s")
    return [tuple(row) for row in connection.exec_driver_sql(sql, tuple(values))]


def cursor_of(connection: Connection, sql: str, values: Sequence[Any]) -> Iterator[Key]:
    """SQLite's own cursor, which reads on only when it is asked to."""
    driver: Any = connection.connection.driver_connection
    return iter(driver.execute(sql, tuple(values)))
