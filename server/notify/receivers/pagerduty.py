"""PagerDuty Events API v2: one incident per group, triggered and resolved by the group's key.

Limits and fields: developer.pagerduty.com, Events API v2 (summary 1,024 characters, event 512 kB).
"""

import hashlib

from server.lib.secret import Secret
from server.notify.model import AlertItem, Notification, Option, Receiver, ReceiverSettings, Request
from server.notify.text import (
    SHOWN,
    by_status,
    clip,
    details,
    first_url,
    headline,
    json_body,
    json_headers,
    left_out,
    ordered,
    rfc3339,
    severity,
    title,
)

URL = Secret("https://events.pagerduty.com/v2/enqueue")
SUMMARY = 1024
# Longest detail, characters: 20 alerts of this size stay far below the 512 kB of an event, however they are escaped.
DETAIL = 2000


def render(notification: Notification, settings: ReceiverSettings, now: float) -> Request:
    key = settings.options.get("routing_key", "")
    event: dict[str, object] = {
        "routing_key": key,
        "event_action": "resolve" if notification.status == "resolved" else "trigger",
        "dedup_key": dedup_key(notification.group_key),
        "payload": _payload(notification, now),
        "client": "Rollscope",
    }
    alerts = ordered(notification)
    if url := first_url(alerts, notification.external_url):
        event["client_url"] = url
    event["links"] = [{"href": alert.url, "text": clip(title(alert), 200)} for alert in alerts[:SHOWN] if alert.url]
    return Request(settings.url or URL, json_body(event), json_headers(), secrets=(key,) if key else ())


def dedup_key(group_key: str) -> str:
    """Returns the incident key: as in Alertmanager, the SHA-256 of the group key (a key may have 255 characters)."""
    return hashlib.sha256(group_key.encode()).hexdigest()


def _payload(notification: Notification, now: float) -> dict[str, object]:
    alerts = ordered(notification)
    common = notification.common_labels()
    first = f": {title(alerts[0])}" if alerts else ""
    return {
        "summary": clip(headline(notification) + first, SUMMARY),
        "source": notification.run,
        # PagerDuty's own severities; an unknown one counts as an error.
        "severity": severity(notification) or "error",
        "timestamp": rfc3339(min((alert.starts_at for alert in alerts), default=now)),
        "component": common.get("target") or common.get("class", ""),
        "group": notification.run,
        "class": common.get("alertname", ""),
        "custom_details": _details(notification, alerts, now),
    }


def _details(notification: Notification, alerts: list[AlertItem], now: float) -> dict[str, object]:
    shown = alerts[:SHOWN]
    result: dict[str, object] = {
        "firing": len(by_status(notification, "firing")),
        "resolved": len(by_status(notification, "resolved")),
        "alerts": [clip(f"{alert.status}: {title(alert)}\n{details(alert, now)}", DETAIL) for alert in shown],
    }
    rest = left_out(notification, len(shown))
    return result | {"left out": rest} if rest else result


RECEIVER = Receiver(
    kind="pagerduty",
    reads="PagerDuty Events API v2",
    render=render,
    options={"routing_key": Option("integration key of the service", required=True, secret=True)},
    needs_url=False,
)
