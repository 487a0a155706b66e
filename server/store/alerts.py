"""Alerts in the store: firing alerts, sent and pending notifications, silences, heartbeats.

A tick's own rows are written by `write`, in the tick's transaction; everything else by `AlertStore`.
The outbox is also the notification log: a row's final status and answer are committed together.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, case, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from server.alerts.model import Alert, Silence
from server.lib.matchers import Matcher
from server.store.bulk import Row, clean, pack_labels, text_hash, unpack_labels, upsert
from server.store.engine import Engines, StoreError
from server.store.tables import alert_groups, alerts, heartbeats, outbox, runs, silences
from server.store.types import Batch, DeliveryRow, GroupRow, OutboxRow

_T = TypeVar("_T")

_ALERT = Alert.__struct_fields__
_ALERT_KEY = ("fingerprint", "active_at")
_ALERT_TIMES = ("active_at", "fired_at", "resolved_at", "keep_since", "held_since")
_GROUP = tuple(field.name for field in fields(GroupRow) if field.name != "ended")
_DELIVERY = tuple(field.name for field in fields(DeliveryRow) if field.name != "run")
_SILENCE = Silence.__struct_fields__
_SILENCE_TIMES = ("starts_at", "ends_at", "updated_at")
_OUTBOX = (
    "run", "receiver", "group_hash", "group_key", "seq", "created_at", "payload", "refresh", "status", "attempts",
    "next_at", "answer",
)  # fmt: skip


def _alerts_of(where: ColumnElement[bool], *first: ColumnElement[Any]) -> tuple[Select[Any], Select[Any]]:
    """Statements for all runs and for one (``run``). Built once, because every page load executes them."""
    query = select(runs.c.name, *(alerts.c[name] for name in _ALERT)).join(runs, runs.c.id == alerts.c.run)
    # The fingerprint last: equal times must not change places from one read to the next.
    query = query.where(where).order_by(*first, alerts.c.active_at, alerts.c.fingerprint).limit(bindparam("most"))
    return query, query.where(runs.c.name == bindparam("run"))


_SINCE = _alerts_of(or_(alerts.c.resolved_at.is_(None), alerts.c.resolved_at >= bindparam("since")))
_IN_STATES = _alerts_of(alerts.c.state.in_(bindparam("states", expanding=True)))
_FIRED = _alerts_of(
    and_(alerts.c.resolved_at.is_not(None), alerts.c.fired_at.is_not(None)), alerts.c.resolved_at.desc()
)
_QUIET = (
    select(*(silences.c[name] for name in _SILENCE))
    .where(or_(silences.c.ends_at > bindparam("now"), silences.c.ends_at >= bindparam("expired")))
    .order_by(silences.c.ends_at, silences.c.id)
)

_JSON_LABELS = ("series", "labels")
_JSON_NAMES = ("firing", "resolved")
# No limit: SQL needs a number.
MOST = 2**31 - 1
# Epoch ms later than the end of any silence.
FOREVER = 2**63 - 1
_WORDS = ("rule", "reason", "muted")


class Heartbeat(NamedTuple):
    """Time of the newest heartbeat of an outside process (epoch ms), and their number."""

    name: str
    last_ts: int
    beats: int


# Named here because inside the class `list` is a method.
Alerts = list[Alert]
RunAlerts = list[tuple[str, Alert]]
GroupRows = list[GroupRow]
Silences = list[Silence]
DeliveryRows = list[DeliveryRow]
Heartbeats = list[Heartbeat]


# -- in the tick's transaction


def write(connection: Connection, batch: Batch, run: int) -> None:
    """The alerts, groups and notifications of a batch. Writing them again changes nothing."""
    _write_alerts(connection, batch.alerts, run)
    _write_groups(connection, batch.groups, run)
    _write_outbox(connection, batch.outbox, run)


def _write_alerts(connection: Connection, rows: Sequence[Alert], run: int) -> None:
    # Merged batches may hold an episode twice: only how it ends counts.
    last = {(row.fingerprint, _ms(row.active_at)): row for row in rows}
    changed = [(run, *(_alert_value(row, name) for name in _ALERT)) for row in last.values() if row.state != "inactive"]
    upsert(connection, alerts, ("run", *_ALERT), changed, [name for name in _ALERT if name not in _ALERT_KEY])
    for key in (key for key, row in last.items() if row.state == "inactive"):
        c = alerts.c
        connection.execute(delete(alerts).where(c.run == run, c.fingerprint == key[0], c.active_at == key[1]))


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _alert_value(row: Alert, name: str) -> Any:
    value = getattr(row, name)
    if name in _ALERT_TIMES:
        return _ms(value)
    if name in _JSON_LABELS:
        return pack_labels(value)
    if name == "annotations":
        return json.dumps(dict(value))
    return clean(value) if name in _WORDS else value


def _write_groups(connection: Connection, rows: Sequence[GroupRow], run: int) -> None:
    last = {(row.receiver, row.group_key): row for row in rows}
    changed = [
        (run, text_hash(row.group_key), *(_group_value(row, name) for name in _GROUP))
        for row in last.values()
        if not row.ended
    ]
    changing = [name for name in _GROUP if name != "receiver"]
    upsert(connection, alert_groups, ("run", "group_hash", *_GROUP), changed, changing)
    for receiver, key in (key for key, row in last.items() if row.ended):
        c = alert_groups.c
        connection.execute(
            delete(alert_groups).where(c.run == run, c.receiver == receiver, c.group_hash == text_hash(key))
        )


def _group_value(row: GroupRow, name: str) -> Any:
    value = getattr(row, name)
    if name == "labels":
        return pack_labels(value)
    return json.dumps(value) if name in _JSON_NAMES else value


def _write_outbox(connection: Connection, rows: Sequence[OutboxRow], run: int) -> None:
    made: list[Row] = [
        (
            run, o.receiver, text_hash(o.group_key), o.group_key, o.seq, o.created_at, o.payload, o.refresh,
            "pending", 0, o.created_at, "",
        )
        for o in rows
    ]  # fmt: skip
    upsert(connection, outbox, _OUTBOX, made)
    for row in rows:
        if row.refresh:
            _supersede(connection, row, run)


def _supersede(connection: Connection, row: OutboxRow, run: int) -> None:
    """An older repetition is superseded unless a worker is sending it now."""
    c = outbox.c
    connection.execute(
        update(outbox)
        .where(c.run == run, c.receiver == row.receiver, c.group_hash == text_hash(row.group_key), c.seq < row.seq)
        .where(c.status == "pending", c.refresh.is_(True), _free(row.created_at))
        .values(status="superseded")
    )


def _free(now_ms: int) -> ColumnElement[bool]:
    """The row is free: it was never leased, or the lease has expired."""
    return or_(outbox.c.lease_until.is_(None), outbox.c.lease_until <= now_ms)


# -- reading and writing


class AlertStore:
    """Reached as `Store.alerts`. Times are epoch ms; safe to share between threads and processes.

    Every method that writes raises `StoreError` on a read-only store.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def _read(self, query: Callable[[Connection], _T]) -> _T:
        with self._engines.reading() as connection:
            return query(connection)

    def _write(self, change: Callable[[Connection], _T]) -> _T:
        if self._engines.write is None:
            raise StoreError("the store was opened read-only")
        with self._engines.write.begin() as connection:
            return change(connection)

    # alerts and groups

    def active(self, run: str, since_ms: int) -> Alerts:
        """Pending and firing alerts of a run and those resolved at or after ``since_ms``, oldest first."""
        return [row for _, row in self._alerts(_SINCE, run, MOST, since=since_ms)]

    def list(self, run: str | None, states: Collection[str], limit: int) -> RunAlerts:
        """(run, alert) in one of the states, of one run or of all, oldest first."""
        return self._alerts(_IN_STATES, run, limit, states=sorted(states))

    def history(self, run: str | None, limit: int) -> RunAlerts:
        """(run, alert) that fired and is resolved, newest resolution first."""
        return self._alerts(_FIRED, run, limit)

    def _alerts(
        self, statements: tuple[Select[Any], Select[Any]], run: str | None, limit: int, **more: Any
    ) -> RunAlerts:
        given = {**more, "most": limit} | ({} if run is None else {"run": run})
        query = statements[run is not None]
        return self._read(lambda c: [(name, _alert(values)) for name, *values in c.execute(query, given)])

    def abandon(self, runs_kept: Collection[str], now_ms: int) -> int:
        """Resolves the alerts of every other run, because they are no longer evaluated. Returns their number."""
        c = alerts.c
        others = select(runs.c.id).where(runs.c.name.not_in(sorted(runs_kept)))
        open_ = and_(c.resolved_at.is_(None), c.run.in_(others))
        ended = {"state": "resolved", "resolved_at": now_ms, "reason": "the run is no longer configured"}
        self._count(delete(alerts).where(open_, c.state == "pending"))
        return self._count(update(alerts).where(open_).values(ended))

    def groups(self, run: str) -> GroupRows:
        """Every living group of a run."""
        columns = [alert_groups.c[name] for name in _GROUP]
        query = select(*columns).join(runs, runs.c.id == alert_groups.c.run).where(runs.c.name == run)
        query = query.order_by(alert_groups.c.receiver, alert_groups.c.group_key)
        return self._read(lambda c: [_group(values) for values in c.execute(query)])

    # silences

    def silences(self, now_ms: int, expired_since: int | None = None) -> Silences:
        """Active and pending silences, and those that ended at or after ``expired_since``; the first to end first."""
        given = {"now": now_ms, "expired": FOREVER if expired_since is None else expired_since}
        return self._read(lambda connection: [_silence(values) for values in connection.execute(_QUIET, given)])

    def put_silence(self, silence: Silence) -> None:
        """Create a silence, or replace the one with its id."""
        row = tuple(_silence_value(silence, name) for name in _SILENCE)
        self._write(lambda c: upsert(c, silences, _SILENCE, [row], _SILENCE[1:]))

    def expire_silence(self, silence: str, now_ms: int) -> bool:
        """End a silence now; False when there is none, or it is over already."""
        c = silences.c
        # One that had not begun yet ends where it begins: now.
        begun = case((c.starts_at > now_ms, now_ms), else_=c.starts_at)
        statement = update(silences).where(c.id == silence, c.ends_at > now_ms)
        return self._count(statement.values(starts_at=begun, ends_at=now_ms, updated_at=now_ms)) > 0

    def _count(self, statement: Any) -> int:
        return self._write(lambda connection: int(connection.execute(statement).rowcount))

    # the outbox

    def claim(self, now_ms: int, lease_ms: int, limit: int, receivers: Collection[str]) -> DeliveryRows:
        """Leases notifications that are due for ``lease_ms``: no other worker gets them until then.

        Only the oldest unsent one of each group, so that a receiver gets notifications in order. A claim counts as
        an attempt, because a process that dies in one leaves no other trace.
        """
        # Queried without the write lock first: on SQLite a tick waits for the lock, and mostly nothing is due.
        due = self.next_due(receivers)
        if due is None or due > now_ms:
            return []
        return self._write(lambda connection: _claim(connection, now_ms, lease_ms, limit, receivers))

    def finish(self, number: int, status: str, answer: str, sent_at: int | None) -> None:
        """The log entry: what became of a notification for good (``sent`` or ``failed``). The first one stands."""
        # A worker whose lease had expired may still have sent a superseded row: record it as sent.
        open_ = and_(outbox.c.id == number, outbox.c.status.in_(("pending", "superseded")))
        done = {"status": status, "answer": clean(answer), "sent_at": sent_at, "lease_until": None}
        self._count(update(outbox).where(open_).values(done))

    def retry(self, number: int, next_at: int, answer: str) -> None:
        """Give the lease back and wait until ``next_at``."""
        waiting = {"next_at": next_at, "answer": clean(answer), "lease_until": None}
        self._count(update(outbox).where(outbox.c.id == number, outbox.c.status == "pending").values(waiting))

    def next_due(self, receivers: Collection[str]) -> int | None:
        """When the next notification to one of the receivers can be claimed; None: there is none to wait for."""
        c = outbox.c
        due = case((c.lease_until > c.next_at, c.lease_until), else_=c.next_at)
        query = select(func.min(due)).where(c.status == "pending", c.receiver.in_(sorted(receivers)), _is_head())
        return self._read(lambda connection: connection.execute(query).scalar())

    def has_newer(self, row: DeliveryRow) -> bool:
        """Does a newer notification of the same group to the same receiver wait?"""
        c = outbox.c
        run = select(runs.c.id).where(runs.c.name == row.run).scalar_subquery()
        query = select(c.id).where(c.run == run, c.receiver == row.receiver, c.status == "pending", c.seq > row.seq)
        query = query.where(c.group_hash == text_hash(row.group_key)).limit(1)
        return self._read(lambda connection: connection.execute(query).first() is not None)

    def unsent(self) -> dict[str, int]:
        """Receiver -> notifications that are not sent yet."""
        c = outbox.c
        query = select(c.receiver, func.count()).where(c.status == "pending").group_by(c.receiver)
        return self._read(lambda connection: {receiver: int(n) for receiver, n in connection.execute(query)})

    def deliveries(self, run: str | None, limit: int, *, repeats: bool = True) -> DeliveryRows:
        """The newest notifications, newest first.

        Without ``repeats`` those that only repeated a state are left out, unless they failed: an Alertmanager is told
        every minute, which pushes everything else out of a list.
        """
        query = _deliveries().order_by(outbox.c.id.desc()).limit(limit)
        if not repeats:
            query = query.where(or_(outbox.c.refresh.is_(False), outbox.c.status == "failed"))
        if run is not None:
            query = query.where(outbox.c.run == select(runs.c.id).where(runs.c.name == run).scalar_subquery())
        return self._read(lambda c: [DeliveryRow(**row._mapping) for row in c.execute(query)])

    def prune(self, before_ms: int) -> None:
        """Forget notifications made, and silences that ended, before ``before_ms``.

        What is still pending then belongs to a receiver that is configured no more: it is marked failed, and goes
        with the next call, so that it was seen once.
        """
        c = outbox.c
        old = c.created_at < before_ms
        given_up = {"status": "failed", "answer": "given up: its receiver is no longer configured"}
        self._count(delete(outbox).where(c.status != "pending", old))
        self._count(update(outbox).where(c.status == "pending", old, _free(before_ms)).values(given_up))
        self._count(delete(silences).where(silences.c.ends_at < before_ms))

    # heartbeats

    def beat(self, run: str, name: str, ts: int) -> None:
        """Records a heartbeat; the newest time is kept."""
        self._write(lambda connection: _beat(connection, clean(run), clean(name), ts))

    def heartbeats(self, run: str) -> Heartbeats:
        """Every heartbeat of a run, by name."""
        c = heartbeats.c
        query = select(c.name, c.last_ts, c.beats).where(c.run == run).order_by(c.name)
        return self._read(lambda connection: [Heartbeat(*row) for row in connection.execute(query)])


def _is_head() -> ColumnElement[bool]:
    """Is nothing older of its group unsent?"""
    c, older = outbox.c, outbox.alias("older")
    same = and_(older.c.run == c.run, older.c.receiver == c.receiver, older.c.group_hash == c.group_hash)
    return ~select(older.c.id).where(older.c.status == "pending", same, older.c.seq < c.seq).exists()


def _claim(
    connection: Connection, now_ms: int, lease_ms: int, limit: int, receivers: Collection[str]
) -> list[DeliveryRow]:
    c = outbox.c
    due = select(c.id).where(c.status == "pending", c.receiver.in_(sorted(receivers)), c.next_at <= now_ms)
    due = due.where(_free(now_ms), _is_head()).order_by(c.next_at, c.id).limit(limit)
    # Two processes on PostgreSQL: rows locked by the other are skipped. (SQLite omits the clause.)
    taken = list(connection.execute(due.with_for_update(skip_locked=True, of=outbox)).scalars())
    if not taken:
        return []
    lease = {"lease_until": now_ms + lease_ms, "attempts": c.attempts + 1}
    connection.execute(update(outbox).where(c.id.in_(taken)).values(lease))
    query = _deliveries().where(c.id.in_(taken)).order_by(c.next_at, c.id)
    return [DeliveryRow(**row._mapping) for row in connection.execute(query)]


def _deliveries() -> Any:
    columns = (outbox.c[name] for name in _DELIVERY)
    return select(runs.c.name.label("run"), *columns).join(runs, runs.c.id == outbox.c.run)


def _beat(connection: Connection, run: str, name: str, ts: int) -> None:
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(heartbeats).values(run=run, name=name, last_ts=ts, beats=1)
    old, new = heartbeats.c, statement.excluded
    newest = case((new.last_ts > old.last_ts, new.last_ts), else_=old.last_ts)
    changes = {"last_ts": newest, "beats": old.beats + 1}
    connection.execute(statement.on_conflict_do_update(index_elements=["run", "name"], set_=changes))


_LABELS_TAKEN, _NAMES_TAKEN = itemgetter(*_JSON_LABELS), itemgetter(*_JSON_NAMES)


def _alert(values: Sequence[Any]) -> Alert:
    named: dict[str, Any] = dict(zip(_ALERT, values, strict=True))
    times = {name: named[name] / 1000 for name in _ALERT_TIMES if named[name] is not None}
    series, labels = (unpack_labels(text) for text in _LABELS_TAKEN(named))
    annotations = json.loads(named["annotations"])
    return Alert(**{**named, **times, "series": series, "labels": labels, "annotations": annotations})


def _group(values: Sequence[Any]) -> GroupRow:
    named: dict[str, Any] = dict(zip(_GROUP, values, strict=True))
    firing, resolved = (tuple(json.loads(text)) for text in _NAMES_TAKEN(named))
    return GroupRow(**{**named, "labels": unpack_labels(named["labels"]), "firing": firing, "resolved": resolved})


def _silence_value(silence: Silence, name: str) -> Any:
    value = getattr(silence, name)
    if name == "matchers":
        return json.dumps([(one.name, one.op, one.value) for one in value])
    if name in _SILENCE_TIMES:
        return round(value * 1000)
    return clean(value) if isinstance(value, str) else value


def _silence(values: Sequence[Any]) -> Silence:
    named: dict[str, Any] = dict(zip(_SILENCE, values, strict=True))
    named["matchers"] = tuple(Matcher(*one) for one in json.loads(named["matchers"]))
    return Silence(**named | {name: named[name] / 1000 for name in _SILENCE_TIMES})
