"""HTTP: charts that users chose for their Overview."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, HTTPException, Query, Request, Response
from msgspec import Struct

from collectors.catalog import METRICS
from server.api.responses import errors
from server.api.schema import answers, encoded
from server.lib.clock import Clock
from server.query import Reader
from server.query.metrics import HEALTH
from server.store import Store
from server.store.types import MOST_PANELS, PANEL_CHARACTERS, OwnPanel, panel_mistakes

User = Annotated[str, Query(pattern=r"\S", max_length=PANEL_CHARACTERS, description="name of the user")]

# FastAPI has no way to document a body that is read by hand but this.
_PANEL = {
    "type": "object",
    "properties": {
        "signal": {"type": "string"},
        "metric": {"type": "string"},
        "title": {"type": "string", "default": ""},
        "split": {"type": "string", "default": ""},
        "log": {"type": "boolean", "default": False},
    },
}
_BODY = {"type": "object", "required": ["panels"], "properties": {"panels": {"type": "array", "items": _PANEL}}}


class PanelsAnswer(Struct, frozen=True):
    """``declared``: of the configuration, for everyone; ``own``: the user's, in their order."""

    declared: Sequence[OwnPanel]
    own: Sequence[OwnPanel]


def add_panels(api: FastAPI, reader: Reader, store: Store, clock: Clock, declared: Sequence[OwnPanel]) -> None:
    """Routes that read and replace a user's charts."""

    @api.get("/api/v1/panels", tags=["panels"], responses=answers(PanelsAnswer) | errors(422, 503))
    def panels(
        user: Annotated[
            str, Query(max_length=PANEL_CHARACTERS, description="name of the user; empty: none of a user")
        ] = "",
    ) -> Response:
        """The charts below the Overview: those of the configuration, and a user's own."""
        return encoded(PanelsAnswer(declared, store.panels.of(user) if user else []))

    def put(user: str, body: bytes) -> PanelsAnswer:
        chosen = _parsed(body, reader)
        store.panels.put(user, chosen, round(clock.now() * 1000))
        return PanelsAnswer(declared, chosen)

    documented = {"requestBody": {"content": {"application/json": {"schema": _BODY}}}}

    @api.put("/api/v1/panels", tags=["panels"], openapi_extra=documented,
             responses=answers(PanelsAnswer) | errors(400, 422, 503))  # fmt: skip
    async def replace(request: Request, user: User) -> Response:
        """Replaces the charts of a user, in the order of the list. At most 24."""
        return encoded(await asyncio.to_thread(put, user, await request.body()))


def _parsed(body: bytes, reader: Reader) -> list[OwnPanel]:
    try:
        given: Any = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise HTTPException(400, f"not JSON: {error}") from None
    except RecursionError:
        raise HTTPException(400, "the JSON is nested too deeply") from None
    rows = given.get("panels") if isinstance(given, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise HTTPException(400, 'must be {"panels": [{"signal": "..."}, {"metric": "..."}]}')
    if len(rows) > MOST_PANELS:
        raise HTTPException(400, f"{len(rows)} panels; at most {MOST_PANELS}")
    metrics = {*METRICS, *HEALTH}
    wrong = [
        f"panels[{i}]{f'.{key}' if key else ''}: {reason}"
        for i, row in enumerate(rows)
        for key, reason in panel_mistakes(row, reader.signals.infos, metrics)
    ]
    if wrong:
        raise HTTPException(400, "; ".join(wrong))
    return [OwnPanel(**row) for row in rows]
