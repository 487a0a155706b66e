"""Pushes: who pushes into which run, and what was taken and is not yet collected.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "pushers", _text("run"), _text("target"), _text("actor"), sa.Column("interval_seconds", sa.Double, nullable=False),
        _big("last_ts"), sa.PrimaryKeyConstraint("run", "target", name="pk_pushers"),
    )  # fmt: skip
    op.create_index("ix_pushers_last", "pushers", ["last_ts"])
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "inbox", sa.Column("id", number, primary_key=True, autoincrement=True), _text("run"), _text("target"),
        _text("actor"), sa.Column("interval_seconds", sa.Double, nullable=False), _big("received_at"), _big("rows"),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )  # fmt: skip
    op.create_index("ix_inbox_run", "inbox", ["run", "id"])


def downgrade() -> None:
    """Drop both."""
    op.drop_table("inbox")
    op.drop_table("pushers")
