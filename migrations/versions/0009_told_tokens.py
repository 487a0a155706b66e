"""The funnel: of how many rollouts the tokens are told, so that those of the others are not taken for none.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the column; of what was added up before nobody knows, which is the lower bound."""
    op.add_column("rollout_sums", sa.Column("told", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("rollout_sums", "told")
