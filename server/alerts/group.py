"""Plans notifications: grouping, waiting and deduplication. Pure.

`plan` takes a run's alerts at a tick and returns what to store: the state of each receiver's groups, and the
notifications. All state is in the rows, so a restart at any tick changes nothing.

Source: Alertmanager, `dispatch/dispatch.go` (aggrGroup: group_wait, group_interval) and `notify/notify.go`
(DedupStage.needsUpdate, repeat_interval). It differs where a receiver would keep an outdated state; comments mark these
differences.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from collectors.model import Labels
from server.alerts.model import Alert
from server.lib.matchers import Matcher, all_match
from server.notify.model import AlertItem, Notification, ReceiverSettings
from server.store.types import GroupRow, OutboxRow

ALL_LABELS = "..."
"""In `group_by`, as in Alertmanager: group by every label, which means no grouping."""

_SHORT = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}

_ITEM = tuple(field.name for field in fields(AlertItem))
_NOTIFICATION = tuple(field.name for field in fields(Notification))

Key = tuple[str, str]
Link = Callable[[Alert], str]
Rows = tuple[list[GroupRow], list[OutboxRow]]


def plan(
    now: float, run: str, alerts: Iterable[Alert], receivers: Sequence[ReceiverSettings],
    groups: Mapping[Key, GroupRow], refresh: Mapping[str, float], link: Link, external_url: str,
) -> Rows:  # fmt: skip
    """Returns the changes of a tick, (groups, notifications), to be written in the tick's own transaction.

    Args:
        now: event time of the tick, epoch seconds.
        alerts: pending, firing and recently resolved, with `Alert.muted` set.
        groups: every stored group of the run, by (receiver, group key).
        refresh: receiver kind -> seconds, for kinds that need the whole state repeatedly.
        link: absolute address of the charts at an alert's moment.
    """
    episodes = _newest_episodes(alerts)
    changes: Rows = ([], [])
    for settings in receivers:
        own_groups = {key: row for (name, key), row in groups.items() if name == settings.name}
        tick = _Tick(now, run, settings, own_groups, link, external_url)
        refresh_seconds = refresh.get(settings.kind, 0.0)
        group_rows, notes = (
            _refreshing(tick, episodes, refresh_seconds) if refresh_seconds else _grouped(tick, episodes)
        )
        changes[0].extend(group_rows)
        changes[1].extend(notes)
    # A removed receiver gets nothing more, and has no old state if its name is used again.
    names = {settings.name for settings in receivers}
    changes[0].extend(replace(row, ended=True) for (name, _), row in groups.items() if name not in names)
    return changes


def to_json(notification: Notification) -> str:
    """Returns a notification as the outbox stores it. By field names, because `asdict` takes 6 times as long."""
    alerts = [{name: getattr(alert, name) for name in _ITEM} for alert in notification.alerts]
    fields_by_name = {name: getattr(notification, name) for name in _NOTIFICATION}
    return json.dumps({**fields_by_name, "alerts": alerts}, separators=(",", ":"))


def from_json(text: str) -> Notification:
    """Returns the notification of `to_json`.

    Raises:
        ValueError, TypeError, KeyError: the text was not made by `to_json`.
    """
    decoded = json.loads(text)
    return Notification(**{**decoded, "alerts": tuple(AlertItem(**alert) for alert in decoded["alerts"])})


def group_key(labels: Labels) -> str:
    """Returns Alertmanager's group key under the root route, e.g. ``{}:{alertname="RunStalled", run="a"}``."""
    return "{}:{" + ", ".join(f"{name}={_quoted(value)}" for name, value in sorted(labels)) + "}"


def _quoted(text: str) -> str:
    """Quotes a string as Go's %q does."""
    return '"' + "".join(_quoted_char(char) for char in text) + '"'


def _quoted_char(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return _SHORT.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _newest_episodes(alerts: Iterable[Alert]) -> list[Alert]:
    """Returns firing or resolved alerts, one per label set: to a receiver a second episode is the same alert."""
    newest: dict[str, Alert] = {}
    for alert in alerts:
        if alert.state not in ("firing", "resolved") or alert.fired_at is None:
            continue
        previous = newest.get(alert.fingerprint)
        if previous is None or previous.active_at < alert.active_at:
            newest[alert.fingerprint] = alert
    return list(newest.values())


def _alertmanager_order(alert: Alert) -> tuple[object, ...]:
    """Source: alertmanager `types.AlertSlice`: job, instance, then the label sets, shorter ones first."""
    labels = dict(alert.labels)
    return labels.get("job", ""), labels.get("instance", ""), len(labels), sorted(labels.items())


# Cached, because ten thousand firing alerts would otherwise be grouped and matched at every tick.
@lru_cache(maxsize=1 << 16)
def _group_of(labels: Labels, group_by: tuple[str, ...], run: str) -> tuple[str, Labels]:
    """Returns key and labels of an alert's group. The run is always included, because receivers see only keys."""
    group_labels = {*group_by, "run"}
    named = {name: value for name, value in labels if name in group_labels or ALL_LABELS in group_labels} | {"run": run}
    pairs = tuple(sorted(named.items()))
    return group_key(pairs), pairs


@lru_cache(maxsize=1 << 16)
def _matches_labels(labels: Labels, match: tuple[Matcher, ...]) -> bool:
    return all_match(match, dict(labels))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class _Tick:
    """One receiver's view of a tick."""

    now: float
    run: str
    settings: ReceiverSettings
    groups: Mapping[str, GroupRow]
    link: Link
    external_url: str

    @property
    def ms(self) -> int:
        return _ms(self.now)

    def wants(self, alert: Alert) -> bool:
        return not self.settings.match or _matches_labels(alert.labels, self.settings.match)

    def note(self, row: GroupRow, items: Sequence[AlertItem], reason: str, *, refresh: bool = False) -> OutboxRow:
        """Returns a notification of the group, cut to the receiver's `max_alerts`, firing alerts first."""
        limit = self.settings.max_alerts
        shown = items if not limit else sorted(items, key=lambda item: item.status != "firing")[:limit]
        status = "firing" if any(item.status == "firing" for item in items) else "resolved"
        notification = Notification(
            row.receiver, self.run, row.group_key, dict(row.labels), status, tuple(shown), len(items) - len(shown),
            reason, self.external_url,
        )  # fmt: skip
        return OutboxRow(row.receiver, row.group_key, row.seq, self.ms, to_json(notification), refresh)

    def item(self, alert: Alert) -> AlertItem:
        assert alert.fired_at is not None
        ends = alert.resolved_at if alert.state == "resolved" else None
        return AlertItem(
            alert.state, dict(alert.labels), dict(alert.annotations), alert.fired_at, ends, alert.fingerprint,
            self.link(alert),
        )  # fmt: skip

    def notified(self, row: GroupRow, firing: Iterable[str], resolved: Iterable[str], seconds: float) -> GroupRow:
        """Returns the group after a notification. Its number grows, also when a group ends and begins again."""
        return replace(
            row, next_flush=_ms(self.now + seconds), notified_at=self.ms, firing=tuple(sorted(firing)),
            resolved=tuple(sorted(resolved)), seq=max(row.seq + 1, self.ms),
        )  # fmt: skip


# ---- grouped notifications


@dataclass(slots=True)
class _Members:
    """A group's alerts at a tick. ``unwanted``: the receiver's matchers changed after it was notified of them."""

    labels: Labels
    alerts: list[Alert] = field(default_factory=list)
    unwanted: set[str] = field(default_factory=set)


def _grouped(tick: _Tick, episodes: Sequence[Alert]) -> Rows:
    rows: Rows = ([], [])
    members = _members(tick, episodes)
    for key in sorted(tick.groups.keys() | members.keys()):
        group_members = members.get(key)
        row = tick.groups.get(key)
        if row is None and group_members is not None:
            row = _new_group(tick, key, group_members)
        if row is None:
            continue
        if row.next_flush <= tick.ms:
            row, note = _flush(tick, row, group_members or _Members(row.labels))
            rows[1].extend(note)
        if row != tick.groups.get(key) and (key in tick.groups or not row.ended):
            rows[0].append(row)
    return rows


def _members(tick: _Tick, episodes: Sequence[Alert]) -> dict[str, _Members]:
    """Returns alerts by group key. An alert that was sent under a key keeps that key until it resolves.

    Otherwise a changed `group_by` would leave an incident open permanently.
    """
    home = {fingerprint: key for key, row in tick.groups.items() for fingerprint in row.firing}
    members: dict[str, _Members] = {}
    for alert in episodes:
        is_wanted = tick.wants(alert)
        key, labels = home.get(alert.fingerprint), None
        if key is None:
            if not is_wanted:
                continue
            key, labels = _group_of(alert.labels, tick.settings.group_by, tick.run)
        group_members = members.get(key)
        if group_members is None:
            group_members = members[key] = _Members(tick.groups[key].labels if labels is None else labels)
        group_members.alerts.append(alert)
        # Kept as a member, because its end must be sent to the receivers that were notified.
        if not is_wanted:
            group_members.unwanted.add(alert.fingerprint)
    return members


def _new_group(tick: _Tick, key: str, group_members: _Members) -> GroupRow | None:
    """Starts a group with a firing alert. An alert that fired long ago (in history) does not wait again."""
    since = [alert.fired_at for alert in group_members.alerts if alert.state == "firing" and alert.fired_at is not None]
    if not since:
        return None
    first = max(tick.now, min(since) + tick.settings.group_wait)
    return GroupRow(tick.settings.name, key, group_members.labels, _ms(first))


def _flush(tick: _Tick, row: GroupRow, group_members: _Members) -> tuple[GroupRow, list[OutboxRow]]:
    """Sends what is due, and schedules the next flush after `group_interval`; without firing alerts the group ends."""
    alive = {alert.fingerprint for alert in group_members.alerts if alert.state == "firing"}
    firing = {
        alert.fingerprint for alert in group_members.alerts if alert.state == "firing" and not alert.muted
    } - group_members.unwanted
    resolved = {
        alert.fingerprint
        for alert in group_members.alerts
        if alert.state == "resolved" and _is_resolution_due(tick, row, alert, group_members)
    }
    missing = set(row.firing) - {alert.fingerprint for alert in group_members.alerts}
    reason = _reason(tick, row, firing, resolved | missing)
    notified = set(row.firing)
    notes = []
    if reason:
        # A muted or unwanted alert is not repeated, but its end is sent to receivers that were notified of it.
        row = tick.notified(row, firing | (notified & alive), resolved | missing, tick.settings.group_interval)
        notes = _notes(tick, row, group_members, firing, resolved, missing, reason)
    else:
        # A resolution that is never sent (`send_resolved`) is forgotten. Alertmanager would treat a new episode as the
        # old one, and stay silent until `repeat_interval`.
        next_flush = _ms(tick.now + tick.settings.group_interval)
        row = replace(row, next_flush=next_flush, firing=tuple(sorted(notified & alive)))
    return replace(row, ended=not alive), notes


def _notes(
    tick: _Tick,
    row: GroupRow,
    group_members: _Members,
    firing: set[str],
    resolved: set[str],
    missing: set[str],
    reason: str,
) -> list[OutboxRow]:
    """Returns the notification if any of its alerts is for this receiver."""
    shown = firing | resolved if tick.settings.send_resolved else firing
    items = [
        tick.item(alert)
        for alert in sorted(group_members.alerts, key=_alertmanager_order)
        if alert.fingerprint in shown
    ]
    if tick.settings.send_resolved:
        items += [_missing_alert(tick, row, fingerprint) for fingerprint in sorted(missing)]
    return [tick.note(row, items, reason)] if items else []


def _is_resolution_due(tick: _Tick, row: GroupRow, alert: Alert, group_members: _Members) -> bool:
    """Is a resolution due: its alert was sent, or it came since the last flush of a group that was sent?

    A resolved alert stays in the list for a while; a group that was never sent has nothing to resolve. A receiver that
    was notified of an alert gets its end, even if it is muted by then: Alertmanager sends nothing, and leaves an
    incident open.
    """
    assert alert.resolved_at is not None
    if row.notified_at is None:
        return False
    if alert.fingerprint in row.firing:
        return True
    # The last flush, which included everything resolved by then.
    since = row.next_flush - _ms(tick.settings.group_interval)
    return not alert.muted and alert.fingerprint not in group_members.unwanted and _ms(alert.resolved_at) > since


def _reason(tick: _Tick, row: GroupRow, firing: set[str], resolved: set[str]) -> str:
    """Returns why to notify now, or "". Source: alertmanager DedupStage.needsUpdate."""
    if not firing and not resolved:
        return ""  # everything is muted, or no alert is left
    if row.notified_at is None or not firing <= set(row.firing):
        return "firing" if firing else ""
    if not firing:
        return "resolved" if row.firing else ""
    if tick.settings.send_resolved and not resolved <= set(row.resolved):
        return "resolved"
    return "repeat" if row.notified_at + _ms(tick.settings.repeat_interval) <= tick.ms else ""


def _missing_alert(tick: _Tick, row: GroupRow, fingerprint: str) -> AlertItem:
    """Returns a resolution without details (the alert ended while Rollscope was down), with the group's labels."""
    return AlertItem("resolved", dict(row.labels), {}, tick.now, tick.now, fingerprint)


# ---- receivers with their own grouping


def _refreshing(tick: _Tick, episodes: Sequence[Alert], refresh_seconds: float) -> Rows:
    """Sends the whole state of the run on every change, and every ``refresh_seconds`` seconds while anything fires."""
    labels: Labels = (("run", tick.run),)
    key = group_key(labels)
    # Groups of another kind end without a message: this receiver lets alerts expire that are not repeated.
    rows: Rows = ([replace(row, ended=True) for name, row in tick.groups.items() if name != key], [])
    row = tick.groups.get(key) or GroupRow(tick.settings.name, key, labels, tick.ms)
    notified = set(row.firing)
    firing = [alert for alert in episodes if alert.state == "firing" and tick.wants(alert)]
    # Alerts it was sent are repeated even when muted, because it treats missing alerts as resolved.
    firing = [alert for alert in firing if not alert.muted or alert.fingerprint in notified]
    resolved = [alert for alert in episodes if alert.state == "resolved" and alert.fingerprint in notified]
    now = {alert.fingerprint for alert in firing}
    # At once, whatever `group_interval`: the receiver groups by itself, and would add its own wait.
    if now != notified:
        row = tick.notified(row, now, (alert.fingerprint for alert in resolved), refresh_seconds)
        row = replace(row, ended=not now)
        rows[0].append(row)
        shown = sorted([*firing, *(resolved if tick.settings.send_resolved else ())], key=_alertmanager_order)
        reason = "firing" if now - notified else "resolved"
        rows[1].extend([tick.note(row, [tick.item(alert) for alert in shown], reason)] if shown else [])
    elif now and row.next_flush <= tick.ms:
        row = tick.notified(row, row.firing, (), refresh_seconds)
        rows[0].append(row)
        items = [tick.item(alert) for alert in sorted(firing, key=_alertmanager_order)]
        rows[1].append(tick.note(row, items, "repeat", refresh=True))
    return rows
