"""What alerting is tried on: engines whose queue we set, a run that has begun, and receivers that may be away."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.nasty import PAGE

_T = TypeVar("_T")
_WAITING = re.compile(rb"^(vllm:num_requests_waiting\{[^}]*\}) \S+$", re.MULTILINE)
WAIT_SECONDS = 60.0


class Quiet(BaseHTTPRequestHandler):
    """Answers whole bodies and keeps its log to itself."""

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Engines(ThreadingHTTPServer):
    """Any number of vLLM engines, `URL/NAME/metrics` each: a recorded page with a queue of our choice."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Engine)
        self._page = PAGE.read_bytes()
        self._bodies: dict[str, bytes] = {}

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}/metrics"

    def set(self, name: str, waiting: int) -> None:
        """From now on the engine says that so many requests wait."""
        self._bodies[name] = _WAITING.sub(rb"\1 %d" % waiting, self._page)

    def body(self, name: str) -> bytes | None:
        return self._bodies.get(name)


class _Engine(Quiet):
    server: Engines
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.server.body(self.path.split("/")[1])
        self.reply(*((404, b"") if body is None else (200, body)))


@dataclass(frozen=True)
class Got:
    """A request as it came. `at` is `time.time()`; `body` is None without JSON."""

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class Receiver:
    """A port that refuses connections until `listen`, then takes everything; `/echo...` is quoted back with 400."""

    def __init__(self) -> None:
        self._got: list[Got] = []
        self._changed = threading.Condition()
        receiver = self

        class Handler(Quiet):
            def _any(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                # Kept before it is answered: who was answered can be asked for.
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.loads(raw) if raw else None
                receiver._keep(Got(time.time(), self.command, self.path, headers, body))
                quote = f"{self.path} {headers}".encode() + raw
                self.reply(*((400, quote) if self.path.startswith("/echo") else (200, b"ok")))

            do_GET = do_POST = _any

        # Bound, not listening: the port is ours, and connections to it are refused.
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.server_bind()
        self._thread: threading.Thread | None = None
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def listen(self) -> None:
        """Be there."""
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _keep(self, got: Got) -> None:
        with self._changed:
            self._got.append(got)
            self._changed.notify_all()

    @property
    def got(self) -> list[Got]:
        with self._changed:
            return list(self._got)

    def until(self, pick: Callable[[list[Got]], _T | None], seconds: float = WAIT_SECONDS) -> _T:
        """What `pick` finds in all requests so far, as soon as it finds something."""
        with self._changed:
            found = self._changed.wait_for(lambda: pick(self._got), seconds)
            if not found:
                raise AssertionError(f"not in time; got {[(one.path, one.body) for one in self._got]}")
            return found

    def told(self, target: str) -> list[dict[str, Any]]:
        """Alertmanager messages about a target, in their order."""
        return [one.body for one in self.got if one.body and _about(one.body, target)]

    def message(self, target: str, status: str) -> dict[str, Any]:
        """The first message about a target with that status; waits for it."""

        def pick(got: list[Got]) -> dict[str, Any] | None:
            of = (one.body for one in got if one.body and _about(one.body, target))
            return next((body for body in of if body["status"] == status), None)

        return self.until(pick)


def _about(body: Any, target: str) -> bool:
    return isinstance(body, dict) and any(a["labels"].get("target") == target for a in body.get("alerts", ()))


@contextmanager
def engines(*names: str) -> Iterator[Engines]:
    """Engines with empty queues."""
    made = Engines()
    for name in names:
        made.set(name, 0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


@contextmanager
def receiver(*, listening: bool = True) -> Iterator[Receiver]:
    made = Receiver()
    if listening:
        made.listen()
    try:
        yield made
    finally:
        made.close()


def begin(folder: Path) -> Path:
    """A prime-rl run directory with five steps that ended just now: its lifecycle is `running`."""
    folder.mkdir(parents=True)
    times = '"time/step": 2.0, "time/wait_for_batch": 1.0, "time/forward_backward": 1.0'
    now = time.time()
    lines = [f'{{"step": {n}, "time": {now - 12 + 2 * n}, {times}}}\n' for n in range(5)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def run_toml(name: str, folder: Path, engines: Engines, targets: list[str]) -> str:
    """The `[[run.NAME.target]]` tables of a run directory and of engines, each named as it is."""
    tables = [f'[[run.{name}.target]]\npath = "{folder}"\nname = "trainer"\n']
    tables += [f'[[run.{name}.target]]\nurl = "{engines.url(one)}"\nname = "{one}"\n' for one in targets]
    return "".join(tables)
