"""A vLLM engine as far as its page goes: real HTTP, kept connections, numbers and misbehaviour set by hand."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAMES = '{engine="0",model_name="m"}'


class Engine(ThreadingHTTPServer):
    """``how``: ok, error, hang, half, redirect, gzip or stranger. ``asked``: headers of every request of its page."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.running, self.tokens, self.how = 0.0, 0.0, "ok"
        self.asked: list[dict[str, str]] = []
        self.open: list[_Handler] = []
        self.let_go = threading.Event()
        self.body = b""
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def end(self) -> None:
        """As a process ends: nobody listens any more, and its connections go with it."""
        self.let_go.set()
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
            self.server_close()
        for handler in self.open:
            with suppress(OSError):
                handler.connection.shutdown(2)

    def page(self) -> bytes:
        return (
            self.body
            or (
                "# TYPE vllm:num_requests_running gauge\n"
                f"vllm:num_requests_running{NAMES} {self.running}\n"
                "# TYPE vllm:generation_tokens_total counter\n"
                f"vllm:generation_tokens_total{NAMES} {self.tokens}\n"
            ).encode()
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def setup(self) -> None:
        super().setup()
        self.server.open.append(self)

    def do_GET(self) -> None:
        if self.path != "/metrics":
            self._answer(404, b"")
            return
        self.server.asked.append({name.lower(): value for name, value in self.headers.items()})
        page, how = self.server.page(), self.server.how
        if how == "error":
            self._answer(500, b"engine dead, key=hunter2")
        elif how == "hang":
            self.server.let_go.wait()
        elif how == "half":
            self._answer(200, page, cut=len(page) // 2)
        elif how == "redirect":
            self._answer(302, b"", header=("location", "http://127.0.0.1:1/metrics"))
        elif how == "gzip":
            self._answer(200, gzip.compress(page), header=("content-encoding", "gzip"))
        else:
            self._answer(200, b"node_load1 0.5\n" if how == "stranger" else page)

    def _answer(self, status: int, body: bytes, cut: int | None = None, header: tuple[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if header is not None:
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = self.close_connection or cut is not None

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def engine(port: int = 0, *, running: float = 0.0, tokens: float = 0.0) -> Iterator[Engine]:
    """One that answers until the end, at `port` where given: a second one there is the first, restarted."""
    server = Engine(port)
    server.running, server.tokens = running, tokens
    try:
        yield server
    finally:
        server.end()
