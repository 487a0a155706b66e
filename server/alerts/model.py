"""The words of alerting, as data: conditions, rules, alerts and what a rule is evaluated on. Pure.

Times are epoch seconds of event time, durations are seconds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from collectors.model import Labels
from server.alerts.matchers import Matcher

Operator = Literal[">", ">=", "<", "<=", "==", "!="]
Kind = Literal["threshold", "drift", "absence", "verdict", "forecast", "burn"]
NoData = Literal["hold", "alert", "ok"]
State = Literal["inactive", "pending", "firing", "resolved"]

CLASSES = ("liveness", "infrastructure", "tuning", "cost")
"""In the order in which they matter: what is dead cannot be tuned."""


# How long a resolved alert is remembered: Prometheus resends a resolution for 15 minutes, so that a receiver
# that lost one still learns of it.
RESOLVED_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of a series.

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
        """Is it on the sum over all series? Money is: a dollar is a dollar. With a ``match``, on each that fits."""
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


@dataclass(slots=True)
class Alert:
    """One episode of one rule on one series: from pending to resolved.

    Attributes:
        series: labels of the series as observed (with ``target`` for metrics): how the next evaluation finds it.
        labels: what receivers see: ``alertname``, ``run``, ``severity``, ``class``, the series' and the rule's own.
        keep_since: the condition is false since then, and `keep_firing_for` holds the alert.
        held_since: nothing is known of the series since then.
        reason: why it is resolved, or what holds it, in words.
        muted: why nobody is told, in words ("" when somebody is).
        replayed: it began firing in history that was read back.
    """

    rule: str
    series: Labels
    labels: Labels
    fingerprint: str
    state: State
    active_at: float
    annotations: Mapping[str, str] = field(default_factory=dict)
    fired_at: float | None = None
    resolved_at: float | None = None
    keep_since: float | None = None
    held_since: float | None = None
    value: float | None = None
    reason: str = ""
    muted: str = ""
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """All series of one source at one instant.

    Attributes:
        labels: one entry per series; equal ``shape`` of two tables of a name means equal labels in equal order.
        values: NaN where nothing is known just now (``gaps`` says why). A series that ended is in no table.
        gaps: index -> why there is no value.
    """

    labels: Sequence[Labels]
    values: Sequence[float]
    gaps: Mapping[int, str]
    shape: int

    def summed(self) -> "Table":
        """One series without labels: the sum of what is known; a gap where nothing is."""
        known = [value for at, value in enumerate(self.values) if at not in self.gaps]
        if not known and not self.gaps:
            return self
        gaps = {} if known else {0: next(iter(self.gaps.values()))}
        return Table([()], [math.fsum(known) if known else math.nan], gaps, 1)


class Frame(Protocol):
    """What rules are evaluated on: one run at one instant."""

    @property
    def now(self) -> float: ...

    @property
    def run(self) -> str: ...

    @property
    def lifecycle(self) -> str: ...

    @property
    def replayed(self) -> bool:
        """History that is read back: its alerts notify nobody."""

    def missing(self, condition: Condition, series: Labels) -> str:
        """Why nothing is known of a series that is in no table (its target does not answer); "" when it has ended."""

    def table(self, condition: Condition) -> Table | None:
        """The series behind a condition, before its matchers (for ``increase``: the increases); None: no source."""


def fingerprint(labels: Labels) -> str:
    """Alertmanager's identity of a label set: FNV-1a (64 bits) over the sorted pairs, 16 hexadecimal digits.

    Source: prometheus/common `model/signature.go` (labelSetToFingerprint), separator byte 255.
    """
    found = 14695981039346656037
    for name, value in sorted(labels):
        for byte in (*name.encode(errors="replace"), 255, *value.encode(errors="replace"), 255):
            found = ((found ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return f"{found:016x}"
