"""A real HTTP server of targets that misbehave, each at its own path."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).parent.parent / "testdata/vllm/default/metrics_1795246810368_load.prom"
GIGABYTE = 1 << 30
LINE = b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'


class Nasty(ThreadingHTTPServer):
    """Attributes: `sent` counts body bytes by path; `stop` ends every slow answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sent: Counter[str] = Counter()
        self.stop = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Nasty

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        with suppress(BrokenPipeError, ConnectionResetError):
            getattr(self, f"_{kind}")()

    def _body(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self._write(body)

    def _write(self, body: bytes) -> None:
        self.wfile.write(body)
        self.server.sent[self.path.split("/")[1]] += len(body)

    def _good(self) -> None:
        self._body(PAGE.read_bytes())

    def _garbage(self) -> None:
        self._body(bytes(range(256)) * 100)

    def _html(self) -> None:
        self._body(b"<!doctype html><title>Login</title>" + b"<p>x</p>" * 100)

    def _empty(self) -> None:
        self._body(b"")

    def _error(self) -> None:
        self._body(b"engine dead, key=hunter2", 500)

    def _secret(self) -> None:
        self._body(b"key=hunter2", 401)

    def _redirect(self) -> None:
        self._body(b"", 302, Location="http://169.254.169.254/latest/meta-data")

    def _endless(self) -> None:
        """Valid lines for ever."""
        self._stream(LINE * 1000, 1 << 40)

    def _huge(self) -> None:
        """A gigabyte, announced honestly."""
        self.send_response(200)
        self.send_header("Content-Length", str(GIGABYTE))
        self.end_headers()
        self._stream(b"# " + b"x" * 65_533 + b"\n", GIGABYTE, headers=False)

    def _slow(self) -> None:
        """A byte now and then."""
        self.send_response(200)
        self.end_headers()
        while not self.server.stop.wait(0.2):
            self._write(b"#")

    def _hang(self) -> None:
        self.server.stop.wait()

    def _stream(self, chunk: bytes, total: int, *, headers: bool = True) -> None:
        if headers:
            self.send_response(200)
            self.end_headers()
        for _ in range(total // len(chunk)):
            if self.server.stop.is_set():
                return
            self._write(chunk)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def nasty() -> Iterator[Nasty]:
    server = Nasty()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.stop.set()
        server.shutdown()
        thread.join()
        server.server_close()
