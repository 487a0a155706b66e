"""Checks the bodies of Dash's callback route. A malformed body is a 400; Dash would answer 500 with a traceback.

A body that passes is replaced by one that this module writes: Dash then reads only the callback's name and its one
value, and everything else comes from the registered callbacks.
"""

import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Longest text of a value, characters: an address with all its filters has some hundreds.
TEXT_LENGTH = 20_000
_NUMBER = (int, float)
# Type of each field that the callbacks read, by the id of the input (`assets/core/live.mjs` writes them).
_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "view": {"path": str, "search": str, "have": list, "tz": _NUMBER, "n": _NUMBER},
    "pull": {"page": _NUMBER, "key": str, "run": str, "cursor": str, "have": str, "ask": str},
}
_REQUIRED: Mapping[str, frozenset[str]] = {"view": frozenset(), "pull": frozenset({"page", "run"})}


class MalformedBody(ValueError):
    """The body is not what the dashboard's scripts send. The message is the cause."""


class CallbackBodies:
    """ASGI layer. ``callbacks``: Dash's own map of callbacks by the name of their output."""

    def __init__(self, app: ASGIApp, callbacks: Mapping[str, Mapping[str, Any]], prefix: str = "") -> None:
        self._app, self._callbacks = app, callbacks
        self._path = prefix.rstrip("/") + "/_dash-update-component"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # the client left, or the body is beyond the limit
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            checked = self._checked(bytes(body))
        except MalformedBody as error:
            await JSONResponse({"detail": f"not a callback of this dashboard: {error}"}, 400)(scope, receive, send)
            return
        await self._app(_with_length(scope, len(checked)), _replayed(checked, receive), send)

    def _checked(self, body: bytes) -> bytes:
        try:
            found = json.loads(body)
            # Half a surrogate pair would fail in the database or in the answer.
            json.dumps(found, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise MalformedBody("the body is not JSON in UTF-8") from None
        output = found.get("output") if isinstance(found, dict) else None
        callback = self._callbacks.get(output) if isinstance(output, str) else None
        if callback is None or not isinstance(output, str) or "callback" not in callback:
            raise MalformedBody("its output is unknown")
        (source,) = callback["inputs"]
        given = found.get("inputs")
        value = given[0].get("value") if isinstance(given, list) and given and isinstance(given[0], dict) else None
        _check_value(source["id"], value)
        prop = f"{source['id']}.{source['property']}"
        return json.dumps(
            {
                "output": output,
                "outputs": _outputs(output),
                "inputs": [{"id": source["id"], "property": source["property"], "value": value}],
                "changedPropIds": [prop],
                "parsedChangedPropsIds": [prop],
            }
        ).encode()


def _outputs(name: str) -> Any:
    """The outputs as Dash's renderer sends them; ``..a.x...b.y..`` stands for several."""
    several = name.startswith("..")
    parts = [part.rpartition(".") for part in (name[2:-2].split("...") if several else [name])]
    found = [{"id": part[0], "property": part[2]} for part in parts]
    return found if several else found[0]


def _check_value(source: str, value: object) -> None:
    if not isinstance(value, dict):
        raise MalformedBody(f"{source} is not an object")
    if missing := _REQUIRED[source] - value.keys():
        raise MalformedBody(f"{min(missing)} is missing")
    for name, kind in _FIELDS[source].items():
        one = value.get(name)
        if one is None and name not in _REQUIRED[source]:
            continue
        if not isinstance(one, kind) or isinstance(one, bool):
            raise MalformedBody(f"{name} is of another type")
        if isinstance(one, str) and (len(one) > TEXT_LENGTH or "\0" in unquote(one)):
            raise MalformedBody(f"{name} is too long or contains a NUL character")
        if isinstance(one, float) and not math.isfinite(one):
            raise MalformedBody(f"{name} is not finite")
        if isinstance(one, int) and abs(one) > 2**53:
            raise MalformedBody(f"{name} is too large")


def _with_length(scope: Scope, length: int) -> Scope:
    replaced = (b"content-length", b"content-type", b"transfer-encoding")
    rest = [(k, v) for k, v in scope["headers"] if k not in replaced]
    # Dash reads a body only if it is declared as JSON.
    new = [(b"content-length", str(length).encode()), (b"content-type", b"application/json")]
    return {**scope, "headers": [*rest, *new]}


def _replayed(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
