"""Sandboxes: when the first command ran in one, and an index in the order of a page.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the column, unknown for what is there, and the index."""
    op.add_column("sandboxes", sa.Column("first_exec_at", sa.BigInteger, nullable=True))
    op.create_index("ix_sandboxes_page", "sandboxes", ["run", "first_seen", "id"])


def downgrade() -> None:
    """Drop both."""
    op.drop_index("ix_sandboxes_page", "sandboxes")
    op.drop_column("sandboxes", "first_exec_at")
