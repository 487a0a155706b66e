"""Rollouts into the database, in the transaction of the cursor, or of the push, that they came with.

Rows are written whole; sums and bins are increments, which a batch that is tried again does not add again.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select, update

from server.store.bulk import Row, clean, upsert
from server.store.rollouts import fields
from server.store.rollouts.tables import (
    rollout_bins,
    rollout_classes,
    rollout_consumptions,
    rollout_details,
    rollout_groups,
    rollout_sums,
    rollouts,
)
from server.store.tables import runs
from server.store.types import Batch, RolloutRow

ENVIRONMENTS = 100
"""So many have classes of their own; what is beyond them shares one, so that names without end cost no page."""

OTHER = "*"
AMOUNTS = ("rollouts", "prompt_tokens", "response_tokens", "loss_tokens", "told", "seconds")
_SUM_KEY = ("tier", "bucket", "exit", "environment", "purpose")
_BIN_KEY = ("tier", "kind", "bucket", "bin")
_CLASS = ("environment", "purpose", "state", "mixed")
_KEY = ("run", "rollout_id", "life")
_CHANGING = ("class", *(name for name in fields.COLUMNS if name not in ("rollout_id", "life", "first_seen")))
_GROUP_CHANGING = tuple(name for name in fields.GROUP if name not in ("group_id", "life"))

ClassKey = tuple[str, str, str, int]
"""(environment, purpose, state, mixed: -1 not reported)."""


def write(connection: Connection, batch: Batch, run: int) -> None:
    """Store a batch's rollouts, groups and increments. The run's row is locked."""
    if batch.rollouts:
        _headers(connection, batch.rollouts, run)
        _consumptions(connection, batch.rollouts, run)
        _details(connection, batch.rollouts, run)
    groups = [(run, *fields.group_values(group)) for group in batch.rollout_groups]
    upsert(connection, rollout_groups, ("run", *fields.GROUP), groups, _GROUP_CHANGING)
    if batch.rollout_sums or batch.rollout_bins:
        _increments(connection, batch, run)


def _headers(connection: Connection, rows: Sequence[RolloutRow], run: int) -> None:
    keys = [_class_of(row) for row in rows]
    classes = _classes(connection, set(keys), run)
    found: list[Row] = [(run, classes[key], *fields.values(row)) for key, row in zip(keys, rows, strict=True)]
    upsert(connection, rollouts, ("run", "class", *fields.COLUMNS), found, _CHANGING)


def _class_of(row: RolloutRow) -> ClassKey:
    mixed = -1 if row.mixed is None else int(row.mixed)
    return fields.text(row.record.environment), row.record.purpose or "", row.state, mixed


def _classes(connection: Connection, wanted: set[ClassKey], run: int) -> dict[ClassKey, int]:
    """The number of each class, created where new."""
    known = known_classes(connection, run)
    if new := wanted - known.keys():
        names = {key[0] for key in known}
        made = {key: _placed(key, names) for key in sorted(new)}
        upsert(connection, rollout_classes, ("run", *_CLASS), [(run, *key) for key in set(made.values())])
        known = known_classes(connection, run)
        known.update({key: known[place] for key, place in made.items()})
    return known


def _placed(key: ClassKey, names: set[str]) -> ClassKey:
    if key[0] in names or len(names) < ENVIRONMENTS:
        names.add(key[0])
        return key
    return (OTHER, *key[1:])


def known_classes(connection: Connection, run: int) -> dict[ClassKey, int]:
    """(environment, purpose, state, mixed) -> number."""
    c = rollout_classes.c
    rows = connection.execute(select(c.environment, c.purpose, c.state, c.mixed, c.id).where(c.run == run)).all()
    return {(row[0], row[1], row[2], row[3]): row[4] for row in rows}


def _consumptions(connection: Connection, rows: Iterable[RolloutRow], run: int) -> None:
    found: list[Row] = [
        (
            run, fields.text(row.record.rollout_id), row.life, -1 if use.version is None else use.version,
            -1 if use.incarnation is None else use.incarnation, None if use.at is None else round(use.at * 1000),
        )
        for row in rows for use in row.record.consumptions
    ]  # fmt: skip
    upsert(connection, rollout_consumptions, (*_KEY, "version", "incarnation", "at"), found, ("at",))


def _details(connection: Connection, rows: Iterable[RolloutRow], run: int) -> None:
    """Turns and spans of those that keep them; of one that keeps them no more they go."""
    kept: list[Row] = []
    gone: list[Row] = []
    for row in {(row.record.rollout_id, row.life): row for row in rows}.values():
        key = (run, fields.text(row.record.rollout_id), row.life)
        if row.detailed:
            kept.append((*key, fields.turns_text(row.record.turns), fields.spans_text(row.record.spans)))
        else:
            gone.append(key)
    upsert(connection, rollout_details, (*_KEY, "turns", "spans"), kept, ("turns", "spans"))
    if not gone:
        return
    if connection.dialect.name == "postgresql":
        sql = (
            "DELETE FROM rollout_details d USING unnest(%s::bigint[], %s::text[], %s::bigint[]) AS g (run, id, life) "
            "WHERE d.run = g.run AND d.rollout_id = g.id AND d.life = g.life"
        )
        connection.exec_driver_sql(sql, tuple(list(column) for column in zip(*gone, strict=True)))
        return
    connection.exec_driver_sql("DELETE FROM rollout_details WHERE run = ? AND rollout_id = ? AND life = ?", gone)


def _increments(connection: Connection, batch: Batch, run: int) -> None:
    """Adds the increments once: a commit whose answer was lost is retried with the same batch."""
    if connection.execute(select(runs.c.applied).where(runs.c.id == run)).scalar() == batch.token:
        return
    sums: dict[Row, list[float]] = defaultdict(lambda: [0, 0, 0, 0, 0, 0.0])
    for one in batch.rollout_sums:
        held = sums[(run, one.tier, one.bucket, one.exit, clean(one.environment), one.purpose)]
        for at, name in enumerate(AMOUNTS):
            held[at] += getattr(one, name)
    bins: dict[Row, int] = defaultdict(int)
    for cell in batch.rollout_bins:
        bins[(run, cell.tier, cell.kind, cell.bucket, cell.bin)] += cell.n
    added: list[Row] = [(*key, *held[:-1], float(held[-1])) for key, held in sums.items()]
    upsert(connection, rollout_sums, ("run", *_SUM_KEY, *AMOUNTS), added, add=AMOUNTS)
    counted: list[Row] = [(*key, n) for key, n in bins.items() if n]
    upsert(connection, rollout_bins, ("run", *_BIN_KEY, "n"), counted, add=("n",))
    connection.execute(update(runs).where(runs.c.id == run).values(applied=batch.token))
