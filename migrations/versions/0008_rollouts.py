"""Rollouts: headers, uses by the trainer, details, groups, and what is added up of them; versions of events.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_SORTED = ("seconds", "response_tokens", "staleness", "reward")


def _id() -> sa.Column[int]:
    return sa.Column("id", _ID, primary_key=True, autoincrement=True)


def _big(*names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=nullable) for name in names]


def _whole(*names: str) -> list[sa.Column[Any]]:
    return _big(*names, nullable=False)


def _real(*names: str, nullable: bool = True) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Double, nullable=nullable) for name in names]


def _text(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _name(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, _NAME, nullable=False) for name in names]


def _bool(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Boolean, nullable=nullable) for name in names]


def upgrade() -> None:
    """Create the tables; widen what runs, events and the inbox know."""
    op.add_column("runs", sa.Column("applied", sa.Text, nullable=False, server_default=""))
    op.add_column("events", sa.Column("version", sa.BigInteger))
    op.add_column("inbox", sa.Column("size", sa.BigInteger, nullable=False, server_default="0"))
    op.drop_index("ix_inbox_run", "inbox")
    op.create_index("ix_inbox_run", "inbox", ["run", "id", "rows", "size"])
    _headers()
    _beside()
    _groups()
    _totals()


def _headers() -> None:
    op.create_table(
        "rollout_classes", _id(), *_whole("run"), *_text("environment", "purpose", "state"),
        sa.Column("mixed", sa.Integer, nullable=False),
        sa.UniqueConstraint("run", "environment", "purpose", "state", "mixed", name="uq_rollout_classes_key"),
    )  # fmt: skip
    op.create_table(
        "rollouts", _id(), *_whole("run", "class"), *_name("rollout_id", "group_id"),
        *_big("group_size", "attempt", "incarnation"),
        *_text("purpose", "environment", "agent", "difficulty", "engine"),
        *_big("version_dispatched", "version_start", "version_finish"), *_text("token_versions", "consumptions"),
        *_big("dispatched_at", "started_at", "first_token_at", "finished_at", "scored_at", "group_complete_at", "exited_at"),
        *_big("prompt_tokens", "response_tokens", "loss_tokens", "turn_count", "tool_calls"), *_text("sandbox_ids"),
        *_real("reward", "max_reward", "advantage"), *_bool("solved", "truncated", nullable=True),
        *_text("exit", "error"), *_bool("sampled"), *_text("target"), *_whole("life", "first_seen", "seen_at"),
        *_text("state"), *_whole("moved_at"), *_real("seconds"),
        *_big("turns", "consumed", "consumed_at", "staleness", "in_flight", "in_group", "in_queue"),
        *_real("token_staleness", "environment_staleness", "environment_latest"), *_bool("environment_bound"),
        *_big("old_state_turns", "judged_turns"), *_text("environment_ages"), *_bool("mixed", nullable=True),
        *_text("unknown"), *_bool("detailed"), sa.UniqueConstraint("run", "rollout_id", "life", name="uq_rollouts_key"),
    )  # fmt: skip
    op.create_index("ix_rollouts_group", "rollouts", ["run", "group_id", "life"])
    op.create_index("ix_rollouts_moved", "rollouts", ["run", "class", "moved_at", "id"])
    for name in _SORTED:
        op.create_index(f"ix_rollouts_{name}", "rollouts", ["run", "class", name, "moved_at", "id"])


def _beside() -> None:
    op.create_table(
        "rollout_consumptions", *_whole("run"), *_name("rollout_id"), *_whole("life", "version", "incarnation"),
        *_big("at"), sa.PrimaryKeyConstraint(
            "run", "rollout_id", "life", "version", "incarnation", name="pk_rollout_consumptions"
        ),
        sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_index("ix_rollout_consumptions_version", "rollout_consumptions", ["run", "life", "version"])
    op.create_table(
        "rollout_details", *_whole("run"), *_name("rollout_id"), *_whole("life"), *_text("turns", "spans"),
        sa.PrimaryKeyConstraint("run", "rollout_id", "life", name="pk_rollout_details"),
    )  # fmt: skip


def _groups() -> None:
    op.create_table(
        "rollout_groups", _id(), *_whole("run"), *_name("group_id"), *_whole("life"),
        *_text("environment", "purpose"), *_big("size"), *_whole("members", "done", "valid"),
        *_real("reward_min", "reward_max", "reward_mean"), *_big("solved"), *_text("outcome"), *_bool("admitted"),
        *_big("version"), *_whole("first_at", "moved_at"), *_big("completed_at"), *_real("spread"),
        *_bool("sampled"), sa.UniqueConstraint("run", "group_id", "life", name="uq_rollout_groups_key"),
    )  # fmt: skip
    op.create_index("ix_rollout_groups_moved", "rollout_groups", ["run", "outcome", "moved_at", "id"])
    op.create_index(
        "ix_rollout_groups_environment", "rollout_groups", ["run", "environment", "outcome", "moved_at", "id"]
    )


def _totals() -> None:
    op.create_table(
        "rollout_sums", *_whole("run", "tier", "bucket"), *_text("exit", "environment", "purpose"),
        *_whole("rollouts", "prompt_tokens", "response_tokens", "loss_tokens"), *_real("seconds", nullable=False),
        sa.PrimaryKeyConstraint("run", "tier", "bucket", "exit", "environment", "purpose", name="pk_rollout_sums"),
        sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_table(
        "rollout_bins", *_whole("run", "tier"), *_text("kind"), *_whole("bucket", "bin", "n"),
        sa.PrimaryKeyConstraint("run", "tier", "kind", "bucket", "bin", name="pk_rollout_bins"),
        sqlite_with_rowid=False,
    )  # fmt: skip


def downgrade() -> None:
    """Drop them; what events say of versions, too."""
    for name in (
        "rollout_bins", "rollout_sums", "rollout_groups", "rollout_details", "rollout_consumptions", "rollouts",
        "rollout_classes",
    ):  # fmt: skip
        op.drop_table(name)
    op.drop_index("ix_inbox_run", "inbox")
    op.create_index("ix_inbox_run", "inbox", ["run", "id"])
    op.drop_column("inbox", "size")
    op.drop_column("events", "version")
    op.drop_column("runs", "applied")
