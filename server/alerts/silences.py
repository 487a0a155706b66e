"""Validates a silence in the shape of Alertmanager's API v2. Pure: `now` and the id are arguments.

Source: alertmanager `api/v2/openapi.yaml` (postableSilence: matchers, startsAt, endsAt, createdBy, comment).
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from server.alerts.model import Silence
from server.lib.matchers import Matcher, matcher

# Most matchers of a silence; an alert has fewer labels.
MAX_MATCHERS = 50
# Longest text, characters.
MAX_TEXT = 2000
# Largest time, epoch s (the year 5138); a larger one is in milliseconds by mistake.
LAST = 1e11


def parse(body: bytes, identity: str, now: float) -> Silence:
    """Returns a silence from a request's body. ``now``: epoch seconds.

    Raises:
        ValueError: what is wrong with it; the message is for the client.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("the body must be an object with matchers, endsAt, createdBy and comment")
    starts = _time(fields, "startsAt", now)
    ends = _time(fields, "endsAt", None)
    if ends <= now or ends <= starts:
        raise ValueError("endsAt must be in the future and after startsAt")
    matchers = tuple(_matchers(fields.get("matchers")))
    author, comment = _text(fields, "createdBy"), _text(fields, "comment")
    return Silence(identity, matchers, round(max(starts, now), 3), round(ends, 3), author, comment, round(now, 3))


def _matchers(value: object) -> list[Matcher]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MATCHERS:
        raise ValueError(f"matchers must be a list of 1 to {MAX_MATCHERS} objects")
    matchers = [_matcher(item) for item in value]
    # Refused as in Alertmanager: a silence that matches every alert is a mistake.
    if all(item.matches({}) for item in matchers):
        raise ValueError(
            "at least one matcher must not match the empty value, because a silence must not match every alert"
        )
    return matchers


def _matcher(value: object) -> Matcher:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not isinstance(value.get("value"), str):
        raise ValueError('a matcher is {"name", "value", "isRegex", "isEqual"}')
    if not value["name"].isidentifier() or not value["name"].isascii() or len(value["value"]) > MAX_TEXT:
        raise ValueError(f"matcher {value['name'][:40]!r}: not a label name, or too long a value")
    if not value["value"].isprintable() and value["value"]:
        raise ValueError(f"matcher {value['name']!r}: its value contains characters that no label has")
    op = {(True, False): "=", (False, False): "!=", (True, True): "=~", (False, True): "!~"}
    equal, regex = value.get("isEqual", True), value.get("isRegex", False)
    if not isinstance(equal, bool) or not isinstance(regex, bool):
        raise ValueError("isRegex and isEqual must be true or false")
    return matcher(value["name"], op[equal, regex], value["value"])


def _time(fields: Mapping[str, Any], key: str, default: float | None) -> float:
    """Parses RFC 3339, as in Alertmanager, or epoch seconds."""
    value = fields.get(key, default)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{key} must be a time such as 2026-11-21T12:30:00Z") from None
        if moment.tzinfo is None:
            raise ValueError(f"{key} needs a time zone, such as the Z in 2026-11-21T12:30:00Z")
        value = moment.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LAST:
        raise ValueError(f"{key} must be a time such as 2026-11-21T12:30:00Z")
    return float(value)


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{key} must be a text of at most {MAX_TEXT} characters")
    return value
