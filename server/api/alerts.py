"""HTTP: alerts, silences, rules, notifications and heartbeats."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from msgspec import Struct

from server.alerts import silences as silence_body
from server.api.responses import StatusMessage, errors
from server.api.schema import answers, encoded
from server.lib.clock import Clock
from server.query import AlertInfo, DeliveryInfo, Reader, RuleInfo, SilenceInfo
from server.store import Store, StoreError

MAX_ROWS = 1000
# Alertmanager has no limit. A thousand active silences come from a faulty client.
MAX_SILENCES = 1000

# FastAPI has no way to document a body that is read by hand but this.
_BODY = {
    "type": "object",
    "required": ["matchers", "endsAt"],
    "properties": {
        "matchers": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "value"],
                "properties": {
                    "name": {"type": "string"},
                    "value": {"type": "string"},
                    "isRegex": {"type": "boolean", "default": False},
                    "isEqual": {"type": "boolean", "default": True},
                },
            },
        },
        "startsAt": {"type": "string", "format": "date-time"},
        "endsAt": {"type": "string", "format": "date-time"},
        "createdBy": {"type": "string"},
        "comment": {"type": "string"},
    },
}


@dataclass(frozen=True, slots=True)
class SilenceCreated:
    """As Alertmanager answers: the id of the new silence."""

    silenceID: str


class AlertsAnswer(Struct, frozen=True):
    """``alerts``: firing and pending. ``history``: resolved, if requested."""

    alerts: Sequence[AlertInfo]
    history: Sequence[AlertInfo]


def add_alerts(api: FastAPI, reader: Reader, store: Store, clock: Clock, beat: Callable[[str], bool]) -> None:
    """Routes that read, through the reader, and the three that write."""
    _read(api, reader)
    _silences(api, reader, store, clock)

    # One description: OpenAPI wants an operation's id once, and trainers send what they like.
    @api.api_route("/api/v1/heartbeat/{token}", methods=["POST"], include_in_schema=False)
    @api.get("/api/v1/heartbeat/{token}", tags=["alerts"], responses=errors(404))
    def heartbeat(token: str) -> StatusMessage:
        """Records a trainer's heartbeat, identified by its token (`[[run.NAME.heartbeat]]`). Needs no other token."""
        if not beat(token):
            raise HTTPException(404, "no heartbeat has this token; see [[run.NAME.heartbeat]] in the configuration")
        return StatusMessage("ok")


def _read(api: FastAPI, reader: Reader) -> None:
    @api.get("/api/v1/alerts", tags=["alerts"], responses=answers(AlertsAnswer) | errors(404, 503))
    def alerts(
        run: str | None = None,
        history: Annotated[int, Query(ge=0, le=MAX_ROWS, description="number of resolved alerts, newest first")] = 0,
    ) -> Response:
        """Firing and pending alerts, the most severe first; with `history` also resolved ones."""
        past = reader.alerts.history(run, history) if history else []
        return encoded(AlertsAnswer(reader.alerts.active(run), past))

    @api.get("/api/v1/rules", tags=["alerts"], responses=answers(list[RuleInfo]) | errors(404, 503))
    def rules(run: str | None = None) -> Response:
        """Every rule; with a run, `why` names what the run lacks for the rule to fire."""
        return encoded(reader.alerts.rules(None if run is None else reader.status(run)))

    @api.get("/api/v1/notifications", tags=["alerts"], responses=answers(list[DeliveryInfo]) | errors(404, 503))
    def notifications(run: str | None = None, limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 50) -> Response:
        """Notifications, newest first: sent, pending with the number of attempts, or failed with the answer."""
        return encoded(reader.alerts.deliveries(run, limit))


def _silences(api: FastAPI, reader: Reader, store: Store, clock: Clock) -> None:
    @api.get("/api/v1/silences", tags=["alerts"], responses=answers(list[SilenceInfo]) | errors(503))
    def silences(expired: bool = False) -> Response:
        """Active and pending silences; with `expired` also those of the last week."""
        return encoded(reader.alerts.silences(expired))

    def create(body: bytes) -> str:
        now = clock.now()
        if len(store.alerts.silences(round(now * 1000))) >= MAX_SILENCES:
            raise HTTPException(429, f"{MAX_SILENCES} silences are active or pending, the maximum: end some first")
        try:
            row = silence_body.parse(body, str(uuid.uuid4()), now)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        _written(lambda: store.alerts.put_silence(row))
        return row.id

    documented = {"requestBody": {"content": {"application/json": {"schema": _BODY}}}}

    @api.post("/api/v1/silences", tags=["alerts"], openapi_extra=documented, responses=errors(400, 429, 503))
    async def silence(request: Request) -> SilenceCreated:
        """Silences matching alerts until `endsAt`; the body is Alertmanager's (API v2)."""
        return SilenceCreated(await asyncio.to_thread(create, await request.body()))

    @api.delete("/api/v1/silences/{silence_id}", tags=["alerts"], responses=errors(404, 503))
    def end(silence_id: str) -> StatusMessage:
        """Ends a silence now."""
        if not _written(lambda: store.alerts.expire_silence(silence_id, round(clock.now() * 1000))):
            raise HTTPException(404, "no such silence, or it has already expired")
        return StatusMessage("ended")


def _written(change: Callable[[], Any]) -> Any:
    try:
        return change()
    except StoreError as error:
        raise HTTPException(503, str(error)) from None
