"""Slack incoming webhooks (and compatible ones, such as Mattermost): one attachment of blocks.

Limits are Slack's (docs.slack.dev, Block Kit reference): 3,000 characters a section, 50 blocks a message.
"""

from server.notify.model import AlertItem, Notification, Receiver, ReceiverSettings, Request
from server.notify.text import (
    SHOWN,
    clip,
    details,
    headline,
    json_body,
    json_headers,
    left_out,
    ordered,
    severity,
    title,
    units,
)

SECTION, TEXT = 3000, 4000
# Longest link, characters; a longer one would fill a section.
LINK = 1000
# Red, amber, blue; green for resolved. The headline contains the same information as text.
COLOURS = {"critical": "#d32f2f", "warning": "#f9a825", "info": "#1976d2", "": "#757575"}
RESOLVED = "#2e7d32"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def escape(text: str) -> str:
    """Escapes Slack's control characters, so that no label can mention a channel or create a link."""
    return "".join(_ENTITIES.get(char, char) for char in text)


def render(notification: Notification, settings: ReceiverSettings, now: float) -> Request:
    head = headline(notification)
    colour = RESOLVED if notification.status == "resolved" else COLOURS[severity(notification)]
    attachment = {"color": colour, "fallback": clip(head, TEXT, escape), "blocks": _blocks(notification, now)}
    # Outside the attachment, because a phone's lock screen shows only this text.
    body = {"text": clip(head, TEXT, escape), "attachments": [attachment]}
    return Request(settings.url, json_body(body), json_headers())


def _blocks(notification: Notification, now: float) -> list[dict[str, object]]:
    shown = ordered(notification)[:SHOWN]
    blocks = [_section(_alert_text(alert, now)) for alert in shown]
    if rest := left_out(notification, len(shown)):
        blocks.append(_section(rest))
    if link := _link(notification.external_url, "Rollscope"):
        blocks.append(_section(link))
    return blocks


def _alert_text(alert: AlertItem, now: float) -> str:
    mark = "resolved: " if alert.status == "resolved" else ""
    head = f"*{clip(mark + title(alert), LINK, escape)}*\n"
    link = _link(alert.url, "charts")
    tail = f"\n{link}" if link else ""
    return head + clip(details(alert, now), SECTION - units(head) - units(tail), escape) + tail


def _link(url: str, text: str) -> str:
    safe = escape(url.replace("|", "%7C").replace(">", "%3E").replace("<", "%3C"))
    return f"<{safe}|{text}>" if url and units(safe) <= LINK else ""


def _section(text: str) -> dict[str, object]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


RECEIVER = Receiver(kind="slack", reads="Slack incoming webhooks", render=render)
