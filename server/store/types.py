"""What goes into and comes out of the store: plain records, no SQL.

Times are integer epoch milliseconds here (the store's unit); in records that others share they are epoch seconds.
"""

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from operator import attrgetter
from typing import Any

from msgspec import Struct

from collectors.model import Event, Histogram, Labels, Sandbox
from server.alerts.model import Alert
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.signals.model import TargetState

# ---- types
# Rollouts as the store holds them: rows, groups, and increments of what is counted.


class RolloutSum(Struct, frozen=True, gc=False):
    """Amounts to add (or, when negative, to take back) to one cell of the funnel. ``bucket``: ms, of width ``tier``.

    ``told``: number of rollouts whose response tokens are reported.
    """

    tier: int
    bucket: int
    exit: str
    environment: str
    purpose: str
    rollouts: int
    prompt_tokens: int
    response_tokens: int
    loss_tokens: int
    seconds: float
    told: int = 0


class RolloutBin(Struct, frozen=True, gc=False):
    """How many to add to one cell of a distribution over time (``response_tokens``, ``staleness``, ``turns``, ...)."""

    tier: int
    bucket: int
    kind: str
    bin: int
    n: int


def _token() -> str:
    return secrets.token_hex(8)


class PointState(IntEnum):
    """The three states of a signal's point. Unknown breaks the line; not applicable draws nothing."""

    VALUE = 0
    UNKNOWN = 1
    NOT_APPLICABLE = 2


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Identity of a series within a run. ``target == ""``: a derived signal, ``metric`` is its name."""

    target: str
    metric: str
    labels: Labels = ()
    axis: str = ""


@dataclass(frozen=True, slots=True)
class StepStamp:
    """One step of one axis. The first time wins: a late row of the same step does not move it."""

    axis: str
    incarnation: int
    step: int
    ts: int


@dataclass(frozen=True, slots=True)
class LatestRow:
    """The newest point of one signal series, with its explanation."""

    series: int
    ts: int
    value: float | None
    state: PointState
    why: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The last notification of a group to a receiver, and when it is evaluated again. ``ended`` removes the row.

    Key: (run, receiver, group_key). `firing` and `resolved` hold fingerprints; `seq` is the newest notification's.
    """

    receiver: str
    group_key: str
    labels: Labels
    next_flush: int
    notified_at: int | None = None
    firing: tuple[str, ...] = ()
    resolved: tuple[str, ...] = ()
    seq: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A notification to be sent. ``refresh``: it only repeats a state, so a newer one makes it superfluous."""

    receiver: str
    group_key: str
    seq: int
    created_at: int
    payload: str
    refresh: bool = False


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A notification and what became of it. ``status``: pending, sent, failed (final) or superseded."""

    id: int
    run: str
    receiver: str
    group_key: str
    seq: int
    created_at: int
    payload: str
    status: str
    attempts: int
    next_at: int
    sent_at: int | None
    answer: str


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """From ``ts`` on the verdict was this, until the next row's. ``since``: when it was first found; ``body``: JSON."""

    ts: int
    since: int
    outcome: str
    cause: str
    rule: str
    confidence: float
    rules_version: int
    replayed: bool
    body: str


class SandboxRow(Sandbox, frozen=True, gc=False):
    """A sandbox as last reported, and its relation to this run. Times are epoch seconds; None: unknown.

    Attributes:
        own: it belongs to this run; else it was found in a shared account.
        dangling: live, but the run named in its record has ended or is unknown.
        ready_seen, failed_seen: when it was first reported ready, or failed.
        spinup_seconds: requested to ready, if both are known; `latency_source` names the clock. Not stored.
        pending_seconds: how long it has been waited for, while it is not ready. Not stored.
    """

    target: str = ""
    own: bool = True
    dangling: bool = False
    first_seen: float = 0.0
    seen_at: float = 0.0
    ready_seen: float | None = None
    failed_seen: float | None = None
    spinup_seconds: float | None = None
    pending_seconds: float | None = None

    @classmethod
    def of(cls, record: Sandbox, **own: Any) -> "SandboxRow":
        """Returns the row of a record; ``own``: the other fields."""
        return cls(*_reported(record), **own)


_reported = attrgetter(*Sandbox.__struct_fields__)


@dataclass(frozen=True, slots=True)
class Push:
    """What was pushed for one target at once, as it waits to be collected. ``received_at``: epoch ms.

    Attributes:
        rows: samples and histograms in it.
        body: as `server.push.inbox` packs it; the store does not look inside.
        id: given by the store; 0 before.
    """

    run: str
    target: str
    actor: str
    interval_seconds: float
    received_at: int
    rows: int
    body: bytes
    id: int = 0


@dataclass(frozen=True, slots=True)
class Pusher:
    """A client that pushes into a run, and the time of its last push (epoch ms)."""

    target: str
    actor: str
    interval_seconds: float
    last_ts: int


@dataclass(frozen=True, slots=True)
class InboxDepth:
    """What waits in the inbox: pushes, the rows in them, and bytes of their bodies."""

    pushes: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Forwarder:
    """A forwarder of a target on another machine: its spool's id, its newest stored reading, and when (epoch ms)."""

    target: str
    agent: str
    seq: int
    last_ts: int


@dataclass(slots=True)
class Batch:
    """Everything in here is committed in one transaction, or not at all.

    Tuples, not objects, on the hot path: 12,000 rows/s are normal at 1,000 targets.
    """

    run: str
    samples: list[tuple[int, int, float]] = field(default_factory=list)  # series, ts, value
    steps: list[StepStamp] = field(default_factory=list)
    step_values: list[tuple[int, int, int, float]] = field(default_factory=list)  # series, incarnation, step, value
    histograms: list[tuple[int, int, Histogram]] = field(default_factory=list)  # series, ts, as read
    events: list[tuple[int, Event]] = field(default_factory=list)  # ts, event
    incarnations: list[tuple[int, int]] = field(default_factory=list)  # (incarnation, start in ms) of restarts
    facts: dict[str, str | float] = field(default_factory=dict)
    targets: list[TargetState] = field(default_factory=list)
    cursors: dict[str, str] = field(default_factory=dict)  # target -> cursor as JSON text
    points: list[tuple[int, int, float | None, int]] = field(default_factory=list)  # series, ts, value, PointState
    latest: list[LatestRow] = field(default_factory=list)
    states: dict[str, tuple[int, str]] = field(default_factory=dict)  # fold -> (code version, state as JSON text)
    counters: dict[int, float] = field(default_factory=dict)  # series -> absolute value
    run_fields: dict[str, str | int | None] = field(default_factory=dict)  # framework, mode, lifecycle, watermark...
    alerts: list[Alert] = field(default_factory=list)
    groups: list[GroupRow] = field(default_factory=list)
    outbox: list[OutboxRow] = field(default_factory=list)
    verdicts: list[VerdictRow] = field(default_factory=list)
    sandboxes: list[SandboxRow] = field(default_factory=list)
    rollouts: list[RolloutRow] = field(default_factory=list)
    rollout_groups: list[RolloutGroupRow] = field(default_factory=list)
    rollout_sums: list[RolloutSum] = field(default_factory=list)  # increments: each batch is applied once
    rollout_bins: list[RolloutBin] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)  # ids of pushes that this batch is the outcome of
    token: str = field(default_factory=_token)  # identifies the batch, so that a retry is detected


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored. ``watermark``: event time up to which ticks are done (ms); None before the first.

    ``seq``: the newest given to a point of it; 0 before the first.
    ``collected_at``: when a collector last worked on it (ms); None: not recorded.
    ``catch_up``: JSON of `server.lib.clock.CatchUp` while history is worked off; "" at the present.
    """

    id: int
    name: str
    framework: str
    mode: str
    lifecycle: str
    generation: int
    watermark: int | None
    first_ts: int | None
    last_ts: int | None
    facts: Mapping[str, str | float]
    seq: int
    collected_at: int | None = None
    catch_up: str = ""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One stored step with its values by (metric, labels); ``told``: the same by the reporting target."""

    axis: str
    incarnation: int
    step: int
    ts: int
    values: Mapping[tuple[str, Labels], float]
    told: Mapping[str, Mapping[tuple[str, Labels], float]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class StepTime:
    """When a step was reported (epoch ms), and in which trainer incarnation."""

    ts: int
    step: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Points of a series over [ts, ts + width). ``n == 0``: nothing known there, the line breaks."""

    ts: int
    n: int
    low: float | None
    high: float | None
    total: float
    last: float | None


@dataclass(frozen=True, slots=True)
class HistogramDelta:
    """Observations over some time, under one edge layout.

    Attributes:
        edges: finite upper bounds, ascending.
        counts: observations **per bucket** (not cumulative), one per edge plus one for +Inf.
        total: sum of the observations.
        n: number of observations.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    total: float
    n: float


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """Seconds that rows are kept; None: permanently. ``max_bytes``: None without a limit."""

    raw: float | None = 15 * 86_400.0
    signals: float | None = 90 * 86_400.0
    rollups: float | None = None
    records: float | None = 90 * 86_400.0
    max_bytes: int | None = None


KINDS = {"raw": "raw samples", "signals": "signals", "records": "records", "rollups": "rollups"}
"""Kinds of rows with a retention, and their names for a reader."""


def megabytes(size: float) -> str:
    """Bytes for a reader: "12.3 MB", "4.5 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def size_words(max_bytes: int | None, deleted: Mapping[str, float]) -> str:
    """The size limit and what it deleted, for a reader; "" without one. ``deleted``: kind -> before when, epoch s."""
    if max_bytes is None:
        return ""
    dates = {kind: f"{datetime.fromtimestamp(ts, UTC):%Y-%m-%d %H:%M} UTC" for kind, ts in sorted(deleted.items())}
    gone = ", ".join(f"{KINDS[kind]} before {date}" for kind, date in dates.items())
    return f"max_size {max_bytes / 1e6:,.0f} MB" + (f" deleted {gone}" if gone else ", nothing deleted by it")


# ---- charts that users chose

MOST_PANELS = 24
"""Charts of one user."""
PANEL_CHARACTERS = 100
"""Characters of a title or of a user's name."""
PANEL_KEYS = ("signal", "metric", "title", "split", "log")
# A name, and labels in braces: `server.query.types.parse_name` reads them.
_SELECTOR = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^\n]{0,400}\})?")


class OwnPanel(Struct, frozen=True):
    """One chart.

    Attributes:
        signal, metric: one of the two: a name with the labels that a series must have, as `/series` takes it.
        title: "" for the signal's own, or the metric's name.
        split: a label; one chart per value of it.
        log: the value axis is logarithmic.
    """

    signal: str = ""
    metric: str = ""
    title: str = ""
    split: str = ""
    log: bool = False


def panel_mistakes(
    panel: Mapping[str, Any], signals: Collection[str], metrics: Collection[str]
) -> list[tuple[str, str]]:
    """What is wrong with the fields of a panel, as (field, reason); "" for the whole.

    Args:
        signals, metrics: the names that there are.
    """
    found = [(key, f"unknown; keys: {', '.join(PANEL_KEYS)}") for key in panel if key not in PANEL_KEYS]
    for key in PANEL_KEYS[:4]:
        if not isinstance(panel.get(key, ""), str):
            found.append((key, "must be a string"))
        elif key in ("title", "split") and len(panel.get(key, "")) > PANEL_CHARACTERS:
            found.append((key, f"has more than {PANEL_CHARACTERS} characters"))
        elif key == "title" and not panel.get(key, "").isprintable():
            found.append((key, "has line breaks or other control characters"))
    if not isinstance(panel.get("log", False), bool):
        found.append(("log", "must be true or false"))
    given = [key for key in ("signal", "metric") if panel.get(key)]
    if len(given) != 1:
        return [*found, ("", "needs exactly one of signal and metric")]
    [key], known = given, signals if given == ["signal"] else metrics
    name = panel[key] if isinstance(panel[key], str) else ""
    if name and not _SELECTOR.fullmatch(name):
        found.append((key, f'{name[:80]!r} is no name with labels, such as kv_cache_usage_ratio{{target="engine-0"}}'))
    elif name and name.partition("{")[0] not in known:
        found.append((key, f"no {key} is named {name.partition('{')[0]!r}"))
    return found
