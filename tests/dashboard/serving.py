"""A real server in a thread, and a way to wait in a page whose CSP forbids Playwright's own."""

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from msgspec import structs
from playwright.sync_api import Error, Page

from dashboard import static
from dashboard.app import Candidates, attach, csp
from server.api import app as routes
from server.query import Reader, UnknownRun
from tests.dashboard.memory_reader import MemoryReader

# How long something may take says how busy the machine is: only a test that fails waits for so long.
PATIENCE = 60.0
_compress = static._compress
_PACKED: dict[tuple[bytes, ...], static.CompressedFile] = {}


def _packed(messages: list[Any]) -> static.CompressedFile:
    """What the app makes of a file, made once: each test has an app of its own, and plotly.js takes each half a second.

    The key is all that the app answered, so that a file that differs is another one.
    """
    head, bodies = messages[0], [message.get("body", b"") for message in messages[1:]]
    key = (hashlib.sha256(b"".join(bodies)).digest(), *(part for header in head["headers"] for part in header))
    if key not in _PACKED:
        _PACKED[key] = _compress(messages)
    return _PACKED[key]


def application(
    reader: Reader, receivers: Sequence[str] | None = None, candidates: Candidates | None = None
) -> FastAPI:
    """The API app as the program wires it: the routes, the dashboard, then the policy outside it."""
    api = FastAPI()
    if isinstance(reader, MemoryReader):
        _silences(api, reader)
        _preflight(api, reader)
        _sandboxes(api, reader)
        _history(api, reader)
        _panels(api)
    policy = csp(attach(api, reader, version="0.0.0", receivers=receivers, candidates=candidates))

    @api.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        response.headers["content-security-policy"] = policy
        return response

    return api


def _silences(api: FastAPI, reader: MemoryReader) -> None:
    """The shapes of the real routes, over the memory reader; what was asked is kept in ``api.state.asked``."""
    api.state.asked = []

    @api.post("/api/v1/silences")
    async def put(request: Request) -> dict[str, str]:
        body = await request.json()
        api.state.asked.append(body)
        starts, ends = (datetime.fromisoformat(body[key]).timestamp() for key in ("startsAt", "endsAt"))
        if ends <= starts:
            raise HTTPException(400, "endsAt must be after startsAt")
        if body["comment"] == "refuse <b>me</b>":
            raise HTTPException(400, "<i>no</i> silences today")
        matchers = {one["name"]: one["value"] for one in body["matchers"]}
        return {"silenceID": reader.put_silence(matchers, starts, ends, body["createdBy"], body["comment"])}

    @api.delete("/api/v1/silences/{name}")
    async def end(name: str) -> dict[str, str]:
        if not reader.end_silence(name):
            raise HTTPException(404, "no silence of this id is active")
        return {}


def _preflight(api: FastAPI, reader: MemoryReader) -> None:
    """Begins one by the rules of the real route; a test ends it."""

    @api.post("/api/v1/runs/{run}/preflight", status_code=202)
    async def begin(run: str) -> dict[str, str]:
        found = reader.preflights[run]
        if found.state == "running":
            raise HTTPException(409, "the previous preflight is still running")
        if found.retry_at is not None and found.retry_at > reader.now():
            raise HTTPException(429, "it was begun a moment ago")
        reader.preflights[run] = structs.replace(found, state="running", started_at=reader.now())
        return {"state": "running"}


def _sandboxes(api: FastAPI, reader: MemoryReader) -> None:
    @api.get("/api/v1/runs/{run}/sandboxes")
    def sandboxes(run: str, find: str = "", limit: int = 100) -> dict[str, Any]:
        return {"sandboxes": [structs.asdict(row) for row in reader.sandboxes.page(run, find=find, limit=limit)]}


def _history(api: FastAPI, reader: MemoryReader) -> None:
    """The real routes of status and series."""
    routes._runs(api, reader)
    routes._history(api, reader)

    @api.exception_handler(UnknownRun)
    def unknown(_: object, error: UnknownRun) -> JSONResponse:
        return JSONResponse({"detail": f"no run named {error.args[0]!r}"}, 404)


def _panels(api: FastAPI) -> None:
    """No user has a panel here; `test_explore_browser.py` serves the real routes."""

    @api.get("/api/v1/panels")
    def panels(user: str = "") -> dict[str, Any]:
        return {"declared": [], "own": []}


class Serving:
    """``with Serving(app) as url``; `stop` and `start` again on the same port, as after a crash."""

    def __init__(self, app: Callable[[], FastAPI]) -> None:
        self._app = app
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        static._compress = _packed
        config = uvicorn.Config(self._app(), port=self.port, log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        static._compress = _compress

    def __enter__(self) -> "Serving":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def wait(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.02)


def until(page: Page, expression: str, argument: object = None, seconds: float = PATIENCE) -> None:
    """Until a JavaScript function is truthy; `page.wait_for_function` would need 'unsafe-eval'.

    `RS` is there once the page's scripts have run (`browser_support.exposed`); before, nothing holds.
    """
    end = time.monotonic() + seconds
    while not _holds(page, expression, argument):
        assert time.monotonic() < end, f"never true: {expression} ({argument})"
        page.wait_for_timeout(50)


def _holds(page: Page, expression: str, argument: object) -> bool:
    try:
        return bool(page.evaluate(expression, argument))
    except Error as error:
        if "RS is not defined" not in error.message:
            raise
        return False
