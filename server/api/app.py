"""HTTP: routes over `server.query`, documented by OpenAPI.

All routes are plain functions, so the framework runs them on threads: no database read ever sits on the
event loop. Errors are JSON ``{"detail": ...}``; an unknown `/api/...` is a 404, never the dashboard's page.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from msgspec import Struct, structs
from prometheus_client.core import Metric
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from collectors.catalog import METRICS
from server.api import metrics as api_metrics
from server.api.responses import (
    GATE_ERRORS,
    StatusMessage,
    declare_security,
    errors,
    invalid_parameters,
    json_file,
)
from server.api.schema import Responses, answers, encoded
from server.lib.errors import nearest
from server.query import (
    Delta,
    Reader,
    RunInfo,
    Series,
    SignalInfo,
    Status,
    StepSeries,
    TargetTrust,
    UnknownRun,
    VerdictSpan,
)
from server.query.metrics import TooMuch, UnknownMetric
from server.query.types import MetricInfo, SeriesNow, format_name, parse_name
from server.store import StoreError
from server.store.writer import DatabaseError, is_transient

log = logging.getLogger("rollscope.api")

# More points than a 4k screen has pixels: a request for more is a mistake or an attack.
MAX_POINTS = 5000
# More than all signals of a run have series.
MAX_SERIES = 200
DAY = 86400.0
# The year 5138: beyond it epoch milliseconds are a mistake in the unit.
LAST = 1e11


class SeriesAnswer(Struct, frozen=True):
    """Series column by column: half the bytes of rows. ``cursor``: pass it as ``since`` for newer points only."""

    cursor: str
    now: float
    series: Sequence[Series]


class StepSeriesAnswer(Struct, frozen=True):
    """As `SeriesAnswer`, over the trainer's steps."""

    cursor: str
    now: float
    series: Sequence[StepSeries]


def create_api(
    reader: Reader, *, version: str, ready: Callable[[], str | None],
    own: Callable[[], Iterable[Metric]] = tuple,
) -> FastAPI:  # fmt: skip
    """The application without the dashboard.

    Args:
        ready: None when everything works, else what does not (for `/readyz`).
        own: families of this server's own numbers, for `/metrics`.
    """
    api = FastAPI(title="Rollscope", version=version, docs_url=None, redoc_url=None, responses=GATE_ERRORS)
    api.add_middleware(Head)
    declare_security(api)

    @api.exception_handler(UnknownRun)
    def unknown_run(_: object, error: UnknownRun) -> JSONResponse:
        return JSONResponse({"detail": f"no run named {error.args[0]!r}; see /api/v1/runs"}, 404)

    @api.exception_handler(RequestValidationError)
    def invalid(_: object, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": invalid_parameters(error.errors())}, 422)

    failures = StoreFailures()

    @api.exception_handler(StoreError)
    def no_store(_: object, error: StoreError) -> JSONResponse:
        failures.note(str(error))
        return JSONResponse({"detail": str(error)}, 503, headers={"retry-after": "30"})

    @api.exception_handler(DatabaseError)
    def no_database(_: object, error: DatabaseError) -> JSONResponse:
        if not is_transient(error):
            raise error
        # Not the driver's text: it may contain the address and the user of the database.
        detail = f"the database does not answer: {type(error.orig).__name__}; try again in a moment"
        failures.note(detail)
        return JSONResponse({"detail": detail}, 503, headers={"retry-after": "30"})

    _health(api, ready)
    _metrics(api, reader, version, own)
    _runs(api, reader)
    _history(api, reader)
    _verdicts(api, reader)
    _docs(api)
    return api


class Head:
    """ASGI layer: a HEAD request is answered as the GET, without the body. FastAPI's routes do not answer HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


class StoreFailures:
    """Logs that the store cannot be used: once for a cause, and again after `AGAIN_SECONDS`."""

    AGAIN_SECONDS = 60.0

    def __init__(self) -> None:
        self._text, self._at = "", -math.inf

    def note(self, text: str) -> None:
        now = time.monotonic()
        if text != self._text or now - self._at >= self.AGAIN_SECONDS:
            self._text, self._at = text, now
            log.error("requests are refused: %s", text)


def close_api(api: FastAPI) -> None:
    """Last of all API routes: an unknown path under `/api` is a JSON 404, another method of a known path a 405."""
    known = [route for route in api.routes if isinstance(route, Route)]
    every = ["GET", "POST", "PUT", "DELETE", "PATCH"]

    @api.api_route("/api", methods=every, include_in_schema=False)
    @api.api_route("/api/{path:path}", methods=every, include_in_schema=False)
    def nothing(request: Request, path: str = "") -> JSONResponse:
        partial = [route for route in known if route.matches(request.scope)[0] is Match.PARTIAL]
        if allowed := ", ".join(sorted({method for route in partial for method in route.methods or ()})):
            detail = f"{request.method} is not possible here; possible: {allowed}"
            return JSONResponse({"detail": detail}, 405, headers={"allow": allowed})
        return JSONResponse({"detail": f"no such endpoint: /api/{path}; see /docs"}, 404)


def _health(api: FastAPI, ready: Callable[[], str | None]) -> None:
    not_ready: Responses = {503: {"description": "What does not work.", "model": StatusMessage}}

    @api.get("/healthz", tags=["health"])
    def healthz() -> StatusMessage:
        """Liveness: the process answers."""
        return StatusMessage("ok")

    @api.get("/readyz", tags=["health"], responses=not_ready)
    def readyz(response: Response) -> StatusMessage:
        """Readiness: the store answers and, in role `collect`, targets are read. 503 names what fails."""
        problem = ready()
        if problem is not None:
            response.status_code = 503
        return StatusMessage(problem or "ok")


def _metrics(api: FastAPI, reader: Reader, version: str, own: Callable[[], Iterable[Metric]]) -> None:
    text = json_file("Samples in Prometheus' text format.", {"type": "string"}, "text/plain")

    @api.get("/metrics", tags=["metrics"], response_class=Response, responses=text | errors(503))
    def metrics() -> Response:
        """Every current signal of every run in Prometheus' text format."""
        return Response(api_metrics.render(reader, version, own), media_type=api_metrics.CONTENT_TYPE)


def _runs(api: FastAPI, reader: Reader) -> None:
    @api.get("/api/v1/runs", tags=["runs"], responses=answers(list[RunInfo]) | errors(503))
    def runs() -> Response:
        """All runs, the most recently active first."""
        states = reader.runs.states()
        return encoded([structs.replace(run, state=states.get(run.name)) for run in reader.runs.all()])

    @api.get("/api/v1/runs/{run}/status", tags=["runs"], responses=answers(Status) | errors(404, 503))
    def status(run: str) -> Response:
        """The current state for scripts: verdict, signals, alerts and data trust."""
        return encoded(reader.status(run))

    @api.get("/api/v1/runs/{run}/signals", tags=["runs"], responses=answers(list[SignalInfo]) | errors(404, 503))
    def signals(run: str) -> Response:
        """Every signal: its meaning, how to enable it, and its series with current values."""
        now: dict[str, dict[str, SeriesNow]] = {}
        for name, row in reader.status(run).signals.items():
            now.setdefault(row.signal, {})[name] = SeriesNow(
                row.value, row.state, row.ts if row.age_seconds is not None else None
            )
        infos = reader.signals.infos.items()
        return encoded([structs.replace(info, series=now.get(name, {})) for name, info in infos])

    @api.get("/api/v1/metrics", tags=["metrics"], responses=answers(list[MetricInfo]) | errors(404, 503))
    def catalogue(
        run: Annotated[str | None, Query(description="add the series of this run")] = None,
    ) -> Response:
        """Every metric that collectors report and that can be pushed: name, unit, kind, what one value covers, actor.

        With `run` also its series of each metric (target, labels, time of the newest sample), and the metrics about
        reading its targets.
        """
        return encoded(reader.metrics.all(run))

    @api.get("/api/v1/targets", tags=["targets"], responses=answers(list[TargetTrust]) | errors(404, 503))
    def targets(run: str | None = None) -> Response:
        """Health of every target: up, age, error, unmapped keys."""
        return encoded(reader.targets(run))


def _history(api: FastAPI, reader: Reader) -> None:
    @api.get(
        "/api/v1/runs/{run}/series",
        tags=["runs"],
        responses=answers(SeriesAnswer, StepSeriesAnswer, Delta) | errors(404, 422, 503),
    )
    def series(
        run: str,
        signal: Annotated[
            list[str], Query(description='e.g. `staleness_versions{level="trajectory",stat="mean"}`')
        ] = [],  # noqa: B006
        metric: Annotated[
            list[str], Query(description='of `/api/v1/metrics`, e.g. `generator_tokens_total{target="engine-0"}`')
        ] = [],  # noqa: B006
        start: Annotated[
            float | None, Query(ge=0, le=LAST, description="epoch seconds; default: a day before end")
        ] = None,
        end: Annotated[float | None, Query(ge=0, le=LAST, description="epoch seconds; default: now")] = None,
        points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 600,
        since: Annotated[str | None, Query(description="cursor of an earlier answer: return only newer points")] = None,
        by: Annotated[Literal["time", "step"], Query(description="`time` or the trainer's `step`")] = "time",
    ) -> Response:
        """Minimum, maximum and mean per bucket or step; with `since` only new points, unaggregated.

        Without `signal` and `metric`: all signals. Each matches the series with the labels that it names, a `metric`
        also by `target` and `axis`. A gauge is as reported; a counter is its rate per second (unit: `.../s`), from zero
        after a reset; a histogram is the mean of its observations. Where a source did not report, the mean is null.
        """
        names, selectors = _names(signal), _names(metric)
        if selectors and (since is not None or by == "step"):
            raise HTTPException(422, "a metric is answered over time only: without `since`, and not by step")
        if since is not None:
            delta = reader.signals.since(run, since)
            wanted = {name: rows for name, rows in delta.points.items() if not names or name in names}
            return encoded(structs.replace(delta, points=wanted))
        end = reader.now() if end is None else end
        start = end - DAY if start is None else start
        if not start < end:
            raise HTTPException(422, "start must be before end")
        cursor = reader.signals.cursor(run)
        metrics = _of_metrics(reader, run, selectors, start, end, points) if selectors else []
        every = [] if selectors else _all(reader, run)
        asked = (run, _matching(reader, run, names) if names else every, start, end, points)
        if by == "step":
            return encoded(StepSeriesAnswer(cursor, reader.now(), reader.steps.series(*asked)))
        return encoded(SeriesAnswer(cursor, reader.now(), [*reader.signals.series(*asked), *metrics]))


def _verdicts(api: FastAPI, reader: Reader) -> None:
    @api.get(
        "/api/v1/runs/{run}/verdicts",
        tags=["runs"],
        responses=answers(list[VerdictSpan]) | errors(404, 422, 503),
    )
    def verdicts(
        run: str,
        start: Annotated[
            float | None, Query(ge=0, le=LAST, description="epoch seconds; default: a day before end")
        ] = None,
        end: Annotated[float | None, Query(ge=0, le=LAST, description="epoch seconds; default: now")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_POINTS, description="return the newest changes only")] = 1000,
    ) -> Response:
        """The verdict over time: one row from each change of outcome or cause to the next, oldest first.

        The first row may begin before `start`; `end` is null for the current verdict. `verdict` is the complete verdict
        at the time of the change, in the format of the status.
        """
        end = reader.now() if end is None else end
        start = end - DAY if start is None else start
        if not start < end:
            raise HTTPException(422, "start must be before end")
        return encoded(reader.verdicts.spans(run, start, end, limit))


def _names(signal: list[str]) -> list[str]:
    if len(signal) > MAX_SERIES:
        raise HTTPException(422, f"at most {MAX_SERIES} series per request")
    try:
        return list(dict.fromkeys(format_name(*parse_name(name)) for name in signal))
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


def _matching(reader: Reader, run: str, names: list[str]) -> list[str]:
    """The series of the names: exactly those, or all of a signal with the labels that the name has."""
    rows = [row for row in reader.status(run).signals.values() if not row.signal.endswith("_total")]
    exact = {row.name for row in rows}
    found: dict[str, None] = {}
    for name in names:
        signal, labels = parse_name(name)
        if signal not in reader.signals.infos:
            hint = _meant(signal, reader.signals.infos, METRICS, "metric")
            raise HTTPException(404, f"no signal named {signal[:80]!r}{hint}; see /api/v1/runs/{run}/signals")
        fits = [row.name for row in rows if row.signal == signal and set(labels) <= set(row.labels.items())]
        found |= dict.fromkeys([name] if name in exact else fits)
    return list(found)


def _of_metrics(reader: Reader, run: str, selectors: list[str], start: float, end: float, points: int) -> list[Series]:
    try:
        return reader.metrics.series(run, selectors, start, end, points)
    except UnknownMetric as error:
        name = str(error.args[0])
        hint = _meant(name, METRICS, reader.signals.infos, "signal")
        raise HTTPException(404, f"no metric named {name[:80]!r}{hint}; see /api/v1/metrics") from None
    except TooMuch as error:
        raise HTTPException(422, str(error)) from None


def _meant(name: str, of_kind: Iterable[str], others: Iterable[str], other: str) -> str:
    """What was probably meant by an unknown name: one of the other kind, or a similar one of its kind; else ""."""
    if name in others:
        return f", but a {other}: use {other}="
    near = nearest(name[:80], of_kind)
    return f" (did you mean {near}?)" if near else ""


def _all(reader: Reader, run: str) -> list[str]:
    return [row.name for row in reader.status(run).signals.values() if not row.signal.endswith("_total")]


def _docs(api: FastAPI) -> None:
    @api.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        """The OpenAPI description as one plain page: no script, nothing loaded from elsewhere."""
        return HTMLResponse(_docs_page(api.openapi()))


def _docs_page(schema: dict[str, Any]) -> str:
    rows = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            params = "".join(
                f"<li><code>{escape(p['name'])}</code> {escape(p.get('description', p['in']))}</li>"
                for p in operation.get("parameters", [])
            )
            text = escape(operation.get("description", ""))
            rows.append(f"<section><h2>{method.upper()} {escape(path)}</h2><p>{text}</p><ul>{params}</ul></section>")
    style = "body{font:15px/1.5 system-ui;max-width:720px;margin:40px auto;padding:0 16px;color-scheme:light dark}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Rollscope API</title><style>{style}</style>'
        f'<h1>Rollscope API</h1><p>Machine-readable: <a href="/openapi.json">/openapi.json</a></p>{"".join(rows)}'
    )
