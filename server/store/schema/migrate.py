"""Bring a database to this version's schema, from the installed wheel, without an alembic.ini."""

import logging
from importlib import resources

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, inspect, text

from server.store.engine import StoreError, explained, migration_engine, parse_url

HEAD = "0010"
"""The newest revision. A test compares it with the folder: reading scripts at every start would cost 50 ms."""

_LOCK = 0x526F6C6C4D6967  # "RollMig"; two servers that start together on PostgreSQL migrate one after the other


def migrate(url: str) -> None:
    """Create or upgrade the schema at ``url``, in one transaction. Safe to call at every start, by many at once.

    Raises:
        StoreError: the database was made by a newer Rollscope.
    """
    engine = migration_engine(parse_url(url))
    try:
        with explained(), engine.begin() as connection:
            _upgrade(connection)
    finally:
        engine.dispose()


def check(engine: Engine) -> None:
    """Refuse a database of another schema version.

    Raises:
        StoreError: empty, older or newer; says what to do.
    """
    with engine.connect() as connection:
        found = current(connection)
    if found is None:
        raise StoreError("the store has no tables yet: run `rollscope migrate`")
    if found != HEAD:
        _refuse_newer(found)
        raise StoreError(f"the store is at schema {found}, this Rollscope needs {HEAD}: run `rollscope migrate`")


def current(connection: Connection) -> str | None:
    """The revision a database is at; None without one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def alembic_config(connection: Connection) -> Config:
    """A configuration that points into the installed package and works on this connection."""
    # files() of a regular package is a real folder: the wheel is unpacked on installation.
    config = Config()
    config.set_main_option("script_location", str(resources.files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    found = current(connection)
    if found == HEAD:
        return
    _refuse_newer(found)
    # Alembic tells every step on INFO; at the start of a dashboard that is noise.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    command.upgrade(alembic_config(connection), "head")


def _refuse_newer(found: str | None) -> None:
    if found is not None and found > HEAD:
        raise StoreError(f"the store is at schema {found}, made by a newer Rollscope (this is {HEAD}): upgrade it")
