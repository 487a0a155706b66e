"""The tables of rollouts, as `server.store.tables` has the others. Times are BIGINT epoch milliseconds."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from collectors.model import Consumption, Rollout, Span, Turn
from server.rollouts.merge import TIMES
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.store.bulk import clean
from server.store.tables import Id, common

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

GROUP = _kinds(RolloutGroupRow, RolloutGroupRow.__struct_fields__)
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


def _consumptions(text: str) -> tuple[Consumption, ...]:
    return tuple(Consumption(v, _seconds(at), life) for v, at, life in json.loads(text)) if text else ()


_JSON_IN: Mapping[str, Callable[[str], Any]] = {
    "token_versions": _token_versions, "sandbox_ids": _sandbox_ids, "consumptions": _consumptions,
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


def columns(rows: Iterable[RolloutRow]) -> list[Sequence[Any]]:
    """Returns the columns that the table holds of rows, in the order of `COLUMNS`."""
    return _row_out(rows)


def row(values: Sequence[Any], details: tuple[tuple[Turn, ...], tuple[Span, ...]] = ((), ())) -> RolloutRow:
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


def group(values: Sequence[Any]) -> RolloutGroupRow:
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


def turns_of(text: str) -> tuple[Turn, ...]:
    """The reverse of `turns_text`."""
    return tuple(starmap(Turn, json.loads(text))) if text else ()


def spans_of(text: str) -> tuple[Span, ...]:
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
