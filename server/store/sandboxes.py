"""Sandboxes in the store: one row each, as last reported. Written in the scrape's own transaction."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, false, func, or_, select, tuple_

from server.store.bulk import among, clean, upsert
from server.store.engine import Engines
from server.store.tables import runs, sandboxes
from server.store.types import SandboxRow

_TIMES = frozenset(
    ("requested_at", "started_at", "ready_at", "first_exec_at", "ended_at", "expires_at", "first_seen", "seen_at",
     "ready_seen", "failed_seen")
)  # fmt: skip
_COLUMNS = tuple(name for name in SandboxRow.__struct_fields__ if name not in ("spinup_seconds", "pending_seconds"))
_KEY = ("provider", "id")


def write(connection: Connection, rows: Sequence[SandboxRow], run: int) -> None:
    """Stores the rows; the newest record of a sandbox wins, but its first_seen is kept."""
    changing = [name for name in _COLUMNS if name not in (*_KEY, "first_seen")]
    upsert(connection, sandboxes, ("run", *_COLUMNS), [(run, *_values(row)) for row in rows], changing)


def _values(row: SandboxRow) -> list[Any]:
    return [_value(row, name) for name in _COLUMNS]


def _value(row: SandboxRow, name: str) -> Any:
    value = getattr(row, name)
    if name in _TIMES:
        return None if value is None else round(value * 1000)
    # Texts have no NULL: an absent one is empty.
    if name in ("latency_source", "cause"):
        return value or ""
    return clean(value) if isinstance(value, str) else value


class SandboxStore:
    """Reached as `Store.sandboxes`. Ranges are epoch ms; safe to share between threads."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def recent(self, run: str, since_ms: int) -> list[SandboxRow]:
        """Every live sandbox of a run's accounts, and those that ended or were reported at or after ``since_ms``."""
        c = sandboxes.c
        return self._rows(run, or_(c.ended_at.is_(None), c.ended_at >= since_ms, c.seen_at >= since_ms))

    def page(
        self, run: str, *, states: Collection[str] = (), own: bool | None = None, dangling: bool | None = None,
        find: str = "", limit: int = 100, before: tuple[float, str] | None = None,
    ) -> list[SandboxRow]:  # fmt: skip
        """The most recently discovered first.

        Args:
            find: part of an id or a name (which is a trace's, where one names it), in capitals or not; as it stands.
            before: (first_seen, id) of the last row of the page before.
        """
        c = sandboxes.c
        wanted: list[ColumnElement[bool]] = [c.state.in_(sorted(states))] if states else []
        wanted += [c.own == own] if own is not None else []
        wanted += [c.dangling == dangling] if dangling is not None else []
        if find:
            wanted.append(
                or_(c.id.icontains(clean(find), autoescape=True), c.name.icontains(clean(find), autoescape=True))
            )
        if before is not None:
            wanted.append(tuple_(c.first_seen, c.id) < (round(before[0] * 1000), before[1]))
        return self._rows(run, *wanted, order=(c.first_seen.desc(), c.id.desc()), limit=limit)

    def first_seen(self, run: str, identity: str) -> float | None:
        """Time at which a sandbox was first seen, epoch seconds; None for an unknown one."""
        c = sandboxes.c
        query = (
            select(func.max(c.first_seen)).join(runs, runs.c.id == c.run).where(runs.c.name == run, c.id == identity)
        )
        with self._engines.reading() as connection:
            found: int | None = connection.execute(query).scalar()
        return None if found is None else found / 1000

    def get(self, run: str, keys: Collection[tuple[str, str]]) -> list[SandboxRow]:
        """Those of the (provider, id) that are known."""
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for provider, identity in keys:
            wanted[clean(provider)].add(clean(identity))
        c = sandboxes.c
        # One provider at a time is a look into the key for each; by the ids alone all of the run's would be read.
        parts = (self._rows(run, c.provider == one, among(c.id, sorted(ids))) for one, ids in wanted.items())
        return [row for part in parts for row in part]

    def by_id(self, run: str, ids: Collection[str]) -> dict[str, SandboxRow]:
        """The sandboxes with these ids, of any provider."""
        names = sorted({clean(one) for one in ids})
        rows = self._rows(run, among(sandboxes.c.id, names)) if names else []
        return {row.id: row for row in rows}

    def heard_since(self, run: str, target: str, since_ms: int) -> list[SandboxRow]:
        """Rows of one source that changed at or after ``since_ms``."""
        c = sandboxes.c
        return self._rows(run, c.target == target, c.seen_at >= since_ms)

    def spinups(self, run: str, start: int, end: int) -> list[tuple[float, float]]:
        """(ready at, seconds it took), both in seconds, of the run's own that became ready within [start, end)."""
        c = sandboxes.c
        query = select(c.ready_at, c.requested_at).join(runs, runs.c.id == c.run)
        query = query.where(runs.c.name == run, c.own, c.ready_at >= start, c.ready_at < end)
        query = query.where(c.requested_at.is_not(None), c.requested_at <= c.ready_at)
        with self._engines.reading() as connection:
            return [(ready / 1000, (ready - asked) / 1000) for ready, asked in connection.execute(query)]

    def funnel(self, run: str) -> dict[str, int | None]:
        """How many of a run's own sandboxes got how far: requested, started, ready, first_exec, ended, failed.

        Few sources tell of a first command: ``first_exec`` is of the ``first_exec_of`` requested ones whose source
        (a provider, as read by a target) told of any, and None where none did. ``met_ended`` had begun before their
        source was first heard, and had ended when they were met: what failed among them is no share of anything, for
        a provider may list failures for longer than what went well.
        """
        c = sandboxes.c
        counts = (
            func.count(), func.count(c.started_at), func.count(c.ready_at), func.count(c.ended_at),
            func.count(func.nullif(c.cause, "")), func.count(c.first_exec_at),
        )  # fmt: skip
        mine = (runs.c.name == run, c.own)
        query = (
            select(*counts, func.min(c.first_seen), c.target, c.provider).join(runs, runs.c.id == c.run).where(*mine)
        )
        with self._engines.reading() as connection:
            rows = connection.execute(query.group_by(c.target, c.provider)).all()
            begun = func.coalesce(c.requested_at, c.started_at, c.ended_at)
            before = [and_(c.target == row[-2], c.provider == row[-1], begun <= row[-3]) for row in rows]
            late = select(func.count()).join(runs, runs.c.id == c.run)
            late = late.where(*mine, c.ended_at <= c.first_seen, or_(false(), *before))
            met_ended = int(connection.execute(late).scalar_one())
        sources = [tuple(map(int, row[:6])) for row in rows]
        requested, started, ready, ended, failed, ran = (sum(column) for column in zip(*sources, (0,) * 6, strict=True))
        reported = sum(source[0] for source in sources if source[-1])
        return {
            "requested": requested, "started": started, "ready": ready, "first_exec": ran if reported else None,
            "first_exec_of": reported, "ended": ended, "failed": failed, "met_ended": met_ended,
        }  # fmt: skip

    def _rows(
        self, run: str, *where: ColumnElement[bool], order: Sequence[Any] = (), limit: int | None = None
    ) -> list[SandboxRow]:
        columns = [sandboxes.c[name] for name in _COLUMNS]
        # Not a join: PostgreSQL would not see that one run's rows come sorted from an index.
        of_run = sandboxes.c.run == select(runs.c.id).where(runs.c.name == run).scalar_subquery()
        query = select(*columns).where(of_run, *where)
        with self._engines.reading() as connection:
            return [_row(values) for values in connection.execute(query.order_by(*order).limit(limit))]


def _row(values: Sequence[Any]) -> SandboxRow:
    named: dict[str, Any] = dict(zip(_COLUMNS, values, strict=True))
    for name in _TIMES:
        named[name] = None if named[name] is None else named[name] / 1000
    return SandboxRow(**named | {name: named[name] or None for name in ("latency_source", "cause")})
