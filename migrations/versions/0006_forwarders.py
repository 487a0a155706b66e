"""Forwarders: who forwards a target from another machine, and the last of its readings that was taken.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Create the table."""
    words = [sa.Column(name, sa.Text, nullable=False) for name in ("run", "target", "agent")]
    numbers = [sa.Column(name, sa.BigInteger, nullable=False) for name in ("seq", "last_ts")]
    key = sa.PrimaryKeyConstraint("run", "target", "agent", name="pk_forwarders")
    op.create_table("forwarders", *words, *numbers, key)


def downgrade() -> None:
    """Drop it."""
    op.drop_table("forwarders")
