"""Reads alerts: firing and resolved ones, silences, notifications, and rules with their missing inputs."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from server.alerts import text
from server.alerts.inputs import TARGET_UP
from server.alerts.model import CLASSES, Alert, Condition, Rule, Silence
from server.alerts.mute import silence_text
from server.alerts.settings import AlertSettings
from server.lib.clock import Clock
from server.lib.matchers import all_match
from server.notify.model import SEVERITIES
from server.query.run_state import cached, position
from server.query.types import AlertInfo, AlertNow, DeliveryInfo, RuleInfo, SignalNow, SilenceInfo, Status
from server.signals.model import LAST_VALUE
from server.store.types import DeliveryRow

if TYPE_CHECKING:
    from server.store import Store

# More than a page shows; beyond it the rules are wrong.
MOST_ALERTS = 10_000
# An expired silence is shown for a week.
EXPIRED_SECONDS = 7 * 86_400.0


class AlertReader:
    """Reads alerts. Thread-safe. Rules and receivers are those of the configuration."""

    def __init__(self, store: "Store", clock: Clock, settings: AlertSettings) -> None:
        self._store, self._clock, self._settings = store, clock, settings
        self._rules = {rule.name: rule for rule in settings.rules}
        self._kinds = {receiver.name: receiver.kind for receiver in settings.receivers}

    def active(self, run: str | None = None) -> list[AlertInfo]:
        """Pending and firing alerts of one run or of all: firing first, then by severity, then the oldest.

        Inhibition is as of the run's last tick. A silence takes effect when it is created and ends when it expires.
        """
        self._check(run)
        return list(self.unresolved(run))

    def unresolved(self, run: str | None) -> list[AlertInfo]:
        """As `active`, for a run that exists."""
        return cached((self, "unresolved", run), lambda: self._unresolved(run))

    def _check(self, run: str | None) -> None:
        if run is not None:
            position(self._store, run)

    def _unresolved(self, run: str | None) -> list[AlertInfo]:
        rows = self._store.alerts.list(run, ("pending", "firing"), MOST_ALERTS)
        if not rows:
            return []
        # A silence takes effect when it is created and ends when it expires, not at the next tick.
        now = self._clock.now()
        quiet = self._store.alerts.silences(round(now * 1000))
        infos = (structs.replace(info, muted=_muted(info, quiet, now)) for info in (self._info(*row) for row in rows))
        return sorted(infos, key=_gravest)

    def history(self, run: str | None = None, limit: int = 100) -> list[AlertInfo]:
        """Resolved alerts that had fired, the newest first."""
        self._check(run)
        return [self._info(name, row) for name, row in self._store.alerts.history(run, limit)]

    def _info(self, run: str, row: Alert) -> AlertInfo:
        rule, labels = self._rules.get(row.rule), dict(row.labels)
        return AlertInfo(
            run=run, name=row.rule, state=row.state,  # type: ignore[arg-type]
            severity=labels.get("severity", ""), labels=labels, annotations=row.annotations, value=row.value,
            unit=text.unit_of(rule.condition) if rule else "", signal=rule.condition.name if rule else "",
            active_at=row.active_at, fired_at=row.fired_at, resolved_at=row.resolved_at,
            fingerprint=row.fingerprint, muted=row.muted if row.resolved_at is None else "", reason=row.reason,
            held=row.held_since is not None, url=text.moment(run, rule, row.active_at, row.resolved_at),
            replayed=row.replayed,
        )  # fmt: skip

    # ---- silences, deliveries

    def silences(self, expired: bool = False) -> list[SilenceInfo]:
        """Active and pending silences, and with ``expired`` those of the last week. The first to end comes first."""
        now = self._clock.now()
        since = round((now - EXPIRED_SECONDS) * 1000) if expired else None
        return [_silence(row, now) for row in self._store.alerts.silences(round(now * 1000), since)]

    def deliveries(self, run: str | None = None, limit: int = 50) -> list[DeliveryInfo]:
        """The newest notifications, newest first."""
        self._check(run)
        return [self._delivery(row) for row in self._store.alerts.deliveries(run, limit, repeats=False)]

    def _delivery(self, row: DeliveryRow) -> DeliveryInfo:
        waiting = row.status == "pending"
        return DeliveryInfo(
            run=row.run, receiver=row.receiver, kind=self._kinds.get(row.receiver, ""), status=row.status,
            alerts=_named(row.payload), created_at=row.created_at / 1000, sent_at=_seconds(row.sent_at),
            attempts=row.attempts, next_at=row.next_at / 1000 if waiting else None, answer=row.answer,
            group_key=row.group_key,
        )  # fmt: skip

    # ---- rules

    def rules(self, status: Status | None = None) -> list[RuleInfo]:
        """Every rule, in the order of evaluation. With a run's status, `why` names the input that the run lacks."""
        metrics = self._store.series.metrics(status.run) if status is not None else frozenset()
        return [self._rule(rule, status, metrics) for rule in self._settings.rules]

    def _rule(self, rule: Rule, status: Status | None, metrics: frozenset[str]) -> RuleInfo:
        condition = rule.condition
        plain = condition.kind in ("threshold", "drift") and condition.of == "value"
        why = (missing(part, status, metrics) for part in rule.conditions)
        return RuleInfo(
            name=rule.name, severity=rule.severity, class_=rule.class_, expression=text.expression(rule),
            summary=rule.annotations.get("summary", ""), builtin=rule.builtin, why=next(filter(None, why), ""),
            signal=condition.name if condition.source == "signal" else "",
            threshold=condition.threshold if plain else None, recover=condition.recover,
        )  # fmt: skip


def missing(condition: Condition, status: Status | None, metrics: frozenset[str]) -> str:
    """Why a condition can never be true in this run: no source reports its input; "" if it can."""
    if condition.kind == "absence" or condition.name == TARGET_UP:
        return ""
    if status is None:
        return ""
    if condition.source == "metric":
        return "" if condition.name in metrics else f"no source: no target reports {condition.name}"
    return _no_signal([signal for signal in status.signals.values() if signal.signal == condition.name])


def _no_signal(rows: Sequence[SignalNow]) -> str:
    # A signal that had a value once has a source, also if it is unknown now.
    if not rows or any(row.value is not None or LAST_VALUE in row.why for row in rows):
        return "" if rows else "no source: nothing counted yet"
    kind = "not applicable" if rows[0].state == "not_applicable" else "no source"
    return f"{kind}: {rows[0].why}"


def alert_now(alert: AlertInfo, now: float) -> AlertNow:
    """An alert within a run's status."""
    age = max(0.0, now - (alert.active_at if alert.fired_at is None else alert.fired_at))
    return AlertNow(
        alert.name, alert.signal, alert.state, alert.severity, alert.value, alert.unit, alert.active_at, age,
        alert.annotations.get("summary", ""), alert.muted, alert.held, alert.labels, alert.fingerprint, alert.url,
    )  # fmt: skip


def _muted(info: AlertInfo, silences: Sequence[Silence], now: float) -> str:
    """Why an alert is muted: inhibition as of the last tick, silences as of now."""
    if info.muted.startswith("inhibited"):
        return info.muted
    fits = (row for row in silences if row.active(now) and all_match(row.matchers, info.labels))
    return next((silence_text(silence, now) for silence in fits), "")


def _gravest(alert: AlertInfo) -> tuple[Any, ...]:
    severity = SEVERITIES.index(alert.severity) if alert.severity in SEVERITIES else len(SEVERITIES)
    kind = alert.labels.get("class", "")
    rank = CLASSES.index(kind) if kind in CLASSES else len(CLASSES)
    return alert.state != "firing", bool(alert.muted), severity, rank, alert.active_at, alert.fingerprint


def _silence(row: Silence, now: float) -> SilenceInfo:
    state = "expired" if row.ends_at <= now else "pending" if row.starts_at > now else "active"
    return SilenceInfo(
        row.id, state, tuple(map(str, row.matchers)), row.starts_at, row.ends_at, row.created_by, row.comment
    )


def _named(payload: str) -> tuple[str, ...]:
    """``RunStalled firing``, ... of a stored notification."""
    body: Mapping[str, Any] = json.loads(payload)
    alerts = (f"{alert['labels'].get('alertname', '')} {alert['status']}" for alert in body.get("alerts", ()))
    return tuple(dict.fromkeys(alerts))


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
