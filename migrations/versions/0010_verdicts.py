"""Verdicts: a row for each change of what holds a run back.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Create the table; what was before has no verdict."""
    op.create_table(
        "verdicts",
        sa.Column("run", sa.BigInteger, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("ts", sa.BigInteger, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("confidence", sa.Double, nullable=False),
        sa.Column("rules_version", sa.Integer, nullable=False),
        sa.Column("replayed", sa.Boolean, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run", "ts", name="pk_verdicts"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("verdicts")
