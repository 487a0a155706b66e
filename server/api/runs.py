"""HTTP: deletes a run."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from msgspec import Struct

from collectors.model import Sandbox, Target
from server.api.responses import RefusedLine, errors
from server.api.schema import Responses, answers, encoded
from server.ingest.readings import PUSHED
from server.ingest.sandboxes import SandboxIngest
from server.lib.clock import Clock
from server.lib.errors import ConfigError
from server.preflight.live import Busy, NotConfigured, Preflights, TooSoon
from server.push.records import Refusal, parse, records_of
from server.push.targets import TOO_MANY
from server.query import PreflightInfo, Reader
from server.query.types import MOST_ENGINES, MOST_STEPS, EngineInfo, EngineMetric, StepInfo
from server.query.what_if import MOST, Changes, OutOfRange, WhatIfEstimate
from server.store import Store
from server.store.removal import RunInUse
from server.store.types import Batch, Pusher, SandboxRow
from server.targets.resolve import check_name


@dataclass(frozen=True, slots=True)
class RunDeleted:
    """``deleted``: name of the run of which nothing is stored any more."""

    deleted: str


def add_run_removal(api: FastAPI, store: Store, clock: Clock) -> None:
    """`DELETE /api/v1/runs/{run}`."""

    @api.delete("/api/v1/runs/{run}", tags=["runs"], responses=errors(400, 404, 409, 422, 503))
    def delete(run: str, confirm: str = "") -> RunDeleted:
        """Deletes a run with all its data permanently. `confirm` must repeat the run's name.

        409: a process collects the run. If a later push names the run, or a configuration does, it begins again, empty.
        """
        if confirm != run:
            raise HTTPException(400, "this deletes the run permanently: confirm it with ?confirm= and the run's name")
        try:
            removed = store.remove(run, round(clock.now() * 1000))
        except RunInUse as error:
            raise HTTPException(409, str(error)) from None
        if not removed:
            raise HTTPException(404, f"no run named {run!r}; see /api/v1/runs")
        return RunDeleted(run)


# ---- engines
# HTTP: single engines and single steps of a run.

# Epoch seconds, as `server.api.app.LAST`: a larger time is in milliseconds by mistake.
_LAST = 1e11
# Columns of one heat map: more than a screen can show.
_COLUMNS = 500


def add_engines(api: FastAPI, reader: Reader) -> None:
    """`GET /api/v1/runs/{run}/engines`, `/engines/history` and `/steps`."""

    @api.get("/api/v1/runs/{run}/engines", tags=["runs"], responses=answers(list[EngineInfo]) | errors(404, 503))
    def engines(
        run: str, at: Annotated[float | None, Query(ge=0, le=_LAST, description="epoch seconds; default: now")] = None
    ) -> Response:
        """Each engine: its newest values, and means over the last five whole minutes."""
        return encoded(reader.engines.now(run, at))

    @api.get("/api/v1/runs/{run}/engines/history", tags=["runs"], responses=errors(404, 422, 503))
    def history(
        run: str,
        metric: EngineMetric,
        start: Annotated[float, Query(ge=0, le=_LAST, description="epoch seconds")],
        end: Annotated[float, Query(ge=0, le=_LAST, description="epoch seconds")],
        engine: Annotated[
            list[str], Query(max_length=MOST_ENGINES, description="`key` of /engines; none: the first by name")
        ] = [],  # noqa: B006
        width: Annotated[float, Query(ge=1, description="seconds per column")] = 60.0,
    ) -> dict[str, list[tuple[float, float]]]:
        """[[start of a column, mean within it]] by engine; columns without data are left out."""
        if not start < end or (end - start) / width > _COLUMNS:
            raise HTTPException(422, f"start must be before end, and at most {_COLUMNS} columns between them")
        keys = engine or [engine_row.key for engine_row in reader.engines.now(run, end)][:MOST_ENGINES]
        engine_row = reader.engines.cells(run, metric, keys, start, end, width)
        return {key: sorted(values.items()) for key, values in engine_row.items()}

    @api.get("/api/v1/runs/{run}/steps", tags=["runs"], responses=answers(list[StepInfo]) | errors(404, 503))
    def steps(run: str, last: Annotated[int, Query(ge=1, le=MOST_STEPS)] = 40) -> Response:
        """The trainer's newest steps as logged, oldest first: phases, samples, tokens, learning."""
        return encoded(reader.steps.newest(run, last))


# ---- sandboxes
# HTTP: sandboxes of a run, read and pushed.

MAX_ROWS = 1000
# Records come when something happens; three of these without any are a run that is quiet.
INTERVAL_SECONDS = 1200.0
_BODY = {"schema": {"type": "array", "items": {"type": "object", "required": ["id"], "additionalProperties": True}}}


@dataclass(frozen=True, slots=True)
class SandboxUploadAnswer:
    """``taken``: records stored; ``refused``: lines that were not stored."""

    taken: int
    refused: list[RefusedLine]


class SandboxesAnswer(Struct, frozen=True):
    """``funnel``: number of the run's sandboxes by the stage that they reached."""

    funnel: Mapping[str, int | None]
    sandboxes: Sequence[SandboxRow]


def add_sandboxes(
    api: FastAPI, reader: Reader, store: Store, clock: Clock, admitted: Callable[[str], bool] = lambda run: True
) -> None:
    """Routes below `/api/v1/runs/{run}/sandboxes`. ``admitted``: may a push name this run?"""

    @api.get("/api/v1/runs/{run}/sandboxes", tags=["sandboxes"], responses=answers(SandboxesAnswer) | errors(404, 503))
    def sandboxes(
        run: str,
        state: Annotated[list[str], Query(description="canonical states; none: all")] = [],  # noqa: B006
        dangling: bool | None = None,
        find: Annotated[str, Query(max_length=200, description="part of an id or name, case-insensitive")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
        before: Annotated[str | None, Query(description="id of the last row of the previous page")] = None,
    ) -> Response:
        """Sandboxes of the run, from its providers or pushed, newest first, with the funnel.

        In the funnel, `first_exec` counts sandboxes that ran a command, of the `first_exec_of` whose source reports it
        (null: none). `met_ended` had ended before they were first read; with any, failures / `requested` is not valid.
        """
        rows = reader.sandboxes.page(run, state, dangling=dangling, find=find, limit=limit, before=before)
        return encoded(SandboxesAnswer(reader.sandboxes.funnel(run), rows))

    def push(run: str, body: bytes) -> JSONResponse:
        try:
            check_name(run)
            parsed = parse(body, "sandboxes", clock.now())
        except ConfigError as error:
            raise HTTPException(400, error.problems[0]) from None
        except Refusal as error:
            raise HTTPException(error.status, str(error)) from None
        if parsed.lines and not admitted(run):
            raise HTTPException(429, TOO_MANY)
        if parsed.lines:
            _store(store, run, records_of("sandboxes", parsed.lines, clock.now())[0], clock.now())
        refused = [{"line": number, "detail": why} for number, why in parsed.refused]
        return JSONResponse({"taken": len(parsed.lines), "refused": refused}, 207 if refused else 200)

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


# ---- preflight
# HTTP: the preflight of a run, begun on demand and read afterwards.


def add_preflight(api: FastAPI, reader: Reader, preflights: Preflights) -> None:
    """Routes below `/api/v1/runs/{run}/preflight`. The gate decides which clients may write."""

    @api.get("/api/v1/runs/{run}/preflight", tags=["preflight"], responses=answers(PreflightInfo) | errors(404, 503))
    def last(run: str) -> Response:
        """The last preflight. `state`: never, running, done, failed or not_configured; `checks`: its results."""
        return encoded(reader.preflight(run))

    # Not async: what it does (a lock, a thread's start) is done on a thread, and the reading on one of its own.
    @api.post(
        "/api/v1/runs/{run}/preflight",
        status_code=202,
        tags=["preflight"],
        responses=answers(PreflightInfo, code=202) | errors(404, 409, 429, 503),
    )
    def begin(run: str) -> Response:
        """Starts a preflight: reads every target once, changes nothing. One at a time, every 30 s at most."""
        reader.preflight(run)
        try:
            return encoded(preflights.begin(run), 202)
        except NotConfigured:
            message = (
                "this server's configuration has no such run; `rollscope preflight -c FILE RUN` checks other files"
            )
            raise HTTPException(409, message) from None
        except Busy:
            raise HTTPException(409, "the previous preflight is still running") from None
        except TooSoon as soon:
            raise HTTPException(429, str(soon), {"retry-after": str(math.ceil(soon.seconds))}) from None


# ---- what if
# HTTP: what would become of a run if it were changed.


def _within(name: str, description: str) -> Any:
    low, high = MOST[name]
    return Query(ge=low, le=high, allow_inf_nan=False, description=f"{description}; {low:g} to {high:g}")


def add_what_if(api: FastAPI, reader: Reader) -> None:
    """`GET /api/v1/runs/{run}/what-if`."""

    @api.get("/api/v1/runs/{run}/what-if", tags=["runs"], responses=answers(WhatIfEstimate) | errors(404, 422, 503))
    def what_if(
        request: Request,
        run: str,
        move_gpus: Annotated[
            int, _within("move_gpus", "GPUs from the trainer to the generator, or back if negative")
        ] = 0,
        add_engines: Annotated[int, _within("add_engines", "engines on additional GPUs; negative: removed")] = 0,
        concurrency: Annotated[int | None, _within("concurrency", "rollouts in flight")] = None,
        oversampling: Annotated[float | None, _within("oversampling", "rollouts started per rollout kept")] = None,
        group_size: Annotated[int | None, _within("group_size", "rollouts per group")] = None,
        max_response_tokens: Annotated[int | None, _within("max_response_tokens", "length cap of responses")] = None,
        max_staleness: Annotated[int | None, _within("max_staleness", "the staleness bound, in versions")] = None,
        zero_advantage: Annotated[float | None, _within("zero_advantage", "zero-advantage share: 0.4 is 40 %")] = None,
    ) -> Response:
        """An estimate from the verdict's throughput model: `now` and `then`, with assumptions and missing inputs.

        Omitted parameters keep today's value. `value` is null if an input is missing (`why` names it); `bound` marks a
        lower or upper bound.
        """
        _check_query(request.query_params)
        changes = Changes(
            move_gpus, add_engines, group_size, oversampling, concurrency, max_response_tokens, max_staleness,
            zero_advantage,
        )  # fmt: skip
        try:
            return encoded(reader.what_if(run, changes))
        except OutOfRange as error:
            raise HTTPException(422, str(error)) from None


def _check_query(query: Mapping[str, str]) -> None:
    """A misspelt change would be answered with today's numbers."""
    if unknown := set(query) - set(MOST):
        raise HTTPException(422, f"unknown parameter {min(unknown)[:40]!r}; there are {', '.join(MOST)}")
