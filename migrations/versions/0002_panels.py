"""Charts that users chose for their Overview."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "panels",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("panels", sa.Text, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_panels"),
    )


def downgrade() -> None:
    op.drop_table("panels")
