"""Parses and validates pushed sandboxes (JSON or NDJSON); reports each bad line by number. Pure.

A wrapper of a provider's `create()` sends one line at the request, one when the sandbox is ready, one at its end. The
newest record of an id wins; times of earlier records are retained.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from collectors.model import FailureCause, LatencySource, Sandbox, SandboxState
from collectors.sandbox_providers.provider import cause_of
from server.push import validation as checks

FIELDS = (
    "provider", "id", "state", "name", "run_key", "provider_state", "requested_at", "started_at", "ready_at",
    "first_exec_at", "ended_at", "image", "image_cached", "latency_source", "cause", "detail", "unreachable",
    "expires_at", "cost_usd_per_hour",
)  # fmt: skip
"""Fields of `collectors.model.Sandbox`; only `id` is required."""

MAX_LINES = 10_000
# Largest time or price (epoch seconds of the year 5138).
LAST = 1e11
_TIMES = ("requested_at", "started_at", "ready_at", "first_exec_at", "ended_at", "expires_at")
_TEXTS = ("provider", "id", "name", "run_key", "provider_state", "image", "detail")
_WORDS = {"state": get_args(SandboxState), "latency_source": get_args(LatencySource), "cause": get_args(FailureCause)}


@dataclass(slots=True)
class PushedSandboxes:
    """Contents of a body: good records, and (line number from 1, reason) of refused lines."""

    records: list[Sandbox] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


def parse(body: bytes) -> PushedSandboxes:
    """Parses a JSON object, a JSON list of objects, or one object per line.

    Raises:
        ValueError: the body as a whole is refused; the message is for the client.
    """
    result = PushedSandboxes()
    for number, item in enumerate(_items(body), 1):
        try:
            result.records.append(record(item))
        except ValueError as error:
            result.refused.append((number, str(error)))
    if not result.records and not result.refused:
        raise ValueError("the body is empty")
    return result


def _items(body: bytes) -> Iterator[object]:
    text = body.decode("utf-8", "replace").strip()
    if text.startswith("["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("the body is not JSON") from None
        yield from _bounded(document)
        return
    # Not `splitlines`, because JSON texts may contain U+2028 and similar separators.
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
    """Returns one validated record; raises ValueError with a message for the client."""
    if not isinstance(item, dict):
        raise ValueError("not a JSON object")
    unknown = item.keys() - set(FIELDS)
    if unknown:
        raise ValueError(f"unknown field {sorted(map(str, unknown))[0][:40]!r}; known: {', '.join(FIELDS)}")
    # A null is an absent value: the record's default counts.
    given = {name: _value(name, value) for name, value in item.items() if value is not None}
    values: dict[str, Any] = {"provider": "pushed", **given}
    if not values.get("id"):
        raise ValueError("id is missing")
    values.setdefault("state", _state(values))
    if values["state"] == "failed" and not values.get("cause"):
        # The wrapper sends the text of the exception; collectors classify the same texts.
        values["cause"] = cause_of(values.get("detail", ""))
    if values.get("ready_at") is not None:
        values.setdefault("latency_source", "client")
    return Sandbox(**values)


def _state(values: Mapping[str, Any]) -> str:
    """Returns the state that follows from the times if no state was sent."""
    if values.get("cause"):
        return "failed"
    if values.get("ended_at") is not None:
        return "terminated"
    return "running" if values.get("ready_at") is not None else "starting"


def _value(name: str, value: object) -> object:
    if name in _TIMES or name == "cost_usd_per_hour":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LAST:
            raise ValueError(f"{name} must be a number" + (" of epoch seconds" if name in _TIMES else ""))
        return float(value)
    if name in ("image_cached", "unreachable"):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false")
        return value
    checked = (checks.identity if name in ("provider", "id") else checks.cleaned)(name, value)
    if name in _WORDS and value not in _WORDS[name]:
        raise ValueError(f"{name} must be one of {', '.join(_WORDS[name])}")
    return checked
