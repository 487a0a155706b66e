"""Runs: when a collector last worked on each, and how far it is in history that it reads back.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the columns; of what was before, the time of collection is not recorded."""
    op.add_column("runs", sa.Column("collected_at", sa.BigInteger))
    op.add_column("runs", sa.Column("catch_up", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("runs", "catch_up")
    op.drop_column("runs", "collected_at")
