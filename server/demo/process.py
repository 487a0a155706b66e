"""The process: HTTP servers for the engines, and the control channel on standard input and output.

One lock guards the simulation. Pages show it at its present event time, or, when it follows the wall clock, at the
moment they are asked for.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TextIO

from server.demo.cluster import Cluster
from server.demo.engine_stats import MAX_MODEL_LEN
from server.demo.prime_run import PrimeRun
from server.demo.scenarios import SCENARIOS
from server.demo.truth import Truth
from server.demo.vllm_page import Page

# Four times a second is promised; a little more often leaves room for a busy machine.
_FOLLOW_SECONDS = 0.2
_CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
Answer = tuple[int, str, bytes]


@dataclass(frozen=True)
class Pace:
    """Event time as a function of the wall clock: `sim` at `wall`, then `speed` times as fast. Epoch seconds."""

    wall: float
    sim: float
    speed: float

    def at(self, wall: float) -> float:
        return self.sim + (wall - self.wall) * self.speed


class Demo:
    """The simulation with its servers and files. All times here are epoch seconds."""

    def __init__(self, scenario: str, seed: int, folder: Path, start: float) -> None:
        self.start = start
        self.cluster = Cluster(SCENARIOS[scenario], seed)
        self.pages = [Page(engine, start) for engine in self.cluster.engines]
        self.pace: Pace | None = None
        self._lock = threading.Lock()
        self._servers = [_serve(self, index) for index in range(len(self.pages))]
        self.ready = self._write_files(seed, folder)

    def _write_files(self, seed: int, folder: Path) -> dict[str, object]:
        scenario = self.cluster.scenario
        urls = [f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers]
        run_dir = folder / "run"
        run_dir.mkdir(parents=True)
        run = PrimeRun(scenario, seed, self.cluster.orchestrator, run_dir, self.start, urls)
        self.cluster.observers += [run, Truth(scenario, seed, folder, self.start)]
        return {
            "ready": True,
            "engines": urls,
            "run_dir": str(run_dir),
            "truth": str(folder / "truth.jsonl"),
            "run": scenario.run,
            "scenario": scenario.name,
            "seed": seed,
            "start": self.start,
        }

    def advance(self, until: float) -> float:
        """Simulate up to `until`; answers the event time reached, which never goes back."""
        with self._lock:
            return self._advance(until)

    def _advance(self, until: float) -> float:
        if until - self.start > self.cluster.now:
            self.cluster.advance(until - self.start)
        return self.start + self.cluster.now

    def follow(self, pace: Pace) -> None:
        """Keep up with the wall clock from now on."""
        is_first = self.pace is None
        self.pace = pace
        if is_first:
            threading.Thread(target=self._keep_up, name="follow", daemon=True).start()

    def _keep_up(self) -> None:
        while self.pace is not None:
            self.advance(self.pace.at(time.time()))
            time.sleep(_FOLLOW_SECONDS)

    def page(self, index: int) -> bytes:
        with self._lock:
            if self.pace is not None:
                self._advance(self.pace.at(time.time()))
            return self.pages[index].render(self.cluster.now)

    def close(self) -> None:
        """Stop serving and close the files; the process itself just ends (`leave`)."""
        self.pace = None
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for observer in self.cluster.observers:
            observer.close()


# -- HTTP ------------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up early is its own business; anything else is reported as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _serve(demo: Demo, index: int) -> ThreadingHTTPServer:
    routes: dict[str, Callable[[], Answer]] = {
        "/metrics": lambda: (200, _CONTENT_TYPE, demo.page(index)),
        "/health": lambda: (200, "", b""),
        "/version": lambda: (200, "application/json", b'{"version":"0.32.0"}'),
        "/v1/models": lambda: (200, "application/json", _models(demo)),
    }
    server = _Server(("127.0.0.1", 0), _handler(routes))
    # The interval only bounds how long `close` takes; requests are served at once.
    threading.Thread(target=server.serve_forever, args=(0.1,), name=f"engine-{index}", daemon=True).start()
    return server


def _models(demo: Demo) -> bytes:
    model = demo.cluster.scenario.model
    card = {"id": model, "object": "model", "created": int(demo.start), "owned_by": "vllm", "root": model}
    card |= {"parent": None, "max_model_len": MAX_MODEL_LEN}
    return json.dumps({"object": "list", "data": [card]}, separators=(",", ":")).encode()


def _handler(routes: dict[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "uvicorn"
        # Head and body are two writes; with Nagle's algorithm the second waits 40 ms for the client's delayed ACK.
        disable_nagle_algorithm = True
        sys_version = ""

        def do_GET(self) -> None:
            missing = (404, "application/json", b'{"detail":"Not Found"}')
            route = routes.get(self.path.split("?", 1)[0])
            status, kind, body = route() if route else missing
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            if kind:
                self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: standard error is for what goes wrong."""

    return Handler


# -- control channel -------------------------------------------------------------------------------------------


def control(demo: Demo, commands: Iterable[str], answers: TextIO) -> None:
    """Answer one JSON object per line until the commands end."""
    _say(answers, demo.ready)
    for line in commands:
        try:
            _say(answers, _obey(demo, json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            _say(answers, {"error": f"{type(error).__name__}: {error}"})


def _obey(demo: Demo, command: dict[str, object]) -> dict[str, object]:
    if "advance_to" in command:
        return {"t": demo.advance(_float(command["advance_to"]))}
    follow = command["follow"]
    if not isinstance(follow, dict):
        raise TypeError("follow must be an object")
    demo.follow(Pace(_float(follow["wall"]), _float(follow["sim"]), _float(follow["speed"])))
    return {"following": True}


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def _say(answers: TextIO, message: dict[str, object]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def leave() -> None:
    """Exit at once: files are flushed after every advance, and no thread may hold the process back."""
    os._exit(0)
