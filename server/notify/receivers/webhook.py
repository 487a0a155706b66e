"""Webhook in the format of Alertmanager's message, version "4", for any program that accepts it.

Source: Alertmanager 0.25 notify/webhook/webhook.go (Message) and template/template.go (Data, Alert);
``notification_reason`` is of 2026. What differs from Alertmanager's own message is in docs/how-to/receivers.md.
"""

from server.notify.model import AlertItem, Notification, Option, Receiver, ReceiverSettings, Request
from server.notify.text import bearer, json_body, json_headers, rfc3339

# Alertmanager's texts (notify/notify.go, NotifyReason.String). Whether a group is new or has grown is not stored.
_REASONS = {
    "firing": "new alerts added",
    "repeat": "repeat interval elapsed",
    "test": "first notification",
}


def message(notification: Notification) -> dict[str, object]:
    """Returns the message as Alertmanager writes it, as JSON-able values."""
    return {
        "receiver": notification.receiver,
        "status": notification.status,
        "alerts": [_alert(alert) for alert in sorted(notification.alerts, key=_order)],
        "groupLabels": dict(notification.group_labels),
        "commonLabels": notification.common_labels(),
        "commonAnnotations": notification.common_annotations(),
        "externalURL": notification.external_url,
        "notification_reason": _reason(notification),
        "version": "4",
        "groupKey": notification.group_key,
        "truncatedAlerts": notification.truncated,
    }


def _order(alert: AlertItem) -> tuple[object, ...]:
    """Sorts as Alertmanager does: job, instance (without one: last), then all labels (types/types.go)."""
    job, instance = alert.labels.get("job"), alert.labels.get("instance")
    return (job is None, job or "", instance is None, instance or "", len(alert.labels), sorted(alert.labels.items()))


def _alert(alert: AlertItem) -> dict[str, object]:
    return {
        "status": alert.status,
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.starts_at),
        "endsAt": rfc3339(alert.ends_at),
        "generatorURL": alert.url,
        "fingerprint": alert.fingerprint,
    }


def _reason(notification: Notification) -> str:
    if notification.reason == "resolved":
        return "all alerts resolved" if notification.status == "resolved" else "some alerts resolved"
    return _REASONS.get(notification.reason, "unknown")


def render(notification: Notification, settings: ReceiverSettings, now: float) -> Request:
    return Request(settings.url, json_body(message(notification)), json_headers(bearer(settings)))


RECEIVER = Receiver(
    kind="webhook",
    reads="any service that accepts Alertmanager's webhook message, version 4",
    render=render,
    options={"bearer": Option("token for the Authorization header", secret=True)},
)
