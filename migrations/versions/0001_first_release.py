"""The schema of the first release.

Written by hand and frozen: it never imports `server.store.tables`, which changes with later revisions.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# In the order of creation; dropped in reverse.
_TABLES = (
    "runs", "incarnations", "targets", "cursors", "series", "chunks", "points", "latest", "signal_state",
    "counters", "steps", "step_values", "rollups", "dirty", "expiry", "hist_layouts", "hist_last", "hist",
    "events", "alerts", "alert_groups", "outbox", "silences", "heartbeats", "pushers", "inbox", "forwarders",
    "verdicts", "sandboxes", "rollout_classes", "rollouts", "rollout_consumptions", "rollout_details",
    "rollout_groups", "rollout_sums", "rollout_bins", "samples",
)  # fmt: skip


def _column(name: str, kind: Any, nullable: bool, default: str | None) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable, server_default=default)


def _big(name: str, nullable: bool = False, default: str | None = None) -> sa.Column[Any]:
    return _column(name, sa.BigInteger, nullable, default)


def _int(name: str) -> sa.Column[Any]:
    return _column(name, sa.Integer, False, None)


def _real(name: str, nullable: bool = False) -> sa.Column[Any]:
    return _column(name, sa.Double, nullable, None)


def _bool(name: str, nullable: bool = False) -> sa.Column[Any]:
    return _column(name, sa.Boolean, nullable, None)


def _text(name: str, nullable: bool = False, default: str | None = None) -> sa.Column[Any]:
    return _column(name, sa.Text, nullable, default)


def _name(name: str, nullable: bool = False, default: str | None = None) -> sa.Column[Any]:
    """Text that is compared by its bytes, as SQLite does."""
    return _column(name, sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), nullable, default)


def _blob(name: str, nullable: bool = False) -> sa.Column[Any]:
    return _column(name, sa.LargeBinary, nullable, None)


def _id() -> sa.Column[Any]:
    """SQLite gives out row ids only for a column declared exactly INTEGER."""
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


def _run() -> sa.Column[Any]:
    return sa.Column("run", sa.BigInteger, sa.ForeignKey("runs.id"), nullable=False)


def _pk(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _runs() -> None:
    op.create_table(
        "runs", _id(), _text("name"), _text("framework"), _text("mode"), _text("lifecycle"), _big("generation"),
        _big("watermark", nullable=True), _big("first_ts", nullable=True), _big("last_ts", nullable=True),
        _big("seq"), _big("rolled", nullable=True), _text("facts"), _text("applied", default=""),
        _big("collected_at", nullable=True), _text("catch_up", default=""), _big("attached_at", nullable=True),
        sa.UniqueConstraint("name", name="uq_runs_name"),
    )  # fmt: skip
    op.create_table(
        "incarnations", _run(), _big("n"), _big("start_ts"), _big("first_step", nullable=True),
        _pk("incarnations", "run", "n"),
    )  # fmt: skip
    op.create_table(
        "targets", _run(), _text("name"), _text("collector"), _text("actor"), _bool("up"), _big("last_ts"),
        _big("last_ok_ts", nullable=True), _text("error"), _text("error_kind"), _real("scrape_seconds"),
        _big("samples"), _big("dropped"), _real("interval_seconds"), _text("unmapped"), _text("origin", default=""),
        _pk("targets", "run", "name"),
    )  # fmt: skip
    op.create_table(
        "cursors", _run(), _text("target"), _text("cursor"), _pk("cursors", "run", "target"),
    )  # fmt: skip


def _series() -> None:
    op.create_table(
        "series", _id(), _run(), _text("target"), _text("metric"), _big("labels_hash"), _text("axis"),
        _text("labels"), _text("unit"),
        sa.UniqueConstraint("run", "target", "metric", "labels_hash", "axis", name="uq_series_key"),
    )  # fmt: skip
    op.create_index("ix_series_run_axis", "series", ["run", "axis"])
    op.create_index("ix_series_run_metric", "series", ["run", "metric"])
    op.create_table(
        "chunks", _big("block"), _big("run"), _big("start"), _big("n"), _blob("body"),
        _pk("chunks", "block", "run", "start"),
    )  # fmt: skip
    op.create_index("ix_chunks_run", "chunks", ["run", "start"])


def _signals() -> None:
    op.create_table(
        "points", _big("series"), _big("ts"), _real("v", nullable=True), _int("state"), _big("run"), _big("seq"),
        _pk("points", "series", "ts"), sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_index("ix_points_run_seq", "points", ["run", "seq"])
    op.create_table(
        "latest", _run(), _big("series"), _big("ts"), _real("v", nullable=True), _int("state"), _text("why"),
        _text("source"), _pk("latest", "run", "series"),
    )  # fmt: skip
    op.create_table(
        "signal_state", _run(), _text("name"), _int("code_version"), _text("state"),
        _pk("signal_state", "run", "name"),
    )  # fmt: skip
    op.create_table(
        "counters", _run(), _big("series"), _real("v"), _pk("counters", "run", "series"),
    )  # fmt: skip


def _steps() -> None:
    op.create_table(
        "steps", _run(), _text("axis"), _big("incarnation"), _big("step"), _big("ts"),
        _pk("steps", "run", "axis", "incarnation", "step"),
    )  # fmt: skip
    op.create_index("ix_steps_run_ts", "steps", ["run", "ts"])
    op.create_table(
        "step_values", _big("series"), _big("incarnation"), _big("step"), _real("v"),
        _pk("step_values", "series", "incarnation", "step"), sqlite_with_rowid=False,
    )  # fmt: skip


def _rollups() -> None:
    op.create_table(
        "rollups", _big("tier"), _big("series"), _big("bucket"), _big("n"), _real("low", nullable=True),
        _real("high", nullable=True), _real("total"), _real("last", nullable=True), _big("last_ts", nullable=True),
        _pk("rollups", "tier", "series", "bucket"), sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_table(
        "dirty", _big("run"), _big("slot"), _big("series"), _pk("dirty", "run", "slot", "series"),
        sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_table(
        "expiry", _run(), _text("kind"), _big("before"), _big("series"), _pk("expiry", "run", "kind"),
    )  # fmt: skip


def _histograms() -> None:
    op.create_table(
        "hist_layouts", _id(), _text("digest"), _blob("edges"),
        sa.UniqueConstraint("digest", name="uq_hist_layouts_digest"),
    )  # fmt: skip
    op.create_table(
        "hist_last", _big("series"), _big("layout"), _big("ts"), _real("total"), _blob("counts"),
        _pk("hist_last", "series"), sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_table(
        "hist", _big("series"), _big("minute"), _big("layout"), _real("n"), _real("total"), _blob("deltas"),
        _pk("hist", "series", "minute", "layout"), sqlite_with_rowid=False,
    )  # fmt: skip


def _events() -> None:
    op.create_table(
        "events", _id(), _run(), _big("ts"), _text("kind"), _text("key"), _text("detail"),
        _big("version", nullable=True), sa.UniqueConstraint("run", "key", name="uq_events_run_key"),
    )  # fmt: skip
    op.create_index("ix_events_run_ts", "events", ["run", "ts"])


def _alerts() -> None:
    op.create_table(
        "alerts", _run(), _text("fingerprint"), _big("active_at"), _text("rule"), _text("state"), _text("series"),
        _text("labels"), _text("annotations"), _real("value", nullable=True), _big("fired_at", nullable=True),
        _big("resolved_at", nullable=True), _big("keep_since", nullable=True), _big("held_since", nullable=True),
        _text("reason"), _text("muted"), _bool("replayed"), _pk("alerts", "run", "fingerprint", "active_at"),
    )  # fmt: skip
    op.create_index("ix_alerts_resolved", "alerts", ["resolved_at"])
    op.create_index("ix_alerts_run_resolved", "alerts", ["run", "resolved_at"])
    op.create_table(
        "alert_groups", _run(), _text("receiver"), _big("group_hash"), _text("group_key"), _text("labels"),
        _big("next_flush"), _big("notified_at", nullable=True), _text("firing"), _text("resolved"), _big("seq"),
        _pk("alert_groups", "run", "receiver", "group_hash"),
    )  # fmt: skip
    op.create_table(
        "outbox", _id(), _run(), _text("receiver"), _big("group_hash"), _text("group_key"), _big("seq"),
        _big("created_at"), _text("payload"), _bool("refresh"), _text("status"), _int("attempts"), _big("next_at"),
        _big("lease_until", nullable=True), _big("sent_at", nullable=True), _text("answer"),
        sa.UniqueConstraint("run", "receiver", "group_hash", "seq", name="uq_outbox_key"),
    )  # fmt: skip
    op.create_index("ix_outbox_open", "outbox", ["status", "run", "receiver", "group_hash", "seq"])
    op.create_index("ix_outbox_run", "outbox", ["run", "id"])
    op.create_table(
        "silences", _text("id"), _text("matchers"), _big("starts_at"), _big("ends_at"), _text("created_by"),
        _text("comment"), _big("updated_at"), _pk("silences", "id"),
    )  # fmt: skip
    op.create_index("ix_silences_ends", "silences", ["ends_at"])
    op.create_table(
        "heartbeats", _text("run"), _text("name"), _big("last_ts"), _big("beats"), _pk("heartbeats", "run", "name"),
    )  # fmt: skip


def _pushes() -> None:
    op.create_table(
        "pushers", _text("run"), _text("target"), _text("actor"), _real("interval_seconds"), _big("last_ts"),
        _pk("pushers", "run", "target"),
    )  # fmt: skip
    op.create_index("ix_pushers_last", "pushers", ["last_ts"])
    op.create_table(
        "inbox", _id(), _text("run"), _text("target"), _text("actor"), _real("interval_seconds"),
        _big("received_at"), _big("rows"), _blob("body"), _big("size", default="0"),
    )  # fmt: skip
    op.create_index("ix_inbox_run", "inbox", ["run", "id", "rows", "size"])
    op.create_table(
        "forwarders", _text("run"), _text("target"), _text("agent"), _big("seq"), _big("last_ts"),
        _pk("forwarders", "run", "target", "agent"),
    )  # fmt: skip


def _verdicts() -> None:
    op.create_table(
        "verdicts", _run(), _big("ts"), _big("since"), _text("outcome"), _text("cause"), _text("rule"),
        _real("confidence"), _int("rules_version"), _bool("replayed"), _text("body"), _pk("verdicts", "run", "ts"),
    )  # fmt: skip


def _sandboxes() -> None:
    op.create_table(
        "sandboxes", _run(), _text("provider"), _text("id"), _text("target"), _text("name"), _text("run_key"),
        _bool("own"), _bool("dangling"), _text("state"), _text("provider_state"),
        _big("requested_at", nullable=True), _big("started_at", nullable=True), _big("ready_at", nullable=True),
        _big("ended_at", nullable=True), _text("image"), _bool("image_cached", nullable=True),
        _text("latency_source"), _text("cause"), _text("detail"), _bool("unreachable"),
        _big("expires_at", nullable=True), _real("cost_usd_per_hour", nullable=True), _big("first_seen"),
        _big("seen_at"), _big("ready_seen", nullable=True), _big("failed_seen", nullable=True),
        _big("first_exec_at", nullable=True), _pk("sandboxes", "run", "provider", "id"),
    )  # fmt: skip
    op.create_index("ix_sandboxes_ended", "sandboxes", ["run", "ended_at"])
    op.create_index("ix_sandboxes_page", "sandboxes", ["run", "first_seen", "id"])
    pending = sa.text("ready_at IS NULL AND ended_at IS NULL")
    op.create_index(
        "ix_sandboxes_pending", "sandboxes", ["run", "requested_at"], sqlite_where=pending, postgresql_where=pending
    )
    op.create_index("ix_sandboxes_seen", "sandboxes", ["run", "seen_at"])


def _rollouts() -> None:
    op.create_table(
        "rollout_classes", _id(), _big("run"), _text("environment"), _text("purpose"), _text("state"), _int("mixed"),
        sa.UniqueConstraint("run", "environment", "purpose", "state", "mixed", name="uq_rollout_classes_key"),
    )  # fmt: skip
    op.create_table(
        "rollouts", _id(), _big("run"), _big("class"), _name("rollout_id"), _name("group_id"),
        _big("group_size", nullable=True), _big("attempt", nullable=True), _big("incarnation", nullable=True),
        _text("purpose"), _text("environment"), _text("agent"), _text("difficulty"), _text("engine"),
        _big("version_dispatched", nullable=True), _big("version_start", nullable=True),
        _big("version_finish", nullable=True), _text("token_versions"), _text("consumptions"),
        _big("dispatched_at", nullable=True), _big("started_at", nullable=True),
        _big("first_token_at", nullable=True), _big("finished_at", nullable=True), _big("scored_at", nullable=True),
        _big("group_complete_at", nullable=True), _big("exited_at", nullable=True),
        _big("prompt_tokens", nullable=True), _big("response_tokens", nullable=True),
        _big("loss_tokens", nullable=True), _big("turn_count", nullable=True), _big("tool_calls", nullable=True),
        _text("sandbox_ids"), _real("reward", nullable=True), _real("max_reward", nullable=True),
        _real("advantage", nullable=True), _bool("solved", nullable=True), _bool("truncated", nullable=True),
        _text("exit"), _text("error"), _bool("sampled"), _text("target"), _big("life"), _big("first_seen"),
        _big("seen_at"), _text("state"), _big("moved_at"), _real("seconds", nullable=True),
        _big("turns", nullable=True), _big("consumed", nullable=True), _big("consumed_at", nullable=True),
        _big("staleness", nullable=True), _big("in_flight", nullable=True), _big("in_group", nullable=True),
        _big("in_queue", nullable=True), _real("token_staleness", nullable=True),
        _real("environment_staleness", nullable=True), _real("environment_latest", nullable=True),
        _bool("environment_bound"), _big("old_state_turns", nullable=True), _big("judged_turns", nullable=True),
        _text("environment_ages"), _bool("mixed", nullable=True), _text("unknown"), _bool("detailed"),
        sa.UniqueConstraint("run", "rollout_id", "life", name="uq_rollouts_key"),
    )  # fmt: skip
    op.create_index("ix_rollouts_group", "rollouts", ["run", "group_id", "life"])
    op.create_index("ix_rollouts_moved", "rollouts", ["run", "class", "moved_at", "id"])
    op.create_index("ix_rollouts_response_tokens", "rollouts", ["run", "class", "response_tokens", "moved_at", "id"])
    op.create_index("ix_rollouts_reward", "rollouts", ["run", "class", "reward", "moved_at", "id"])
    op.create_index("ix_rollouts_seconds", "rollouts", ["run", "class", "seconds", "moved_at", "id"])
    op.create_index("ix_rollouts_staleness", "rollouts", ["run", "class", "staleness", "moved_at", "id"])
    op.create_table(
        "rollout_consumptions", _big("run"), _name("rollout_id"), _big("life"), _big("version"), _big("incarnation"),
        _big("at", nullable=True),
        _pk("rollout_consumptions", "run", "rollout_id", "life", "version", "incarnation"), sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_index("ix_rollout_consumptions_version", "rollout_consumptions", ["run", "life", "version"])
    op.create_table(
        "rollout_details", _big("run"), _name("rollout_id"), _big("life"), _text("turns"), _text("spans"),
        _pk("rollout_details", "run", "rollout_id", "life"),
    )  # fmt: skip


def _rollout_groups() -> None:
    op.create_table(
        "rollout_groups", _id(), _big("run"), _name("group_id"), _big("life"), _text("environment"),
        _text("purpose"), _big("size", nullable=True), _big("members"), _big("done"), _big("valid"),
        _real("reward_min", nullable=True), _real("reward_max", nullable=True), _real("reward_mean", nullable=True),
        _big("solved", nullable=True), _text("outcome"), _bool("admitted"), _big("version", nullable=True),
        _big("first_at"), _big("moved_at"), _big("completed_at", nullable=True), _real("spread", nullable=True),
        _bool("sampled"), sa.UniqueConstraint("run", "group_id", "life", name="uq_rollout_groups_key"),
    )  # fmt: skip
    op.create_index(
        "ix_rollout_groups_environment", "rollout_groups", ["run", "environment", "outcome", "moved_at", "id"]
    )
    op.create_index("ix_rollout_groups_moved", "rollout_groups", ["run", "outcome", "moved_at", "id"])
    op.create_table(
        "rollout_sums", _big("run"), _big("tier"), _big("bucket"), _text("exit"), _text("environment"),
        _text("purpose"), _big("rollouts"), _big("prompt_tokens"), _big("response_tokens"), _big("loss_tokens"),
        _real("seconds"), _big("told", default="0"),
        _pk("rollout_sums", "run", "tier", "bucket", "exit", "environment", "purpose"), sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_table(
        "rollout_bins", _big("run"), _big("tier"), _text("kind"), _big("bucket"), _big("bin"), _big("n"),
        _pk("rollout_bins", "run", "tier", "kind", "bucket", "bin"), sqlite_with_rowid=False,
    )  # fmt: skip


def _samples() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.create_table(
            "samples", _big("slot"), _big("series"), _big("ts"), _real("v"), _pk("samples", "slot", "series", "ts"),
            sqlite_with_rowid=False,
        )  # fmt: skip
        return
    op.create_table(
        "samples", _big("series"), _big("ts"), _real("v"), _pk("samples", "series", "ts"),
        postgresql_partition_by="RANGE (ts)",
    )  # fmt: skip


def upgrade() -> None:
    """Create everything."""
    _runs()
    _series()
    _samples()
    _signals()
    _steps()
    _rollups()
    _histograms()
    _events()
    _alerts()
    _pushes()
    _verdicts()
    _sandboxes()
    _rollouts()
    _rollout_groups()


def downgrade() -> None:
    """Drop everything; PostgreSQL drops the daily partitions with their parent."""
    for table in reversed(_TABLES):
        op.drop_table(table)
