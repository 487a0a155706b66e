"""The tables of rollouts, as `server.store.tables` has the others. Times are BIGINT epoch milliseconds."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from server.store.rollouts import fields as rollouts_fields
from server.store.tables import Id, common

# Ids are compared byte by byte in both databases: what begins with a text is then a range.
_Name = Text().with_variant(Text(collation="C"), "postgresql")
_KINDS: Mapping[str, Any] = {
    "float": Double, "bool": Boolean, "flag": Boolean, "int": BigInteger, "whole": BigInteger, "time": BigInteger,
}  # fmt: skip


def _columns(fields: Mapping[str, str]) -> list[Column[Any]]:
    return [
        Column(
            name, _Name if name in ("rollout_id", "group_id") else _KINDS.get(kind, Text),
            nullable=rollouts_fields.nullable(kind),
        )
        for name, kind in fields.items()
    ]  # fmt: skip


# No foreign keys, as for all hot tables.
def _run() -> Column[int]:
    return Column("run", BigInteger, nullable=False)


rollout_classes = Table(
    "rollout_classes",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    Column("environment", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("state", Text, nullable=False),
    # -1: not reported.
    Column("mixed", Integer, nullable=False),
    UniqueConstraint("run", "environment", "purpose", "state", "mixed", name="uq_rollout_classes_key"),
)

rollouts = Table(
    "rollouts",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    # Everything that pages are filtered by, as one number: one index per order then serves every filter.
    Column("class", BigInteger, nullable=False),
    *_columns(rollouts_fields.RECORD),
    *_columns(rollouts_fields.ROW),
    UniqueConstraint("run", "rollout_id", "life", name="uq_rollouts_key"),
    Index("ix_rollouts_group", "run", "group_id", "life"),
    Index("ix_rollouts_moved", "run", "class", "moved_at", "id"),
    *(
        Index(f"ix_rollouts_{name}", "run", "class", name, "moved_at", "id")
        for name in ("seconds", "response_tokens", "staleness", "reward")
    ),
)

rollout_consumptions = Table(
    "rollout_consumptions",
    common,
    _run(),
    Column("rollout_id", _Name, nullable=False),
    Column("life", BigInteger, nullable=False),
    # -1: not reported.
    Column("version", BigInteger, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("at", BigInteger),
    PrimaryKeyConstraint("run", "rollout_id", "life", "version", "incarnation", name="pk_rollout_consumptions"),
    Index("ix_rollout_consumptions_version", "run", "life", "version"),
    sqlite_with_rowid=False,
)

rollout_details = Table(
    "rollout_details",
    common,
    _run(),
    Column("rollout_id", _Name, nullable=False),
    Column("life", BigInteger, nullable=False),
    Column("turns", Text, nullable=False),
    Column("spans", Text, nullable=False),
    PrimaryKeyConstraint("run", "rollout_id", "life", name="pk_rollout_details"),
)

rollout_groups = Table(
    "rollout_groups",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    *_columns(rollouts_fields.GROUP),
    UniqueConstraint("run", "group_id", "life", name="uq_rollout_groups_key"),
    Index("ix_rollout_groups_moved", "run", "outcome", "moved_at", "id"),
    Index("ix_rollout_groups_environment", "run", "environment", "outcome", "moved_at", "id"),
)

rollout_sums = Table(
    "rollout_sums",
    common,
    _run(),
    # The bucket's width in ms, which names the tier.
    Column("tier", BigInteger, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("exit", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("rollouts", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("response_tokens", BigInteger, nullable=False),
    Column("loss_tokens", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("told", BigInteger, nullable=False, server_default="0"),
    PrimaryKeyConstraint("run", "tier", "bucket", "exit", "environment", "purpose", name="pk_rollout_sums"),
    sqlite_with_rowid=False,
)

rollout_bins = Table(
    "rollout_bins",
    common,
    _run(),
    Column("tier", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("bin", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "tier", "kind", "bucket", "bin", name="pk_rollout_bins"),
    sqlite_with_rowid=False,
)
