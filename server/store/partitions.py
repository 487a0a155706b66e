"""PostgreSQL's daily partitions of `samples`: made on demand, for any day, past or future.

No DEFAULT partition: once one holds rows of a day, that day's partition can no longer be made.
"""

from sqlalchemy import Connection, Engine, text

from server.store.tables import DAY_MS

PREFIX = "samples_d"  # then the day's number since the epoch; migrations/partitions.py hides these from Alembic

_LOCK = 0x526F6C6C506172  # "RollPar": two writers that meet a new day take turns


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
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
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
