"""The tables, and nothing else. Times are BIGINT epoch milliseconds.

`migrations/` repeats them by hand and never imports this file: a migration must never change.
A test compares the two on both databases.

`samples` differs by dialect, hence three MetaData: pages must be laid out so that one scrape of all series
writes near each other *and* one series reads only its own pages. SQLite gets that from a leading slot of ten
minutes in the key, PostgreSQL from one partition per day.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

SLOT_MS = 600_000
"""Width of a slot: wide enough that a chart touches few, narrow enough that a slot's pages stay cached."""

DAY_MS = 86_400_000

DELETED = "deleted"
"""Lifecycle of what is left of a deleted run that had the highest id: SQLite would give that id to another run."""

# SQLite gives out row ids only for a column declared exactly INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")

common = MetaData()
sqlite_only = MetaData()
postgres_only = MetaData()


def metadata(dialect: str) -> list[MetaData]:
    """What a database of this dialect ("sqlite" or "postgresql") holds."""
    # It adds the tables of rollouts, whose columns are the fields of its records. A copy without them would lose rows.
    from server.store import rollouts  # noqa: F401, PLC0415 - it imports this module

    return [common, sqlite_only if dialect == "sqlite" else postgres_only]


def _run() -> Column[int]:
    return Column("run", BigInteger, ForeignKey("runs.id"), nullable=False)


runs = Table(
    "runs",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False),
    Column("framework", Text, nullable=False),
    Column("mode", Text, nullable=False),
    Column("lifecycle", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("watermark", BigInteger),
    Column("first_ts", BigInteger),
    Column("last_ts", BigInteger),
    # Newest seq given to a point. Taken with the run's row lock, so that seqs become visible in their order.
    Column("seq", BigInteger, nullable=False),
    # 1-minute buckets before this are closed; older rows that still come are marked dirty.
    Column("rolled", BigInteger),
    Column("facts", Text, nullable=False),
    # The last batch whose increments were added: a retry must not add them twice.
    Column("applied", Text, nullable=False, server_default=""),
    # When a collector last worked on the run; NULL: before this was recorded.
    Column("collected_at", BigInteger),
    # JSON of `server.lib.clock.CatchUp`; "" while the driver is at the present.
    Column("catch_up", Text, nullable=False, server_default=""),
    # When the run was attached: retention counts from then, however old its history is. NULL: not stamped yet.
    Column("attached_at", BigInteger),
    UniqueConstraint("name", name="uq_runs_name"),
)

incarnations = Table(
    "incarnations",
    common,
    _run(),
    Column("n", BigInteger, nullable=False),
    Column("start_ts", BigInteger, nullable=False),
    Column("first_step", BigInteger),
    PrimaryKeyConstraint("run", "n", name="pk_incarnations"),
)

targets = Table(
    "targets",
    common,
    _run(),
    Column("name", Text, nullable=False),
    Column("collector", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("up", Boolean, nullable=False),
    Column("last_ts", BigInteger, nullable=False),
    Column("last_ok_ts", BigInteger),
    Column("error", Text, nullable=False),
    Column("error_kind", Text, nullable=False),
    Column("scrape_seconds", Double, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),
    Column("interval_seconds", Double, nullable=False),
    Column("unmapped", Text, nullable=False),
    Column("origin", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("run", "name", name="pk_targets"),
)

cursors = Table(
    "cursors",
    common,
    _run(),
    Column("target", Text, nullable=False),
    Column("cursor", Text, nullable=False),
    PrimaryKeyConstraint("run", "target", name="pk_cursors"),
)

series = Table(
    "series",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    Column("target", Text, nullable=False),
    Column("metric", Text, nullable=False),
    # 64 bits of a hash stand for the labels in the key: PostgreSQL refuses index rows over 2,704 bytes.
    Column("labels_hash", BigInteger, nullable=False),
    Column("axis", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("unit", Text, nullable=False),
    UniqueConstraint("run", "target", "metric", "labels_hash", "axis", name="uq_series_key"),
    Index("ix_series_run_metric", "run", "metric"),
    Index("ix_series_run_axis", "run", "axis"),
)

sqlite_samples = Table(
    "samples",
    sqlite_only,
    Column("slot", BigInteger, nullable=False),
    Column("series", BigInteger, nullable=False),
    Column("ts", BigInteger, nullable=False),
    Column("v", Double, nullable=False),
    PrimaryKeyConstraint("slot", "series", "ts", name="pk_samples"),
    sqlite_with_rowid=False,
)

postgres_samples = Table(
    "samples",
    postgres_only,
    Column("series", BigInteger, nullable=False),
    Column("ts", BigInteger, nullable=False),
    Column("v", Double, nullable=False),
    PrimaryKeyConstraint("series", "ts", name="pk_samples"),
    postgresql_partition_by="RANGE (ts)",
)

chunks = Table(
    "chunks",
    common,
    # The series' id divided by `server.store.chunks.BLOCK`.
    Column("block", BigInteger, nullable=False),
    Column("run", BigInteger, nullable=False),
    # Of the hour.
    Column("start", BigInteger, nullable=False),
    # Samples in the body.
    Column("n", BigInteger, nullable=False),
    # See server.store.chunks.
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("block", "run", "start", name="pk_chunks"),
    Index("ix_chunks_run", "run", "start"),
)

points = Table(
    "points",
    common,
    # Hot tables have no foreign keys: a look-up per row, to guard against ids that only we hand out.
    Column("series", BigInteger, nullable=False),
    Column("ts", BigInteger, nullable=False),
    Column("v", Double),
    Column("state", Integer, nullable=False),
    # Repeated from the series, for the index that live readers follow.
    Column("run", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("series", "ts", name="pk_points"),
    Index("ix_points_run_seq", "run", "seq"),
    sqlite_with_rowid=False,
)

latest = Table(
    "latest",
    common,
    _run(),
    Column("series", BigInteger, nullable=False),
    Column("ts", BigInteger, nullable=False),
    Column("v", Double),
    Column("state", Integer, nullable=False),
    Column("why", Text, nullable=False),
    Column("source", Text, nullable=False),
    PrimaryKeyConstraint("run", "series", name="pk_latest"),
)

signal_state = Table(
    "signal_state",
    common,
    _run(),
    Column("name", Text, nullable=False),
    Column("code_version", Integer, nullable=False),
    Column("state", Text, nullable=False),
    PrimaryKeyConstraint("run", "name", name="pk_signal_state"),
)

counters = Table(
    "counters",
    common,
    _run(),
    Column("series", BigInteger, nullable=False),
    Column("v", Double, nullable=False),
    PrimaryKeyConstraint("run", "series", name="pk_counters"),
)

steps = Table(
    "steps",
    common,
    _run(),
    Column("axis", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("ts", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "axis", "incarnation", "step", name="pk_steps"),
    Index("ix_steps_run_ts", "run", "ts"),
)

step_values = Table(
    "step_values",
    common,
    Column("series", BigInteger, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("v", Double, nullable=False),
    PrimaryKeyConstraint("series", "incarnation", "step", name="pk_step_values"),
    sqlite_with_rowid=False,
)

rollups = Table(
    "rollups",
    common,
    # The bucket's width in ms, which names the tier.
    Column("tier", BigInteger, nullable=False),
    Column("series", BigInteger, nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("total", Double, nullable=False),
    Column("last", Double),
    Column("last_ts", BigInteger),
    PrimaryKeyConstraint("tier", "series", "bucket", name="pk_rollups"),
    sqlite_with_rowid=False,
)

dirty = Table(
    "dirty",
    common,
    Column("run", BigInteger, nullable=False),
    Column("slot", BigInteger, nullable=False),
    Column("series", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "slot", "series", name="pk_dirty"),
    sqlite_with_rowid=False,
)

expiry = Table(
    "expiry",
    common,
    _run(),
    # raw, signals or rollups: see server.store.retention; packed: see server.store.chunks.
    Column("kind", Text, nullable=False),
    # Rows of the run before this time are deleted,
    Column("before", BigInteger, nullable=False),
    # and in the unit of time that follows those of series up to this id.
    Column("series", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "kind", name="pk_expiry"),
)

hist_layouts = Table(
    "hist_layouts",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    # Unique in place of the edges themselves, which may be longer than an index row can be.
    Column("digest", Text, nullable=False),
    Column("edges", LargeBinary, nullable=False),
    UniqueConstraint("digest", name="uq_hist_layouts_digest"),
)

hist_last = Table(
    "hist_last",
    common,
    Column("series", BigInteger, nullable=False),
    Column("layout", BigInteger, nullable=False),
    Column("ts", BigInteger, nullable=False),
    Column("total", Double, nullable=False),
    Column("counts", LargeBinary, nullable=False),
    PrimaryKeyConstraint("series", name="pk_hist_last"),
    sqlite_with_rowid=False,
)

hist = Table(
    "hist",
    common,
    Column("series", BigInteger, nullable=False),
    Column("minute", BigInteger, nullable=False),
    Column("layout", BigInteger, nullable=False),
    Column("n", Double, nullable=False),
    Column("total", Double, nullable=False),
    Column("deltas", LargeBinary, nullable=False),
    PrimaryKeyConstraint("series", "minute", "layout", name="pk_hist"),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    Column("ts", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("version", BigInteger),
    UniqueConstraint("run", "key", name="uq_events_run_key"),
    Index("ix_events_run_ts", "run", "ts"),
)

alerts = Table(
    "alerts",
    common,
    _run(),
    # Of the labels, 16 hexadecimal digits: see server.alerts.model.fingerprint.
    Column("fingerprint", Text, nullable=False),
    Column("active_at", BigInteger, nullable=False),
    Column("rule", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("series", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("annotations", Text, nullable=False),
    Column("value", Double),
    Column("fired_at", BigInteger),
    Column("resolved_at", BigInteger),
    Column("keep_since", BigInteger),
    Column("held_since", BigInteger),
    Column("reason", Text, nullable=False),
    Column("muted", Text, nullable=False),
    Column("replayed", Boolean, nullable=False),
    PrimaryKeyConstraint("run", "fingerprint", "active_at", name="pk_alerts"),
    # What is open has no resolved_at, so one index finds both the open ones and the newest resolved.
    Index("ix_alerts_run_resolved", "run", "resolved_at"),
    Index("ix_alerts_resolved", "resolved_at"),
)

alert_groups = Table(
    "alert_groups",
    common,
    _run(),
    Column("receiver", Text, nullable=False),
    # 64 bits of a hash stand for the group key, as for a series' labels: it may be too long for an index row.
    Column("group_hash", BigInteger, nullable=False),
    Column("group_key", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("next_flush", BigInteger, nullable=False),
    Column("notified_at", BigInteger),
    Column("firing", Text, nullable=False),
    Column("resolved", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "receiver", "group_hash", name="pk_alert_groups"),
)

outbox = Table(
    "outbox",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    _run(),
    Column("receiver", Text, nullable=False),
    Column("group_hash", BigInteger, nullable=False),
    Column("group_key", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    Column("refresh", Boolean, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger),
    Column("sent_at", BigInteger),
    Column("answer", Text, nullable=False),
    UniqueConstraint("run", "receiver", "group_hash", "seq", name="uq_outbox_key"),
    # The status first: what is pending stays few, while what was sent piles up until it is pruned.
    Index("ix_outbox_open", "status", "run", "receiver", "group_hash", "seq"),
    Index("ix_outbox_run", "run", "id"),
)

silences = Table(
    "silences",
    common,
    Column("id", Text, nullable=False),
    Column("matchers", Text, nullable=False),
    Column("starts_at", BigInteger, nullable=False),
    Column("ends_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("id", name="pk_silences"),
    Index("ix_silences_ends", "ends_at"),
)

heartbeats = Table(
    "heartbeats",
    common,
    # By name: a trainer's first beat may come before anything else is known of its run.
    Column("run", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("last_ts", BigInteger, nullable=False),
    Column("beats", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "name", name="pk_heartbeats"),
)

panels = Table(
    "panels",
    common,
    Column("owner", Text, nullable=False),
    # The charts in their order, as JSON of `server.store.types.OwnPanel`.
    Column("panels", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("owner", name="pk_panels"),
)

pushers = Table(
    "pushers",
    common,
    # By name: a push may come before anything else is known of its run.
    Column("run", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("interval_seconds", Double, nullable=False),
    Column("last_ts", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "target", name="pk_pushers"),
    Index("ix_pushers_last", "last_ts"),
)

inbox = Table(
    "inbox",
    common,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("run", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("interval_seconds", Double, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    # How many samples it holds: what the bound of the whole is counted in.
    Column("rows", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False, server_default="0"),
    # With what it weighs: what waits is added up at every push, without a look at the bodies.
    Index("ix_inbox_run", "run", "id", "rows", "size"),
)

forwarders = Table(
    "forwarders",
    common,
    Column("run", Text, nullable=False),
    Column("target", Text, nullable=False),
    # The id of a spool: a new spool numbers its readings from 1 again.
    Column("agent", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("last_ts", BigInteger, nullable=False),
    PrimaryKeyConstraint("run", "target", "agent", name="pk_forwarders"),
)

verdicts = Table(
    "verdicts",
    common,
    _run(),
    # Start of the verdict; it is valid until the next row.
    Column("ts", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("rules_version", Integer, nullable=False),
    Column("replayed", Boolean, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("run", "ts", name="pk_verdicts"),
)

_PENDING = text("ready_at IS NULL AND ended_at IS NULL")

sandboxes = Table(
    "sandboxes",
    common,
    _run(),
    Column("provider", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("run_key", Text, nullable=False),
    Column("own", Boolean, nullable=False),
    Column("dangling", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("provider_state", Text, nullable=False),
    Column("requested_at", BigInteger),
    Column("started_at", BigInteger),
    Column("ready_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("image", Text, nullable=False),
    Column("image_cached", Boolean),
    Column("latency_source", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("unreachable", Boolean, nullable=False),
    Column("expires_at", BigInteger),
    Column("cost_usd_per_hour", Double),
    # First seen, last seen, first seen ready, first seen failed: a restart continues from these times.
    Column("first_seen", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("ready_seen", BigInteger),
    Column("failed_seen", BigInteger),
    # Of the record, like the times above; a column that comes later stands last.
    Column("first_exec_at", BigInteger),
    PrimaryKeyConstraint("run", "provider", "id", name="pk_sandboxes"),
    # Every tick queries the oldest pending one, which is one of few among a run's hundred thousand.
    Index("ix_sandboxes_pending", "run", "requested_at", sqlite_where=_PENDING, postgresql_where=_PENDING),
    Index("ix_sandboxes_seen", "run", "seen_at"),
    Index("ix_sandboxes_ended", "run", "ended_at"),
    # In the order of a page, so that the newest hundred are read without sorting all.
    Index("ix_sandboxes_page", "run", "first_seen", "id"),
)
