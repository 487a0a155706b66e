"""Evaluates the alerts of one run at every tick and plans notifications at live ticks.

Alerts and notifications are written in the transaction of the points that led to them; `server.alerts.dispatch` sends
them. After a failed commit the driver is created again from the store, and `RunAlerts` with it.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping

from msgspec import structs

from collectors.model import Labels
from server import notify
from server.alerts import text as alerts_text
from server.alerts.group import plan
from server.alerts.inputs import TARGET_UP, IncreaseTotals, RunFrame, SignalState
from server.alerts.model import RESOLVED_SECONDS, Alert
from server.alerts.mute import mute
from server.alerts.rules import Evaluator
from server.alerts.settings import AlertSettings
from server.derive.deriver import Deriver
from server.signals.model import Value
from server.store.alerts import AlertStore
from server.store.types import Batch, GroupRow

log = logging.getLogger("rollscope.alerts")

TOTALS = "alert_totals"
TOTALS_VERSION = 1

Signals = Mapping[str, Mapping[Labels, SignalState]]


class RunAlerts:
    """Rules, groups and mutes of one run. Single-threaded, like the driver that owns it.

    Args:
        address_of: target -> its address without secrets, or "".
    """

    def __init__(
        self, store: AlertStore, run: str, settings: AlertSettings,
        address_of: Callable[[str], str] = lambda _: "",
    ) -> None:  # fmt: skip
        self._address_of = address_of
        self._store, self._run, self._settings = store, run, settings
        self.evaluator = Evaluator(settings.rules, run)
        self._rules = {rule.name: rule for rule in settings.rules}
        self._groups: dict[tuple[str, str], GroupRow] = {}
        conditions = [condition for rule in settings.rules for condition in rule.conditions]
        self.metrics = frozenset(c.name for c in conditions if c.source == "metric" and c.name != TARGET_UP)
        self._growing = {(c.name, c.window) for c in conditions if c.source == "signal" and c.of == "increase"}
        self._errors: dict[str, str] = {}
        self._totals: dict[tuple[str, float, Labels], IncreaseTotals] = {}
        self._refresh = {kind: one.refresh_seconds for kind, one in notify.load().items() if one.refresh_seconds}

    # ---- at every tick

    def tick(
        self, now: float, deriver: Deriver, signals: Signals, stale: Callable[[str, float], str], batch: Batch,
        *, replayed: bool,
    ) -> None:  # fmt: skip
        """Evaluate every rule at `now`; changed alerts go into the batch."""
        counters = self._counters(now, deriver.counter_values()) if self._growing else {}
        frame = RunFrame(
            now, self._run, deriver.lifecycle, replayed, {**signals, **counters}, stale, deriver.gauges,
            deriver.health, deriver.book, deriver.shape, self._totals, self._address_of,
        )  # fmt: skip
        batch.alerts += map(structs.replace, self.evaluator.evaluate(frame))
        if self.evaluator.errors != self._errors:
            self._errors = dict(self.evaluator.errors)
            for name, why in self._errors.items():
                log.warning("run %s: rule %s is not evaluated: %s", self._run, name, why)

    def _counters(self, now: float, values: Iterable[tuple[str, Value]]) -> dict[str, dict[Labels, SignalState]]:
        """Newest totals of the counters that rules watch, and their past."""
        found: dict[str, dict[Labels, SignalState]] = {}
        windows: dict[str, list[float]] = {}
        for name, window in self._growing:
            windows.setdefault(name, []).append(window)
        for name, value in values:
            for window in windows.get(name, ()):
                self._totals.setdefault((name, window, value.labels), IncreaseTotals()).add(now, value.value, window)
                found.setdefault(name, {})[value.labels] = SignalState(now, value.value)
        return found

    # ---- at a live tick

    def notify(self, now: float, batch: Batch) -> None:
        """Mute, group and deduplicate active alerts; due notifications go into the batch's outbox."""
        active = self.evaluator.active
        if not active and not self._groups:
            return
        silences = self._store.silences(round(now * 1000))
        muted = mute(active, self._settings.inhibits, silences, now)
        for alert in active:
            why = muted.get(alert.fingerprint, "")
            if alert.muted != why:
                alert.muted = why
                batch.alerts.append(structs.replace(alert))
        groups, outbox = plan(
            now, self._run, active, self._settings.receivers, self._groups, self._refresh, self._link,
            self._settings.external_url,
        )  # fmt: skip
        for group in groups:
            key = (group.receiver, group.group_key)
            if group.ended:
                self._groups.pop(key, None)
            else:
                self._groups[key] = group
        batch.groups += groups
        batch.outbox += outbox

    def _link(self, alert: Alert) -> str:
        rule = self._rules.get(alert.rule)
        return self._settings.external_url + alerts_text.moment(self._run, rule, alert.active_at, alert.resolved_at)

    # ---- restart

    def states(self) -> dict[str, tuple[int, str]]:
        """Past totals of the counters that rules watch."""
        if not self._totals:
            return {}
        rows = [[name, window, labels, past.points] for (name, window, labels), past in self._totals.items()]
        return {TOTALS: (TOTALS_VERSION, json.dumps(rows))}

    def restore(self, states: Mapping[str, tuple[int, str]], watermark: float) -> None:
        """Load alerts, groups and the past totals of counters.

        Args:
            watermark: epoch seconds; alerts that were resolved shortly before it may still be notified.
        """
        self.evaluator.restore(self._store.active(self._run, round((watermark - RESOLVED_SECONDS) * 1000)))
        self._groups = {(row.receiver, row.group_key): row for row in self._store.groups(self._run)}
        version, text = states.get(TOTALS, (0, "[]"))
        if version == TOTALS_VERSION:
            for name, window, labels, points in json.loads(text):
                key = (name, window, tuple((k, v) for k, v in labels))
                self._totals[key] = IncreaseTotals([(ts, total) for ts, total in points])
