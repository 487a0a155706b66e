"""HTTP: metrics that are pushed, as exposition text or OpenTelemetry's OTLP.

Valid pushes go into the store's inbox and are acknowledged; the collecting process, this one or another, derives
from it. Bodies are read and parsed on threads, two at a time: a browser must not feel a large one.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from collectors.model import Lifecycle, Mode, ScrapeError
from collectors.otlp_names import Maps
from server.api.gate import PUSH_BYTES
from server.api.responses import UploadAnswer, errors
from server.api.schema import Responses
from server.ingest.readings import PUSHED
from server.lib.clock import Clock
from server.lib.errors import ConfigError
from server.push import metrics as push_metrics
from server.push import otlp
from server.push.inbox import Body, pack_body
from server.push.targets import KIND, TOO_MANY
from server.store import Store, StoreError
from server.store.inbox import InboxFull
from server.store.types import Push
from server.targets.resolve import check_name

# Longest silence to expect between two pushes, in seconds.
INTERVAL = 60.0
INTERVAL_MIN = 5.0
INTERVAL_MAX = 86_400.0
# Characters of a target's name.
TARGET_LENGTH = 100
# Targets that push into one run.
TARGETS = 100
# Bodies parsed at once: a large one must not slow the dashboard.
PARSING = 2
# Bodies held in memory while they wait; more are refused.
WAITING = 32
RETRY = {"retry-after": "5"}
_QUERY = ("run", "target", "step", "axis", "interval", "framework", "mode", "lifecycle")
_WORDS: Mapping[str, tuple[str, ...]] = {"mode": get_args(Mode), "lifecycle": get_args(Lifecycle)}

# HTTP status -> google.rpc.Code; other statuses are UNKNOWN (2).
_STATUS = {400: 3, 409: 9, 413: 3, 415: 3, 429: 8, 503: 14}

UPLOAD: Responses = {
    207: {"description": "Some records were refused.", "model": UploadAnswer},
    **errors(400, 409, 413, 415, 429, 503),
}

# OTLP answers in the format of the request: protobuf or its JSON form. An error is a `google.rpc.Status`.
_PROTOBUF_BODY = {otlp.PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}
_PARTIAL_SUCCESS = {
    "type": "object",
    "properties": {
        "partialSuccess": {
            "type": "object",
            "properties": {"rejectedDataPoints": {"type": "string"}, "errorMessage": {"type": "string"}},
        }
    },
}
_RPC_STATUS = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
}
OTLP: Responses = {
    200: {"description": "Stored.", "content": _PROTOBUF_BODY | {otlp.JSON: {"schema": _PARTIAL_SUCCESS}}},
    **{
        code: {"description": declared["description"], "content": _PROTOBUF_BODY | {otlp.JSON: {"schema": _RPC_STATUS}}}
        for code, declared in errors(400, 409, 413, 415, 429, 503).items()
    },
}

Admitted = Callable[[str], bool]
log = logging.getLogger("rollscope.pushes")


def add_pushes(api: FastAPI, store: Store, clock: Clock, admitted: Admitted, maps: Maps | None = None) -> None:
    """`POST /api/v1/write` and `POST /v1/metrics`. ``admitted``: may a push name this run? ``maps``: of `[[otlp]]`."""
    door, taken = _PushRoutes(store, clock, admitted, maps or {}), UploadLimiter().taken
    documented = {
        "requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}},
        "parameters": [
            {"name": name, "in": "query", "required": name == "run", "schema": {"type": "string"}} for name in _QUERY
        ],
    }

    @api.post("/api/v1/write", tags=["pushes"], openapi_extra=documented, response_model=UploadAnswer, responses=UPLOAD)
    async def write(request: Request) -> Response:
        """Accepts metrics in exposition text, by canonical name; bad lines are listed by number, the others stored."""
        return await taken(door.text, request)

    @api.post("/v1/metrics", tags=["pushes"], responses=OTLP)
    async def metrics(request: Request) -> Response:
        """Accepts metrics of an OpenTelemetry SDK or collector: OTLP/HTTP, protobuf or JSON."""
        try:
            return await taken(door.otlp, request)
        except HTTPException as error:
            return _otlp_refusal(error, _kind_of(request))
        except StoreError as error:
            return _otlp_refusal(HTTPException(503, str(error), RETRY), _kind_of(request))
        except Exception as error:  # any error: exporters retry after a 503 and drop the data after a 500
            log.exception("an OTLP push was not stored")
            busy = HTTPException(503, f"the store did not accept it: {type(error).__name__}", RETRY)
            return _otlp_refusal(busy, _kind_of(request))


class UploadLimiter:
    """Bodies are parsed on threads, a few at a time; of those that wait, no more than a bound are held."""

    def __init__(self) -> None:
        self._parsing, self._waiting = asyncio.Semaphore(PARSING), 0

    async def taken(self, take: Callable[[Request, bytes], Response], request: Request) -> Response:
        """What `take` makes of a request, when it is its turn."""
        body = await request.body()
        if self._waiting >= WAITING:
            raise HTTPException(429, "too many pushes at once; try again in a moment", RETRY)
        self._waiting += 1
        try:
            async with self._parsing:
                return await asyncio.to_thread(take, request, body)
        finally:
            self._waiting -= 1


class _PushRoutes:
    """Both formats, from a request to the inbox. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, admitted: Admitted, maps: Maps) -> None:
        self._store, self._clock, self._admitted, self._maps = store, clock, admitted, maps

    def text(self, request: Request, body: bytes) -> Response:
        """A body of exposition text."""
        query, now = request.query_params, self._clock.now()
        try:
            _check_query(query)
            run, target = run_of(query.get("run", "")), target_of(query.get("target") or KIND)
            interval, facts = interval_of(query), _facts(query)
            step = push_metrics.step_of(query["step"]) if query.get("step") else None
            axis = push_metrics.axis_of(query.get("axis") or "trainer")
            plain = plain_of(body, request.headers.get("content-encoding", ""))
            # A body without samples may report only the run's lifecycle.
            read = (
                push_metrics.ParsedText()
                if facts and not plain.strip()
                else push_metrics.parse(plain, run, now, step, axis)
            )
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        except ScrapeError as error:
            raise HTTPException(413 if error.kind == "too_large" else 400, str(error)) from None
        found = read.body.stated(facts)
        if not found.empty:
            self._keep({(run, target): found}, interval, now)
        refused = [{"line": number, "detail": why} for number, why in read.refused]
        count = len(found.reading.samples) + len(found.reading.histograms)
        return JSONResponse({"taken": count, "refused": refused, "refused_count": read.lost}, 207 if read.lost else 200)

    def otlp(self, request: Request, body: bytes) -> Response:
        """A body of OTLP."""
        kind = _kind_of(request)
        if kind not in (otlp.PROTOBUF, otlp.JSON):
            raise HTTPException(415, f"content-type must be {otlp.PROTOBUF} or {otlp.JSON} (OTLP over HTTP)")
        query, now = request.query_params, self._clock.now()
        try:
            interval = interval_of(query)
            named = request.headers.get("x-rollscope-run") or query.get("run", "")
            message = otlp.decode(plain_of(body, request.headers.get("content-encoding", "")), kind)
            read = otlp.read(message, named, now, self._maps)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        if read.runless and not read.parts:
            raise HTTPException(400, otlp.NO_RUN)
        bodies: dict[tuple[str, str], Body] = {}
        for (run, target), part in read.parts.items():
            try:
                bodies[run_of(run), target_of(target)] = part.body()
            except ValueError as error:
                read.refuse(str(error), part.points)
        self._keep({key: found for key, found in bodies.items() if not found.empty}, interval, now)
        return Response(otlp.answer(read, kind), media_type=kind)

    def _keep(self, bodies: Mapping[tuple[str, str], Body], interval: float, now: float) -> None:
        """Into the inbox, all or none."""
        for run in {run for run, _ in bodies}:
            if not self._admitted(run):
                raise HTTPException(429, TOO_MANY, RETRY)
            self._check_targets(run, [target for of, target in bodies if of == run])
        pushes = [
            Push(run, target, body.actor(), interval, round(now * 1000), body.rows, pack_body(body))
            for (run, target), body in bodies.items()
        ]
        if not pushes:
            return
        try:
            self._store.pushes.offer(pushes)
        except InboxFull as error:
            raise HTTPException(429, str(error), RETRY) from None

    def _check_targets(self, run: str, names: Sequence[str]) -> None:
        read = {row.name for _, row in self._store.runs.targets(run) if row.collector != KIND}
        if conflicts := read.intersection(names):
            raise HTTPException(
                409, f"target {min(conflicts)} of this run is read by Rollscope: choose another ?target="
            )
        known_targets = {pusher.target for pusher in self._store.pushes.pushers(run)}
        if len(known_targets | set(names)) > TARGETS and not known_targets.issuperset(names):
            raise HTTPException(
                429, f"{TARGETS} targets already push to this run, the maximum; use one of their names", RETRY
            )


def _kind_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _otlp_refusal(error: HTTPException, kind: str) -> Response:
    """The error in the format of the request, as OTLP specifies; JSON for an unsupported format."""
    kind = kind if kind == otlp.PROTOBUF else otlp.JSON
    code = _STATUS.get(error.status_code, 2)
    return Response(otlp.refusal(error.detail, kind, code), error.status_code, error.headers, kind)


def _check_query(query: Mapping[str, str]) -> None:
    unknown = set(query) - set(_QUERY)
    if unknown:
        raise ValueError(f"unknown parameter {min(unknown)[:40]!r}; known: {', '.join(_QUERY)}")


def run_of(name: str) -> str:
    """A run's name as a request may carry it.

    Raises:
        ValueError: none, or one that nothing could show.
    """
    if not name:
        raise ValueError("the run is missing: add ?run=NAME")
    try:
        check_name(name)
    except ConfigError as error:
        raise ValueError(error.problems[0]) from None
    return name


def target_of(name: str) -> str:
    """A target's name as a request may carry it; ValueError with the rule."""
    if not (name.isprintable() and 0 < len(name) <= TARGET_LENGTH) or name == PUSHED:
        raise ValueError(f"target {ascii(name)[:80]}: 1 to {TARGET_LENGTH} printable characters, and not {PUSHED!r}")
    return name


def interval_of(query: Mapping[str, str]) -> float:
    """The longest silence to expect, in seconds; ValueError with the bounds."""
    text = query.get("interval", "")
    try:
        seconds = float(text) if text else INTERVAL
    except ValueError:
        seconds = 0.0
    if not INTERVAL_MIN <= seconds <= INTERVAL_MAX:
        raise ValueError(
            f"interval must be {INTERVAL_MIN:g} to {INTERVAL_MAX:g} seconds: the longest silence to expect"
        )
    return seconds


def _facts(query: Mapping[str, str]) -> dict[str, str | float]:
    facts: dict[str, str | float] = {}
    for name in ("framework", "mode", "lifecycle"):
        value = query.get(name, "")
        if value and name in _WORDS and value not in _WORDS[name]:
            raise ValueError(f"{name} must be one of {', '.join(_WORDS[name])}")
        if value:
            facts[name] = target_of(value)
    return facts


def plain_of(body: bytes, encoding: str) -> bytes:
    """The unpacked body, at most `PUSH_BYTES` long."""
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise HTTPException(415, "content-encoding must be gzip or identity")
    try:
        unpacker: Any = zlib.decompressobj(31)
        plain: bytes = unpacker.decompress(body, PUSH_BYTES)
    except zlib.error:
        raise ValueError("the body is not gzip") from None
    if unpacker.unconsumed_tail:
        raise HTTPException(413, f"a push may have at most {PUSH_BYTES} bytes after decompression")
    if not unpacker.eof:
        raise ValueError("the gzip body is truncated")
    return plain
