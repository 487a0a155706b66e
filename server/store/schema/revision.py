"""Reads a database's revision. Separate from `migrate`, so that opening a store does not load Alembic."""

from sqlalchemy import Connection, Engine, inspect, text

from server.store.engine import StoreError

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
        refuse_newer(found)
        raise StoreError(f"the store is at schema {found}, this Rollscope needs {HEAD}: run `rollscope migrate`")


def current(connection: Connection) -> str | None:
    """The revision a database is at; None without one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def refuse_newer(found: str | None) -> None:
    """Only forwards.

    Raises:
        StoreError: the database was made by a newer Rollscope.
    """
    if found is not None and found > HEAD:
        raise StoreError(f"the store is at schema {found}, newer than this Rollscope's {HEAD}: upgrade Rollscope")
