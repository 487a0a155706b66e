"""Copies a whole store: backup, restore, and the move between SQLite and PostgreSQL.

A backup is a SQLite store, whatever the database it was taken from. The source is read in one transaction, so the copy
is of one moment; rows are compared by count and checksum after the copy.
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, func, insert, select, text

from server.store import schema
from server.store.bulk import Row, upsert
from server.store.engine import Engines, StoreError, explained, parse_url, sqlite_path
from server.store.foreign import is_store, refuse_foreign
from server.store.schema import migrate
from server.store.tables import DAY_MS, SLOT_MS, metadata, runs

ROWS_AT_ONCE = 10_000
CHUNKS_AT_ONCE = 200  # of 10 to 30 kB
PAGES_AT_ONCE = 2_000  # of SQLite's online backup: 8 MB between two pauses for the writer
PAUSE_SECONDS = 0.01
_MASK = (1 << 64) - 1


class TableCopy(NamedTuple):
    """One copied table: its rows and their checksum (64 bits, independent of their order), equal on both sides."""

    table: str
    rows: int
    checksum: int


Progress = Callable[[str, int], None]
"""(table or "pages", rows or pages copied so far)."""


def backup(url: str, file: Path, progress: Progress = lambda what, done: None) -> list[TableCopy]:
    """Write a consistent copy of the store at ``url`` to ``file``, while others read and write it.

    ``file`` appears when it is complete. Returns the copied tables; a copy from SQLite is made page by page and checked
    by SQLite itself, so that it has counts only (checksum 0).

    Raises:
        StoreError: the file exists, the source cannot be read, or the copy differs.
    """
    if os.path.exists(file):
        raise StoreError(f"{file} exists: choose another name, or remove it")
    part = file.with_name(file.name + ".partial")
    refuse_foreign(url)
    if not os.access(file.absolute().parent, os.W_OK | os.X_OK):
        raise StoreError(f"{file}: the folder is missing or cannot be written")
    part.unlink(missing_ok=True)
    try:
        if parse_url(url).drivername == "sqlite":
            copied = _sqlite_backup(sqlite_path(parse_url(url)), part, progress)
        else:
            copied = copy(url, f"sqlite:///{part}", progress)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(file)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror or error}") from None
    finally:
        for left in (part, *(part.with_name(part.name + end) for end in ("-wal", "-shm"))):
            left.unlink(missing_ok=True)
    return copied


def restore(file: Path, url: str, progress: Progress = lambda what, done: None) -> list[TableCopy]:
    """Fill the empty or missing store at ``url`` from a backup.

    Raises:
        StoreError: ``file`` is no backup of this schema version, or the store at ``url`` holds runs.
    """
    if not os.path.isfile(file):
        raise StoreError(f"there is no file {file}")
    if not os.access(file, os.R_OK):
        raise StoreError(f"{file} cannot be read: no permission")
    if not is_store(file.absolute()):
        raise StoreError(f"{file} is no Rollscope backup: name a file that `rollscope backup` wrote")
    return copy(f"sqlite:///{file}", url, progress)


def copy(source: str, target: str, progress: Progress = lambda what, done: None) -> list[TableCopy]:
    """Copy every row of the store at ``source`` to the empty or missing store at ``target``; both are URLs.

    Raises:
        StoreError: the source has another schema version, the target holds runs, or a table differs after the copy.
    """
    if parse_url(source) == parse_url(target):
        raise StoreError("source and target are the same store")
    reads = schema.checked(source, read_only=True)
    try:
        migrate(target)
        writes = schema.checked(target, read_only=False)
        try:
            assert writes.write is not None
            with explained(), reads.reading() as read_from, writes.write.begin() as write_to:
                if write_to.execute(select(func.count()).select_from(runs)).scalar():
                    raise StoreError("the target store holds runs already: choose an empty one")
                copied = [_copy_table(read_from, write_to, *pair, progress) for pair in _pairs(reads, writes)]
                _set_sequences(write_to)
            with writes.reading() as read_back:
                for done, (_, table) in zip(copied, _pairs(reads, writes), strict=True):
                    found = _checked(done.table, _rows(read_back, table))
                    if found != done:
                        raise StoreError(f"table {done.table} differs after the copy: {done} became {found}")
        finally:
            writes.dispose()
    finally:
        reads.dispose()
    return copied


def _pairs(source: Engines, target: Engines) -> list[tuple[Table, Table]]:
    """Each table as the source and as the target has it, in the order of their foreign keys."""
    sides = [{t.name: t for part in metadata(e.dialect) for t in part.sorted_tables} for e in (source, target)]
    return [(table, sides[1][name]) for name, table in sides[0].items()]


def _columns(table: Table) -> list[str]:
    """Names in the copy's order. The slot of a sample follows from its time, and only SQLite has it."""
    return [column.name for column in table.columns if (table.name, column.name) != ("samples", "slot")]


def _rows(connection: Connection, table: Table) -> Iterator[list[Row]]:
    """All rows, in lists of at most `ROWS_AT_ONCE`."""
    query = select(*(table.columns[name] for name in _columns(table)))
    at_once = CHUNKS_AT_ONCE if table.name == "chunks" else ROWS_AT_ONCE
    result = connection.execution_options(yield_per=at_once).execute(query)
    for part in result.partitions():
        yield [tuple(row) for row in part]


def _copy_table(source: Connection, target: Connection, old: Table, new: Table, progress: Progress) -> TableCopy:
    def written() -> Iterator[list[Row]]:
        done = 0
        for rows in _rows(source, old):
            _insert(target, new, rows)
            done += len(rows)
            progress(new.name, done)
            yield rows

    return _checked(new.name, written())


def _insert(connection: Connection, table: Table, rows: list[Row]) -> None:
    columns = _columns(table)
    if table.name == "samples":
        if connection.dialect.name == "sqlite":
            columns, rows = ["slot", *columns], [(row[1] // SLOT_MS, *row) for row in rows]
        else:
            schema.ensure_in(connection, {row[1] // DAY_MS for row in rows})
    if "id" in columns and table.name != "silences":
        # `upsert` takes the unique key of such a table for its key; ids are copied here too.
        connection.execute(insert(table), [dict(zip(columns, row, strict=True)) for row in rows])
        return
    upsert(connection, table, columns, rows)


def _checked(name: str, parts: Iterator[list[Row]]) -> TableCopy:
    count, total = 0, 0
    for rows in parts:
        count += len(rows)
        for row in rows:
            digest = hashlib.blake2b(repr(tuple(map(_plain, row))).encode(errors="backslashreplace"), digest_size=8)
            total += int.from_bytes(digest.digest(), "big")
    return TableCopy(name, count, total & _MASK)


def _plain(value: Any) -> Any:
    """One spelling of a value for both databases."""
    return bytes(value) if isinstance(value, memoryview) else value


def _set_sequences(connection: Connection) -> None:
    """PostgreSQL: the next id follows the largest that was copied."""
    if connection.dialect.name != "postgresql":
        return
    for table in (t for part in metadata("postgresql") for t in part.sorted_tables):
        sequence = connection.execute(
            text("SELECT pg_get_serial_sequence(:name, 'id') WHERE EXISTS (SELECT 1 FROM information_schema.columns "
                 "WHERE table_name = :name AND column_name = 'id')"), {"name": table.name},
        ).scalar()  # fmt: skip
        if sequence is not None:
            connection.execute(
                text(f"SELECT setval(:sequence, (SELECT coalesce(max(id), 0) + 1 FROM {table.name}), false)"),
                {"sequence": sequence},
            )


def _sqlite_backup(source: Path, target: Path, progress: Progress) -> list[TableCopy]:
    """SQLite's own online backup: it starts again when another process writes, and ends consistent."""
    if not os.path.exists(source):
        raise StoreError(f"there is no store at {source}")
    try:
        # SQLite would make a file that other accounts may read.
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            # One read transaction over the whole copy: otherwise each write makes the backup start again.
            old.execute("BEGIN")
            old.execute("SELECT count(*) FROM alembic_version").fetchone()
            old.backup(new, pages=-1, progress=lambda _, left, total: progress("pages", total - left))
            old.execute("ROLLBACK")
            (verdict,) = new.execute("PRAGMA quick_check").fetchone()
            if verdict != "ok":
                raise StoreError(f"the copy of {source} is damaged: {verdict}")
            names = [table.name for part in metadata("sqlite") for table in part.sorted_tables]
            return [TableCopy(name, new.execute(f"SELECT count(*) FROM {name}").fetchone()[0], 0) for name in names]
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{source}: {error}") from None
