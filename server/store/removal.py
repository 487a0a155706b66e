"""Deletes a run with all its rows, in many short transactions, so that a server next to it goes on."""

from collections.abc import Callable

from sqlalchemy import BigInteger, Connection, Engine, Table, Text, delete, func, select, text, update

from server.store.bulk import among
from server.store.engine import Engines, StoreError
from server.store.runs import one_run
from server.store.tables import DELETED, SLOT_MS, metadata, postgres_samples, runs, series, sqlite_samples

SERIES_AT_ONCE = 50
ROWS_AT_ONCE = 5_000

BY_SERIES = frozenset({"points", "step_values", "rollups", "hist", "hist_last"})

COLLECTED_MS = 60_000
"""A run that was collected within this time is in use: its collector holds ids of rows that would be gone."""


class RunInUse(StoreError):
    """The run is being collected; the message names the fix."""


def remove(engines: Engines, name: str, now: int, progress: Callable[[str], None] = lambda table: None) -> bool:
    """Delete a run (``now``: wall clock, epoch ms). False: there is no such run. Repeat it after an interruption.

    Raises:
        RunInUse: a collector works on it.
        StoreError: the store was opened read-only.
    """
    engine = engines.write
    if engine is None:
        raise StoreError("the store was opened read-only")
    with engines.reading() as connection:
        row = one_run(connection, name)
    if row is None:
        return False
    if row.collected_at is not None and now - row.collected_at < COLLECTED_MS:
        raise RunInUse(
            f"run {name} is being collected: remove it from the configuration or stop its pushes, and try again in a "
            "minute"
        )
    _samples(engine, row.id, row.first_ts, row.last_ts)
    for table in _tables(engines.dialect):
        progress(table.name)
        if table.name in BY_SERIES:
            _by_series(engine, table, row.id)
        else:
            _by_run(engine, table, row.id, name)
    with engine.begin() as connection:
        _forget(connection, row.id)
    return True


def _tables(dialect: str) -> list[Table]:
    """Every table with rows of runs but `samples`: what refers to a run comes before the run."""
    found = [table for part in metadata(dialect) for table in reversed(part.sorted_tables)]
    excluded = {"samples", "hist_layouts", "panels", "silences"}
    return [table for table in found if table.name not in excluded and table is not runs and table is not series]


def _samples(engine: Engine, run: int, first: int | None, last: int | None) -> None:
    """SQLite keys samples by slot first: slot by slot, instead of a search through all slots for each series."""
    if engine.dialect.name != "sqlite":
        _by_series(engine, postgres_samples, run)
        return
    c = sqlite_samples.c
    slot: int | None = (first or 0) // SLOT_MS
    while slot is not None and last is not None and slot <= last // SLOT_MS:
        with engine.begin() as connection:
            of_run = select(series.c.id).where(series.c.run == run)
            connection.execute(delete(sqlite_samples).where(c.slot == slot, c.series.in_(of_run)))
            slot = connection.execute(select(func.min(c.slot)).where(c.slot > slot)).scalar()


def _by_series(engine: Engine, table: Table, run: int) -> None:
    after: int | None = 0
    while after is not None:
        with engine.begin() as connection:
            query = select(series.c.id).where(series.c.run == run, series.c.id > after).order_by(series.c.id)
            ids = list(connection.execute(query.limit(SERIES_AT_ONCE)).scalars())
            if table.name == "rollups":
                # Its key begins with the tier.
                tiers = list(connection.execute(text("SELECT DISTINCT tier FROM rollups")).scalars())
                connection.execute(delete(table).where(table.c.tier.in_(tiers), among(table.c.series, ids)))
            else:
                connection.execute(delete(table).where(among(table.c.series, ids)))
            after = ids[-1] if ids else None


def _by_run(engine: Engine, table: Table, run: int, name: str) -> None:
    column = table.c.run
    mine = column == (run if isinstance(column.type, BigInteger) else name)
    assert isinstance(column.type, BigInteger | Text), table.name
    more = True
    while more:
        with engine.begin() as connection:
            if "id" in table.columns and isinstance(table.c.id.type, BigInteger):
                ids = list(connection.execute(select(table.c.id).where(mine).limit(ROWS_AT_ONCE)).scalars())
                connection.execute(delete(table).where(mine, among(table.c.id, ids)))
                more = bool(ids)
            else:
                connection.execute(delete(table).where(mine))
                more = False


def _forget(connection: Connection, run: int) -> None:
    """Delete the run's series and the run. Ids must not be given out again: readers cache what they stand for."""
    newest = connection.execute(select(func.max(series.c.id))).scalar()
    connection.execute(delete(series).where(series.c.run == run, series.c.id != (newest or 0)))
    if connection.execute(select(func.count()).select_from(series).where(series.c.run == run)).scalar() or (
        connection.execute(select(func.max(runs.c.id))).scalar() == run
    ):
        changes = {"name": f"\x7fdeleted {run}", "lifecycle": DELETED, "facts": "{}", "first_ts": None, "last_ts": None}
        connection.execute(update(runs).where(runs.c.id == run).values(**changes))
    else:
        connection.execute(delete(runs).where(runs.c.id == run))
