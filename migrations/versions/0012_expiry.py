"""Retention: when a run was attached, and up to when its rows are deleted.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the column and the table. Runs that exist count as attached when retention first runs."""
    op.add_column("runs", sa.Column("attached_at", sa.BigInteger))
    op.create_table(
        "expiry",
        sa.Column("run", sa.BigInteger, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("before", sa.BigInteger, nullable=False),
        sa.Column("series", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run", "kind", name="pk_expiry"),
    )


def downgrade() -> None:
    """Drop them. Rows that were deleted do not come back."""
    op.drop_table("expiry")
    op.drop_column("runs", "attached_at")
