"""Pushes in the store: the inbox between receiving and collecting process, and the clients that push into a run.

A push is acknowledged once it is in the inbox; it leaves in the transaction that holds what became of it. Whatever
dies in between, it is collected exactly once. Times are epoch ms.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, case, delete, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from server.store.bulk import among
from server.store.engine import Engines, StoreError
from server.store.runs import ensure_run
from server.store.tables import forwarders, inbox, pushers
from server.store.types import Forwarder, InboxDepth, Push, Pusher

# About 15 s of what a store takes, as for the writer's queue: longer than a fail-over, small enough on disk.
INBOX_ROWS = 200_000
# Packed bodies on disk: a quarter of a GB when no collector runs.
INBOX_BYTES = 256 << 20
# One run that pushes faster than it can be collected must not take the room of the others. A trainer that sends every
# rollout by itself, 200 a second, is not such a one.
INBOX_PUSHES = 10_000
# A container that loses its spool at every start is a new agent each time: drop those silent for longest.
AGENTS = 20

_PUSH = ("run", "target", "actor", "interval_seconds", "received_at", "rows", "body")
# Bodies that are in memory at once.
_CHUNK = 100
_PUSHER = ("target", "actor", "interval_seconds", "last_ts")


_COLUMNS = tuple(inbox.c[name] for name in (*_PUSH, "id"))


class InboxFull(Exception):
    """The inbox is full because no collector runs or it is slower than the pushes; retry later."""


class PushStore:
    """Reached as `Store.pushes`; safe to share between threads and processes."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def offer(self, pushes: Sequence[Push]) -> None:
        """Stores pushes until they are collected, all or none, with their runs and senders.

        Raises:
            InboxFull: there is no room.
            StoreError: the store was opened read-only.
        """
        if self._engines.write is None:
            raise StoreError("the store was opened read-only")
        with self._engines.write.begin() as connection:
            _offer(connection, pushes)

    def offer_once(self, push: Push, agent: str, seq: int) -> bool:
        """Keep a forwarded reading; False when this or a later one of the same spool was kept before.

        Raises:
            InboxFull: there is no room.
            StoreError: the store was opened read-only.
        """
        if self._engines.write is None:
            raise StoreError("the store was opened read-only")
        with self._engines.write.begin() as connection:
            if not _claim(connection, push.run, Forwarder(push.target, agent, seq, push.received_at)):
                return False
            _offer(connection, [push])
            return True

    def forwarders(self, run: str) -> list[Forwarder]:
        """All forwarders of a run, by target, the newest first."""
        c = forwarders.c
        query = select(c.target, c.agent, c.seq, c.last_ts).where(c.run == run).order_by(c.target, c.last_ts.desc())
        with self._engines.reading() as connection:
            return [Forwarder(**row._mapping) for row in connection.execute(query)]

    def note(self, run: str, pusher: Pusher) -> None:
        """Records a sender whose push is not in the inbox (records of sandboxes)."""
        if self._engines.write is None:
            raise StoreError("the store was opened read-only")
        with self._engines.write.begin() as connection:
            _note(connection, run, pusher)

    def waiting(self, run: str, limit: int) -> list[Push]:
        """The oldest pushes of a run that are not yet collected."""
        return self._pushes(select(*_COLUMNS).where(inbox.c.run == run).order_by(inbox.c.id).limit(limit))

    def due(self, run: str, rows: int, size: int) -> Iterator[Push]:
        """The oldest that are not yet collected, as many as weigh ``rows`` and hold ``size`` bytes; at least one."""
        c = inbox.c
        query = select(c.id, c.rows, c.size).where(c.run == run).order_by(c.id).limit(INBOX_PUSHES)
        with self._engines.reading() as connection:
            held = connection.execute(query).all()
        chosen: list[int] = []
        for number, weight, length in held:
            rows, size = rows - weight, size - length
            if chosen and (rows < 0 or size < 0):
                break
            chosen.append(number)
        for at in range(0, len(chosen), _CHUNK):
            part = chosen[at : at + _CHUNK]
            yield from self._pushes(select(*_COLUMNS).where(among(c.id, part)).order_by(c.id))

    def _pushes(self, query: Select[Any]) -> list[Push]:
        with self._engines.reading() as connection:
            return [Push(**row._mapping) for row in connection.execute(query)]

    def depth(self) -> InboxDepth:
        """What is not yet collected, of all runs."""
        c = inbox.c
        query = select(func.count(), func.coalesce(func.sum(c.rows), 0), func.coalesce(func.sum(c.size), 0))
        with self._engines.reading() as connection:
            return InboxDepth(*(int(value) for value in connection.execute(query).one()))

    def pushers(self, run: str) -> list[Pusher]:
        """All senders that pushed into a run, by name."""
        c = pushers.c
        query = select(*(c[name] for name in _PUSHER)).where(c.run == run).order_by(c.target)
        with self._engines.reading() as connection:
            return [Pusher(**row._mapping) for row in connection.execute(query)]

    def active(self, since_ms: int) -> dict[str, int]:
        """Run -> when it was last pushed into, of those at or after ``since_ms``; the newest first."""
        c = pushers.c
        last = func.max(c.last_ts)
        query = select(c.run, last).where(c.last_ts >= since_ms).group_by(c.run).order_by(last.desc(), c.run)
        with self._engines.reading() as connection:
            return {run: ts for run, ts in connection.execute(query)}


def _offer(connection: Connection, pushes: Sequence[Push]) -> None:
    _check_room(connection, pushes)
    for push in pushes:
        ensure_run(connection, push.run)
        _note(connection, push.run, Pusher(push.target, push.actor, push.interval_seconds, push.received_at))
    rows = [{name: getattr(push, name) for name in _PUSH} | {"size": len(push.body)} for push in pushes]
    connection.execute(inbox.insert(), rows)


def _claim(connection: Connection, run: str, one: Forwarder) -> bool:
    """Note a reading as taken, in one statement: two that send the same at once must not both be believed."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(forwarders).values(run=run, target=one.target, agent=one.agent, seq=one.seq, last_ts=one.last_ts)
    old, new = forwarders.c, statement.excluded
    claimed = connection.execute(
        statement.on_conflict_do_update(
            index_elements=["run", "target", "agent"],
            set_={"seq": new.seq, "last_ts": new.last_ts},
            where=old.seq < new.seq,
        ).returning(old.seq)
    ).first()
    if claimed is not None:
        _forget(connection, run, one)
    return claimed is not None


def _forget(connection: Connection, run: str, one: Forwarder) -> None:
    c = forwarders.c
    of = (c.run == run, c.target == one.target)
    query = select(c.last_ts, c.agent).where(*of).order_by(c.last_ts.desc(), c.agent.desc())
    last = connection.execute(query.offset(AGENTS).limit(1)).first()
    if last is not None:
        older = or_(c.last_ts < last.last_ts, (c.last_ts == last.last_ts) & (c.agent <= last.agent))
        connection.execute(delete(forwarders).where(*of, older, c.agent != one.agent))


def _check_room(connection: Connection, pushes: Sequence[Push]) -> None:
    c = inbox.c
    query = select(c.run, func.count(), func.sum(c.rows), func.sum(c.size)).group_by(c.run)
    waiting = {run: (count, int(rows), int(size)) for run, count, rows, size in connection.execute(query)}
    rows, size = (sum(one[at] for one in waiting.values()) for at in (1, 2))
    # One that is larger than the inbox gets in when it is empty, or it never would.
    if rows and rows + sum(push.rows for push in pushes) > INBOX_ROWS:
        raise InboxFull(f"{rows} pushed samples wait to be collected; try again in a moment")
    if size and size + sum(len(push.body) for push in pushes) > INBOX_BYTES:
        raise InboxFull(f"{size} pushed bytes wait to be collected; try again in a moment")
    for run in {push.run for push in pushes}:
        count = waiting.get(run, (0,))[0]
        if count >= INBOX_PUSHES:
            raise InboxFull(f"{count} pushes of this run wait to be collected; try again in a moment")


def _note(connection: Connection, run: str, pusher: Pusher) -> None:
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(pushers).values(run=run, **{name: getattr(pusher, name) for name in _PUSHER})
    old, new = pushers.c, statement.excluded
    newest = case((new.last_ts > old.last_ts, new.last_ts), else_=old.last_ts)
    changes = {"actor": new.actor, "interval_seconds": new.interval_seconds, "last_ts": newest}
    connection.execute(statement.on_conflict_do_update(index_elements=["run", "target"], set_=changes))
