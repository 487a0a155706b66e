"""Sandboxes: one row each, as last heard.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_OPEN = sa.text("ready_at IS NULL AND ended_at IS NULL")


def _big(name: str, nullable: bool = True) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _bool(name: str, nullable: bool = False) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=nullable)


def upgrade() -> None:
    """Create the table and its indexes."""
    op.create_table(
        "sandboxes", sa.Column("run", sa.BigInteger, sa.ForeignKey("runs.id"), nullable=False), _text("provider"), _text("id"),
        _text("target"), _text("name"), _text("run_key"), _bool("own"), _bool("dangling"), _text("state"), _text("provider_state"),
        _big("requested_at"), _big("started_at"), _big("ready_at"), _big("ended_at"), _text("image"), _bool("image_cached", True),
        _text("latency_source"), _text("cause"), _text("detail"), _bool("unreachable"), _big("expires_at"),
        sa.Column("cost_usd_per_hour", sa.Double, nullable=True), _big("first_seen", False), _big("seen_at", False),
        _big("ready_seen"), _big("failed_seen"), sa.PrimaryKeyConstraint("run", "provider", "id", name="pk_sandboxes"),
    )  # fmt: skip
    op.create_index(
        "ix_sandboxes_pending", "sandboxes", ["run", "requested_at"], sqlite_where=_OPEN, postgresql_where=_OPEN
    )
    op.create_index("ix_sandboxes_seen", "sandboxes", ["run", "seen_at"])
    op.create_index("ix_sandboxes_ended", "sandboxes", ["run", "ended_at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("sandboxes")
