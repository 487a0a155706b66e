"""Chunks of packed raw samples.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the table. Rows that exist are packed little by little while the server runs."""
    op.create_table(
        "chunks",
        sa.Column("block", sa.BigInteger, nullable=False),
        sa.Column("run", sa.BigInteger, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("n", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("block", "run", "start", name="pk_chunks"),
    )
    op.create_index("ix_chunks_run", "chunks", ["run", "start"])


def downgrade() -> None:
    """Drop the table. Packed samples are lost; their rollups stay."""
    op.drop_table("chunks")
