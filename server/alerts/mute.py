"""Muting of alerts: inhibition by another alert, and silences by users. Pure.

Times are epoch seconds. Source: Alertmanager's documentation of `inhibit_rule` and of silences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from server.alerts.model import Alert, Silence
from server.lib.matchers import Matcher, all_match
from server.notify.model import Notification

MAX_COMMENT = 200
"""Characters of a silence's comment that are shown next to each alert; the page shows the whole comment."""


@dataclass(frozen=True, slots=True)
class InhibitRule:
    """While an alert that matches ``source`` fires, alerts that match ``target`` send no notifications.

    Attributes:
        equal: labels that must be the same on both; one that is missing equals an empty one.
    """

    source: tuple[Matcher, ...]
    target: tuple[Matcher, ...]
    equal: tuple[str, ...] = ()


def silence_text(silence: Silence, now: float) -> str:
    """Returns the silence's author, end and comment as text."""
    comment = " ".join(silence.comment.split())[:MAX_COMMENT]
    author, end = silence.created_by or "an unknown user", _clock(silence.ends_at, now)
    return f"silenced by {author} until {end}{f': {comment}' if comment else ''} (id {silence.id})"


def mute(
    alerts: Iterable[Alert], inhibits: Sequence[InhibitRule], silences: Iterable[Silence], now: float
) -> dict[str, str]:
    """Returns fingerprint -> reason as text, for each muted alert.

    Includes pending alerts, because a page shows before they fire whether they are muted. An alert that is both
    inhibited and silenced counts as inhibited, because inhibition ends by itself and names the cause.
    """
    listed = [(alert, dict(alert.labels)) for alert in alerts if alert.state != "inactive"]
    # Once per tick and not per alert: ended silences stay in the store, and there may be hundreds.
    active_silences = [silence for silence in silences if silence.active(now)]
    reasons: dict[str, str] = {}
    # Inhibited sources still inhibit (as in Alertmanager): the result must not depend on the order of the rules.
    for rule in inhibits:
        _inhibit(rule, listed, reasons)
    for alert, labels in listed:
        if alert.fingerprint not in reasons:
            silence = next(
                (
                    silence_candidate
                    for silence_candidate in active_silences
                    if all_match(silence_candidate.matchers, labels)
                ),
                None,
            )
            if silence is not None:
                reasons[alert.fingerprint] = silence_text(silence, now)
    return reasons


def without_silenced(
    notification: Notification, active_silences: Sequence[Silence], now: float
) -> tuple[Notification | None, str]:
    """Returns a planned notification without silenced firing alerts; None, with a silence, if none is left.

    Resolved alerts stay: a receiver that was notified of an alert gets its end.
    """
    silence_of = {
        id(item): silence
        for item in notification.alerts
        for silence in active_silences
        if item.status == "firing" and all_match(silence.matchers, item.labels)
    }
    if not silence_of:
        return notification, ""
    left = tuple(item for item in notification.alerts if id(item) not in silence_of)
    if not left:
        return None, silence_text(next(iter(silence_of.values())), now)
    status = "firing" if any(item.status == "firing" for item in left) else "resolved"
    return replace(notification, alerts=left, status=status), ""


@dataclass(slots=True)
class _Sources:
    """Firing sources with equal values of the equal labels: any one, and one that is not a target too."""

    any: Alert | None = None
    pure: Alert | None = None


@dataclass(slots=True)
class _Index:
    """Indexes a rule's sources by their equal labels, so that 10,000 alerts are scanned twice, never in pairs."""

    by_equal: dict[tuple[str, ...], _Sources] = field(default_factory=dict)

    def add(self, key: tuple[str, ...], alert: Alert, target_too: bool) -> None:
        entry = self.by_equal.setdefault(key, _Sources())
        entry.any = _longer_firing(entry.any, alert)
        if not target_too:
            entry.pure = _longer_firing(entry.pure, alert)

    def source(self, key: tuple[str, ...], source_too: bool) -> Alert | None:
        """Returns the alert that inhibits a target. A target that is also a source needs one that is not both."""
        entry = self.by_equal.get(key)
        if entry is None:
            return None
        return entry.pure if source_too else entry.any


def _inhibit(rule: InhibitRule, listed: list[tuple[Alert, dict[str, str]]], reasons: dict[str, str]) -> None:
    index = _Index()
    for alert, labels in listed:
        if alert.state == "firing" and all_match(rule.source, labels):
            index.add(_equal(rule, labels), alert, all_match(rule.target, labels))
    # Usually no inhibiting alert fires, and then no target is examined.
    for alert, labels in listed if index.by_equal else ():
        if all_match(rule.target, labels):
            source = index.source(_equal(rule, labels), all_match(rule.source, labels))
            if source is not None:
                reasons.setdefault(alert.fingerprint, _inhibited(source))


def _equal(rule: InhibitRule, labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in rule.equal)


def _longer_firing(previous: Alert | None, alert: Alert) -> Alert:
    """Returns the alert that has fired longer, so that the text does not depend on the order of the list."""
    if previous is None:
        return alert
    return min(previous, alert, key=lambda candidate: (candidate.active_at, candidate.rule, candidate.fingerprint))


def _inhibited(source: Alert) -> str:
    class_ = dict(source.labels).get("class")
    return f"inhibited by {source.rule}" + (f" ({class_})" if class_ else "")


def _clock(t: float, now: float) -> str:
    """Returns ``12:30 UTC``, with the date if it is another day."""
    try:
        then, today = datetime.fromtimestamp(t, UTC), datetime.fromtimestamp(now, UTC)
    except (OverflowError, ValueError, OSError):
        return "further notice"  # beyond what calendars support, so meant as permanent
    # Shortly after midnight the date is not needed either.
    same = then.date() == today.date() or then - today < timedelta(hours=12)
    return then.strftime("%H:%M UTC" if same else "%Y-%m-%d %H:%M UTC")
