"""HTTP: rollouts and events of a run, pushed and read; timelines for trace viewers, tables for spreadsheets."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, get_args

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from msgspec import Struct

from collectors.model import Purpose
from server.api.push import RETRY, UPLOAD, UploadLimiter, plain_of, run_of
from server.api.responses import UploadAnswer, errors, json_file
from server.api.schema import answers, encoded
from server.ingest.readings import PUSHED
from server.ingest.rollouts import KINDS
from server.lib.clock import Clock
from server.push import inbox as push_inbox
from server.push import records as push_records
from server.push.targets import TOO_MANY
from server.query import Reader, RolloutGroupRow
from server.query.export import csv_lines, trace_of
from server.query.types import (
    Cells,
    CensusState,
    EventInfo,
    Funnel,
    RolloutDetail,
    RolloutFilter,
    RolloutPage,
    Sort,
)
from server.rollouts.groups import OUTCOMES
from server.rollouts.model import CENSUS, ENDED, EXITS
from server.store import Store
from server.store.inbox import InboxFull
from server.store.rollout_pages import BadKey
from server.store.types import Push

MAX_ROWS = 1000
# Rows that a CSV export reads at once.
CSV_PAGE = 1000
# Rollouts in one trace.
TRACED = 5_000
STATES = (*CENSUS, *EXITS, ENDED)
PURPOSES: tuple[str, ...] = get_args(Purpose)
DAY = 86_400.0
# Epoch seconds, as `server.api.app.LAST`.
LAST = 1e11
TRACE = errors(404, 422, 503) | json_file(
    "Chrome trace JSON.",
    {
        "type": "object",
        "required": ["displayTimeUnit", "traceEvents"],
        "properties": {
            "displayTimeUnit": {"type": "string"},
            "traceEvents": {"type": "array", "items": {"type": "object", "required": ["name", "ph", "pid", "tid"]}},
        },
    },
)
MAX_BUCKETS = 1000
# Records come when something happens; three of these without any are a run that is quiet.
INTERVAL_SECONDS = 1200.0
TYPES = frozenset(
    {
        "", "application/json", "application/x-ndjson", "application/ndjson", "application/jsonl",
        "application/json-lines", "application/jsonlines", "application/x-jsonlines", "text/plain",
        "application/octet-stream", "application/x-www-form-urlencoded",
    }
)  # fmt: skip
"""Accepted content types: HTTP clients send various defaults if the user sets none."""

_Moment = Annotated[float | None, Query(ge=0, le=LAST, description="epoch seconds")]
_Life = Annotated[int | None, Query(ge=0, le=2**62, description="incarnation, if the id was used again")]
_States = Annotated[list[str], Query(description="census states and exits; none: all")]


class GroupsAnswer(Struct, frozen=True):
    """A page of groups. ``after``: pass it for the next page; null: this is the last page."""

    groups: Sequence[RolloutGroupRow]
    after: str | None


class CensusAnswer(Struct, frozen=True):
    """Rollouts in flight by state, in the order in which a rollout passes through the states."""

    census: Sequence[CensusState]


class CellsAnswer(Struct, frozen=True):
    """A distribution over time: ``cells`` are [start of a bucket, {bin: count}] pairs, empty buckets left out."""

    kind: str
    cells: Cells


class EventsAnswer(Struct, frozen=True):
    """Events of a run, oldest first."""

    events: Sequence[EventInfo]


def add_rollouts(
    api: FastAPI, reader: Reader, store: Store, clock: Clock, admitted: Callable[[str], bool] = lambda run: True
) -> None:
    """Routes below `/api/v1/runs/{run}`: rollouts, groups, events. ``admitted``: may a push name this run?"""
    _pushes(api, store, clock, admitted)
    _tables(api, reader)
    _aggregates(api, reader)
    # Last, and the shortest path last of all: an id may hold slashes.
    _add_one_rollout(api, reader)


# ---- pushed


def _pushes(api: FastAPI, store: Store, clock: Clock, admitted: Callable[[str], bool]) -> None:
    turns = UploadLimiter()

    def take(kind: push_records.Kind, run: str, request: Request, body: bytes) -> Response:
        now = clock.now()
        called = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if called not in TYPES:
            raise HTTPException(415, "content-type must be application/json or application/x-ndjson")
        try:
            run_of(run)
            plain = plain_of(body, request.headers.get("content-encoding", ""))
            records = push_records.parse(plain, kind, now, document=called == "application/json")
        except push_records.Refusal as error:
            raise HTTPException(error.status, str(error)) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        if records.lines:
            if not admitted(run):
                raise HTTPException(429, TOO_MANY, RETRY)
            _keep(store, run, kind, records, now)
        refused = [{"line": number, "detail": why} for number, why in records.refused]
        answer = {"taken": len(records.lines), "refused": refused, "refused_count": records.lost}
        return JSONResponse(answer, 207 if records.lost else 200)

    @api.post(
        "/api/v1/runs/{run}/rollouts",
        tags=["rollouts"],
        openapi_extra=_documented("rollout_id", push_records.FIELDS),
        response_model=UploadAnswer,
        responses=UPLOAD,
    )
    async def rollouts(run: str, request: Request) -> Response:
        """Accepts records (JSON or NDJSON), idempotent by id, in any order; bad lines are listed by number."""
        return await turns.taken(partial(take, "rollouts", run), request)

    @api.post(
        "/api/v1/runs/{run}/events",
        tags=["rollouts"],
        openapi_extra=_documented("kind", push_records.EVENT_FIELDS),
        response_model=UploadAnswer,
        responses=UPLOAD,
    )
    async def events(run: str, request: Request) -> Response:
        """Accepts events (JSON or NDJSON), idempotent by key: weights published (with `version`), restarts, ..."""
        return await turns.taken(partial(take, "events", run), request)


def _documented(needed: str, names: tuple[str, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: {} for name in names}
    item = {"type": "object", "required": [needed], "additionalProperties": False, "properties": fields}
    schema = {"schema": {"type": "array", "items": item}}
    return {"requestBody": {"content": {"application/json": schema, "application/x-ndjson": {"schema": item}}}}


def _keep(store: Store, run: str, kind: push_records.Kind, records: push_records.PushedRecords, now: float) -> None:
    weight = len(records.lines) * (push_records.WEIGHT if kind == "rollouts" else 1)
    packed = push_inbox.pack_records(kind, records.lines)
    push = Push(run, PUSHED, "generator", INTERVAL_SECONDS, round(now * 1000), weight, packed)
    try:
        store.pushes.offer([push])
    except InboxFull as error:
        raise HTTPException(429, str(error), RETRY) from None


# ---- read


def _tables(api: FastAPI, reader: Reader) -> None:
    table = answers(RolloutPage) | errors(400, 404, 422, 503)
    table[200]["content"]["text/csv"] = {"schema": {"type": "string"}}

    @api.get("/api/v1/runs/{run}/rollouts", tags=["rollouts"], responses=table)
    def rollouts(
        run: str,
        state: _States = [],  # noqa: B006
        environment: Annotated[str, Query(max_length=200)] = "",
        purpose: Annotated[str, Query(description=f"{', '.join(PURPOSES)}; none: all")] = "",
        group: Annotated[str, Query(max_length=200)] = "",
        find: Annotated[str, Query(max_length=200, description="beginning of a rollout or group id")] = "",
        mixed: Annotated[bool | None, Query(description="generated by more than one policy version")] = None,
        start: _Moment = None,
        end: _Moment = None,
        sort: Sort = "seconds",
        order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
        after: Annotated[str, Query(max_length=1000, description="`after` of the previous answer: the next page")] = "",
        format: Annotated[str, Query(pattern="^(json|csv)$")] = "json",
    ) -> Response:
        """Rollouts, the slowest first by default; `format=csv` returns all matches instead of a page.

        A row has the fields of the pushed record (`turn_count` of its turns), and what follows from it: `state`,
        `seconds`, `consumed`, `staleness` with its parts; `turns` and `spans` are in the answer of one rollout only.
        `complete` is false if so many ids begin with `find` that only the last ids are returned.
        """
        _check_choices("state", state, STATES)
        _check_choices("purpose", [purpose] if purpose else [], PURPOSES)
        rollout_filter = RolloutFilter(tuple(state), environment, purpose, group, find, mixed, start, end)
        read_page = partial(reader.rollouts.page, run, rollout_filter, sort=sort, descending=order == "desc")
        try:
            page = read_page(limit=CSV_PAGE if format == "csv" else limit, after=after)
        except BadKey as error:
            raise HTTPException(400, str(error)) from None
        if format == "json":
            return encoded(page)

        def pages() -> Iterator[str]:
            next_page = page
            yield from csv_lines(next_page.rollouts, head=True)
            while next_page.after:
                next_page = read_page(limit=CSV_PAGE, after=next_page.after)
                yield from csv_lines(next_page.rollouts)

        named = {"content-disposition": 'attachment; filename="rollouts.csv"'}
        return StreamingResponse(pages(), media_type="text/csv; charset=utf-8", headers=named)

    @api.get(
        "/api/v1/runs/{run}/groups", tags=["rollouts"], responses=answers(GroupsAnswer) | errors(400, 404, 422, 503)
    )
    def groups(
        run: str,
        outcome: Annotated[list[str], Query(description="open, mixed, all_solved, none_solved, ...; none: all")] = [],  # noqa: B006
        environment: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
        after: Annotated[str, Query(max_length=1000)] = "",
    ) -> Response:
        """Groups with their rewards and outcome, the most recently changed first."""
        _check_choices("outcome", outcome, OUTCOMES)
        try:
            rows, rest = reader.rollouts.groups(run, outcome, environment=environment, limit=limit, after=after)
        except BadKey as error:
            raise HTTPException(400, str(error)) from None
        return encoded(GroupsAnswer(rows, rest or None))

    @api.get("/api/v1/runs/{run}/events", tags=["rollouts"], responses=answers(EventsAnswer) | errors(404, 422, 503))
    def events(
        run: str,
        start: _Moment = None,
        end: _Moment = None,
        kind: Annotated[list[str], Query(description="weights_published, restart, ...; none: all")] = [],  # noqa: B006
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> Response:
        """Events, oldest first (default: the last day); if there are more than `limit`, the newest."""
        _check_choices("kind", kind, push_records.KINDS)
        low, high = _window(reader, start, end)
        return encoded(EventsAnswer(reader.runs.events(run, low, high, kind, limit)))


def _aggregates(api: FastAPI, reader: Reader) -> None:
    @api.get("/api/v1/runs/{run}/funnel", tags=["rollouts"], responses=answers(Funnel) | errors(404, 422, 503))
    def funnel(
        run: str,
        start: _Moment = None,
        end: _Moment = None,
        purpose: Annotated[str, Query(description=f"{', '.join(PURPOSES)}; empty: all")] = "train",
    ) -> Response:
        """Exits of rollouts (default: of the last day), in rollouts, tokens, GPU-seconds and dollars.

        Amounts cover the `told` rollouts of a bar, which report them; `bound` marks a lower or upper bound.
        """
        _check_choices("purpose", [purpose] if purpose else [], PURPOSES)
        return encoded(reader.rollouts.funnel(run, *_window(reader, start, end), purpose=purpose))

    @api.get("/api/v1/runs/{run}/census", tags=["rollouts"], responses=answers(CensusAnswer) | errors(404, 503))
    def census(run: str) -> Response:
        """What is in flight now, by state, in the order in which a rollout passes through them."""
        return encoded(CensusAnswer(reader.rollouts.census(run)))

    @api.get("/api/v1/runs/{run}/cells", tags=["rollouts"], responses=answers(CellsAnswer) | errors(404, 422, 503))
    def cells(
        run: str,
        kind: Annotated[str, Query(description="response_tokens, seconds, turns, tool_calls, staleness, solve_ratio")],
        start: _Moment = None,
        end: _Moment = None,
        buckets: Annotated[int, Query(ge=1, le=MAX_BUCKETS)] = 60,
    ) -> Response:
        """A distribution over time: [[bucket's start, {bin: how many}], ...].

        Bin b of tokens and seconds is [2^(b/2), 2^((b+1)/2)); of a solve ratio a tenth; otherwise the number itself.
        """
        _check_choices("kind", [kind], KINDS)
        low, high = _window(reader, start, end)
        return encoded(CellsAnswer(kind, reader.rollouts.cells(run, kind, low, high, buckets)))


def _add_one_rollout(api: FastAPI, reader: Reader) -> None:
    @api.get("/api/v1/runs/{run}/rollouts/trace", tags=["rollouts"], responses=TRACE)
    def traces(run: str, start: _Moment = None, end: _Moment = None) -> Response:
        """Timelines of a window (the newest 5,000) as Chrome trace JSON, for Perfetto."""
        low, high = _window(reader, start, end, 3600.0)
        return _trace_file(reader.rollouts.traces(run, low, high, TRACED), reader.now(), "rollouts")

    @api.get(
        "/api/v1/runs/{run}/rollouts/{rollout_id:path}/trace",
        tags=["rollouts"],
        responses=TRACE | errors(404, 422, 503),
    )
    def trace(run: str, rollout_id: str, life: _Life = None) -> Response:
        """One rollout's timeline as Chrome trace JSON."""
        details = reader.rollouts.get(run, rollout_id, life)
        if details is None:
            raise _not_found(rollout_id)
        return _trace_file([details], reader.now(), "rollout")

    @api.get(
        "/api/v1/runs/{run}/rollouts/{rollout_id:path}",
        tags=["rollouts"],
        responses=answers(RolloutDetail) | errors(404, 422, 503),
    )
    def rollout(run: str, rollout_id: str, life: _Life = None) -> Response:
        """One rollout with timeline, turns, uses and siblings; of several incarnations the newest, or `life`."""
        details = reader.rollouts.get(run, rollout_id, life)
        if details is None:
            raise _not_found(rollout_id)
        return encoded(details)


def _check_choices(name: str, given: Sequence[str], allowed: Sequence[str]) -> None:
    """Refuses an unknown value: it would match nothing, as if the run had no such rows."""
    if any(value not in allowed for value in given):
        raise HTTPException(422, f"{name} must be one of {', '.join(allowed)}")


def _not_found(rollout_id: str) -> HTTPException:
    return HTTPException(404, f"no rollout {ascii(rollout_id)[:220]} in this run")


def _window(reader: Reader, start: float | None, end: float | None, usual: float = DAY) -> tuple[float, float]:
    end = reader.now() if end is None else end
    start = max(0.0, end - usual) if start is None else start
    if not start < end:
        raise HTTPException(422, "start must be before end")
    return start, end


def _trace_file(details: Sequence[RolloutDetail], now: float, name: str) -> Response:
    named = {"content-disposition": f'attachment; filename="{name}.trace.json"'}
    text = json.dumps(trace_of(details, now), separators=(",", ":"))
    return Response(text, media_type="application/json", headers=named)
