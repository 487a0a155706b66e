"""A real HTTP server on loopback that behaves as a test says, and notifications to send to it."""

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from server.alerts.model import fingerprint
from server.notify.model import AlertItem, Notification

T0 = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
GROUP_KEY = '{}:{alertname="TrainerStarved", run="a"}'
WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class Got:
    """A request as the server read it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_up: bool = False


Behaviour = Callable[[Got], Reply]


class Server:
    """Its `got` is a queue: waiting for a request is waiting for the event itself."""

    def __init__(self, behave: Behaviour) -> None:
        self.got: queue.Queue[Got] = queue.Queue()
        self.behave = behave
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                got = Got(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                outer.got.put(got)
                reply = outer.behave(got)
                if reply.hang_up:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response_only(reply.status)
                for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a client that ends first is no failure of the test
                    self.wfile.write(reply.body)

            do_POST = do_GET = _any

            def log_message(self, *args: object) -> None:
                """What a server logs is not what is tested."""

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._httpd.server_port
        self._thread = threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def next(self) -> Got:
        return self.got.get(timeout=WAIT_SECONDS)

    def close(self) -> None:
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()


@contextmanager
def serving(behave: Behaviour | Reply = Reply()) -> Iterator[Server]:
    server = Server(behave if callable(behave) else lambda _: behave)
    try:
        yield server
    finally:
        server.close()


def echo(got: Got) -> Reply:
    """An error page that quotes the whole request, as debug pages of frameworks do."""
    head = "".join(f"{name}: {value}\n" for name, value in got.headers.items())
    body = f"bad request {got.path}\n{head}\n".encode() + got.body
    return Reply(400, body, {"X-Echo": got.path, "Content-Type": "text/plain"})


def alert(
    status: str = "firing",
    name: str = "TrainerStarved",
    run: str = "a",
    starts_at: float = T0,
    ends_at: float | None = None,
    annotations: Mapping[str, str] | None = None,
    url: str = "http://rollscope.lab:8050/?run=a&at=1800000000",
    **labels: str,
) -> AlertItem:
    found = {"alertname": name, "run": run, "severity": "warning", "class": "tuning", **labels}
    texts = {
        "summary": "The trainer waits 62 % of its step",
        "description": "trainer_wait_ratio is 0.62, the limit is 0.4, for 5 min.",
    }
    given = texts if annotations is None else annotations
    return AlertItem(status, found, given, starts_at, ends_at, fingerprint(tuple(found.items())), url)


def note(*alerts: AlertItem, status: str = "firing", reason: str = "firing", truncated: int = 0) -> Notification:
    return Notification(
        receiver="ops",
        run="a",
        group_key=GROUP_KEY,
        group_labels={"alertname": "TrainerStarved", "run": "a"},
        status=status,
        alerts=alerts or (alert(),),
        truncated=truncated,
        reason=reason,
        external_url="http://rollscope.lab:8050",
    )
