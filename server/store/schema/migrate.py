"""Bring a database to this version's schema, from the installed wheel, without an alembic.ini."""

import logging
from importlib import resources

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from server.store.engine import StoreError, explained, migration_engine, parse_url
from server.store.foreign import refuse_foreign
from server.store.schema.revision import HEAD, current, refuse_others

_LOCK = 0x526F6C6C4D6967  # "RollMig"; two servers that start together on PostgreSQL migrate one after the other


def migrate(url: str) -> None:
    """Create or upgrade the schema at ``url``, in one transaction. Safe to call at every start, by many at once.

    Raises:
        StoreError: the database was made by a newer Rollscope, before the first release or by another application, or
            its folder cannot be made.
    """
    refuse_foreign(url)
    try:
        engine = migration_engine(parse_url(url))
    except OSError as error:
        raise StoreError(f"cannot create {error.filename}: {error.strerror}") from None
    try:
        with explained(), engine.begin() as connection:
            _upgrade(connection)
    finally:
        engine.dispose()


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
    refuse_others(found)
    # Alembic logs every step at INFO; that is noise at the start of a dashboard.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    command.upgrade(alembic_config(connection), "head")
