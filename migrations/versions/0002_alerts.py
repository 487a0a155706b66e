"""Alerts: their episodes, groups, outbox, silences and heartbeats.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# SQLite gives out row ids only for a column declared exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# In the order of creation; dropped in reverse.
_TABLES = ("alerts", "alert_groups", "outbox", "silences", "heartbeats")


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _bool(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False)


def _run() -> sa.Column[int]:
    return sa.Column("run", sa.BigInteger, sa.ForeignKey("runs.id"), nullable=False)


def _pk(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _alerts() -> None:
    op.create_table(
        "alerts", _run(), _text("fingerprint"), _big("active_at"), _text("rule"), _text("state"), _text("series"), _text("labels"),
        _text("annotations"), sa.Column("value", sa.Double, nullable=True), _big("fired_at", True), _big("resolved_at", True),
        _big("keep_since", True), _big("held_since", True), _text("reason"), _text("muted"), _bool("replayed"),
        _pk("alerts", "run", "fingerprint", "active_at"),
    )  # fmt: skip
    op.create_index("ix_alerts_run_resolved", "alerts", ["run", "resolved_at"])
    op.create_index("ix_alerts_resolved", "alerts", ["resolved_at"])


def _groups() -> None:
    op.create_table(
        "alert_groups", _run(), _text("receiver"), _big("group_hash"), _text("group_key"), _text("labels"), _big("next_flush"),
        _big("notified_at", True), _text("firing"), _text("resolved"), _big("seq"), _pk("alert_groups", "run", "receiver", "group_hash"),
    )  # fmt: skip


def _outbox() -> None:
    op.create_table(
        "outbox", sa.Column("id", _ID, primary_key=True, autoincrement=True), _run(), _text("receiver"), _big("group_hash"),
        _text("group_key"), _big("seq"), _big("created_at"), _text("payload"), _bool("refresh"), _text("status"),
        sa.Column("attempts", sa.Integer, nullable=False), _big("next_at"), _big("lease_until", True), _big("sent_at", True),
        _text("answer"), sa.UniqueConstraint("run", "receiver", "group_hash", "seq", name="uq_outbox_key"),
    )  # fmt: skip
    op.create_index("ix_outbox_open", "outbox", ["status", "run", "receiver", "group_hash", "seq"])
    op.create_index("ix_outbox_run", "outbox", ["run", "id"])


def _silences() -> None:
    op.create_table(
        "silences", _text("id"), _text("matchers"), _big("starts_at"), _big("ends_at"), _text("created_by"), _text("comment"),
        _big("updated_at"), _pk("silences", "id"),
    )  # fmt: skip
    op.create_index("ix_silences_ends", "silences", ["ends_at"])


def _heartbeats() -> None:
    op.create_table(
        "heartbeats", _text("run"), _text("name"), _big("last_ts"), _big("beats"), _pk("heartbeats", "run", "name"),
    )  # fmt: skip


def upgrade() -> None:
    """Create the tables of alerting."""
    _alerts()
    _groups()
    _outbox()
    _silences()
    _heartbeats()


def downgrade() -> None:
    """Drop them."""
    for table in reversed(_TABLES):
        op.drop_table(table)
