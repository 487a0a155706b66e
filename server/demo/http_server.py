"""A small HTTP server for one simulated system: a function answers each GET, on its own thread."""

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """Status, content type ("": none), body and further headers."""

    status: int
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


# Path with its query, and the request's headers, names in lower case.
Respond = Callable[[str, Mapping[str, str]], Reply]
NOT_FOUND = Reply(404, "application/json", b'{"detail":"Not Found"}')


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Ends open connections too, because a process that dies leaves none."""
        super().server_close()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that disconnect early; reports other errors as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def serve(name: str, respond: Respond) -> ThreadingHTTPServer:
    """Starts a server on a free port of this machine."""
    server = _Server(("127.0.0.1", 0), _handler(respond))
    # The interval only bounds how long `close` takes; requests are served at once.
    threading.Thread(target=server.serve_forever, args=(0.1,), name=name, daemon=True).start()
    return server


def by_path(routes: Mapping[str, Callable[[], Reply]]) -> Respond:
    """Answers each of these paths with any query; other paths are not found."""

    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        route = routes.get(path.split("?", 1)[0])
        return route() if route else NOT_FOUND

    return respond


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def _handler(respond: Respond) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "uvicorn"
        # Head and body leave in one write, which is flushed after each request. A body that is too large for that is
        # a second one: with Nagle's algorithm it would wait 40 ms for the client's delayed ACK.
        wbufsize = 1 << 17
        disable_nagle_algorithm = True
        sys_version = ""

        def do_GET(self) -> None:
            reply = respond(self.path, {key.lower(): value for key, value in self.headers.items()})
            self.send_response(reply.status)
            self.send_header("content-length", str(len(reply.body)))
            if reply.kind:
                self.send_header("content-type", reply.kind)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            """Does nothing, because standard error is for failures."""

    return Handler
