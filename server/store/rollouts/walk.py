"""Along an order of rows: its classes' own orders merged, and what of them fits further conditions."""

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from sqlalchemy import Connection

_TIES, _SOME = 25, 16
# Of keys that are looked up together: a page's worth first, for most filters fit often.
_LOOK = 4_096
# Of so few classes each is searched by the database itself: beyond, that finds far more than a page takes.
_CLASSES = 16
# And of a server, which reads so many of each at a time: of more classes that is several pages.
_SERVED = 2

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
class RowFilter:
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

    def also(self, sql: str, values: Sequence[Any]) -> "RowFilter":
        """The same with one more condition, which rows tell and the order's index does not."""
        whole = f"{self.sql} AND {sql}" if self.sql else sql
        return replace(self, sql=whole, values=(*self.values, *values), beside=True)


Key = tuple[Any, ...]
"""(value, moved_at, id) of a row; (moved_at, id) where the order is that of the moves, or the value is absent."""


Heads = Callable[["WalkPart", Key | None, int], Iterator[Key]]
"""Keys of a part of the rows in order, after one of them, at least so many if there are."""


@dataclass(frozen=True, slots=True)
class WalkPart:
    """Rows that one walk goes through: with a value, without, or with that very one."""

    sql: str
    values: tuple[Any, ...]
    columns: tuple[str, ...]


def alike(order: Order, sql: str, *values: Any) -> WalkPart:
    """Rows whose values do not differ: by when they moved."""
    return WalkPart(f"{order.column} {sql}", values, order.columns[1:])


def classes_of(connection: Connection, order: Order, wanted: RowFilter) -> tuple[str, tuple[Any, ...]]:
    if connection.dialect.name == "postgresql":
        return f"{order.klass} = ANY(CAST(? AS {_type(wanted)}[])) AND ", (array(wanted.classes),)
    return f"{order.klass} IN ({', '.join('?' * len(wanted.classes))}) AND ", tuple(wanted.classes)


def source(connection: Connection, order: Order, index: str) -> str:
    """The table, for SQLite with the index to use; "": none but that of the numbers."""
    if connection.dialect.name == "postgresql":
        return order.table
    return f"{order.table} INDEXED BY {index}" if index else f"{order.table} NOT INDEXED"


def sorting(order: Order, part: WalkPart) -> str:
    return ", ".join(f"{name} DESC" if order.descending else name for name in part.columns)


# ---- many rows: along the order, as far as the page goes


def by_value(
    connection: Connection, order: Order, wanted: RowFilter, part: WalkPart, passed: Key | None, most: int
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


def _next(connection: Connection, order: Order, wanted: RowFilter, value: Any) -> Any:
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
    named, told = f"unnest(CAST(? AS {_type(wanted)}[])) AS c (klass)", array(wanted.classes)
    if connection.dialect.name == "sqlite":
        named, told = "(SELECT value AS klass FROM json_each(?)) AS c", json.dumps(list(wanted.classes))
    sql = f"SELECT {most}(value) FROM (SELECT ({one}) AS value FROM {named}) AS found"
    return fetched(connection, sql, (wanted.run, *values, told))[0][0]


def heads(
    connection: Connection, order: Order, wanted: RowFilter, part: WalkPart, passed: Key | None, most: int,
    known: "Met | None" = None,
) -> Iterator[Key]:  # fmt: skip
    """Keys in order: the classes' own orders merged. ``known``: what another walk of them met, for a server."""
    if connection.dialect.name == "postgresql":
        beside = wanted.beside and len(wanted.classes) > _SERVED
        return _merged(connection, order, wanted, part, passed, most, beside, known or Met())
    if wanted.beside and len(wanted.classes) > _CLASSES:
        return _looked_at(connection, order, wanted, heads(connection, order, _plain(wanted), part, passed, most), most)
    where, values = conditions(order, wanted, part, passed)
    sql = (
        f"SELECT {', '.join(part.columns)} FROM {order.table} INDEXED BY {order.index} "
        f"WHERE {order.klass} = ? AND {where} ORDER BY {sorting(order, part)}"
    )
    # Cursors, not lists: of a hundred classes each is read only as far as the page takes from it.
    cursors = [cursor_of(connection, sql, (klass, *values)) for klass in wanted.classes]
    return heapq.merge(*cursors, reverse=order.descending)


def _plain(wanted: RowFilter) -> RowFilter:
    return replace(wanted, sql="", values=(), beside=False)


def _looked_at(
    connection: Connection, order: Order, wanted: RowFilter, keys: Iterator[Key], most: int
) -> Iterator[Key]:
    """Those whose rows fit, some at a time: else every class would be searched for what the page takes from few."""
    size = most
    while some := list(islice(keys, size)):
        fit = fitting(connection, order, wanted, [key[-1] for key in some])
        yield from (key for key in some if key[-1] in fit)
        size = min(2 * size, _LOOK)


def fitting(connection: Connection, order: Order, wanted: RowFilter, ids: list[int]) -> set[int]:
    """The rows that match the conditions not covered by the order's index."""
    among, told = listed(connection, ids)
    sql = f"SELECT id FROM {source(connection, order, '')} WHERE id {among.format('?')} AND {wanted.sql}"
    return {row[0] for row in fetched(connection, sql, (told, *wanted.values))}


def listed(connection: Connection, ids: Sequence[int]) -> tuple[str, str]:
    """Is a number one of these? One statement however many they are, with a place for the parameter, and that."""
    if connection.dialect.name == "sqlite":
        return "IN (SELECT value FROM json_each({}))", json.dumps(ids)
    return "= ANY(CAST({} AS bigint[]))", array(ids)


def array(values: Sequence[Any]) -> str:
    """PostgreSQL's array of numbers, or of words that need no quotes: as text it is made in a tenth of the time."""
    return f"{{{','.join(map(str, values))}}}"


@dataclass(slots=True)
class Met:
    """The keys of each class that a walk has read so far, and how many match."""

    classes: Counter[Any] = field(default_factory=Counter)
    keys: int = 0
    fit: int = 0

    def shares(self, wanted: RowFilter, look: int) -> list[int]:
        """How much of each class the next ``look`` keys may hold: alike at first, then by what was met, and more."""
        if not self.keys:
            least = max(_SOME, min(look // 6, 2 * _SOME))
            return [min(look, max(least, 4 * look // len(wanted.classes)))] * len(wanted.classes)
        least = max(1, _SOME // 2)
        return [min(look, least + 3 * look * self.classes[klass] // (2 * self.keys)) for klass in wanted.classes]

    def look(self, left: int, most: int) -> int:
        """How many keys to look at for so many that fit, and not more than ``most``."""
        likely = 5 * left * self.keys // (4 * self.fit) if self.fit else _LOOK
        return max(1, min(likely, most, _LOOK))


def held(connection: Connection, order: Order, wanted: RowFilter, ids: list[int]) -> Met:
    """What is met of these rows: ``wanted.met`` is what fits."""
    among, told = listed(connection, ids)
    sql, values = wanted.met
    sql = f"SELECT {order.klass}, {sql} FROM {source(connection, order, '')} WHERE id {among.format('?')}"
    rows = fetched(connection, sql, (*values, told))
    return Met(Counter(row[0] for row in rows), len(rows), sum(bool(row[1]) for row in rows))


def _merged(
    connection: Connection,
    order: Order,
    wanted: RowFilter,
    part: WalkPart,
    passed: Key | None,
    most: int,
    beside: bool,
    known: Met,
) -> Iterator[Key]:
    """The same of a server: some of each class at a time, as far as no class may have more in between.

    ``beside``: it looks at the rows of what was merged, and not in each class for as many as fit.
    """
    met, found, look = Met(), 0, known.look(most, _LOOK) if known.fit else most
    while True:
        limits = (met if met.keys else known).shares(wanted, look)
        left = dict(zip(wanted.classes, limits, strict=True))
        sql, values = _merging(order, wanted, part, passed, (look, max(limits)), beside)
        rows = fetched(connection, sql, (array(wanted.classes), array(limits), *values))
        keys, fit = met.keys, met.fit
        for *key, klass, fits in rows:
            passed = tuple(key)
            met.classes[klass] += 1
            met.keys += 1
            left[klass] -= 1
            if fits:
                met.fit += 1
                yield passed
            if not left[klass]:
                break
        else:
            if len(rows) < look:
                return
        found += met.fit - fit
        # Who reads on reads more: then rows cost, not questions.
        look = met.look(most - found if found < most else most, 4 * look)
        if beside and len(wanted.classes) <= _CLASSES and 20 * (met.fit - fit) < met.keys - keys:
            # Far between: within few classes the database passes what does not fit at a third of the cost.
            beside, most, met, found = False, max(1, most - found), Met(), 0
            look = most


def _merging(
    order: Order, wanted: RowFilter, part: WalkPart, passed: Key | None, most: tuple[int, int], beside: bool
) -> tuple[str, tuple[Any, ...]]:
    """The statement of a round, after whose classes and limits its values come; ``most``: rows, and of one class."""
    # The number is for the planner, which does not see the classes' own: few rows are best read in order.
    where, values = conditions(order, _plain(wanted) if beside else wanted, part, passed)
    by = sorting(order, part)
    sql = (
        f"SELECT h.*, c.klass, true AS fits FROM unnest(CAST(? AS {_type(wanted)}[]), CAST(? AS bigint[])) "
        f"AS c (klass, most) CROSS JOIN LATERAL (SELECT * FROM (SELECT {', '.join(part.columns)} FROM {order.table} "
        f"WHERE {order.klass} = c.klass AND {where} ORDER BY {by} LIMIT {most[1]}) AS r LIMIT c.most) AS h "
        f"ORDER BY {by} LIMIT {most[0]}"
    )
    if not beside:
        return sql, values
    # Without OFFSET it is a join, for which the server may read the whole table.
    names = ", ".join(f"k.{name}" for name in part.columns)
    looked = f"SELECT {wanted.sql} AS fits FROM {order.table} WHERE id = k.id OFFSET 0"
    ordered = ", ".join(f"k.{one}" for one in by.split(", "))
    whole = f"SELECT {names}, k.klass, f.fits FROM ({sql}) AS k CROSS JOIN LATERAL ({looked}) AS f ORDER BY {ordered}"
    return whole, (*values, *wanted.values)


def _type(wanted: RowFilter) -> str:
    return "bigint" if isinstance(wanted.classes[0], int) else "text"


def conditions(order: Order, wanted: RowFilter, part: WalkPart, passed: Key | None) -> tuple[str, tuple[Any, ...]]:
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
    return [tuple(row) for row in connection.exec_driver_sql(sql, tuple(values)).all()]


def cursor_of(connection: Connection, sql: str, values: Sequence[Any]) -> Iterator[Key]:
    """SQLite's own cursor, which reads rows only on demand."""
    driver: Any = connection.connection.driver_connection
    return iter(driver.execute(sql, tuple(values)))
