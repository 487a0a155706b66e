"""Is a column one of many values? One statement however many there are.

``IN (?, ?, ...)`` is another statement for each number of values: compiled, parsed and planned again, and kept by every
connection in case it comes back (3 MB each after an hour of a run, for hardly any that did).
"""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, ColumnElement, Dialect, Integer, Text, bindparam
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator


class _List(TypeDecorator[Any]):
    """A list in one parameter: SQLite takes it apart as JSON, PostgreSQL as the text of an array."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        if dialect.name == "sqlite":
            return json.dumps(value)
        return f"{{{','.join(map(_element, value))}}}"


def _element(value: int | str) -> str:
    if isinstance(value, int):
        return str(value)
    # Always in quotes: in an array a bare NULL is none, and a comma the next one.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Among(FunctionElement[Any]):
    # Of no type: of a boolean SQLAlchemy asks SQLite whether it is 1, and then no index will do.
    inherit_cache = True


def among(column: Column[Any], values: Iterable[int] | Iterable[str]) -> ColumnElement[Any]:
    """``column`` (of numbers or of text) is one of ``values``; of none it never is."""
    return _Among(column, bindparam(None, list(values), _List()))


@compiles(_Among, "sqlite")
def _sqlite(element: _Among, compiler: SQLCompiler, **words: Any) -> str:
    column, told = (compiler.process(part, **words) for part in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({told}))"


@compiles(_Among, "postgresql")
def _postgresql(element: _Among, compiler: SQLCompiler, **words: Any) -> str:
    column, told = (compiler.process(part, **words) for part in element.clauses)
    kind = "bigint" if isinstance(next(iter(element.clauses)).type, Integer) else "text"
    return f"{column} = ANY(CAST({told} AS {kind}[]))"
