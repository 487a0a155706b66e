"""`rollscope alerts send-test RECEIVER`: sends one marked notification on the same path as alerts."""

import asyncio
from dataclasses import replace

from server.alerts.model import fingerprint
from server.notify import load
from server.notify.model import AlertItem, DeliveryAnswer, Notification, Receiver, ReceiverSettings
from server.notify.outbound import send

NAME, RUN = "RollscopeTest", "rollscope-test"
# Receivers that keep an alert or incident open until a resolved notification arrives.
STAYS_OPEN = frozenset({"alertmanager", "pagerduty"})


def run(settings: ReceiverSettings, external_url: str, now: float) -> tuple[str, bool]:
    """Send the test notification and report the receiver's answer.

    Args:
        now: epoch seconds; the alert began one second earlier, and its resolution is now.

    Returns:
        text for the terminal, without secrets, and whether the receiver accepted everything.
    """
    lines, fine = [], True
    receiver = load()[settings.kind]
    statuses = ("firing", "resolved") if settings.kind in STAYS_OPEN else ("firing",)
    for status in statuses:
        answer = _send(receiver, notification(settings, external_url, now, status), settings, now)
        lines.append(f"{settings.name} ({settings.kind}), {status}: {'ok' if answer.ok else 'FAILED'}, {answer.text}")
        fine = fine and answer.ok
        if not answer.ok:
            break
    return "\n".join(lines), fine


def notification(settings: ReceiverSettings, external_url: str, now: float, status: str) -> Notification:
    """The test notification, as a group of one alert."""
    labels = {"alertname": NAME, "run": RUN, "severity": "info", "class": "liveness"}
    annotations = {
        "summary": f"Test of receiver {settings.name}: nothing is wrong",
        "description": "Sent by hand with `rollscope alerts send-test`; no action is needed.",
    }
    alert = AlertItem(status, labels, annotations, now - 1.0, None, fingerprint(tuple(labels.items())), external_url)
    if status == "resolved":
        alert = replace(alert, ends_at=now)
    return Notification(
        receiver=settings.name,
        run=RUN,
        group_key=f'{{}}:{{alertname="{NAME}", run="{RUN}"}}',
        group_labels={"alertname": NAME, "run": RUN},
        status=status,
        alerts=(alert,),
        reason="test",
        external_url=external_url,
    )


def _send(receiver: Receiver, notification: Notification, settings: ReceiverSettings, now: float) -> DeliveryAnswer:
    if receiver.render is None:
        assert receiver.deliver is not None
        return receiver.deliver(notification, settings)
    return asyncio.run(send(receiver.render(notification, settings, now)))
