"""Prometheus Alertmanager: POST /api/v2/alerts. It groups, silences and routes by itself.

Like Prometheus it sends all alerts repeatedly: an alert's ``endsAt`` is a few refreshes ahead, so that the alert
ends by itself if Rollscope ends. Source: Prometheus notifier and rules/alerting.go; Alertmanager api/v2/openapi.yaml.
"""

import base64
from urllib.parse import urlsplit, urlunsplit

from server.lib.secret import Secret
from server.notify.model import AlertItem, Notification, Option, Receiver, ReceiverSettings, Request
from server.notify.text import bearer, json_body, json_headers, rfc3339

REFRESH_SECONDS = 60.0
# Prometheus' own factor: three refreshes may be lost before Alertmanager considers the alert resolved.
REFRESHES_AHEAD = 4


def render(notification: Notification, settings: ReceiverSettings, now: float) -> Request:
    body = json_body([_alert(alert, now) for alert in notification.alerts])
    authorization = bearer(settings) or _basic(settings)
    return Request(_endpoint(settings.url), body, json_headers(authorization))


def _alert(alert: AlertItem, now: float) -> dict[str, object]:
    ends = now + REFRESHES_AHEAD * REFRESH_SECONDS if alert.ends_at is None else alert.ends_at
    alert_fields: dict[str, object] = {
        "labels": dict(alert.labels),
        "annotations": dict(alert.annotations),
        "startsAt": rfc3339(alert.starts_at),
        "endsAt": rfc3339(ends),
    }
    # The API accepts a URL or no key, not an empty URL.
    return alert_fields | {"generatorURL": alert.url} if alert.url else alert_fields


def _endpoint(base: Secret) -> Secret:
    parts = urlsplit(base)
    return Secret(urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/api/v2/alerts")))


def _basic(settings: ReceiverSettings) -> Secret | None:
    user, password = settings.options.get("username", ""), settings.options.get("password", "")
    if not user:
        return None
    return Secret("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())


RECEIVER = Receiver(
    kind="alertmanager",
    reads="Prometheus Alertmanager 0.16 and later (POST /api/v2/alerts)",
    render=render,
    options={
        "bearer": Option("token for the Authorization header", secret=True),
        "username": Option("name for basic authentication"),
        "password": Option("password for basic authentication", secret=True),
    },
    refresh_seconds=REFRESH_SECONDS,
)
