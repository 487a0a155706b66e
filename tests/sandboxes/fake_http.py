"""A real HTTP/1.1 server for fakes: routes are methods of a subclass, faults are told from outside."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

import collectors
from collectors.model import Limits, Reading, ScrapeError

KEY = "sekret-key-0123456789"


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    body: Any = None

    def one(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[0]


@dataclass
class Reply:
    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    hang: bool = False
    drip: bool = False


class Fake:
    """``answer`` is the provider; ``fault`` may answer instead (return None to let it through)."""

    header = "Authorization"
    expected = f"Bearer {KEY}"

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Reply | None] = lambda _request: None
        self.url = ""
        self.ended = threading.Event()

    def answer(self, request: Request) -> Reply:
        raise NotImplementedError

    def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        if request.headers.get(self.header) != self.expected:
            return Reply({"detail": f"key {request.headers.get(self.header)} is not valid"}, 401)
        return self.fault(request) or self.answer(request)

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    @contextmanager
    def serve(self) -> Iterator["Fake"]:
        server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that go away in the middle are what is tested."""


def _handler(fake: Fake) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: Any) -> None:
            pass

        def _do(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            request = Request(self.command, unquote(parts.path), parse_qs(parts.query), self.headers, body)
            try:
                self._write(fake.reply(request))
            except (ConnectionError, TimeoutError):
                self.close_connection = True  # the client went away, which is what is tested

        def _write(self, reply: Reply) -> None:
            raw = reply.raw if reply.raw is not None else json.dumps(reply.body).encode()
            if reply.hang:
                fake.ended.wait()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw) + (1 << 20 if reply.drip else 0)))
            self.end_headers()
            self.wfile.write(raw)
            while reply.drip and not fake.ended.wait(0.02):
                self.wfile.write(b" ")
                self.wfile.flush()

        do_GET = do_POST = do_DELETE = do_PUT = _do

    return Handler


class Poller:
    """Polls one fake as the scraper does, its `state` living on between polls."""

    def __init__(self, fake: Fake, collector: str, **options: str) -> None:
        self.fake = fake
        self.collector = collectors.load()[collector]
        self.state: dict[str, Any] = {"options": options}
        # Of a minute: how long this machine takes is no test's subject; those about slowness set their own.
        self.limits = Limits(timeout_seconds=60.0)
        self.key = KEY

    def poll(self, base: str = "") -> Reading:
        return asyncio.run(self._poll(base))

    async def _poll(self, base: str) -> Reading:
        name = self.collector.key_header
        headers = {name: f"Bearer {self.key}" if name == "authorization" else self.key}
        async with httpx.AsyncClient(
            base_url=self.fake.url + base, headers=headers, timeout=self.limits.timeout_seconds, trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
        ) as client:  # fmt: skip
            assert self.collector.poll is not None
            return await self.collector.poll(client, self.state, self.limits)

    def error(self) -> ScrapeError:
        try:
            self.poll()
        except ScrapeError as error:
            assert KEY not in str(error) and "127.0.0.1" not in str(error) and error.__cause__ is None
            return error
        raise AssertionError("the poll did not fail")


def values(reading: Reading) -> dict[str, float]:
    """``metric{resource}`` -> value."""
    return {
        sample.metric + "".join(f"{{{value}}}" for _, value in sample.labels): sample.value
        for sample in reading.samples
    }
