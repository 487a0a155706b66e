"""Many rows into one table: one path per dialect, where it pays.

Measured: SQLite through Core with dicts is 0.3 x raw `executemany`, through `exec_driver_sql` with tuples 1.0 x.
PostgreSQL: Core 48 k rows/s, COPY to a temporary table and INSERT ... ON CONFLICT 223 k. Plain COPY is faster
still, but not idempotent, and a retry after a lost connection must be harmless.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Double,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from collectors.model import Labels
from server.store.engine import unusable

Row = tuple[Any, ...]

COPY_FROM = 64
"""Rows from which COPY beats pipelined statements: it costs four round trips for any number of rows."""

_TYPES = ((BigInteger, "int8"), (Integer, "int4"), (Double, "float8"), (LargeBinary, "bytea"), (Text, "text"))


@lru_cache(maxsize=256)
def _insert_sql(
    table: Table, columns: tuple[str, ...], update: tuple[str, ...], source: str, add: tuple[str, ...] = ()
) -> str:
    keys = ", ".join(_keys(table))
    sums = [f"{name} = {table.name}.{name} + excluded.{name}" for name in add]
    changes = ", ".join([*(f"{name} = excluded.{name}" for name in update), *sums])
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    return f"INSERT INTO {table.name} ({', '.join(columns)}) {source} ON CONFLICT ({keys}) DO {action}"


def _keys(table: Table) -> tuple[str, ...]:
    """The key that makes a row the same row: a unique constraint where the primary key is a bare number."""
    primary = tuple(column.name for column in table.primary_key.columns)
    if primary != ("id",):
        return primary
    unique = next((c for c in table.constraints if isinstance(c, UniqueConstraint)), table.primary_key)
    return tuple(column.name for column in unique.columns)


def upsert(
    connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Row], update: Sequence[str] = (),
    add: Sequence[str] = (),
) -> None:  # fmt: skip
    """Insert ``rows`` (in the order of ``columns``). A row that is there keeps its values but those in ``update``.

    Of several rows with one key, the first wins without ``update``, the last with it. To values in ``add`` those of the
    row are added: then each key may come once.
    """
    listed = rows if isinstance(rows, list) else list(rows)
    if not listed:
        return
    columns, update, add = tuple(columns), tuple(update), tuple(add)
    if connection.dialect.name == "postgresql":
        _postgres(connection, table, columns, listed, update, add)
        return
    marks = ", ".join("?" * len(columns))
    connection.exec_driver_sql(_insert_sql(table, columns, update, f"VALUES ({marks})", add), listed)


def _postgres(
    connection: Connection, table: Table, columns: tuple[str, ...], rows: list[Row], update: tuple[str, ...],
    add: tuple[str, ...],
) -> None:  # fmt: skip
    if update:
        rows = _last_of_each(table, columns, rows)
    if len(rows) < COPY_FROM:
        marks = ", ".join(["%s"] * len(columns))
        connection.exec_driver_sql(_insert_sql(table, columns, update, f"VALUES ({marks})", add), rows)
        return
    # COPY cannot skip existing rows; INSERT from a temporary table can.
    load = _load_table(connection, table, columns)
    _copy(
        connection, f"COPY {load} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)", _type_names(table, columns), rows
    )
    connection.exec_driver_sql(_insert_sql(table, columns, update, f"SELECT {', '.join(columns)} FROM {load}", add))
    # Emptied here and not by ON COMMIT: one transaction may load the same table for several runs.
    connection.exec_driver_sql(f"TRUNCATE {load}")


def _copy(connection: Connection, sql: str, types: list[str], rows: list[Row]) -> None:
    """Runs psycopg's COPY, which SQLAlchemy does not offer; its errors are raised as SQLAlchemy's."""
    driver: Any = connection.connection
    error_class: Any = connection.dialect.loaded_dbapi.Error
    try:
        with driver.cursor() as cursor, cursor.copy(sql) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)
    except error_class as error:
        lost = bool(driver.closed)
        if lost:
            connection.invalidate(error)
        if (cause := unusable(error)) is not None:
            raise cause from error
        # Else the writer would take a lost connection for a bad batch, and not try again.
        raise DBAPIError.instance(sql, (), error, error_class, connection_invalidated=lost) from error


def _last_of_each(table: Table, columns: tuple[str, ...], rows: list[Row]) -> list[Row]:
    """PostgreSQL refuses to update one row twice in one statement."""
    places = [columns.index(name) for name in _keys(table)]
    return list({tuple(row[place] for place in places): row for row in rows}.values())


def _load_table(connection: Connection, table: Table, columns: tuple[str, ...]) -> str:
    """A temporary table of this connection with these columns; created again after a rollback removed it."""
    name = f"load_{table.name}"
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} AS SELECT {', '.join(columns)} FROM {table.name} WITH NO DATA"
    )
    return name


@lru_cache(maxsize=64)
def _type_names(table: Table, columns: tuple[str, ...]) -> list[str]:
    return [_type_name(table, name) for name in columns]


def _type_name(table: Table, column: str) -> str:
    kind = table.columns[column].type
    return next((name for cls, name in _TYPES if isinstance(kind, cls)), "bool")


def clean(text: str) -> str:
    """Text from outside as a database takes it: PostgreSQL refuses NUL, both refuse half a surrogate pair."""
    return text.replace("\0", "").encode(errors="replace").decode()


# ---- in list
# Is a column one of many values? One statement however many there are.


class _List(TypeDecorator[Any]):
    """A list in one parameter: SQLite takes it apart as JSON, PostgreSQL has arrays.

    Not as the text of an array: reading one is no constant to PostgreSQL, which may then do it for every row.
    """

    impl = Text
    cache_ok = True

    def __init__(self, numbers: bool) -> None:
        super().__init__()
        self.numbers = numbers

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        array = ARRAY(BigInteger if self.numbers else Text)
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else array)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return json.dumps(value) if dialect.name == "sqlite" else value


class _Among(FunctionElement[Any]):
    # Untyped: SQLAlchemy compares a boolean with 1 on SQLite, and then no index is used.
    inherit_cache = True


def among(column: Column[Any], values: Iterable[int] | Iterable[str]) -> ColumnElement[Any]:
    """``column`` (of numbers or of text) is one of ``values``; of none it never is."""
    return _Among(column, bindparam(None, list(values), _List(isinstance(column.type, Integer))))


@compiles(_Among, "sqlite")
def _sqlite(element: _Among, compiler: SQLCompiler, **options: Any) -> str:
    column, value = (compiler.process(part, **options) for part in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({value}))"


@compiles(_Among, "postgresql")
def _postgresql(element: _Among, compiler: SQLCompiler, **options: Any) -> str:
    column, value = (compiler.process(part, **options) for part in element.clauses)
    return f"{column} = ANY({value})"


# ---- labels
# Labels as JSON text and as hashes, for keys of tables.


def pack_labels(labels: Labels) -> str:
    """Labels as JSON text, in their order; pure ASCII, so that no label can upset a database."""
    return json.dumps(labels, separators=(",", ":"))


@lru_cache(maxsize=1 << 14)
def unpack_labels(text: str) -> Labels:
    """The labels of `pack_labels`. Cached: a page of a run reads the same few hundred texts every second."""
    return tuple((name, value) for name, value in json.loads(text))


def labels_hash(labels: Labels) -> int:
    """64 signed bits, the same in every process (Python's own hash is salted)."""
    return text_hash(pack_labels(labels))


def text_hash(text: str) -> int:
    """64 signed bits that stand for a text in a key."""
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
