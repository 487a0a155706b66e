"""HTTP: sandboxes of a run, read and pushed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import SerializeAsAny

from collectors.model import Sandbox, Target
from server.api.responses import RefusedLine, Responses, errors
from server.ingest.readings import PUSHED
from server.ingest.sandboxes import SandboxIngest
from server.lib.clock import Clock
from server.lib.errors import ConfigError
from server.push.sandboxes import parse
from server.push.targets import TOO_MANY
from server.query import Reader, shape
from server.store import Store
from server.store.types import Batch, Pusher
from server.targets.resolve import check_name

MAX_ROWS = 1000
# Records come when something happens; three of these without any are a run that is quiet.
INTERVAL_SECONDS = 1200.0
_BODY = {"schema": {"type": "array", "items": {"type": "object", "required": ["id"], "additionalProperties": True}}}


@dataclass(frozen=True, slots=True)
class SandboxUploadAnswer:
    """``taken``: records stored; ``refused``: lines that were not stored."""

    taken: int
    refused: list[RefusedLine]


def add_sandboxes(
    api: FastAPI, reader: Reader, store: Store, clock: Clock, admitted: Callable[[str], bool] = lambda run: True
) -> None:
    """Routes below `/api/v1/runs/{run}/sandboxes`. ``admitted``: may a push name this run?"""

    @api.get("/api/v1/runs/{run}/sandboxes", tags=["sandboxes"], responses=errors(404, 503))
    def sandboxes(
        run: str,
        state: Annotated[list[str], Query(description="canonical states; none: all")] = [],  # noqa: B006
        dangling: bool | None = None,
        find: Annotated[str, Query(max_length=200, description="part of an id or name, case-insensitive")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
        before: Annotated[str | None, Query(description="id of the last row of the previous page")] = None,
    ) -> SerializeAsAny[shape.SandboxesAnswer]:
        """Sandboxes of the run, from its providers or pushed, newest first, with the funnel.

        In the funnel, `first_exec` counts sandboxes that ran a command, of the `first_exec_of` whose source reports it
        (null: none). `met_ended` had ended before they were first read; with any, failures / `requested` is not valid.
        """
        rows = reader.sandboxes.page(run, state, dangling=dangling, find=find, limit=limit, before=before)
        return shape.SandboxesAnswer(reader.sandboxes.funnel(run), rows)

    def push(run: str, body: bytes) -> JSONResponse:
        try:
            check_name(run)
            parsed = parse(body)
        except ConfigError as error:
            raise HTTPException(400, error.problems[0]) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        if parsed.records and not admitted(run):
            raise HTTPException(429, TOO_MANY)
        if parsed.records:
            _store(store, run, parsed.records, clock.now())
        refused = [{"line": number, "detail": why} for number, why in parsed.refused]
        return JSONResponse({"taken": len(parsed.records), "refused": refused}, 207 if refused else 200)

    documented = {"requestBody": {"content": {"application/json": _BODY, "application/x-ndjson": {}}}}

    partly: Responses = {207: {"description": "Some records were refused.", "model": SandboxUploadAnswer}}

    @api.post(
        "/api/v1/runs/{run}/sandboxes",
        tags=["sandboxes"],
        openapi_extra=documented,
        response_model=SandboxUploadAnswer,
        responses=partly | errors(400, 429, 503),
    )
    async def pushed(run: str, request: Request) -> JSONResponse:
        """Accepts records (JSON or NDJSON), idempotent by provider and id; bad lines are listed by number."""
        return await asyncio.to_thread(push, run, await request.body())


def _store(store: Store, run: str, records: list[Sandbox], now: float) -> None:
    """Committed before it is acknowledged. Any `web` process may do it; the collecting one derives from the rows."""
    existing = store.sandboxes.get(run, [(record.provider, record.id) for record in records])
    ingest = SandboxIngest(existing, {run})
    target = Target(PUSHED, run, PUSHED, "sandbox")
    # One by one: a body may hold a sandbox's request and its end, and both count.
    changed = [arrival.row for record in records for arrival in ingest.take(target, [record], (), {run}, now)]
    store.write(Batch(run, sandboxes=changed))
    # Repeated records count as a push, too: pushes keep an unconfigured run alive.
    store.pushes.note(run, Pusher(PUSHED, "sandbox", INTERVAL_SECONDS, round(now * 1000)))
