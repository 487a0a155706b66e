"""The first schema: runs, series, samples, points, steps, rollups, histograms, events.

Written by hand and frozen: it never imports server.store.tables, which moves on.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# SQLite gives out row ids only for a column declared exactly INTEGER.
_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# In the order of creation; dropped in reverse.
_TABLES = (
    "runs", "incarnations", "targets", "cursors", "series", "samples", "points", "latest", "signal_state", "counters",
    "steps", "step_values", "rollups", "dirty", "hist_layouts", "hist_last", "hist", "events",
)  # fmt: skip


def _big(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def _int(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _real(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


def _blob(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=False)


def _id() -> sa.Column[int]:
    return sa.Column("id", _ID, primary_key=True, autoincrement=True)


def _run() -> sa.Column[int]:
    return sa.Column("run", sa.BigInteger, sa.ForeignKey("runs.id"), nullable=False)


def _pk(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _runs() -> None:
    op.create_table(
        "runs", _id(), _text("name"), _text("framework"), _text("mode"), _text("lifecycle"), _big("generation"),
        _big("watermark", True), _big("first_ts", True), _big("last_ts", True), _big("seq"), _big("rolled", True), _text("facts"),
        sa.UniqueConstraint("name", name="uq_runs_name"),
    )  # fmt: skip
    op.create_table(
        "incarnations", _run(), _big("n"), _big("start_ts"), _big("first_step", True), _pk("incarnations", "run", "n"),
    )  # fmt: skip
    op.create_table(
        "targets", _run(), _text("name"), _text("collector"), _text("actor"), sa.Column("up", sa.Boolean, nullable=False),
        _big("last_ts"), _big("last_ok_ts", True), _text("error"), _text("error_kind"), _real("scrape_seconds"),
        _big("samples"), _big("dropped"), _real("interval_seconds"), _text("unmapped"), _pk("targets", "run", "name"),
    )  # fmt: skip
    op.create_table("cursors", _run(), _text("target"), _text("cursor"), _pk("cursors", "run", "target"))


def _series() -> None:
    op.create_table(
        "series", _id(), _run(), _text("target"), _text("metric"), _big("labels_hash"), _text("axis"), _text("labels"), _text("unit"),
        sa.UniqueConstraint("run", "target", "metric", "labels_hash", "axis", name="uq_series_key"),
    )  # fmt: skip
    op.create_index("ix_series_run_metric", "series", ["run", "metric"])
    op.create_index("ix_series_run_axis", "series", ["run", "axis"])


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


def _signals() -> None:
    op.create_table(
        "points", _big("series"), _big("ts"), _real("v", True), _int("state"), _big("run"), _big("seq"),
        _pk("points", "series", "ts"), sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_index("ix_points_run_seq", "points", ["run", "seq"])
    op.create_table(
        "latest", _run(), _big("series"), _big("ts"), _real("v", True), _int("state"), _text("why"), _text("source"),
        _pk("latest", "run", "series"),
    )  # fmt: skip
    op.create_table(
        "signal_state", _run(), _text("name"), _int("code_version"), _text("state"), _pk("signal_state", "run", "name")
    )
    op.create_table("counters", _run(), _big("series"), _real("v"), _pk("counters", "run", "series"))


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
        "rollups", _big("tier"), _big("series"), _big("bucket"), _big("n"), _real("low", True), _real("high", True), _real("total"),
        _real("last", True), _big("last_ts", True), _pk("rollups", "tier", "series", "bucket"), sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_table(
        "dirty", _big("run"), _big("slot"), _big("series"), _pk("dirty", "run", "slot", "series"), sqlite_with_rowid=False,
    )  # fmt: skip


def _histograms() -> None:
    op.create_table(
        "hist_layouts", _id(), _text("digest"), _blob("edges"), sa.UniqueConstraint("digest", name="uq_hist_layouts_digest"),
    )  # fmt: skip
    op.create_table(
        "hist_last", _big("series"), _big("layout"), _big("ts"), _real("total"), _blob("counts"), _pk("hist_last", "series"),
        sqlite_with_rowid=False,
    )  # fmt: skip
    op.create_table(
        "hist", _big("series"), _big("minute"), _big("layout"), _real("n"), _real("total"), _blob("deltas"),
        _pk("hist", "series", "minute", "layout"), sqlite_with_rowid=False,
    )  # fmt: skip


def _events() -> None:
    op.create_table(
        "events", _id(), _run(), _big("ts"), _text("kind"), _text("key"), _text("detail"),
        sa.UniqueConstraint("run", "key", name="uq_events_run_key"),
    )  # fmt: skip
    op.create_index("ix_events_run_ts", "events", ["run", "ts"])


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


def downgrade() -> None:
    """Drop everything; PostgreSQL drops the daily partitions with their parent."""
    for table in reversed(_TABLES):
        op.drop_table(table)
