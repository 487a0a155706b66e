"""Is a column one of many values? One statement however many there are.

``IN (?, ?, ...)`` is another statement for each number of values: compiled, parsed and planned again, and kept by every
connection in case it comes back (3 MB each after an hour of a run, for hardly any that did).
"""

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Column, ColumnElement, Dialect, Integer, Text, bindparam
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine


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
def _sqlite(element: _Among, compiler: SQLCompiler, **words: Any) -> str:
    column, told = (compiler.process(part, **words) for part in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({told}))"


@compiles(_Among, "postgresql")
def _postgresql(element: _Among, compiler: SQLCompiler, **words: Any) -> str:
    column, told = (compiler.process(part, **words) for part in element.clauses)
    return f"{column} = ANY({told})"
