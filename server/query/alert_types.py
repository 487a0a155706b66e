"""Records of alerts: episodes, silences, rules and notifications. Times are epoch seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

AlertState = Literal["pending", "firing", "resolved"]


@dataclass(frozen=True, slots=True)
class AlertInfo:
    """One episode of an alert.

    Attributes:
        value: newest value that the rule evaluated, in `unit`.
        muted: why no notification is sent: ``silenced ...`` or ``inhibited ...``; "" if they are sent.
        reason: why it is resolved, or that its series is unknown now.
        held: its series is unknown now, so its state is held.
        url: relative address of the charts at its moment.
        replayed: it began in history that was read back.
    """

    run: str
    name: str
    state: AlertState
    severity: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    value: float | None
    unit: str
    signal: str
    active_at: float
    fired_at: float | None
    resolved_at: float | None
    fingerprint: str
    muted: str = ""
    reason: str = ""
    held: bool = False
    url: str = ""
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class SilenceInfo:
    """A silence. ``matchers``: as written, e.g. ``alertname="RunStalled"``. ``state``: pending, active, expired."""

    id: str
    state: str
    matchers: tuple[str, ...]
    starts_at: float
    ends_at: float
    created_by: str
    comment: str


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """A rule as configured.

    Attributes:
        expression: the condition as text, e.g. ``trainer_wait_ratio > 0.4 for 5m``.
        why: "" when it can fire; else what is missing ("no source yet: ...").
        signal, threshold, recover: for drawing its line into the signal's chart; threshold None where it has none.
    """

    name: str
    severity: str
    class_: str
    expression: str
    summary: str
    builtin: bool
    why: str = ""
    signal: str = ""
    threshold: float | None = None
    recover: float | None = None


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """A notification and the result of its delivery, without secrets. ``status``: pending, sent, failed, superseded."""

    run: str
    receiver: str
    kind: str
    status: str
    alerts: tuple[str, ...]
    created_at: float
    sent_at: float | None
    attempts: int
    next_at: float | None
    answer: str
    group_key: str = ""
