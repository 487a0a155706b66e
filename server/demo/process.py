"""The process: HTTP servers for engines and sandbox provider, the control channel on standard input and output.

One lock guards the simulation. Pages show it at its present event time, or, when it follows the wall clock, at the
moment they are asked for.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TextIO, TypeVar

from server.demo.cluster import Cluster
from server.demo.engine_stats import MAX_MODEL_LEN
from server.demo.grpc_server import GrpcServer
from server.demo.http_server import NOT_FOUND, Reply, serve, url_of
from server.demo.instrument import Instrument, Poster
from server.demo.modal_api import ModalApi
from server.demo.prime_api import PrimeApi
from server.demo.prime_run import PrimeRun
from server.demo.rollout_truth import RolloutTruth
from server.demo.sandbox_truth import SandboxTruth
from server.demo.scenarios import SCENARIOS
from server.demo.traces import Traces
from server.demo.truth import Truth
from server.demo.vllm_page import Page

# Four times a second is promised; a little more often leaves room for a busy machine.
_FOLLOW_SECONDS = 0.2
_NO_MODAL = "the run's sandboxes on Modal are not served: that needs pip install 'rollscope[modal]'"
_CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


T = TypeVar("T")


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

    def __init__(self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0) -> None:
        self._records_from = records_from
        self.cluster = Cluster(SCENARIOS[scenario], seed)
        plan = self.cluster.scenario.sandboxes
        # A run may have been going for a while when the clock begins.
        self.start = start - (plan.age_seconds if plan else 0.0)
        self.pages = [Page(engine, self.start) for engine in self.cluster.engines]
        self.pace: Pace | None = None
        # Where what no file says is posted, of the scenario that is instrumented.
        self.poster: Poster | None = None
        self.instrument = Instrument(self.cluster.scenario, seed, self.start, records_from) if plan else None
        self._lock = threading.Lock()
        self._servers = [_serve_engine(self, index) for index in range(len(self.pages))]
        self.api = self._serve_sandboxes(seed)
        self._modal: GrpcServer | None = None
        self.ready = self._write_files(seed, folder)
        self._advance(start)

    def _serve_sandboxes(self, seed: int) -> PrimeApi | None:
        harness = self.cluster.orchestrator.harness
        if harness is None:
            return None
        api = PrimeApi(harness.provider, seed, self.start)
        self._servers.append(serve("sandbox-api", lambda path, headers: self._ask(api, path, headers)))
        return api

    def _serve_modal(self, seed: int) -> dict[str, object]:
        """Serve the second account, where there is one; answers what the ready line says of it.

        Its messages come with an extra: without it, everything else runs all the same.
        """
        harness = self.cluster.orchestrator.harness
        if harness is None or harness.judges is None:
            return {}
        try:
            api = ModalApi(harness.judges, seed, self.start, self._look)
            self._modal = GrpcServer("modal-api", api.calls)
        except ImportError:
            return {"missing": _NO_MODAL}
        keys = {"token_id": api.token_id, "token_secret": api.token_secret}
        return {"modal_api": {"url": self._modal.url, "app": api.app, **keys}}

    def _write_files(self, seed: int, folder: Path) -> dict[str, object]:
        scenario, orchestrator = self.cluster.scenario, self.cluster.orchestrator
        urls = [url_of(server) for server in self._servers[: len(self.pages)]]
        run_dir = folder / "run"
        run_dir.mkdir(parents=True)
        harness = orchestrator.harness
        run = PrimeRun(scenario, seed, orchestrator, run_dir, self.start, urls)
        traces = Traces(scenario, seed, orchestrator, run_dir, self.start, self._records_from)
        self.rollout_truth = RolloutTruth(orchestrator, folder, self.start)
        self.cluster.observers += [run, traces, self.rollout_truth, Truth(scenario, seed, folder, self.start, harness)]
        ready = {
            "ready": True,
            "engines": urls,
            "run_dir": str(run_dir),
            "truth": str(folder / "truth.jsonl"),
            "truth_rollouts": str(folder / "truth_rollouts.jsonl"),
            "run": scenario.run,
            "scenario": scenario.name,
            "seed": seed,
            "start": self.start,
        }
        if self.instrument is not None:
            self.cluster.observers.append(self.instrument)
            ready["pushes"] = True
        if harness is not None and self.api is not None:
            self.cluster.observers.append(SandboxTruth(orchestrator, harness, folder, self.start))
            ready["sandbox_api"] = {"url": url_of(self._servers[-1]), "key": self.api.key}
            ready["truth_sandboxes"] = str(folder / "truth_sandboxes.jsonl")
            ready |= self._serve_modal(seed)
        return ready

    def advance(self, until: float) -> float:
        """Simulate up to `until`; answers the event time reached, which never goes back."""
        with self._lock:
            reached = self._advance(until)
            lines = self.instrument.take() if self.instrument and self.poster else []
        # Whoever takes them may be asking for a page meanwhile.
        if lines and self.poster:
            self.poster.post(lines)
        return reached

    def push_to(self, url: str, token: str) -> None:
        """Post what no file says to this server from now on; what came before goes with the next advance."""
        self.poster = Poster(url, self.cluster.scenario.run, token)

    def _advance(self, until: float) -> float:
        if until - self.start > self.cluster.now:
            self.cluster.advance(until - self.start)
        return self.start + self.cluster.now

    def follow(self, pace: Pace) -> None:
        """Keep up with the wall clock from now on."""
        is_first = self.pace is None
        self.go_live()
        self.pace = pace
        if is_first:
            threading.Thread(target=self._keep_up, name="follow", daemon=True).start()

    def go_live(self) -> None:
        """From now on what is under way is told too, where the scenario tells anything."""
        with self._lock:
            if self.instrument is not None and not self.instrument.is_live:
                groups = self.cluster.orchestrator.incomplete.values()
                self.instrument.go_live(rollout for group in groups for rollout in group.rollouts)

    def _keep_up(self) -> None:
        while self.pace is not None:
            self.advance(self.pace.at(time.time()))
            time.sleep(_FOLLOW_SECONDS)

    def page(self, index: int) -> bytes:
        return self._look(lambda: self.pages[index].render(self.cluster.now))

    def _ask(self, api: PrimeApi, path: str, headers: Mapping[str, str]) -> Reply:
        return self._look(lambda: api.respond(path, headers, self.cluster.now))

    def _look(self, answer: Callable[[], T]) -> T:
        with self._lock:
            self._catch_up()
            return answer()

    def _catch_up(self) -> None:
        if self.pace is not None:
            self._advance(self.pace.at(time.time()))

    def close(self) -> None:
        """Stop serving and close the files; the process itself just ends (`leave`)."""
        self.pace = None
        for server in self._servers:
            server.shutdown()
            server.server_close()
        if self._modal is not None:
            self._modal.close()
        for observer in self.cluster.observers:
            observer.close()


# -- HTTP ------------------------------------------------------------------------------------------------------


def _serve_engine(demo: Demo, index: int) -> ThreadingHTTPServer:
    routes: dict[str, Callable[[], Reply]] = {
        "/metrics": lambda: Reply(200, _CONTENT_TYPE, demo.page(index)),
        "/health": lambda: Reply(200, "", b""),
        "/version": lambda: Reply(200, "application/json", b'{"version":"0.32.0"}'),
        "/v1/models": lambda: Reply(200, "application/json", _models(demo)),
    }

    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        route = routes.get(path.split("?", 1)[0])
        return route() if route else NOT_FOUND

    return serve(f"engine-{index}", respond)


def _models(demo: Demo) -> bytes:
    model = demo.cluster.scenario.model
    card = {"id": model, "object": "model", "created": int(demo.start), "owned_by": "vllm", "root": model}
    card |= {"parent": None, "max_model_len": MAX_MODEL_LEN}
    return json.dumps({"object": "list", "data": [card]}, separators=(",", ":")).encode()


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
    if "push_to" in command:
        demo.push_to(str(command["push_to"]), str(command.get("token", "")))
        return {"pushing": True}
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
