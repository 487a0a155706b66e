"""Text functions shared by receivers: headline, facts of an alert, length limits. For a reader at 3 am. Pure."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from server.lib.secret import Secret
from server.notify.model import SEVERITIES, AlertItem, Notification, ReceiverSettings

# Go's zero time, which Alertmanager writes for an alert that has not ended.
ZERO_TIME = "0001-01-01T00:00:00Z"
# Alerts listed in a text; the page lists all.
SHOWN = 20
# Labels that the headline or the summary contains already.
_SHOWN_ELSEWHERE = frozenset({"alertname", "run", "severity", "class"})
_TEXTS = ("summary", "evidence", "description")


def rfc3339(t: float | None) -> str:
    """Formats epoch seconds as Go does: UTC, milliseconds without trailing zeros; None is Go's zero time."""
    if t is None:
        return ZERO_TIME
    seconds, ms = divmod(round(t * 1000), 1000)
    fraction = f".{ms:03d}".rstrip("0") if ms else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def json_body(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_headers(authorization: Secret | None = None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    return headers | {"Authorization": authorization} if authorization else headers


def bearer(settings: ReceiverSettings) -> Secret | None:
    """Returns the Authorization header of the option `bearer`, if it is set."""
    token = settings.options.get("bearer", "")
    return Secret(f"Bearer {token}") if token else None


def by_status(notification: Notification, status: str) -> list[AlertItem]:
    return [alert for alert in notification.alerts if alert.status == status]


def ordered(notification: Notification) -> list[AlertItem]:
    """Sorts alerts, firing and most severe first, so that a cut text loses the least important ones."""
    return sorted(notification.alerts, key=lambda alert: (alert.status != "firing", _rank(alert)))


def severity(notification: Notification) -> str:
    """Returns the worst severity among firing alerts, else among all; "" if none has a known severity."""
    alerts = by_status(notification, "firing") or notification.alerts
    rank = min(map(_rank, alerts), default=len(SEVERITIES))
    return SEVERITIES[rank] if rank < len(SEVERITIES) else ""


def headline(notification: Notification) -> str:
    """Returns a headline such as ``[FIRING:2, RESOLVED:1] TrainerStarved in run a``."""
    counts = [(status, len(by_status(notification, status))) for status in ("firing", "resolved")]
    count_text = ", ".join(f"{status.upper()}:{count}" for status, count in counts if count)
    name = notification.group_labels.get("alertname") or notification.common_labels().get("alertname") or "Alerts"
    mark = {"test": "TEST ", "repeat": "STILL "}.get(notification.reason, "")
    return f"[{mark}{count_text or notification.status.upper()}] {name} in run {notification.run}"


def title(alert: AlertItem) -> str:
    """Returns the problem in one sentence."""
    return alert.annotations.get("summary") or alert.labels.get("alertname", "alert")


def details(alert: AlertItem, now: float) -> str:
    """Returns the value with its limit, description, start, severity, series labels, further annotations."""
    lines = [alert.annotations.get("evidence", ""), alert.annotations.get("description", ""), _when(alert, now)]
    parts = [alert.labels.get("severity", ""), alert.labels.get("class", "")]
    parts += [f"{name}={value}" for name, value in sorted(alert.labels.items()) if name not in _SHOWN_ELSEWHERE]
    lines.append(", ".join(part for part in parts if part))
    lines += [f"{name}: {text}" for name, text in sorted(alert.annotations.items()) if name not in _TEXTS]
    return "\n".join(line for line in lines if line)


def left_out(notification: Notification, shown: int) -> str:
    """Returns how many alerts the text leaves out; "" if none."""
    count = len(notification.alerts) - shown + notification.truncated
    return f"and {count} more" if count > 0 else ""


def span(seconds: float) -> str:
    """Formats a duration in its two largest units: ``42 s``, ``12 min``, ``4 h 2 min``, ``3 d 4 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60 % 60, whole // 3600 % 24, whole // 86400
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    first_index = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first_index : first_index + 2] if count)


def clip(text: str, limit: int, escape: Callable[[str], str] = str) -> str:
    """Returns the text, escaped, in at most ``limit`` UTF-16 units, the strictest unit that receivers use.

    Cut between characters of the original, so that no escape is torn; a cut text ends in an ellipsis.
    """
    parts = [escape(char) for char in text[:limit]]
    if len(text) <= limit and sum(map(units, parts)) <= limit:
        return "".join(parts)
    size, fitting = 1, []
    for part in parts:
        size += units(part)
        if size > limit:
            break
        fitting.append(part)
    return "".join(fitting) + "…"[:limit]


def units(text: str) -> int:
    """Returns the text's length in UTF-16 units."""
    return len(text) + sum(char > "\uffff" for char in text)


def _rank(alert: AlertItem) -> int:
    named = alert.labels.get("severity", "")
    return SEVERITIES.index(named) if named in SEVERITIES else len(SEVERITIES)


def _when(alert: AlertItem, now: float) -> str:
    begun = _clock(alert.starts_at)
    if alert.ends_at is None:
        return f"firing since {begun} UTC ({span(now - alert.starts_at)})"
    return f"from {begun} to {_clock(alert.ends_at)} UTC ({span(alert.ends_at - alert.starts_at)})"


def _clock(t: float) -> str:
    return f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M:%S}"


def first_url(alerts: Sequence[AlertItem], fallback: str) -> str:
    """Returns the URL of the charts of the first alert that has one."""
    return next((alert.url for alert in alerts if alert.url), fallback)
