"""Bring a database to this version's schema, from the installed wheel, without an alembic.ini."""

import logging
from importlib import resources
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from server.store.engine import Engines, StoreError, explained, migration_engine, open_engines, parse_url
from server.store.foreign import refuse_foreign
from server.store.tables import DAY_MS

if TYPE_CHECKING:
    from alembic.config import Config

# ---- revision
# Reads a database's revision.

FIRST = "0013"
"""The revision of the first release: the schema of an older database has no way here."""

HEAD = "0014"
"""The newest revision. A test compares it with the folder: reading scripts at every start would cost 50 ms."""


def check(engine: Engine) -> None:
    """Refuse a database of another schema version.

    Raises:
        StoreError: empty, older or newer; the message states what to do.
    """
    with engine.connect() as connection:
        found = current(connection)
    if found is None:
        raise StoreError("the store has no tables yet: run `rollscope migrate`")
    if found != HEAD:
        refuse_others(found)
        raise StoreError(f"the store is at schema {found}, this Rollscope needs {HEAD}: run `rollscope migrate`")


def checked(url: str, *, read_only: bool) -> Engines:
    """Opens a database that must be a migrated store.

    Raises:
        StoreError: as `refuse_foreign` and `check`; or an unknown URL.
    """
    refuse_foreign(url)
    engines = open_engines(url, read_only=read_only)
    try:
        with explained():
            check(engines.write or engines.read)
    except BaseException:
        engines.dispose()
        raise
    return engines


def current(connection: Connection) -> str | None:
    """The revision a database is at; None without one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def refuse_others(found: str | None) -> None:
    """Refuse a database that this version cannot migrate.

    Raises:
        StoreError: made by a newer Rollscope, or before the first release.
    """
    if found is not None and found > HEAD:
        raise StoreError(f"the store is at schema {found}, newer than this Rollscope's {HEAD}: upgrade Rollscope")
    if found is not None and found < FIRST:
        raise StoreError(
            f"the store is at schema {found}, from before the first release ({FIRST}): export what you need with the "
            "version that made it, then delete it"
        )


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


def alembic_config(connection: Connection) -> "Config":
    """A configuration that points into the installed package and works on this connection."""
    # files() of a regular package is a real folder: the wheel is unpacked on installation.
    from alembic.config import Config  # noqa: PLC0415 - a store at this revision does not need it

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
    from alembic import command  # noqa: PLC0415 - a store at this revision does not need it

    command.upgrade(alembic_config(connection), "head")


# ---- partitions
# PostgreSQL's daily partitions of `samples`: made on demand, for any day, past or future.

PREFIX = "samples_d"  # then the day's number since the epoch; migrations/partitions.py hides these from Alembic

_PARTITION_LOCK = 0x526F6C6C506172  # "RollPar": two writers that meet a new day take turns


def existing(connection: Connection) -> set[int]:
    """Days since the epoch that have a partition."""
    sql = text(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = to_regclass('samples')"
    )
    return {int(str(name).removeprefix(PREFIX)) for (name,) in connection.execute(sql)}


def ensure(engine: Engine, days: set[int]) -> None:
    """Make what is missing, in a short transaction of its own."""
    with engine.begin() as connection:
        ensure_in(connection, days)


def ensure_in(connection: Connection, days: set[int]) -> None:
    """Make what is missing, in the caller's transaction."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PARTITION_LOCK})
    for day in sorted(days - existing(connection)):
        _create(connection, day)


def _create(connection: Connection, day: int) -> None:
    # Made apart and attached: CREATE ... PARTITION OF would lock out every reader of the whole table.
    name = f'"{PREFIX}{day}"'  # quoted: a day before 1970 has a minus sign
    connection.execute(text(f"CREATE TABLE {name} (LIKE samples INCLUDING ALL)"))
    bounds = f"FROM ({day * DAY_MS}) TO ({(day + 1) * DAY_MS})"
    connection.execute(text(f"ALTER TABLE samples ATTACH PARTITION {name} FOR VALUES {bounds}"))


def drop(connection: Connection, day: int) -> None:
    """Drop the partition of a day (days since the epoch), if it exists. Readers of `samples` wait for the commit."""
    connection.execute(text(f'DROP TABLE IF EXISTS "{PREFIX}{day}"'))


def is_empty(connection: Connection, day: int) -> bool:
    """Whether the partition of a day exists and has no rows."""
    name = f"{PREFIX}{day}"
    exists = connection.execute(text("SELECT to_regclass(:name)"), {"name": f'"{name}"'}).scalar()
    return exists is not None and connection.execute(text(f'SELECT NOT EXISTS (SELECT 1 FROM "{name}")')).scalar_one()
