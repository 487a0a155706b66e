"""Deletes what is older than its retention, in short transactions between the writer's own.

A run's rows are deleted from their oldest on, one unit of time after the other. `expiry` holds for each run and kind
how far that is done: a restart goes on there, charts read rollups before it, and late rows are added to rollups whose
raw rows are gone (`server.store.rollup`).

Nothing is deleted by its age alone: a run is kept for the whole retention from the moment it was attached, however old
its history is.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, Engine, delete, exists, func, select, text, update

from server.store import chunks, rollup, schema
from server.store.bulk import among, upsert
from server.store.engine import Engines, StoreError
from server.store.rollouts import rollout_classes, rollout_consumptions, rollout_details, rollout_groups, rollouts
from server.store.runs import rolled_until
from server.store.tables import DAY_MS, SLOT_MS, dirty, expiry, runs, sandboxes, series
from server.store.types import RetentionSettings

HOUR_MS = 3_600_000

RECORDS_AT_ONCE = 2_000
"""Rollouts or sandboxes in one transaction."""

PAGES_AT_ONCE = 1_000
"""Free pages that SQLite gives back to the file system in one transaction: 4 MB, about 5 ms."""

SQLITE_SIZES_BYTES = 1 << 30
"""Largest SQLite file of which sizes of tables are read, which takes about a second."""

NEWEST_KEPT_MS = 3_600_000
"""The size limit keeps the newest hour of a run that goes on: verdict and charts read it."""

SHORTEST_KEPT_MS = 900_000
"""So much stays where the newest hour alone exceeds the limit, which bounds the disk: half of it, then a quarter."""

RECLAIM_SHARE = 0.1
"""PostgreSQL: so much of the limit is deleted before tables are rewritten, which locks each for as long as it takes."""

WAL_SHARE = 0.1
"""SQLite: of the limit; a longer write-ahead log is emptied, because it is part of the size."""

ROOM_SHARE = {"sqlite": 0.2, "postgresql": 0.05}
ROOM_BYTES = 64_000_000
"""So much of the limit, at most, is left for what is written between two checks: most of it SQLite's log."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long each kind of row is kept, in ms; None: permanently. ``max_bytes``: limit of the whole database on disk.

    ``raw``: samples of targets. ``signals``: points at full resolution and histograms. ``rollups``: 1 min, 10 min and
    1 h. ``records``: rollouts, groups and sandboxes.
    """

    raw: int | None = 15 * DAY_MS
    signals: int | None = 90 * DAY_MS
    rollups: int | None = None
    records: int | None = 90 * DAY_MS
    max_bytes: int | None = None

    @classmethod
    def of(cls, settings: RetentionSettings) -> "Retention":
        """Settings (seconds) as the store's limits (ms)."""
        ms = {
            name: None if (seconds := getattr(settings, name)) is None else round(seconds * 1000)
            for name in ("raw", "signals", "rollups", "records")
        }
        return cls(**ms, max_bytes=settings.max_bytes)


class Kind(NamedTuple):
    """Rows that expire together.

    ``unit``: ms of event time in one step; ``at_once``: series in one step; ``sql``: what deletes them, all by dialect.
    """

    name: str
    unit: Mapping[str, int]
    at_once: Mapping[str, int]
    sql: Mapping[str, tuple[str, ...]]


_SCOPE = "series IN (SELECT value FROM json_each(:ids))"
_SCOPE_PG = "series = ANY(CAST(:ids AS bigint[]))"


def _by_series(*conditions: str) -> dict[str, tuple[str, ...]]:
    return {
        "sqlite": tuple(f"DELETE FROM {condition} AND {_SCOPE}" for condition in conditions),
        "postgresql": tuple(f"DELETE FROM {condition} AND {_SCOPE_PG}" for condition in conditions),
    }


# PostgreSQL keeps samples in partitions of a day, which are dropped as a whole where that is possible.
RAW = Kind(
    "raw",
    {"sqlite": SLOT_MS, "postgresql": DAY_MS},
    {"sqlite": 100, "postgresql": 5},
    _by_series("samples WHERE ts >= :start AND ts < :end")
    | {"sqlite": (f"DELETE FROM samples WHERE slot = :start / {SLOT_MS} AND {_SCOPE}",)},
)
_HOUR, _DAY, _MANY = (dict.fromkeys(("sqlite", "postgresql"), value) for value in (HOUR_MS, DAY_MS, 100))
SIGNALS = Kind(
    "signals",
    _HOUR,
    dict.fromkeys(("sqlite", "postgresql"), 10),
    _by_series("points WHERE ts >= :start AND ts < :end", "hist WHERE minute >= :start AND minute < :end"),
)
ROLLUPS = Kind(
    "rollups",
    _DAY,
    _MANY,
    _by_series(*(f"rollups WHERE tier = {tier} AND bucket >= :start AND bucket < :end" for tier in rollup.TIERS)),
)
KINDS = (RAW, SIGNALS, ROLLUPS)


RAW_BY_SIZE = RAW._replace(unit=dict.fromkeys(("sqlite", "postgresql"), SLOT_MS))
SIGNALS_BY_SIZE = SIGNALS._replace(unit=dict.fromkeys(("sqlite", "postgresql"), SLOT_MS))
"""For the size limit, which may be reached within hours."""
RECORDS = "records"
"""Kind in `expiry` of rollouts and sandboxes that the size limit deleted."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """``bytes``: of the whole database, without what is free in it. ``oldest_raw``: ms, None without raw rows.

    ``wal_bytes``: SQLite's write-ahead log.
    """

    bytes: int
    free_bytes: int
    oldest_raw: int | None
    wal_bytes: int = 0

    @property
    def on_disk(self) -> int:
        """What counts for the size limit."""
        return self.bytes + self.free_bytes + self.wal_bytes


class RetentionStore:
    """Reached as `Store.retention`. Times are epoch ms; ``now`` is the wall clock. Safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        # PostgreSQL: bytes of rows that the size limit deleted since their tables were last rewritten.
        self._freed_bytes: dict[str, float] = {}

    def step(self, limits: Retention, now: int) -> bool:
        """Delete the next piece that is due, in one short transaction. False: nothing is due.

        Call it again after a pause while it returns True: the writer gets its turn in between.

        Raises:
            StoreError: the store was opened read-only.
        """
        engine = self._write_engine()
        with self._engines.reading() as connection:
            new = connection.execute(select(exists().where(runs.c.attached_at.is_(None)))).scalar()
        if new:
            with engine.begin() as connection:
                _stamp_new_runs(connection, now)
        for kind, keep in ((RAW, limits.raw), (SIGNALS, limits.signals), (ROLLUPS, limits.rollups)):
            if keep is not None and self._expire_oldest(engine, kind, now - keep, attached_before=now - keep):
                return True
        if limits.records is not None and self._expire_records(engine, now - limits.records):
            return True
        if limits.max_bytes is not None and self._over(engine, limits.max_bytes, now):
            return True
        return self._give_back(engine, 2 * PAGES_AT_ONCE)

    def size(self) -> StoreSize:
        """What the database takes, and when its oldest raw sample was taken (to the unit of deletion)."""
        with self._engines.reading() as connection:
            return _size(connection)

    def table_bytes(self) -> dict[str, int]:
        """Bytes of each table with its indexes, partitions added up. It takes some milliseconds on PostgreSQL.

        SQLite reads all pages: 1 ms of CPU a MB. Empty for a file above `SQLITE_SIZES_BYTES`, and for a SQLite that was
        built without dbstat.
        """
        with self._engines.reading() as connection:
            sql = _TABLE_BYTES[connection.dialect.name]
            if connection.dialect.name == "sqlite":
                modules = connection.execute(text("SELECT name FROM pragma_module_list")).scalars().all()
                if "dbstat" not in modules or _file_bytes(connection) > SQLITE_SIZES_BYTES:
                    return {}
            return {name: int(size) for name, size in connection.execute(text(sql))}

    def _write_engine(self) -> Engine:
        if self._engines.write is None:
            raise StoreError("the store was opened read-only")
        return self._engines.write

    # ---- rows of series

    def _expire_oldest(self, engine: Engine, kind: Kind, cutoff: int, attached_before: int) -> bool:
        """One piece of the first run that has rows of the kind before ``cutoff``. False: no run has."""
        upto = rollup.floor(cutoff, kind.unit[self._engines.dialect])
        with self._engines.reading() as connection:
            run = _next_run(connection, kind, upto, attached_before)
        if run is None:
            return False
        if kind is not ROLLUPS:
            _close(engine, run, upto)
        with engine.begin() as connection:
            _expire_piece(connection, kind, run, upto, attached_before)
        return True

    # ---- size limit

    def least_bytes(self, now: int) -> int:
        """The smallest size limit that can be met: what it never deletes, the newest hour as far as can be told, and
        room for what is written between two checks. 0 where the sizes of tables are unknown, see `table_bytes`.
        """
        tables = self.table_bytes()
        if not tables:
            return 0
        with self._engines.reading() as connection:
            found = _runs_by_size(connection, now)
        running = [one for one in found if not one.over]
        span = max((one.last for one in running), default=0) - min((one.first for one in found), default=0)
        share = min(1.0, NEWEST_KEPT_MS / span) if running and span > 0 else 0.0
        deletable = sum(tables.get(name, 0) for name in _DELETABLE)
        return round((self.size().bytes - (1 - share) * deletable) / (1 - ROOM_SHARE[self._engines.dialect]))

    def deleted_by_size(self, limits: Retention, now: int) -> dict[str, int]:
        """What the size limit deleted: kind -> event time (ms) before which rows are gone that retention keeps."""
        query = select(expiry.c.kind, func.max(expiry.c.before)).group_by(expiry.c.kind)
        with self._engines.reading() as connection:
            before = {kind: int(ts) for kind, ts in connection.execute(query)}
        keeps = {RAW.name: limits.raw, SIGNALS.name: limits.signals, RECORDS: limits.records}
        return {
            kind: before[kind] for kind, keep in keeps.items() if kind in before and before[kind] > now - (keep or now)
        }

    def _over(self, engine: Engine, limit: int, now: int) -> bool:
        """Bring the database under its limit, one piece at a time. False: it is, or nothing more can be deleted."""
        size = self.size()
        most = round(WAL_SHARE * limit)
        if size.wal_bytes > most and _empty_wal(engine, most):
            return True
        limit -= round(min(ROOM_SHARE[self._engines.dialect] * limit, ROOM_BYTES))
        if size.bytes + size.free_bytes <= limit:
            return False
        if self._give_back(engine, 0):
            return True
        freed = sum(self._freed_bytes.values())
        if (size.bytes - freed > limit or 0 < freed < RECLAIM_SHARE * limit) and self._shrink(engine, now):
            return True
        # A rewrite locks its table: it must be worth it, also where only the newest hour is left above the limit.
        return freed > 0 and freed >= RECLAIM_SHARE * limit and self._reclaim(engine)

    def bound_log(self, limit: int) -> None:
        """SQLite: let the write-ahead log take `WAL_SHARE` of a size limit from the start, also during a back-fill."""
        if self._engines.dialect == "sqlite":
            _empty_wal(self._write_engine(), round(WAL_SHARE * limit))

    def _shrink(self, engine: Engine, now: int) -> bool:
        """Delete the next piece of what may go while the newest hour stays; then while half of it does, or a quarter.

        A limit below the newest hour is refused at the start, but a run can become faster.
        """
        kept = NEWEST_KEPT_MS
        while kept >= SHORTEST_KEPT_MS:
            if self._delete_before(engine, now, kept):
                return True
            kept //= 2
        return False

    def _delete_before(self, engine: Engine, now: int, kept: int) -> bool:
        """Delete a piece: raw rows of runs that are over, other raw rows, signals, records in the same order."""
        dialect = self._engines.dialect
        with self._engines.reading() as connection:
            found = _runs_by_size(connection, now, kept)
            states = {
                (run, kind): int(before)
                for run, kind, before in connection.execute(select(expiry.c.run, expiry.c.kind, expiry.c.before))
            }
        for kind, only_over in ((RAW_BY_SIZE, True), (RAW_BY_SIZE, False), (SIGNALS_BY_SIZE, False)):
            due = []
            for one in found:
                upto = rollup.floor(one.deletable + (kind.unit[dialect] if one.over else 0), kind.unit[dialect])
                begin = states.get((one.run, kind.name), one.first)
                if begin < upto and (one.over or not only_over):
                    due.append((begin, one.run, upto))
            if due:
                _, run, upto = min(due)
                _close(engine, run, upto)
                with engine.begin() as connection:
                    self._freed(connection, _expire_piece(connection, kind, run, upto, now))
                return True
        for one in sorted(found, key=lambda one: (not one.over, one.first)):
            with engine.begin() as connection:
                rows = {"rollouts": _expire_rollouts(connection, one.run, one.deletable)}
                rows["sandboxes"] = _expire_sandboxes(connection, one.run, one.deletable)
                if any(rows.values()):
                    _save_records(connection, one.run, one.deletable)
                    self._freed(connection, rows)
                    return True
        return False

    def _freed(self, connection: Connection, rows: Mapping[str, int]) -> None:
        """PostgreSQL: estimate the bytes of deleted rows, which its tables keep until they are rewritten."""
        if connection.dialect.name != "postgresql":
            return
        for table, count in rows.items():
            if count:
                width = connection.execute(text(_ROW_BYTES), {"table": table}).scalar() or 0.0
                self._freed_bytes[table] = self._freed_bytes.get(table, 0.0) + count * float(width)

    def _reclaim(self, engine: Engine) -> bool:
        """PostgreSQL: rewrite the tables from which rows were deleted, which returns their space."""
        with engine.begin() as connection:
            chunks.drop_empty_days(connection)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SET lock_timeout = '10s'"))
            try:
                for table in list(self._freed_bytes):
                    for name in _REWRITTEN.get(table, (table,)):
                        connection.execute(text(f"VACUUM (FULL) {name}"))
                    del self._freed_bytes[table]
            finally:
                connection.execute(text("RESET lock_timeout"))
        return True

    # ---- records

    def _expire_records(self, engine: Engine, cutoff: int) -> bool:
        with engine.begin() as connection:
            old = [
                run
                for (run,) in connection.execute(
                    select(runs.c.id).where(runs.c.attached_at < cutoff, runs.c.first_ts < cutoff).order_by(runs.c.id)
                )
            ]
            return any(_expire_rollouts(connection, run, cutoff) for run in old) or any(
                _expire_sandboxes(connection, run, cutoff) for run in old
            )

    # ---- space

    def _give_back(self, engine: Engine, kept: int) -> bool:
        """SQLite: return free pages beyond ``kept`` to the file system. PostgreSQL: dropped partitions are gone, vacuum
        reuses the space of rows."""
        if self._engines.dialect != "sqlite":
            return False
        with engine.connect() as connection:
            driver = connection.connection.cursor()
            try:
                (mode,) = driver.execute("PRAGMA auto_vacuum").fetchone()
                (free,) = driver.execute("PRAGMA freelist_count").fetchone()
                # Some are kept: the writer needs them within seconds.
                if mode != 2 or free <= kept:
                    return False
                driver.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})").fetchall()
            finally:
                driver.close()
        return True


def expired_before(connection: Connection, run: int, kind: Kind = RAW) -> int:
    """Event time before which a run's rows of a kind are deleted; 0: none are."""
    query = select(expiry.c.before).where(expiry.c.run == run, expiry.c.kind == kind.name)
    return int(connection.execute(query).scalar() or 0)


def _next_run(connection: Connection, kind: Kind, upto: int, attached_before: int) -> int | None:
    """The run with the oldest rows of a kind before ``upto``."""
    begin = func.coalesce(expiry.c.before, runs.c.first_ts)
    query = (
        select(runs.c.id)
        .outerjoin(expiry, (expiry.c.run == runs.c.id) & (expiry.c.kind == kind.name))
        .where(runs.c.first_ts.is_not(None), runs.c.attached_at <= attached_before, begin < upto)
        .order_by(begin, runs.c.id)
        .limit(1)
    )
    found = connection.execute(query).scalar()
    return None if found is None else int(found)


def _close(engine: Engine, run: int, upto: int) -> None:
    """Roll up all that will be deleted. A run that ended is closed to its end: no later watermark does it."""
    _repeat(engine, lambda c: _rolled(c, run) < upto and rollup.close_next(c, run, upto, 0))
    _repeat(engine, lambda c: _has_dirty(c, run, upto) and rollup.recompute_next(c, run))


def _repeat(engine: Engine, step: Callable[[Connection], bool]) -> None:
    more = True
    while more:
        with engine.begin() as connection:
            more = step(connection)


def _rolled(connection: Connection, run: int) -> int:
    return rolled_until(connection, run) or 0


def _has_dirty(connection: Connection, run: int, upto: int) -> bool:
    query = select(func.count()).select_from(dirty).where(dirty.c.run == run, dirty.c.slot < upto // SLOT_MS)
    return bool(connection.execute(query).scalar())


def _expire_piece(connection: Connection, kind: Kind, run: int, upto: int, attached_before: int) -> dict[str, int]:
    """Delete the next piece of a run: some of its series in one unit of time. Returns table -> rows deleted."""
    rows: dict[str, int] = {}
    dialect = connection.dialect.name
    unit, at_once = kind.unit[dialect], kind.at_once[dialect]
    first, rolled = connection.execute(
        select(runs.c.first_ts, runs.c.rolled).where(runs.c.id == run).with_for_update()
    ).one()
    c = expiry.c
    state = connection.execute(select(c.before, c.series).where(c.run == run, c.kind == kind.name)).one_or_none()
    before, done = state if state is not None else (rollup.floor(first, unit), 0)
    if before % unit:  # deleted by the size limit, in smaller units
        before, done = rollup.floor(before, unit), 0
    if kind is not ROLLUPS and rolled is None:
        before = upto  # the run has no rows of series at all
    elif done == 0:
        before = max(before, min(upto, _next_unit(connection, kind, run, before, unit)))
    # Rows that came after `_close` are rolled up by the next step, before they are deleted.
    late = kind is not ROLLUPS and before < upto and _has_dirty(connection, run, before + unit)
    if before < upto and not late:
        if kind is RAW and dialect == "postgresql" and _drop_day(connection, before, attached_before):
            return rows
        ids = _series(connection, run, done, at_once)
        if ids:
            rows = _delete(connection, kind, ids, before, unit)
        before, done = (before, ids[-1]) if len(ids) == at_once else (before + unit, 0)
    return rows | {"chunks": _save(connection, kind, run, before, done)}


def _save(connection: Connection, kind: Kind, run: int, before: int, done: int) -> int:
    """Returns the number of chunks that are deleted with it."""
    count = chunks.delete_before(connection, run, before) if kind.name == RAW.name else 0
    columns = ("run", "kind", "before", "series")
    upsert(connection, expiry, columns, [(run, kind.name, before, done)], ("before", "series"))
    return count


def _save_records(connection: Connection, run: int, before: int) -> None:
    columns = ("run", "kind", "before", "series")
    upsert(connection, expiry, columns, [(run, RECORDS, before, 0)], ("before",))


def _series(connection: Connection, run: int, after: int, most: int) -> list[int]:
    query = select(series.c.id).where(series.c.run == run, series.c.id > after).order_by(series.c.id).limit(most)
    return [int(number) for number in connection.execute(query).scalars()]


def _delete(connection: Connection, kind: Kind, ids: list[int], start: int, unit: int) -> dict[str, int]:
    dialect = connection.dialect.name
    values = {"ids": str(ids) if dialect == "sqlite" else ids, "start": start, "end": start + unit}
    return {sql.split()[2]: connection.execute(text(sql), values).rowcount for sql in kind.sql[dialect]}


_FIRST_OF_RUN = (
    "SELECT min(first) FROM (SELECT (SELECT min(t.{time}) FROM {table} t WHERE {where} t.series = s.id "
    "AND t.{time} >= :start) AS first FROM series s WHERE s.run = :run) AS firsts"
)
_FIRST = {
    SIGNALS.name: (
        _FIRST_OF_RUN.format(table="points", time="ts", where=""),
        _FIRST_OF_RUN.format(table="hist", time="minute", where=""),
    ),
    ROLLUPS.name: (_FIRST_OF_RUN.format(table="rollups", time="bucket", where=f"t.tier = {rollup.TIERS[0]} AND"),),
}


def _next_unit(connection: Connection, kind: Kind, run: int, before: int, unit: int) -> int:
    """The first unit from ``before`` on that may hold rows of the run: a hole of a year costs one query."""
    if kind.name == RAW.name:
        found = rollup.next_slot(connection, before)  # of any run: samples have no index by run
        packed = chunks.first(connection, run)
        if packed is not None:
            # A chunk is deleted with the unit of time in which its hour ends.
            end = packed + HOUR_MS - 1
            found = end if found is None else min(found, end)
            found = max(found, before)
    else:
        values = {"run": run, "start": before}
        firsts = [connection.execute(text(sql), values).scalar() for sql in _FIRST[kind.name]]
        found = min((int(first) for first in firsts if first is not None), default=None)
    return 1 << 62 if found is None else rollup.floor(found, unit)


def _drop_day(connection: Connection, day: int, attached_before: int) -> bool:
    """PostgreSQL: drop the partition of a day that begins at ``day`` (ms). False: some run still needs its rows."""
    begin = func.coalesce(expiry.c.before, runs.c.first_ts)
    query = (
        select(runs.c.id, runs.c.attached_at, runs.c.rolled)
        .outerjoin(expiry, (expiry.c.run == runs.c.id) & (expiry.c.kind == RAW.name))
        .where(runs.c.first_ts < day + DAY_MS, begin < day + DAY_MS)
        .order_by(runs.c.name)
        .with_for_update(of=runs)
    )
    concerned = connection.execute(query).all()
    for row in concerned:
        open_rows = row.rolled is not None and (
            row.rolled < day + DAY_MS or _has_dirty(connection, row.id, day + DAY_MS)
        )
        if row.attached_at is None or row.attached_at > attached_before or open_rows:
            return False
    for row in concerned:
        _save(connection, RAW, row.id, day + DAY_MS, 0)
    schema.drop(connection, day // DAY_MS)
    return True


def _expire_rollouts(connection: Connection, run: int, cutoff: int) -> int:
    """Returns how many rollouts and groups are deleted."""
    c, of_run = rollouts.c, select(rollout_classes.c.id).where(rollout_classes.c.run == run)
    # By class, because the index on `moved_at` begins with it.
    old = select(c.id, c.rollout_id, c.life).where(c.run == run, c["class"].in_(of_run), c.moved_at < cutoff)
    rows = connection.execute(old.limit(RECORDS_AT_ONCE)).all()
    for life in {row.life for row in rows}:
        ids = [row.rollout_id for row in rows if row.life == life]
        for table in (rollout_consumptions, rollout_details):
            t = table.c
            connection.execute(delete(table).where(t.run == run, t.life == life, among(t.rollout_id, ids)))
    connection.execute(delete(rollouts).where(among(c.id, [row.id for row in rows])))
    g = rollout_groups.c
    groups = list(
        connection.execute(select(g.id).where(g.run == run, g.moved_at < cutoff).limit(RECORDS_AT_ONCE)).scalars()
    )
    connection.execute(delete(rollout_groups).where(among(g.id, groups)))
    return len(rows) + len(groups)


def _expire_sandboxes(connection: Connection, run: int, cutoff: int) -> int:
    c = sandboxes.c
    old = select(c.provider, c.id).where(c.run == run, c.ended_at < cutoff).limit(RECORDS_AT_ONCE)
    rows = connection.execute(old).all()
    connection.execute(
        delete(sandboxes).where(c.run == run, c.ended_at < cutoff, among(c.id, [row.id for row in rows]))
    )
    return len(rows)


# ---- size limit
# What it may delete of each run.

_DELETABLE = (
    "samples", "chunks", "points", "hist", "rollouts", "rollout_consumptions", "rollout_details", "rollout_groups",
    "sandboxes",
)  # fmt: skip
# Rows of the first are deleted with rows of the others.
_REWRITTEN = {"rollouts": ("rollouts", "rollout_consumptions", "rollout_details", "rollout_groups")}
# A partition's rows are as wide as those of all.
_ROW_BYTES = """
SELECT sum(pg_total_relation_size(c.oid)) / greatest(sum(greatest(c.reltuples, 0)), 1000)
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND (c.oid = to_regclass(:table) OR i.inhparent = to_regclass(:table))
"""


class _RunTimes(NamedTuple):
    """``over``: it has ended, or was not collected for an hour. ``first``, ``last``: of its rows, ms."""

    run: int
    over: bool
    first: int
    last: int
    kept: int
    """ms of a run that goes on."""

    @property
    def deletable(self) -> int:
        """Rows before it may go."""
        return self.last + 1 if self.over else self.last - self.kept


def _runs_by_size(connection: Connection, now: int, kept: int = NEWEST_KEPT_MS) -> list[_RunTimes]:
    c = runs.c
    query = select(c.id, c.lifecycle, c.collected_at, c.first_ts, c.last_ts, c.watermark).where(c.first_ts.is_not(None))
    return [
        _RunTimes(
            row.id,
            row.lifecycle in _OVER or (row.collected_at is not None and row.collected_at < now - NEWEST_KEPT_MS),
            int(row.first_ts),
            max(int(row.last_ts or row.first_ts), int(row.watermark or 0)),
            kept,
        )
        for row in connection.execute(query.order_by(c.id))
    ]


_OVER = ("finished", "crashed")


def _empty_wal(engine: Engine, most: int) -> bool:
    """SQLite: write the log's pages back and truncate it. False: a reader uses it; the next step tries again.

    From now on SQLite writes back and truncates by itself at ``most`` bytes: a back-fill writes more in a period.
    """
    with engine.connect() as connection:
        driver = connection.connection.cursor()
        (patience,) = driver.execute("PRAGMA busy_timeout").fetchone()
        try:
            (width,) = driver.execute("PRAGMA page_size").fetchone()
            driver.execute(f"PRAGMA wal_autocheckpoint = {max(most // width, 1)}").fetchall()
            driver.execute(f"PRAGMA journal_size_limit = {most}").fetchall()
            driver.execute("PRAGMA busy_timeout = 0").fetchall()
            (busy, *_) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            driver.execute(f"PRAGMA busy_timeout = {patience}").fetchall()
            driver.close()
    return not busy


def _wal_bytes(connection: Connection) -> int:
    path = connection.exec_driver_sql("PRAGMA database_list").first()
    try:
        return os.stat(f"{path[2]}-wal").st_size if path is not None and path[2] else 0
    except OSError:
        return 0


_POSTGRES_TABLE_BYTES = """
SELECT coalesce(p.relname, c.relname) AS name, sum(pg_total_relation_size(c.oid))
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
GROUP BY 1 ORDER BY 1
"""
_SQLITE_TABLE_BYTES = """
SELECT m.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_master m ON m.name = d.name
WHERE d.aggregate = TRUE GROUP BY 1 ORDER BY 1
"""
_TABLE_BYTES = {"postgresql": _POSTGRES_TABLE_BYTES, "sqlite": _SQLITE_TABLE_BYTES}


def _file_bytes(connection: Connection) -> int:
    """SQLite: bytes of the file, with its free pages."""
    pages, width = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()) for name in ("page_count", "page_size")
    )
    return pages * width


def _size(connection: Connection) -> StoreSize:
    if connection.dialect.name == "postgresql":
        size = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        days = schema.existing(connection)
        return StoreSize(int(size), 0, _oldest(connection, min(days) * DAY_MS if days else None))
    pages, free, width = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    slot = connection.execute(text("SELECT min(slot) FROM samples")).scalar()
    oldest = _oldest(connection, None if slot is None else int(slot) * SLOT_MS)
    return StoreSize((pages - free) * width, free * width, oldest, _wal_bytes(connection))


def _oldest(connection: Connection, row: int | None) -> int | None:
    """When the oldest raw sample was taken, packed or not."""
    times = [ts for ts in (row, chunks.oldest(connection)) if ts is not None]
    return min(times, default=None)


def _stamp_new_runs(connection: Connection, now: int) -> None:
    """Runs of which no attach time is recorded were attached just now, at the latest."""
    connection.execute(update(runs).where(runs.c.attached_at.is_(None)).values(attached_at=now))
