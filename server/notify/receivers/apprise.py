"""Other receivers through the library apprise (mail, Teams, Telegram, ntfy and 100 more).

The library sends by itself, so our proxy and address policies do not apply; therefore its URLs come from the
configuration only. Redirects are disabled, and so are its logs, which contain URLs.
"""

import importlib
import importlib.util
import logging
import re
import time
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from server.lib.outbound_policy import refuse_target
from server.notify.model import DeliveryAnswer, Notification, Receiver, ReceiverSettings
from server.notify.outbound import EXCERPT, plain, redacted
from server.notify.text import SHOWN, details, headline, left_out, ordered, severity, title

MISSING = "needs the library apprise: pip install apprise"
UNKNOWN = "apprise does not support this url"
SECONDS = 15.0
# Nearly every plugin logs this for a refusal.
_STATUS = re.compile(r"\berror=(\d{3})\b")
_KINDS = {"critical": "failure", "warning": "warning"}


# Log messages of the library for the attempt in flight; its threads inherit the variable.
_MESSAGES: ContextVar[list[str] | None] = ContextVar("apprise_words", default=None)


class _Shut(logging.Filter):
    """Suppresses log records, but collects warnings for the answer: the library's result is only a boolean."""

    def filter(self, record: logging.LogRecord) -> bool:
        messages = _MESSAGES.get()
        if messages is not None and record.levelno >= logging.WARNING and record.name == "apprise":
            messages.append(record.getMessage())
        return False


# apprise logs URLs, urllib3 the path of every request; no other code in this process uses these loggers.
for _name in (
    "apprise",
    "urllib3.connectionpool",
    "urllib3.util.retry",
    "requests_oauthlib.oauth1_session",
    "oauthlib",
):
    logging.getLogger(_name).addFilter(_Shut())


def check(settings: ReceiverSettings) -> str | None:
    """Returns why this receiver cannot work, or None; for validation of the configuration."""
    if importlib.util.find_spec("apprise") is None:
        return MISSING
    # The host part may be a token; only a numeric address shows where the request goes.
    refusal = refuse_target(f"http://{urlsplit(settings.url).netloc.rpartition('@')[2]}")
    if refusal is not None and "link-local" in refusal:
        return f"the url {refusal}"
    return None if _service(settings) is not None else UNKNOWN


def deliver(notification: Notification, settings: ReceiverSettings) -> DeliveryAnswer:
    """Makes one attempt; blocks for at most 15 s. Never raises."""
    try:
        if (problem := check(settings)) is not None:
            return DeliveryAnswer(False, text=problem)
        delivered, messages = _notify(notification, settings, time.time())
    except Exception as error:  # noqa: BLE001  100 third-party plugins; the message may contain the URL, the class not
        return DeliveryAnswer(False, retry=True, text=f"apprise failed: {type(error).__name__}")
    return DeliveryAnswer(True, text="delivered by apprise") if delivered else _failure(messages, settings)


def _library() -> Any:
    return importlib.import_module("apprise")


def _service(settings: ReceiverSettings) -> Any:
    library = _library()
    asset = library.AppriseAsset(app_id="Rollscope", http_redirects=False, storage_mode="memory", allow_templates=False)
    return library.Apprise.instantiate(str(settings.url), asset=asset)


def _notify(notification: Notification, settings: ReceiverSettings, now: float) -> tuple[bool, str]:
    """Sends; returns whether it was delivered, and the library's warnings."""
    library = _library()
    sender = library.Apprise()
    sender.add(_service(settings))
    messages: list[str] = []
    token = _MESSAGES.set(messages)
    try:
        delivered = sender.notify(
            body=_body(notification, now),
            title=headline(notification),
            notify_type=_kind(notification),
            body_format="text",
            timeout=SECONDS,
        )
    finally:
        _MESSAGES.reset(token)
    return bool(delivered), " ".join(messages)


def _body(notification: Notification, now: float) -> str:
    shown = ordered(notification)[:SHOWN]
    parts = [f"{alert.status}: {title(alert)}\n{details(alert, now)}\n{alert.url}".strip() for alert in shown]
    parts += [left_out(notification, len(shown)), notification.external_url]
    return "\n\n".join(part for part in parts if part)


def _kind(notification: Notification) -> str:
    return "success" if notification.status == "resolved" else _KINDS.get(severity(notification), "info")


def _failure(messages: str, settings: ReceiverSettings) -> DeliveryAnswer:
    codes = [int(code) for code in _STATUS.findall(messages)]
    final = any(300 <= code < 500 and code not in (408, 429) for code in codes)
    # Any part of such a URL may be a token, including the host.
    pieces = [piece for piece in re.split(r"[/?&=@:]+", settings.url) if len(piece) > 3]
    safe = plain(redacted(messages, [*settings.secrets(), *pieces]))
    return DeliveryAnswer(False, retry=not final, text=f"apprise: {safe or 'not delivered'}"[:EXCERPT])


RECEIVER = Receiver(
    kind="apprise",
    reads="more than 100 other services through the library apprise (`pip install apprise`)",
    deliver=deliver,
    check=check,
)
