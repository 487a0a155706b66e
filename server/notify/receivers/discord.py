"""Discord webhooks: a line of content and one embed per alert.

Limits are Discord's (docs.discord.com, message resource): 10 embeds, title 256, description 4,096, content 2,000,
and 6,000 characters over all embeds of a message.
"""

from server.notify.model import AlertItem, Notification, Receiver, ReceiverSettings, Request
from server.notify.text import (
    clip,
    details,
    headline,
    json_body,
    json_headers,
    left_out,
    ordered,
    rfc3339,
    title,
    units,
)

EMBEDS, TITLE, DESCRIPTION, CONTENT, TOTAL = 10, 256, 4096, 2000, 6000
# Least room for an embed, characters; with less it is left out and counted.
ROOM = 200
URL = 2048
COLOURS = {"critical": 0xD32F2F, "warning": 0xF9A825, "info": 0x1976D2}
RESOLVED, OTHER = 0x2E7D32, 0x757575
_MARKDOWN = frozenset("\\*_~`|>[]()#<-")


def escape(text: str) -> str:
    """Escapes Markdown characters, so that no label can create a link."""
    return "".join(f"\\{char}" if char in _MARKDOWN else char for char in text)


def render(notification: Notification, settings: ReceiverSettings, now: float) -> Request:
    embeds = _embeds(notification, now)
    lines = [headline(notification), left_out(notification, len(embeds))]
    body = {
        "content": clip("\n".join(line for line in lines if line), CONTENT, escape),
        "embeds": embeds,
        # So that a label with @everyone does not mention everyone.
        "allowed_mentions": {"parse": []},
    }
    return Request(settings.url, json_body(body), json_headers())


def _embeds(notification: Notification, now: float) -> list[dict[str, object]]:
    embeds: list[dict[str, object]] = []
    room = TOTAL
    for alert in ordered(notification)[:EMBEDS]:
        if room < ROOM:
            break
        name = clip(("resolved: " if alert.status == "resolved" else "") + title(alert), min(TITLE, room // 2), escape)
        text = clip(details(alert, now), min(DESCRIPTION, room - units(name)), escape)
        room -= units(name) + units(text)
        embeds.append(_embed(alert, name, text))
    return embeds


def _embed(alert: AlertItem, name: str, text: str) -> dict[str, object]:
    colour = RESOLVED if alert.status == "resolved" else COLOURS.get(alert.labels.get("severity", ""), OTHER)
    embed: dict[str, object] = {"title": name, "description": text, "color": colour}
    embed["timestamp"] = rfc3339(alert.starts_at if alert.ends_at is None else alert.ends_at)
    return embed | {"url": alert.url} if 0 < len(alert.url) <= URL else embed


RECEIVER = Receiver(kind="discord", reads="Discord webhooks", render=render)
