"""Reads a database's revision. Separate from `migrate`, so that opening a store does not load Alembic."""

from sqlalchemy import Connection, Engine, inspect, text

from server.store.engine import StoreError

FIRST = "0013"
"""The revision of the first release: the schema of an older database has no way here."""

HEAD = "0013"
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
