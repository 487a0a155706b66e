"""Types of alerting: conditions, rules, alerts, and the data a rule is evaluated on. Pure.

Times are epoch seconds of event time, durations are seconds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import Struct

from collectors.model import Labels
from server.lib.matchers import Matcher

Operator = Literal[">", ">=", "<", "<=", "==", "!="]
Kind = Literal["threshold", "drift", "absence", "verdict", "forecast", "burn"]
NoData = Literal["hold", "alert", "ok"]
State = Literal["inactive", "pending", "firing", "resolved"]

CLASSES = ("liveness", "infrastructure", "tuning", "cost")
"""In the order of importance: a dead component cannot be tuned."""


# How long a resolved alert is kept. Prometheus resends a resolution for 15 minutes too, so that a receiver that lost
# one still receives it.
RESOLVED_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on a series.

    Attributes:
        source: ``signal`` (a file of `server.signals`, or one to come) or ``metric`` (a catalogue metric, per target).
        of: the value itself, or the ``increase`` of a counter over ``window`` seconds.
        recover: once firing, the condition stays true until the value is back across this level (None: threshold).
    """

    kind: Kind
    source: Literal["signal", "metric"]
    name: str
    op: Operator = ">"
    threshold: float = 0.0
    recover: float | None = None
    matchers: tuple[Matcher, ...] = ()
    of: Literal["value", "increase"] = "value"
    window: float = 0.0

    @property
    def summed(self) -> bool:
        """Does the condition apply to the sum of all series? True for cost without a ``match``."""
        return self.kind == "burn" and not self.matchers


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert definition.

    Attributes:
        also: further conditions that must hold on series which agree in all labels both have.
        no_data_after: seconds without data after which `no_data` is applied; until then every state is held.
        lifecycle: the run must be in one of these.
        annotations: texts with ``$value``-like names (`string.Template`); see `server.alerts.text`.
        builtin: from the default pack.
        promql: for `export rules`, where the condition is on what `/metrics` does not show.
    """

    name: str
    condition: Condition
    also: tuple[Condition, ...] = ()
    for_seconds: float = 0.0
    keep_firing_seconds: float = 0.0
    severity: str = "warning"
    class_: str = "tuning"
    labels: Labels = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    no_data: NoData = "hold"
    no_data_after: float = 300.0
    lifecycle: frozenset[str] = frozenset({"running"})
    builtin: bool = False
    promql: str = ""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return (self.condition, *self.also)


class Alert(Struct):
    """One episode of one rule on one series: from pending to resolved; the store removes an inactive one.

    Key: (run, fingerprint, active_at). `server.alerts.rules` changes its own alerts at every tick: a batch has copies.

    Attributes:
        series: labels of the series as observed (with ``target`` for metrics), by which later evaluations match it.
        labels: what receivers see: ``alertname``, ``run``, ``severity``, ``class``, the series' and the rule's own.
        keep_since: the condition is false since then, and `keep_firing_for` holds the alert.
        held_since: start of missing data for the series.
        reason: why it is resolved, or what holds it, as text.
        muted: why no receiver is notified, as text ("" if receivers are).
        replayed: it began to fire in history that was read back.
    """

    rule: str
    series: Labels
    labels: Labels
    fingerprint: str
    state: State
    active_at: float
    annotations: Mapping[str, str] = {}
    fired_at: float | None = None
    resolved_at: float | None = None
    keep_since: float | None = None
    held_since: float | None = None
    value: float | None = None
    reason: str = ""
    muted: str = ""
    replayed: bool = False


class Silence(Struct, frozen=True):
    """Mutes alerts that match all ``matchers``, from ``starts_at`` until just before ``ends_at``. Key: id.

    Times are in whole milliseconds. A silence that was ended has the time of that as ``ends_at``.
    """

    id: str
    matchers: tuple[Matcher, ...]
    starts_at: float
    ends_at: float
    created_by: str
    comment: str
    updated_at: float = 0.0

    def active(self, now: float) -> bool:
        return self.starts_at <= now < self.ends_at


@dataclass(frozen=True, slots=True)
class Table:
    """All series of one source at one instant.

    Attributes:
        labels: one entry per series; equal ``shape`` of two tables of a name means equal labels in equal order.
        values: NaN where the value is unknown now (``gaps`` has the reason). A series that ended is in no table.
        gaps: index -> why there is no value.
    """

    labels: Sequence[Labels]
    values: Sequence[float]
    gaps: Mapping[int, str]
    shape: int

    def summed(self) -> "Table":
        """Returns one series without labels: the sum of the known values; a gap if there are none."""
        values = [value for index, value in enumerate(self.values) if index not in self.gaps]
        if not values and not self.gaps:
            return self
        gaps = {} if values else {0: next(iter(self.gaps.values()))}
        return Table([()], [math.fsum(values) if values else math.nan], gaps, 1)


class Frame(Protocol):
    """Data that rules are evaluated on: one run at one instant."""

    @property
    def now(self) -> float: ...

    @property
    def run(self) -> str: ...

    @property
    def lifecycle(self) -> str: ...

    @property
    def replayed(self) -> bool:
        """Is this history that is read back? Its alerts send no notifications."""

    def missing(self, condition: Condition, series: Labels) -> str:
        """Returns why a series in no table is unknown (its target does not answer); "" if it has ended."""

    def reason(self, series: Labels) -> str:
        """Returns why the target of a series cannot be read, or what is missing from its answers; "" otherwise."""

    def address(self, series: Labels) -> str:
        """Returns where the target of a series is, without secrets; "" if that is not known."""

    def table(self, condition: Condition) -> Table | None:
        """Returns the series of a condition before matchers (for ``increase``: the increases); None: no source."""


def fingerprint(labels: Labels) -> str:
    """Returns Alertmanager's fingerprint of a label set: FNV-1a (64 bits) over the sorted pairs, 16 hex digits.

    Source: prometheus/common `model/signature.go` (labelSetToFingerprint), separator byte 255.
    """
    digest = 14695981039346656037
    for name, value in sorted(labels):
        for byte in (*name.encode(errors="replace"), 255, *value.encode(errors="replace"), 255):
            digest = ((digest ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"
