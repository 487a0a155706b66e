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
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Connection

# ---- walk
# Along an order of rows: its classes' own orders merged, and what of them fits further conditions.

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
        place, last, pays = 0, value, within is not None
        for place, key in enumerate(heads(connection, order, wanted, alike(order, "= ?", value), within, most), 1):  # noqa: B007
            yield (value, *key)
        pays, within = pays or place >= _TIES, None
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
    named, bound = f"unnest(CAST(? AS {_type(wanted)}[])) AS c (klass)", array(wanted.classes)
    if connection.dialect.name == "sqlite":
        named, bound = "(SELECT value AS klass FROM json_each(?)) AS c", json.dumps(list(wanted.classes))
    sql = f"SELECT {most}(value) FROM (SELECT ({one}) AS value FROM {named}) AS found"
    return fetched(connection, sql, (wanted.run, *values, bound))[0][0]


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
    among, values = listed(connection, ids)
    sql = f"SELECT id FROM {source(connection, order, '')} WHERE id {among.format('?')} AND {wanted.sql}"
    return {row[0] for row in fetched(connection, sql, (values, *wanted.values))}


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
    parameters: list[Any] = []
    for lookup in lookups:
        classes, values = classes_of(connection, order, wanted) if lookup.index == wanted.window else ("", ())
        parts.append(
            f"(SELECT count(*) FROM (SELECT 1 FROM {source(connection, order, lookup.index)} "
            f"WHERE run = ? AND {classes}{lookup.sql} LIMIT {most}) AS found)"
        )
        parameters += (wanted.run, *values, *lookup.values)
    return fetched(connection, f"SELECT {', '.join(parts)}", parameters)[0]


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
