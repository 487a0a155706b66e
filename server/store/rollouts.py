"""Rollouts in the store: headers of all, details of some, groups, and what is added up. Times are BIGINT epoch ms."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    func,
    select,
    update,
)
from sqlalchemy import Row as SqlRow

from collectors.model import Consumption, Exit, Rollout, Span, Turn
from server.rollouts.groups import OUTCOMES
from server.rollouts.merge import TIMES
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.rollouts.window import LIVE_MOST
from server.store.bulk import Row, among, clean, upsert
from server.store.engine import Engines
from server.store.rollout_pages import Lookup, Order, RowFilter, cursor_of, fetched, pack, page, unpack
from server.store.tables import Id, common, runs
from server.store.types import Batch, RolloutSum

# ---- fields
# The columns are the fields of the records.

DETAILS = ("turns", "spans")
"""Kept of a few rollouts only, in a table of their own."""

_TIMES_OF_ROWS = {*TIMES, "first_seen", "seen_at", "moved_at", "consumed_at", "first_at", "completed_at"}
_PLAIN = {str: "text", bool: "bool", int: "whole", float: "float"}
_OPTIONAL = {bool: "flag", int: "int", float: "float"}


def _kind(name: str, hint: Any) -> str:
    """Returns how the values of a field are stored: what an absent one is, and how it is written."""
    if name in _TIMES_OF_ROWS:
        return "time" if NoneType in get_args(hint) else "required_time"
    if get_origin(hint) is tuple:
        return "json"
    if NoneType not in get_args(hint):
        return _PLAIN[hint]
    (present,) = (part for part in get_args(hint) if part is not NoneType)
    return "word" if get_origin(present) is Literal else _OPTIONAL[present]


def _kinds(record: type[Struct], names: Iterable[str]) -> dict[str, str]:
    hints = get_type_hints(record)
    return {name: _kind(name, hints[name]) for name in names}


RECORD = _kinds(Rollout, (name for name in Rollout.__struct_fields__ if name not in DETAILS))
"""Columns of a record: all its fields but its details."""

_OWN = RolloutRow.__struct_fields__[len(Rollout.__struct_fields__) :]
_TURNS_AT = _OWN.index("seconds") + 1
ROW = _kinds(RolloutRow, _OWN[:_TURNS_AT]) | {"turns": "int"} | _kinds(RolloutRow, _OWN[_TURNS_AT:])
"""Columns of what follows from a record; `turns` is how many there are (`turn_count`)."""

GROUP = _kinds(RolloutGroupRow, (name for name in RolloutGroupRow.__struct_fields__ if name != "solve_ratio"))
"""Columns of a group."""

COLUMNS = (*RECORD, *ROW)
_NEVER_NULL = frozenset({"text", "word", "bool", "whole", "json", "required_time"})


def nullable(kind: str) -> bool:
    """May a column of this kind be empty?"""
    return kind not in _NEVER_NULL


# One encoder for all: `json.dumps` makes another for every call that wants no blanks.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def compact(value: Any) -> str:
    """JSON without a blank."""
    return _encode(value)


def text(value: str) -> str:
    """As `clean`: what can be printed holds neither a NUL nor half a surrogate pair."""
    return value if value.isprintable() else clean(value)


def _ms(value: float | None) -> int | None:
    return None if value is None else round(value * 1000)


def _seconds(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _versions_text(pairs: Sequence[Sequence[int]]) -> str:
    if len(pairs) == 1 and type(pairs[0][0]) is int and type(pairs[0][1]) is int:
        return f"[[{pairs[0][0]},{pairs[0][1]}]]"
    return compact(pairs) if pairs else ""


_JSON_OUT: Mapping[str, Callable[[Any], str]] = {
    "token_versions": _versions_text,
    "sandbox_ids": lambda names: compact([text(name) for name in names]) if names else "",
    "consumptions": lambda uses: compact([[u.version, _ms(u.at), u.incarnation] for u in uses]) if uses else "",
}


def _token_versions(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((version, tokens) for version, tokens in json.loads(text)) if text else ()


def _sandbox_ids(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text else ()


def _consumptions_of(text: str) -> tuple[Consumption, ...]:
    return tuple(Consumption(v, _seconds(at), life) for v, at, life in json.loads(text)) if text else ()


_JSON_IN: Mapping[str, Callable[[str], Any]] = {
    "token_versions": _token_versions, "sandbox_ids": _sandbox_ids, "consumptions": _consumptions_of,
}  # fmt: skip


def _places(columns: Mapping[str, str], *kinds: str) -> list[int]:
    return [at for at, kind in enumerate(columns.values()) if kind in kinds]


_of_row = attrgetter(*RECORD, *("turn_count" if name == "turns" else name for name in ROW))
_of_group = attrgetter(*GROUP)
_TIMES, _WORDS = _places({**RECORD, **ROW}, "time", "required_time"), _places(RECORD, "word")
_GROUP_TIMES = _places(GROUP, "time", "required_time")
_JSON = [(list(RECORD).index(name), change) for name, change in _JSON_IN.items()]
# The column `turns` is the number of turns; the field is those that are kept.
_PLACES = {name: at for at, name in enumerate((*COLUMNS, *DETAILS))}
_row_made = itemgetter(*(_PLACES[name] for name in RolloutRow.__struct_fields__))


def _texts(column: Sequence[str]) -> Sequence[str]:
    return column if "".join(column).isprintable() else [text(value) for value in column]


def _floats(column: Sequence[float | None]) -> Sequence[float | None]:
    # COPY in its binary form takes a whole number for no float; what is not finite is no measurement.
    return [None if value is None or not math.isfinite(value) else float(value) for value in column]


_CHANGES: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "text": _texts,
    "word": lambda column: [value or "" for value in column],
    "time": lambda column: [None if value is None else round(value * 1000) for value in column],
    "required_time": lambda column: [round(value * 1000) for value in column],
    "float": _floats,
}


class _Out:
    """Turns records into the columns of the table. Column by column: most fields need no change."""

    def __init__(self, fields: Mapping[str, str], values: Callable[[Any], tuple[Any, ...]]) -> None:
        self._values = values
        self._changes = [(at, _CHANGES[kind]) for at, kind in enumerate(fields.values()) if kind in _CHANGES]
        self._json = [(at, _JSON_OUT[name]) for at, name in enumerate(fields) if name in _JSON_OUT]

    def __call__(self, records: Iterable[Struct]) -> list[Sequence[Any]]:
        found: list[Sequence[Any]] = list(zip(*map(self._values, records), strict=True))
        for at, change in self._changes if found else ():
            found[at] = change(found[at])
        for at, encoded in self._json if found else ():
            found[at] = list(map(encoded, found[at]))
        return found


_row_out, _group_out = _Out({**RECORD, **ROW}, _of_row), _Out(GROUP, _of_group)


def row_columns(rows: Iterable[RolloutRow]) -> list[Sequence[Any]]:
    """Returns the columns that the table holds of rows, in the order of `COLUMNS`."""
    return _row_out(rows)


def row_of(values: Sequence[Any], details: tuple[tuple[Turn, ...], tuple[Span, ...]] = ((), ())) -> RolloutRow:
    """Returns the rollout of a row of the table, with what is kept of its turns and spans."""
    found = [*values, *details]
    for at in _TIMES:
        if (time := found[at]) is not None:
            found[at] = time / 1000
    for at in _WORDS:
        found[at] = found[at] or None
    for at, change in _JSON:
        found[at] = change(found[at])
    return RolloutRow(*_row_made(found))


def group_columns(groups: Iterable[RolloutGroupRow]) -> list[Sequence[Any]]:
    """Returns the columns that the table holds of groups, in the order of `GROUP`."""
    return _group_out(groups)


def group_of(values: Sequence[Any]) -> RolloutGroupRow:
    """Returns the group of a row of the table."""
    found = list(values)
    for at in _GROUP_TIMES:
        if (time := found[at]) is not None:
            found[at] = time / 1000
    return RolloutGroupRow(*found)


def turns_text(turns: Sequence[Turn]) -> str:
    """Turns as JSON, by place."""
    rows = [[t.version, t.tool_calls, t.mutated, t.reset, text(t.sandbox_id), text(t.forked_from)] for t in turns]
    return compact(rows) if rows else ""


def spans_text(spans: Sequence[Span]) -> str:
    """Spans as JSON, by place; times in ms."""
    rows = [[s.kind, _ms(s.start), _ms(s.end), s.version, clean(s.detail)] for s in spans]
    return compact(rows) if rows else ""


def _stored_turns(text: str) -> tuple[Turn, ...]:
    """The reverse of `turns_text`."""
    return tuple(starmap(Turn, json.loads(text))) if text else ()


def _stored_spans(text: str) -> tuple[Span, ...]:
    """The reverse of `spans_text`."""
    rows = json.loads(text) if text else ()
    return tuple(Span(kind, start / 1000, _seconds(end), version, detail) for kind, start, end, version, detail in rows)


# Ids are compared byte by byte in both databases: what begins with a text is then a range.
_Name = Text().with_variant(Text(collation="C"), "postgresql")
_KINDS: Mapping[str, Any] = {
    "float": Double, "bool": Boolean, "flag": Boolean, "int": BigInteger, "whole": BigInteger, "time": BigInteger,
    "required_time": BigInteger,
}  # fmt: skip


def _columns(fields: Mapping[str, str]) -> list[Column[Any]]:
    return [
        Column(
            name, _Name if name in ("rollout_id", "group_id") else _KINDS.get(kind, Text),
            nullable=nullable(kind),
        )
        for name, kind in fields.items()
    ]  # fmt: skip


# No foreign keys, as for all hot tables.
def _run() -> Column[int]:
    return Column("run", BigInteger, nullable=False)


rollout_classes = Table(
    "rollout_classes",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    Column("environment", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("state", Text, nullable=False),
    # -1: not reported.
    Column("mixed", Integer, nullable=False),
    UniqueConstraint("run", "environment", "purpose", "state", "mixed", name="uq_rollout_classes_key"),
)

rollouts = Table(
    "rollouts",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    # Everything that pages are filtered by, as one number: one index per order then serves every filter.
    Column("class", BigInteger, nullable=False),
    *_columns(RECORD),
    *_columns(ROW),
    UniqueConstraint("run", "rollout_id", "life", name="uq_rollouts_key"),
    Index("ix_rollouts_group", "run", "group_id", "life"),
    Index("ix_rollouts_moved", "run", "class", "moved_at", "id"),
    *(
        Index(f"ix_rollouts_{name}", "run", "class", name, "moved_at", "id")
        for name in ("seconds", "response_tokens", "staleness", "reward")
    ),
)

rollout_consumptions = Table(
    "rollout_consumptions",
    common,
    _run(),
    Column("rollout_id", _Name, nullable=False),
    Column("life", BigInteger, nullable=False),
    # -1: not reported.
    Column("version", BigInteger, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("at", BigInteger),
    PrimaryKeyConstraint("run", "rollout_id", "life", "version", "incarnation", name="pk_rollout_consumptions"),
    Index("ix_rollout_consumptions_version", "run", "life", "version"),
    sqlite_with_rowid=False,
)

rollout_details = Table(
    "rollout_details",
    common,
    _run(),
    Column("rollout_id", _Name, nullable=False),
    Column("life", BigInteger, nullable=False),
    Column("turns", Text, nullable=False),
    Column("spans", Text, nullable=False),
    PrimaryKeyConstraint("run", "rollout_id", "life", name="pk_rollout_details"),
)

rollout_groups = Table(
    "rollout_groups",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    *_columns(GROUP),
    UniqueConstraint("run", "group_id", "life", name="uq_rollout_groups_key"),
    Index("ix_rollout_groups_moved", "run", "outcome", "moved_at", "id"),
    Index("ix_rollout_groups_environment", "run", "environment", "outcome", "moved_at", "id"),
)

rollout_sums = Table(
    "rollout_sums",
    common,
    _run(),
    # The bucket's width in ms, which names the tier.
    Column("tier", BigInteger, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("exit", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("rollouts", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("response_tokens", BigInteger, nullable=False),
    Column("loss_tokens", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("told", BigInteger, nullable=False, server_default="0"),
    PrimaryKeyConstraint("run", "tier", "bucket", "exit", "environment", "purpose", name="pk_rollout_sums"),
    sqlite_with_rowid=False,
)

rollout_bins = Table(
    "rollout_bins",
    common,
    _run(),
    Column("tier", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("bin", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "tier", "kind", "bucket", "bin", name="pk_rollout_bins"),
    sqlite_with_rowid=False,
)


# ---- bins
# Distributions over time: bins of minutes or hours, added up by the column of a drawing they fall into.

Bin = tuple[int, int, int]
"""(column's start in ms, bin, how many)."""

_WHERE = "run = ? AND tier = ? AND kind = ? AND bucket >= ? AND bucket < ? AND n > 0"


def columns(connection: Connection, run: int, kind: str, tier: int, span: tuple[int, int], width: int) -> list[Bin]:
    """By column and bin; ``width`` is a multiple of ``tier``, all times are epoch ms."""
    low, high = span[0] // tier * tier, span[1]
    if width > tier and connection.dialect.name == "sqlite":
        return _by_column(connection, (run, tier, kind), (low, high), width)
    column, count, group = "bucket", "n", ""
    if width > tier:
        column, count, group = f"bucket / {width} * {width}", "CAST(sum(n) AS bigint)", " GROUP BY 1, 2"
    sql = f"SELECT {column}, bin, {count} FROM rollout_bins WHERE {_WHERE}{group} ORDER BY 1, 2"
    return [(at, number, n) for at, number, n in fetched(connection, sql, (run, tier, kind, low, high))]


def _by_column(connection: Connection, key: tuple[int, int, str], span: tuple[int, int], width: int) -> list[Bin]:
    # Column by column: SQLite sorts what it groups, and many short sorts take half as long as a long one.
    low, high = span
    sql = f"SELECT bin, sum(n) FROM rollout_bins WHERE {_WHERE} GROUP BY bin ORDER BY bin"
    return [
        (at, number, n)
        for at in range(low // width * width, high, width)
        for number, n in cursor_of(connection, sql, (*key, max(at, low), min(at + width, high)))
    ]


# ---- write
# Rollouts into the database, in the transaction of the cursor, or of the push, that they came with.

ENVIRONMENTS = 100
"""So many have classes of their own; what is beyond them shares one, so that names without end cost no page."""

OTHER = "*"
AMOUNTS = ("rollouts", "prompt_tokens", "response_tokens", "loss_tokens", "told", "seconds")
_SUM_KEY = ("tier", "bucket", "exit", "environment", "purpose")
_BIN_KEY = ("tier", "kind", "bucket", "bin")
_CLASS = ("environment", "purpose", "state", "mixed")
_KEY = ("run", "rollout_id", "life")
_CHANGING = ("class", *(name for name in COLUMNS if name not in ("rollout_id", "life", "first_seen")))
_GROUP_CHANGING = tuple(name for name in GROUP if name not in ("group_id", "life"))

ClassKey = tuple[str, str, str, int]
"""(environment, purpose, state, mixed: -1 not reported)."""


def write(connection: Connection, batch: Batch, run: int) -> None:
    """Store a batch's rollouts, groups and increments. The run's row is locked."""
    if batch.rollouts:
        _headers(connection, batch.rollouts, run)
        _consumptions(connection, batch.rollouts, run)
        _details(connection, batch.rollouts, run)
    groups = _rows([run] * len(batch.rollout_groups), *group_columns(batch.rollout_groups))
    upsert(connection, rollout_groups, ("run", *GROUP), groups, _GROUP_CHANGING)
    if batch.rollout_sums or batch.rollout_bins:
        _increments(connection, batch, run)


def _headers(connection: Connection, rows: Sequence[RolloutRow], run: int) -> None:
    keys = [_class_of(row) for row in rows]
    classes = _classes(connection, set(keys), run)
    found = _rows([run] * len(rows), [classes[key] for key in keys], *row_columns(rows))
    upsert(connection, rollouts, ("run", "class", *COLUMNS), found, _CHANGING)


def _rows(*columns: Sequence[Any]) -> list[Row]:
    return list(zip(*columns, strict=True))


def _class_of(row: RolloutRow) -> ClassKey:
    mixed = -1 if row.mixed is None else int(row.mixed)
    return text(row.environment), row.purpose or "", row.state, mixed


def _classes(connection: Connection, wanted: set[ClassKey], run: int) -> dict[ClassKey, int]:
    """The number of each class, created where new."""
    classes = known_classes(connection, run)
    if new := wanted - classes.keys():
        names = {key[0] for key in classes}
        made = {key: _placed(key, names) for key in sorted(new)}
        upsert(connection, rollout_classes, ("run", *_CLASS), [(run, *key) for key in set(made.values())])
        classes = known_classes(connection, run)
        classes.update({key: classes[place] for key, place in made.items()})
    return classes


def _placed(key: ClassKey, names: set[str]) -> ClassKey:
    if key[0] in names or len(names) < ENVIRONMENTS:
        names.add(key[0])
        return key
    return (OTHER, *key[1:])


def known_classes(connection: Connection, run: int) -> dict[ClassKey, int]:
    """(environment, purpose, state, mixed) -> number."""
    c = rollout_classes.c
    rows = connection.execute(select(c.environment, c.purpose, c.state, c.mixed, c.id).where(c.run == run)).all()
    return {(row[0], row[1], row[2], row[3]): row[4] for row in rows}


def _consumptions(connection: Connection, rows: Iterable[RolloutRow], run: int) -> None:
    found: list[Row] = [
        (
            run, text(row.rollout_id), row.life, -1 if use.version is None else use.version,
            -1 if use.incarnation is None else use.incarnation, None if use.at is None else round(use.at * 1000),
        )
        for row in rows for use in row.consumptions
    ]  # fmt: skip
    upsert(connection, rollout_consumptions, (*_KEY, "version", "incarnation", "at"), found, ("at",))


def _details(connection: Connection, rows: Iterable[RolloutRow], run: int) -> None:
    """Turns and spans of those that keep them; of one that keeps them no more they go."""
    kept: list[Row] = []
    gone: list[Row] = []
    for row in {(row.rollout_id, row.life): row for row in rows}.values():
        key = (run, text(row.rollout_id), row.life)
        if row.detailed:
            kept.append((*key, turns_text(row.turns), spans_text(row.spans)))
        else:
            gone.append(key)
    upsert(connection, rollout_details, (*_KEY, "turns", "spans"), kept, ("turns", "spans"))
    if not gone:
        return
    if connection.dialect.name == "postgresql":
        sql = (
            "DELETE FROM rollout_details d USING unnest(%s::bigint[], %s::text[], %s::bigint[]) AS g (run, id, life) "
            "WHERE d.run = g.run AND d.rollout_id = g.id AND d.life = g.life"
        )
        connection.exec_driver_sql(sql, tuple(list(column) for column in zip(*gone, strict=True)))
        return
    connection.exec_driver_sql("DELETE FROM rollout_details WHERE run = ? AND rollout_id = ? AND life = ?", gone)


def _increments(connection: Connection, batch: Batch, run: int) -> None:
    """Adds the increments once: a commit whose answer was lost is retried with the same batch."""
    if connection.execute(select(runs.c.applied).where(runs.c.id == run)).scalar() == batch.token:
        return
    sums: dict[Row, list[float]] = defaultdict(lambda: [0, 0, 0, 0, 0, 0.0])
    for one in batch.rollout_sums:
        held = sums[(run, one.tier, one.bucket, one.exit, clean(one.environment), one.purpose)]
        for at, name in enumerate(AMOUNTS):
            held[at] += getattr(one, name)
    bins: dict[Row, int] = defaultdict(int)
    for cell in batch.rollout_bins:
        bins[(run, cell.tier, cell.kind, cell.bucket, cell.bin)] += cell.n
    added: list[Row] = [(*key, *held[:-1], float(held[-1])) for key, held in sums.items()]
    upsert(connection, rollout_sums, ("run", *_SUM_KEY, *AMOUNTS), added, add=AMOUNTS)
    counted: list[Row] = [(*key, n) for key, n in bins.items() if n]
    upsert(connection, rollout_bins, ("run", *_BIN_KEY, "n"), counted, add=("n",))
    connection.execute(update(runs).where(runs.c.id == run).values(applied=batch.token))


LEAVING = frozenset((*get_args(Exit), "ended"))
"""States of rollouts that are not in flight: `collectors.model.Exit`, and ended without a reported use."""

DEFAULT = "train"
"""Purpose of a rollout that reports none: `collectors.model.Purpose`."""

# Milliseconds.
MINUTE = 60_000
HOUR = 3_600_000
"""Tiers of sums and bins, in ms."""


@dataclass(frozen=True, slots=True)
class Find:
    """Which rollouts; see `server.query.types.RolloutFilter`. Times are epoch ms."""

    states: Collection[str] = ()
    environment: str = ""
    purpose: str = ""
    group: str = ""
    find: str = ""
    mixed: bool | None = None
    start: int | None = None
    end: int | None = None

    def wanted(self, run: int, known: Mapping[ClassKey, int], order: Order) -> RowFilter:
        """The same for a page."""
        names = {key[0] for key in known}
        environment = clean(self.environment)
        place = environment if environment in names or not environment else OTHER
        classes = [
            number for key, number in known.items()
            if (not self.states or key[2] in self.states) and (not place or key[0] == place)
            and self.purpose in ("", key[1] or DEFAULT) and (self.mixed is None or key[3] == self.mixed)
        ]  # fmt: skip
        wanted = RowFilter(run, sorted(classes), self.start, self.end)
        if place != environment:
            wanted = wanted.also("environment = ?", (environment,))
        return self._looked_up(wanted, order)

    def _looked_up(self, wanted: RowFilter, order: Order) -> RowFilter:
        if self.group:
            group = ("group_id = ?", (clean(self.group),))
            wanted = replace(wanted, lookups=(Lookup("ix_rollouts_group", *group),), met=group)
        if self.find:
            span = (clean(self.find), clean(self.find) + _LAST)
            found = tuple(Lookup(index, _BEGINS.format(name), span, name) for name, index in _IDS.items())
            condition = f"({' OR '.join(f'({one.sql})' for one in found)})"
            if self.group:
                return wanted.also(condition, (*span, *span))
            return replace(wanted, lookups=found, met=(condition, (*span, *span)))
        timed = order.column and (self.start is not None or self.end is not None)
        return replace(wanted, window="ix_rollouts_moved") if timed else wanted


_BEGINS = "{0} >= ? AND {0} < ?"
# SQLite names the index of a unique constraint itself.
_IDS = {"rollout_id": "sqlite_autoindex_rollouts_1", "group_id": "ix_rollouts_group"}
# Nothing that begins with a text comes after it with this behind.
_LAST = "\U0010ffff"


def order_of(sort: str, descending: bool) -> Order:
    """The order of a page by one of `server.query.types.SORTS`."""
    column, ties = "" if sort == "moved" else sort, sort in ("staleness", "reward")
    return Order("rollouts", f"ix_rollouts_{sort}", "class", column, descending, ties)


class RolloutStore:
    """Reached as `Store.rollouts`; safe to share between threads. What a run does not have reads as empty."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def get(self, run: str, ids: Collection[str]) -> list[RolloutRow]:
        """Every incarnation of these rollouts, the oldest first, with their stored turns and spans."""
        names = sorted({clean(one) for one in ids})
        found = self._rows(run, among(rollouts.c.rollout_id, names), detailed=True) if names else []
        return sorted(found, key=lambda row: (row.rollout_id, row.life))

    def live(self, run: str, most: int = LIVE_MOST) -> list[RolloutRow]:
        """Rollouts in flight, of any incarnation, with details; of more than ``most`` those that moved last."""
        with self._engines.reading() as connection:
            number, classes = _known(connection, run)
            wanted = [number for key, number in classes.items() if key[2] not in LEAVING]
            c = rollouts.c
            query = _select().where(c.run == number, c["class"].in_(wanted))
            return _with_details(connection, number, query.order_by(c.moved_at.desc()).limit(most))

    def members(self, run: str, keys: Collection[tuple[str, int]]) -> list[RolloutRow]:
        """All members of these groups of (group_id, life), without details."""
        wanted = {(clean(group), life) for group, life in keys}
        named = among(rollouts.c.group_id, sorted({group for group, _ in wanted}))
        rows = self._rows(run, named) if wanted else []
        return [row for row in rows if (row.group_id, row.life) in wanted]

    def recent(self, run: str, since_ms: int, most: int = LIVE_MOST) -> list[RolloutRow]:
        """What moved at or after ``since_ms``, oldest first, without details; of too many the newest."""
        c = rollouts.c
        with self._engines.reading() as connection:
            number, known = _known(connection, run)
            classes = list(known.values())
            query = _select().where(c.run == number, c["class"].in_(classes), c.moved_at >= since_ms)
            rows = connection.execute(query.order_by(c.moved_at.desc(), c.id.desc()).limit(most)).all()
        return [row_of(row[1:]) for row in reversed(rows)]

    def within(self, run: str, start: int, end: int, most: int) -> list[RolloutRow]:
        """What moved last within [start, end), oldest first, with details; of more than ``most`` the newest."""
        c = rollouts.c
        with self._engines.reading() as connection:
            number, known = _known(connection, run)
            classes = list(known.values())
            query = _select().where(c.run == number, c["class"].in_(classes), c.moved_at >= start, c.moved_at < end)
            rows = _with_details(connection, number, query.order_by(c.moved_at.desc(), c.id.desc()).limit(most))
        return rows[::-1]

    def versions(self, run: str, last: int, most: int = LIVE_MOST) -> list[RolloutRow]:
        """Rollouts consumed at the newest ``last`` versions (of the newest incarnations), without details."""
        c = rollout_consumptions.c
        with self._engines.reading() as connection:
            number = _number(connection, run)
            places = select(c.life, c.version).where(c.run == number, c.version >= 0).distinct()
            newest = connection.execute(places.order_by(c.life.desc(), c.version.desc()).limit(last)).all()
            wanted: dict[tuple[str, int], None] = {}
            for life, version in newest:
                ids = select(c.rollout_id).where(c.run == number, c.life == life, c.version == version).limit(most)
                wanted.update(((name, life), None) for name in connection.execute(ids).scalars())
            # Not joined in SQL: without statistics PostgreSQL reads the run's rollouts for each of these versions and
            # searches the consumptions for each rollout (2 s a version at 60,000 rollouts).
            named = among(rollouts.c.rollout_id, sorted({name for name, _ in wanted}))
            rows = connection.execute(_select().where(rollouts.c.run == number, named)).all() if wanted else []
        found = {(row.rollout_id, row.life): row for row in (row_of(row[1:]) for row in rows)}
        return [found[key] for key in wanted if key in found]

    def groups(self, run: str, keys: Collection[tuple[str, int]]) -> list[RolloutGroupRow]:
        """These groups of (group_id, life)."""
        wanted = {(clean(group), life) for group, life in keys}
        c = rollout_groups.c
        with self._engines.reading() as connection:
            named = among(c.group_id, sorted({group for group, _ in wanted}))
            query = _select_groups().where(c.run == _number(connection, run), named)
            found = [group_of(row[1:]) for row in connection.execute(query)]
        return [group for group in found if (group.group_id, group.life) in wanted]

    def recent_groups(self, run: str, since_ms: int, most: int = LIVE_MOST) -> list[RolloutGroupRow]:
        """Groups that moved at or after ``since_ms``, oldest first; of too many the newest."""
        c = rollout_groups.c
        with self._engines.reading() as connection:
            query = _select_groups().where(
                c.run == _number(connection, run), c.outcome.in_(OUTCOMES), c.moved_at >= since_ms
            )
            rows = connection.execute(query.order_by(c.moved_at.desc(), c.id.desc()).limit(most)).all()
        return [group_of(row[1:]) for row in reversed(rows)]

    # -- pages

    def page(self, run: str, find: Find, order: Order, after: str, limit: int) -> tuple[list[RolloutRow], str, bool]:
        """Rows of an order (`order_of`), without details, the key of the next page ("": there is none), and whether
        all that fit are found so; of too many with one beginning of an id they are not.

        Raises:
            BadKey: ``after`` is no key of this order.
        """
        place = unpack(order, after)
        with self._engines.reading() as connection:
            ids, rest, complete = page(connection, order, find.wanted(*_known(connection, run), order), place, limit)
            rows = _by_id(connection, rollouts, ids)
        found = [row_of(rows[one][1:]) for one in ids if one in rows]
        return found, pack(order, rest) if rest else "", complete

    def group_page(
        self, run: str, outcomes: Collection[str], environment: str, after: str, limit: int
    ) -> tuple[list[RolloutGroupRow], str]:
        """Groups, the newest moved first, and the key of the next page ("": there is none).

        Raises:
            BadKey: ``after`` is no key of this order.
        """
        index = "ix_rollout_groups_environment" if environment else "ix_rollout_groups_moved"
        order = Order("rollout_groups", index, "outcome", "", True)
        place = unpack(order, after)
        classes = [one for one in OUTCOMES if not outcomes or one in outcomes]
        with self._engines.reading() as connection:
            wanted = RowFilter(_number(connection, run), classes)
            if environment:
                wanted = replace(wanted, sql="environment = ?", values=(clean(environment),))
            ids, rest, _ = page(connection, order, wanted, place, limit)
            rows = _by_id(connection, rollout_groups, ids)
        return [group_of(rows[one][1:]) for one in ids if one in rows], pack(order, rest) if rest else ""

    # -- what is added up

    def sums(self, run: str, start: int, end: int) -> list[RolloutSum]:
        """What left in the minutes that begin within [start, end), added up by exit, environment and purpose.

        Whole hours come from the coarse tier; the sums' own tier and bucket are those of the question.
        """
        c = rollout_sums.c
        names = (c.exit, c.environment, c.purpose)
        totals: dict[tuple[str, str, str], list[Any]] = defaultdict(lambda: [0, 0, 0, 0, 0, 0.0])
        with self._engines.reading() as connection:
            number = _number(connection, run)
            for tier, low, high in spans_of(start, end):
                query = select(*names, *(func.sum(c[name]) for name in AMOUNTS)).where(
                    c.run == number, c.tier == tier, c.bucket >= low, c.bucket < high
                )
                for exit_, environment, purpose, *amounts in connection.execute(query.group_by(*names)):
                    held = totals[(exit_, environment, purpose)]
                    held[:] = [old + new for old, new in zip(held, amounts, strict=True)]
        return [
            RolloutSum(
                end - start, start, *key, int(held[0]), int(held[1]), int(held[2]), int(held[3]), float(held[5]),
                int(held[4]),
            )
            for key, held in sorted(totals.items()) if any(held)
        ]  # fmt: skip

    def first_sum(self, run: str) -> int | None:
        """The bucket (ms) in which the run's first recorded rollout left; None without any."""
        c = rollout_sums.c
        with self._engines.reading() as connection:
            number = _number(connection, run)
            firsts = [
                connection.execute(select(func.min(c.bucket)).where(c.run == number, c.tier == tier)).scalar()
                for tier in (MINUTE, HOUR)
            ]
        moments = [int(first) for first in firsts if first is not None]
        if len(moments) < 2:
            return next(iter(moments), None)
        minute, hour = moments
        # Minutes are kept for a shorter time than hours: the hour that holds the first minute began before it.
        return minute if minute - hour < HOUR else hour

    def bins(self, run: str, kind: str, start: int, end: int, width: int) -> list[tuple[int, int, int]]:
        """(column's start, bin, how many) of the buckets that begin within [start, end), of the tier that suits.

        Columns begin at multiples of ``width`` (ms, of whole buckets).
        """
        tier = HOUR if width >= HOUR else MINUTE
        with self._engines.reading() as connection:
            return columns(connection, _number(connection, run), kind, tier, (start, end), width)

    def census(self, run: str, life: int) -> list[tuple[str, str, int, int]]:
        """(state, purpose, count, start of the oldest) of rollouts in flight, of one incarnation."""
        c = rollouts.c
        with self._engines.reading() as connection:
            number, classes = _known(connection, run)
            live = {n: key for key, n in classes.items() if key[2] not in LEAVING}
            query = select(c["class"], func.count(), func.min(c.moved_at)).where(
                c.run == number, c["class"].in_(list(live)), c.life == life
            )
            found: dict[tuple[str, str], tuple[int, int]] = {}
            for klass, count, oldest in connection.execute(query.group_by(c["class"])):
                key = (live[klass][2], live[klass][1])
                before = found.get(key, (0, oldest))
                found[key] = (before[0] + count, min(before[1], oldest))
        return [(*key, *held) for key, held in found.items()]

    def environments(self, run: str) -> list[str]:
        """Names of environments, sorted; at most `ENVIRONMENTS`, and `OTHER` for those beyond."""
        with self._engines.reading() as connection:
            return sorted({key[0] for key in _known(connection, run)[1] if key[0]})

    def newest_life(self, run: str) -> int:
        """The newest incarnation of any rollout; 0 without rollouts."""
        c, k = rollouts.c, rollout_classes.c
        with self._engines.reading() as connection:
            number = _number(connection, run)
            # The rollout of each class that moved last: one look-up per class, independent of the number of rollouts.
            last = select(c.life).where(c.run == number, c["class"] == k.id).order_by(c.moved_at.desc()).limit(1)
            newest = select(last.scalar_subquery().label("life")).where(k.run == number).subquery()
            return connection.execute(select(func.max(newest.c.life))).scalar() or 0

    def _rows(self, run: str, where: ColumnElement[bool], *, detailed: bool = False) -> list[RolloutRow]:
        with self._engines.reading() as connection:
            number = _number(connection, run)
            query = _select().where(rollouts.c.run == number, where)
            if detailed:
                return _with_details(connection, number, query)
            return [row_of(row[1:]) for row in connection.execute(query)]


def _number(connection: Connection, run: str) -> int:
    return connection.execute(select(runs.c.id).where(runs.c.name == run)).scalar() or -1


_k = rollout_classes.c
_KNOWN = (
    select(runs.c.id, _k.environment, _k.purpose, _k.state, _k.mixed, _k.id)
    .select_from(runs.outerjoin(rollout_classes, _k.run == runs.c.id))
    .where(runs.c.name == bindparam("run"))
)


def _known(connection: Connection, run: str) -> tuple[int, dict[ClassKey, int]]:
    """A run's number (-1: there is none), and that of each of its classes."""
    rows = connection.execute(_KNOWN, {"run": run}).all()
    classes = {(row[1], row[2], row[3], row[4]): row[5] for row in rows if row[5] is not None}
    return rows[0][0] if rows else -1, classes


_ALL = (rollouts.c.id, *(rollouts.c[name] for name in COLUMNS))
_ALL_GROUPS = (rollout_groups.c.id, *(rollout_groups.c[name] for name in GROUP))


def _select() -> Select[Any]:
    return select(*_ALL)


def _select_groups() -> Select[Any]:
    return select(*_ALL_GROUPS)


def _by_id(connection: Connection, table: Table, ids: Sequence[int]) -> dict[int, SqlRow[Any]]:
    query = _select() if table is rollouts else _select_groups()
    return {row[0]: row for row in connection.execute(query.where(among(table.c.id, ids))).all()}


def _with_details(connection: Connection, run: int, query: Select[Any]) -> list[RolloutRow]:
    rows = connection.execute(query).all()
    places = {name: at for at, name in enumerate(("id", *COLUMNS))}
    name, life, flag = places["rollout_id"], places["life"], len(places) - 1
    ids = sorted({row[name] for row in rows if row[flag]})
    d = rollout_details.c
    details = select(d.rollout_id, d.life, d.turns, d.spans).where(d.run == run, among(d.rollout_id, ids))
    told = connection.execute(details) if ids else ()
    found = {(one[0], one[1]): (_stored_turns(one[2]), _stored_spans(one[3])) for one in told}
    return [row_of(row[1:], found.get((row[name], row[life]), ((), ()))) for row in rows]


def spans_of(start: int, end: int) -> list[tuple[int, int, int]]:
    """(tier, from, to): whole hours in the middle, minutes before and after; each minute once."""
    low, high = -(-start // HOUR) * HOUR, end // HOUR * HOUR
    if low >= high:
        return [(MINUTE, start // MINUTE * MINUTE, end)]
    return [(MINUTE, start // MINUTE * MINUTE, low), (HOUR, low, high), (MINUTE, high, end)]
