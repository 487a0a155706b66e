"""Sandboxes as people push them: JSON or NDJSON lines -> records, each bad line with its number. Pure.

What wraps a provider's `create()` sends one line when it asks, one when it has the sandbox, one at its end; the
newest word on an id wins, and times that an older one knew are kept.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from collectors.model import FailureCause, LatencySource, Sandbox, SandboxState
from collectors.sandbox_providers.causes import cause_of
from server.push import validation as checks

FIELDS = (
    "provider", "id", "state", "name", "run_key", "provider_state", "requested_at", "started_at", "ready_at",
    "first_exec_at", "ended_at", "image", "image_cached", "latency_source", "cause", "detail", "unreachable",
    "expires_at", "cost_usd_per_hour",
)  # fmt: skip
"""As of `collectors.model.Sandbox`; only `id` must be given."""

MAX_LINES = 10_000
_TIMES = ("requested_at", "started_at", "ready_at", "first_exec_at", "ended_at", "expires_at")
_TEXTS = ("provider", "id", "name", "run_key", "provider_state", "image", "detail")
_WORDS = {"state": get_args(SandboxState), "latency_source": get_args(LatencySource), "cause": get_args(FailureCause)}
LAST = 1e11


@dataclass(slots=True)
class PushedSandboxes:
    """What a body held: good records, and (line number from 1, why) of the others."""

    records: list[Sandbox] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


def parse(body: bytes) -> PushedSandboxes:
    """A JSON object, a JSON list of them, or one per line.

    Raises:
        ValueError: the body as a whole cannot be read, in words for who sent it.
    """
    found = PushedSandboxes()
    for number, item in enumerate(_items(body), 1):
        try:
            found.records.append(record(item))
        except ValueError as error:
            found.refused.append((number, str(error)))
    if not found.records and not found.refused:
        raise ValueError("the body is empty")
    return found


def _items(body: bytes) -> Iterator[object]:
    text = body.decode("utf-8", "replace").strip()
    if text.startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("the body is not JSON") from None
        yield from _bounded(found)
        return
    # Not `splitlines`: JSON has U+2028 and its like within a text.
    yield from (_parsed(line) for line in _bounded([line for line in text.split("\n") if line.strip()]))


def _bounded(items: list[Any]) -> list[Any]:
    if len(items) > MAX_LINES:
        raise ValueError(f"at most {MAX_LINES} records at once")
    return items


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def record(item: object) -> Sandbox:
    """One record of JSON, each field checked; ValueError in words for who sent it."""
    if not isinstance(item, dict):
        raise ValueError("not a JSON object")
    unknown = item.keys() - set(FIELDS)
    if unknown:
        raise ValueError(f"unknown field {sorted(map(str, unknown))[0][:40]!r}; known: {', '.join(FIELDS)}")
    values: dict[str, Any] = {"provider": "pushed", **{name: _value(name, item[name]) for name in item}}
    if not values.get("id"):
        raise ValueError("id is missing")
    values.setdefault("state", _state(values))
    if values["state"] == "failed" and not values.get("cause"):
        # A recipe hands over the text it caught: its words are those the collectors know.
        values["cause"] = cause_of(values.get("detail", ""))
    if values.get("ready_at") is not None:
        values.setdefault("latency_source", "client")
    return Sandbox(**values)


def _state(values: Mapping[str, Any]) -> str:
    """What the times say when no state was sent."""
    if values.get("cause"):
        return "failed"
    if values.get("ended_at") is not None:
        return "terminated"
    return "running" if values.get("ready_at") is not None else "starting"


def _value(name: str, value: object) -> object:
    if value is None:
        return "" if name in _TEXTS else None
    if name in _TIMES or name == "cost_usd_per_hour":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LAST:
            raise ValueError(f"{name} must be a number" + (" of epoch seconds" if name in _TIMES else ""))
        return float(value)
    if name in ("image_cached", "unreachable"):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false")
        return value
    found = (checks.identity if name in ("provider", "id") else checks.cleaned)(name, value)
    if name in _WORDS and value not in _WORDS[name]:
        raise ValueError(f"{name} must be one of {', '.join(_WORDS[name])}")
    return found
