"""A real HTTP receiver for tests: it keeps what it was sent, and answers what it is told to."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hook:
    """``status`` is answered to everything; ``bodies`` are the requests answered with 200, in their order, and
    ``paths`` are their paths.

    While ``gate`` is clear, requests wait for it.
    """

    def __init__(self) -> None:
        self.status, self.headers = 200, dict[str, str]()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.requests = 0
        self.at_once = self.most_at_once = 0
        self.gate = threading.Event()
        self.gate.set()
        self.guard = threading.Lock()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        with self.guard:
            self.requests += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        self.gate.wait()
        with self.guard:
            self.at_once -= 1
            if self.status == 200:
                self.bodies.append(body)
                self.paths.append(request.path)
        request.send_response(self.status)
        for name, value in self.headers.items():
            request.send_header(name, value)
        request.send_header("content-length", "0")
        request.end_headers()


@contextmanager
def hook() -> Iterator[Hook]:
    """A receiver that listens until the end of the block."""
    made = Hook()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.gate.set()
        made.server.shutdown()
        thread.join()
        made.server.server_close()
