"""The app as it is put together: async callbacks, the policy, and files that are compressed once."""

import asyncio
import base64
import gzip
import hashlib
import inspect
import json
import re
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from dashboard import static
from dashboard.app import attach, csp
from dashboard.pages import PAGES
from dashboard.shell import theme
from dashboard.static import Packed, Static
from server.api.app import close_api, create_api
from server.api.gate import Gate
from tests.dashboard import fake


def run(work: Coroutine[Any, Any, httpx.Response | None]) -> Any:
    return asyncio.run(work)


def test_every_callback_is_async() -> None:
    # A synchronous callback would block the event loop of this backend, and with it every reader.
    app = attach(FastAPI(), fake.reader(60), version="1")
    server_side = [spec["callback"] for spec in app.callback_map.values() if "callback" in spec]
    assert len(server_side) == 2
    assert all(inspect.iscoroutinefunction(inspect.unwrap(one)) for one in server_side)


def test_two_apps_live_in_one_process() -> None:
    apps = [attach(FastAPI(), fake.reader(60), version="1") for _ in range(2)]
    assert apps[0].callback_map.keys() == apps[1].callback_map.keys()


def test_policy_allows_the_theme_script_and_nothing_inline() -> None:
    api = FastAPI()
    app = attach(api, fake.reader(60), version="1")
    policy = dict(part.strip().split(" ", 1) for part in csp(app).split(";"))
    digest = base64.b64encode(hashlib.sha256(theme.SCRIPT.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy["script-src"]
    assert "unsafe" not in policy["script-src"]
    for script in re.findall(r"<script(?![^>]*(?:src|json))[^>]*>(.*?)</script>", index(api), re.S):
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy["script-src"]


def index(api: FastAPI) -> str:
    return str(run(fetch(api, "/")).text)


def test_index_tells_nothing_it_need_not() -> None:
    api = FastAPI()
    attach(api, fake.reader(60), version="1.2.3")
    page = index(api)
    assert "python_version" not in page and "_dash-ws-callback" not in page
    assert "1.2.3" in page and '<html lang="en" ' in page
    # Pages without charts, by their paths: there plotly.js is not fetched; and tabs are told of news.
    assert 'data-plain="alerts runs sources what-if help" data-push="on"' in page


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("targets", "sources"),
        ("targets?run=a%2Fb&unhealthy=1", "sources?run=a%2Fb&unhealthy=1"),
        ("preflight", "sources?tab=setup"),
        ("preflight?run=a&token=x", "sources?tab=setup&run=a&token=x"),
    ],
)
def test_earlier_addresses_redirect_and_keep_their_query(old: str, new: str) -> None:
    api = FastAPI()
    attach(api, fake.reader(60), version="1")
    answer = run(fetch(api, "/" + old))
    assert (answer.status_code, answer.headers["location"]) == (308, new)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", "/" + page.path, 200) for page in PAGES),
        ("GET", "/trainer/", 200),
        ("GET", "/?run=a", 200),
        ("HEAD", "/", 200),
        ("HEAD", "/trainer", 200),
        ("GET", "/nosuch", 404),
        ("HEAD", "/nosuch", 404),
        ("GET", "/redoc", 404),
        ("GET", "/federate", 404),
        ("GET", "/trainer/more", 404),
        ("GET", "/assets/nosuch.js", 404),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/docs", 200),
        ("GET", "/api/v1/runs", 200),
        ("GET", "/api/v1/nosuch", 404),
        ("POST", "/", 405),
        ("DELETE", "/trainer", 405),
        ("POST", "/nosuch", 405),
        ("GET", "/_dash-layout", 200),
    ],
)
def test_status_of_an_address(method: str, path: str, status: int) -> None:
    """The server as it runs: its start adds Dash's own route for all paths, which would answer 200."""
    reader = fake.reader(60)
    api = create_api(reader, version="1", ready=lambda: None)
    close_api(api)
    attach(api, reader, version="1")

    async def ask() -> httpx.Response:
        async with api.router.lifespan_context(api):
            transport = httpx.ASGITransport(app=api)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path)

    answer = run(ask())
    assert answer.status_code == status
    assert method != "HEAD" or answer.content == b""
    # The page explains an unknown address in its own frame.
    assert path != "/nosuch" or method != "GET" or '<html lang="en" ' in answer.text


def test_requests_that_dash_would_answer_by_500() -> None:
    """A path that is none of its files is 404, and a chunked body beyond the limit 413."""
    api = FastAPI()
    attach(api, fake.reader(60), version="1")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b"x" * 100_000

    async def ask(method: str, path: str, **content: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=Gate(api, hosts=["test"]))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **content)

    for path in ("dash/..%2f..%2fetc/passwd", "dash/nothing.js", "nothing/x.js"):
        assert run(ask("GET", f"/_dash-component-suites/{path}")).status_code == 404
    answer = run(ask("POST", "/_dash-update-component", content=chunks()))
    assert (answer.status_code, answer.text) == (413, "a request body may have at most 1048576 bytes")


BODY = b"var x = 1;\n" * 400


class Origin:
    """Stands for Dash: answers every path, counts how often it is asked."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.seen: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope["path"])
        headers = [(b"content-type", b"text/javascript")]
        start: Message = {"type": "http.response.start", "status": self.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": BODY[:1000], "more_body": True})
        await send({"type": "http.response.body", "body": BODY[1000:]})


async def fetch(app: Any, path: str, **headers: str) -> httpx.Response:
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        request = client.build_request("GET", path, headers={"accept-encoding": "identity"} | sent)
        return await client.send(request)


FILE = "/_dash-component-suites/dash/deps/react.min.js"
PLOTLY = "/_dash-component-suites/plotly/package_data/plotly.min.js"


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [("gzip, deflate, br", "br"), ("gzip", "gzip"), ("br;q=0, gzip", "gzip"), ("identity", None), ("zstd", None)],
)
def test_encodings(accept: str, encoding: str | None) -> None:
    answer = run(fetch(Static(Origin()), FILE, accept_encoding=accept))
    assert answer.headers.get("content-encoding") == encoding
    assert answer.content == BODY
    assert answer.headers["vary"] == "accept-encoding"
    sizes = {"br": len(brotli.compress(BODY, quality=9)), "gzip": len(gzip.compress(BODY, 6, mtime=0)), None: len(BODY)}
    assert int(answer.headers["content-length"]) == sizes[encoding]


def test_compressed_once_even_when_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[Any] = []
    to_thread = asyncio.to_thread

    async def counted(work: Any, *args: Any) -> Any:
        threads.append(work)
        return await to_thread(work, *args)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    origin = Origin()
    app = Static(origin)

    async def crowd() -> None:
        await asyncio.gather(*(fetch(app, FILE) for _ in range(5)))

    run(crowd())
    assert origin.seen == [FILE]
    # On a thread: the event loop never compresses.
    assert threads == [static._compress]


def test_the_small_plotly_is_served_and_the_whole_where_it_is_not_or_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = run(fetch(Static(Origin()), PLOTLY, accept_encoding="gzip"))
    assert b"plotly.js (basic - minified) v" in small.content[:100], "run `make setup`, which fetches it"
    # The whole one is 1.47 MB.
    assert int(small.headers["content-length"]) < 450_000
    monkeypatch.setattr(static, "_VENDOR", tmp_path / "plotly.js")
    assert run(fetch(Static(Origin()), PLOTLY)).content == BODY
    (tmp_path / "plotly.js").write_bytes(b"/* plotly.js (basic - minified) v3.9.9 */" + BODY)
    assert run(fetch(Static(Origin()), PLOTLY)).content == BODY


def test_a_browser_that_has_the_file_gets_304() -> None:
    app = Static(Origin())
    etag = run(fetch(app, FILE)).headers["etag"]
    for asked in (etag, f"W/{etag}", f'"other", {etag}'):
        answer = run(fetch(app, FILE, if_none_match=asked))
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert run(fetch(app, FILE, if_none_match='"other"')).status_code == 200


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/_dash-component-suites/dash/deps/react@18.v4_4_1m1731.min.js", static._FOREVER),
        ("/assets/app.css?m=1731.5", static._FOREVER),
        ("/assets/app.css", "no-cache"),
        (FILE, "no-cache"),
    ],
)
def test_only_fingerprinted_files_are_kept_for_long(path: str, kept: str) -> None:
    assert run(fetch(Static(Origin()), path)).headers["cache-control"] == kept


@pytest.mark.parametrize(
    ("path", "repeat", "packed"),
    [
        ("/_dash-update-component", 40, True),
        ("/_dash-update-component", 1, False),
        ("/_dash-layout", 40, True),
        ("/api/v1/runs", 40, False),
    ],
)
def test_long_answers_of_callbacks_are_packed(path: str, repeat: int, packed: bool) -> None:
    body = b'{"numbers": [1.25, 2.5, 3.75, 5.0]}' * 8 * repeat

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    found = run(fetch(Packed(answer), path, **{"accept-encoding": "gzip, br"}))
    assert found.content == body
    assert (found.headers.get("content-encoding") == "gzip") is packed


def test_errors_and_other_paths_pass_through() -> None:
    broken, fine = Origin(404), Origin()
    app = Static(broken)
    assert [run(fetch(app, FILE)).status_code for _ in range(2)] == [404, 404]
    assert broken.seen == [FILE, FILE]
    assert "etag" not in run(fetch(Static(fine), "/api/v1/runs")).headers


def test_real_files_of_dash_are_served() -> None:
    api = FastAPI()
    attach(api, fake.reader(60), version="1")
    answer = run(fetch(api, "/assets/app.css", accept_encoding="br"))
    assert answer.status_code == 200 and answer.headers["content-encoding"] == "br"
    assert b"--c-orange" in answer.content


VIEW = {"path": "/", "search": "?run=fleet", "have": [], "tz": 0, "touch": False, "n": 1}
PULL = {"page": 1, "key": "overview", "run": "fleet", "cursor": "1:0", "have": "", "n": 1}


def callback(app: Any, output: str, source: str, value: Any) -> dict[str, Any]:
    """A body as Dash's renderer sends it."""
    (spec,) = [name for name in app.callback_map if name.lstrip(".").startswith(output)]
    inputs = [{"id": source, "property": "data", "value": value}]
    return {"output": spec, "outputs": [], "inputs": inputs, "changedPropIds": [f"{source}.data"]}


def posted(api: FastAPI, body: bytes) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client:
            return await client.post("/_dash-update-component", content=body)

    return asyncio.run(send())


def test_a_malformed_callback_body_is_a_400_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    api = FastAPI()
    app = attach(api, fake.reader(60), version="1")
    fine = [callback(app, "boot.data", "view", VIEW), callback(app, "delta.data", "pull", PULL)]
    for body in fine:
        assert posted(api, json.dumps(body).encode()).status_code == 200
    malformed: list[Any] = [
        None, 1, [], {}, {"output": 1}, {"output": "x.y"}, {"output": "sink.data", "inputs": []},
        {**fine[0], "inputs": None}, {**fine[0], "inputs": [1]}, {**fine[0], "inputs": [[fine[0]["inputs"][0]]]},
        callback(app, "boot.data", "view", None), callback(app, "boot.data", "view", [VIEW]),
        *(callback(app, "boot.data", "view", {**VIEW, name: value}) for name, value in (
            ("path", 1), ("search", ["x"]), ("search", "?run=%00"), ("search", "\ud800"), ("have", 1), ("tz", "x"),
            ("tz", 10**400), ("n", {}))),
        callback(app, "delta.data", "pull", {"page": 1}), callback(app, "delta.data", "pull", {**PULL, "run": 5}),
        callback(app, "delta.data", "pull", {**PULL, "page": None}),
        callback(app, "delta.data", "pull", {**PULL, "cursor": ["1"]}),
    ]  # fmt: skip
    bodies = [b"", b"{", b"\xff", b"[" * 100_000, *(json.dumps(body).encode() for body in malformed)]
    for sent in bodies:
        answer = posted(api, sent)
        assert answer.status_code == 400, (sent[:200], answer.text)
        assert answer.json()["detail"].startswith("not a callback of this dashboard: ")
    assert [record for record in caplog.records if record.exc_info] == []
