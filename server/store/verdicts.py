"""Verdicts in the store: a row for each change, and the newest one whole. Written in the tick's own transaction."""

from collections.abc import Sequence
from dataclasses import fields

from sqlalchemy import Connection, bindparam, select

from server.store.bulk import clean, upsert
from server.store.engine import Engines
from server.store.tables import runs, signal_state, verdicts
from server.store.types import VerdictRow

_COLUMNS = tuple(field.name for field in fields(VerdictRow))
_TEXTS = ("cause", "rule")
# Built once, because every page load executes it.
_NEWEST = (
    select(signal_state.c.state)
    .join(runs, runs.c.id == signal_state.c.run)
    .where(runs.c.name == bindparam("run"), signal_state.c.name == "verdict")
)


def write(connection: Connection, rows: Sequence[VerdictRow], run: int) -> None:
    """Store the rows; one of the same time takes the old one's place."""
    values = [
        (run, *(clean(getattr(row, name)) if name in _TEXTS else getattr(row, name) for name in _COLUMNS))
        for row in rows
    ]
    upsert(connection, verdicts, ("run", *_COLUMNS), values, _COLUMNS[1:])


class VerdictStore:
    """Reached as `Store.verdicts`. Times are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def newest(self, run: str) -> str | None:
        """What the rules said last, and when, as `server.derive.verdict` keeps it (JSON); None before the
        first.
        """
        with self._engines.reading() as connection:
            return connection.execute(_NEWEST, {"run": run}).scalar()

    def page(self, run: str, start: int, end: int, limit: int) -> list[VerdictRow]:
        """Verdicts that stood at some time of [start, end], oldest first; of more than ``limit`` the newest."""
        c = verdicts.c
        query = select(*(c[name] for name in _COLUMNS)).join(runs, runs.c.id == c.run).where(runs.c.name == run)
        newest = query.order_by(c.ts.desc())
        with self._engines.reading() as connection:
            found = list(connection.execute(newest.where(c.ts > start, c.ts <= end).limit(limit)))
            found += connection.execute(newest.where(c.ts <= start, c.ts <= end).limit(1))
        return [VerdictRow(*row) for row in reversed(found[:limit])]

    def following(self, run: str, ts: int) -> int | None:
        """Time at which the verdict of ``ts`` was replaced; None while it is current."""
        c = verdicts.c
        query = select(c.ts).join(runs, runs.c.id == c.run).where(runs.c.name == run, c.ts > ts)
        with self._engines.reading() as connection:
            return connection.execute(query.order_by(c.ts).limit(1)).scalar()
