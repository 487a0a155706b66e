"""Process of a simulated run: HTTP servers for engines, router and sandbox provider, and the run directory."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO, TypeVar

from demo.cluster import Cluster
from demo.engine import MAX_MODEL_LEN
from demo.faults import Fault
from demo.orchestrator import Evals
from demo.pages import Page, SglangPage, router_page
from demo.prime import PrimeRun, Traces
from demo.pushes import Instrument, Poster
from demo.records import Observer
from demo.scenarios import SCENARIOS, Scenario
from demo.servers import GrpcServer, ModalApi, PrimeApi, Reply, by_path, serve, url_of
from demo.slime import SlimeCluster, SlimeHook, SlimeRun, SlimeTruth
from demo.truth import RolloutTruth, SandboxTruth, Truth
from demo.verl import AgentRun, AgentTruth, VerlCluster, VerlRun, VerlTruth

# ---- process
# Event time, one lock, the servers, the control channel on standard input and output.

# Interval of following the wall clock, s. Four times per second is documented; this leaves room on a busy machine.
_FOLLOW_SECONDS = 0.2

T = TypeVar("T")


class EnginePage(Protocol):
    """State of an engine at a moment, in seconds since the run began."""

    content_type: ClassVar[str]

    def render(self, now: float) -> bytes: ...


@dataclass(frozen=True)
class Pace:
    """Event time as a function of the wall clock: `sim` at `wall`, then `speed` times as fast. Epoch seconds."""

    wall: float
    sim: float
    speed: float

    def at(self, wall: float) -> float:
        return self.sim + (wall - self.wall) * self.speed


class Demo:
    """A simulation with its servers and files. All times are epoch seconds.

    Attributes:
        cluster: the simulation, of the class that its stack names.
        start: when the run began, which may be before the clock's start.
        instrument: collects the lines that an instrumented scenario posts; None if it posts nothing.
        poster: where they are posted.
        ready: contents of the ready line.
    """

    def __init__(
        self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        self.scenario = row = SCENARIOS[scenario]
        self.seed, self.folder, self.records_from = seed, folder, records_from
        self.start = start - (row.sandboxes.age_seconds if row.sandboxes else 0.0)
        self.run_dir = folder / "run"
        self.pace: Pace | None = None
        self.instrument: Instrument | SlimeHook | None = None
        self.poster: Poster | None = None
        self._lock, self._buried = threading.Lock(), set[int]()
        self._grpc: GrpcServer | None = None
        stack = _stack(row)
        self.cluster = stack.cluster(row, seed, faults)
        self.pages = stack.pages(self)
        routes = stack.routes(self)
        # The engines' servers come first, in their order.
        self._servers = [
            serve(f"engine-{i}", by_path({"/metrics": partial(self._metrics, i), **routes}))
            for i in range(len(self.pages))
        ]
        self.urls = [url_of(server) for server in self._servers]
        self.run_dir.mkdir(parents=True)
        self.ready = {
            "ready": True,
            "run": row.run,
            "scenario": row.name,
            "seed": seed,
            "start": self.start,
            "engines": self.urls,
            "run_dir": str(self.run_dir),
            "truth": str(folder / "truth.jsonl"),
        } | stack.write(self)
        self._advance(start)

    def page(self, index: int) -> bytes:
        return self.read(lambda: self.pages[index].render(self.cluster.now))

    def _metrics(self, index: int) -> Reply:
        return Reply(200, self.pages[index].content_type, self.page(index))

    def serve(self, name: str, answer: Callable[[str, Mapping[str, str]], Reply]) -> str:
        """Starts one more server; returns its URL."""
        self._servers.append(serve(name, answer))
        return url_of(self._servers[-1])

    def serve_modal(self, api: ModalApi) -> str:
        """Starts the Modal API; returns its URL.

        Raises:
            ImportError: without the extra that brings its messages.
        """
        self._grpc = GrpcServer("modal-api", api.calls)
        return self._grpc.url

    def engine_targets(self, collector: str, seconds: float) -> list[dict[str, object]]:
        """Returns every engine as a target, with its interval."""
        return [
            {"source": url, "name": f"engine-{index}", "collector": collector, "seconds": seconds}
            for index, url in enumerate(self.urls)
        ]

    def advance(self, until: float) -> float:
        """Simulates up to `until`; returns the event time reached, which never goes back."""
        with self._lock:
            reached = self._advance(until)
            lines = self.instrument.take() if self.instrument and self.poster else []
        # Outside the lock, because the receiver may request a page meanwhile.
        if lines and self.poster:
            self.poster.post(lines)
        return reached

    def push_to(self, url: str, token: str) -> None:
        """Sets the server for posts; earlier lines are posted with the next advance."""
        self.poster = Poster(url, self.scenario.run, token)

    def _advance(self, until: float) -> float:
        if until - self.start > self.cluster.now:
            self.cluster.advance(until - self.start)
            self._bury()
        return self.start + float(self.cluster.now)

    def _bury(self) -> None:
        """Closes the port of a dead engine."""
        for engine in self.cluster.engines:
            if engine.is_dead and engine.index not in self._buried:
                self._buried.add(engine.index)
                self._servers[engine.index].shutdown()
                self._servers[engine.index].server_close()

    def follow(self, pace: Pace) -> None:
        """Follows the wall clock from now on."""
        is_first = self.pace is None
        self.go_live()
        self.pace = pace
        if is_first:
            threading.Thread(target=self._keep_up, name="follow", daemon=True).start()

    def go_live(self) -> None:
        """From now on starts are posted too, and the rollouts in flight, if the scenario posts."""
        with self._lock:
            if self.instrument is not None and not self.instrument.is_live:
                groups = self.cluster.open_groups
                self.instrument.go_live(rollout for group in groups for rollout in group.rollouts)

    def _keep_up(self) -> None:
        while self.pace is not None:
            self.advance(self.pace.at(time.time()))
            time.sleep(_FOLLOW_SECONDS)

    def read(self, answer: Callable[[], T]) -> T:
        """Returns the answer of the simulation at the present."""
        with self._lock:
            if self.pace is not None:
                self._advance(self.pace.at(time.time()))
            return answer()

    def close(self) -> None:
        """Stops serving and closes the files; the process ends by `leave`."""
        self.pace = None
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for observer in self.cluster.observers:
            observer.close()
        if self._grpc is not None:
            self._grpc.close()


# -- control channel -------------------------------------------------------------------------------------------


def control(demo: Demo, commands: Iterable[str], answers: TextIO) -> None:
    """Answers one JSON object per line until the commands end."""
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
    """Exits at once: files are flushed after every advance, and no thread may delay the exit."""
    os._exit(0)


# ---- stacks
# What differs between the stacks: the simulation, the engines' pages and routes, the writers of files and truth.

# Interval of pages, s: Prometheus' default. There are a dozen pages of fifty kilobytes.
_SGLANG_SECONDS = 15.0
# The interval in the scrape configuration that verl writes for Prometheus, s.
_VERL_SECONDS = 10.0
# Facts in no file, which the user configures: a task's largest reward, and that it needs no sandbox.
_VERL_FACTS = {"max_reward": 1.0, "has_sandbox": 0.0}
_NO_MODAL = "the run's sandboxes on Modal are not served: they need the extra modal (uv tool install '.[modal]')"


@dataclass(frozen=True)
class Stack:
    """A trainer with its engines.

    Attributes:
        cluster: the simulation; it has `now`, `engines`, `observers`, `faults`, `advance` and, if it posts,
            `open_groups`.
        pages: the engines' pages.
        routes: what an engine's server answers besides `/metrics`, by path.
        write: adds the writers of the run's files, of its posts and of the truth; returns its part of the ready line.
    """

    cluster: Callable[[Scenario, int, Sequence[Fault]], Any]
    pages: Callable[[Demo], Sequence[EnginePage]]
    routes: Callable[[Demo], Mapping[str, Callable[[], Reply]]]
    write: Callable[[Demo], dict[str, object]]


def _stack(row: Scenario) -> Stack:
    return _STACKS["slime" if row.slime else "verl" if row.verl else "agents" if row.agents else "prime"]


# -- prime-rl on vLLM, with sandboxes


def _prime_routes(demo: Demo) -> Mapping[str, Callable[[], Reply]]:
    model = demo.scenario.model
    card = {"id": model, "object": "model", "created": int(demo.start), "owned_by": "vllm", "root": model}
    card |= {"parent": None, "max_model_len": MAX_MODEL_LEN}
    models = json.dumps({"object": "list", "data": [card]}, separators=(",", ":")).encode()
    return {
        "/health": lambda: Reply(200, "", b""),
        "/version": lambda: Reply(200, "application/json", b'{"version":"0.32.0"}'),
        "/v1/models": lambda: Reply(200, "application/json", models),
    }


def _write_prime(demo: Demo) -> dict[str, object]:
    row, seed, folder, start, since = demo.scenario, demo.seed, demo.folder, demo.start, demo.records_from
    orchestrator, observers = demo.cluster.orchestrator, demo.cluster.observers
    harness = orchestrator.harness
    traces = Traces(row, seed, orchestrator, demo.run_dir, start, since)
    truth = RolloutTruth(orchestrator, folder, start)
    observers += [PrimeRun(row, seed, orchestrator, demo.run_dir, start, demo.urls), traces, truth]
    observers.append(Truth(row, seed, folder, start, harness, demo.cluster.faults))
    posts = list[Observer]()
    if row.sandboxes is not None:
        demo.instrument = Instrument(row, seed, start, since)
        posts.append(demo.instrument)
    if row.evals is not None:
        observers.append(Evals(row.evals, seed, [traces, truth, *posts]))
    observers += posts
    ready: dict[str, object] = {"truth_rollouts": str(folder / "truth_rollouts.jsonl")}
    ready |= {"pushes": True} if posts else {}
    return ready | _serve_sandboxes(demo) if harness is not None else ready


def _serve_sandboxes(demo: Demo) -> dict[str, object]:
    """Serves the accounts of the sandbox providers; returns their part of the ready line."""
    harness, folder = demo.cluster.orchestrator.harness, demo.folder
    api = PrimeApi(harness.provider, demo.seed, demo.start)
    url = demo.serve(
        "sandbox-api", lambda path, headers: demo.read(lambda: api.respond(path, headers, demo.cluster.now))
    )
    demo.cluster.observers.append(SandboxTruth(demo.cluster.orchestrator, harness, folder, demo.start))
    found: dict[str, object] = {
        "sandbox_api": {"url": url, "key": api.key},
        "truth_sandboxes": str(folder / "truth_sandboxes.jsonl"),
    }
    if harness.judges is None:
        return found
    try:
        modal = ModalApi(harness.judges, demo.seed, demo.start, demo.read)
        keys = {"token_id": modal.token_id, "token_secret": modal.token_secret}
        return found | {"modal_api": {"url": demo.serve_modal(modal), "app": modal.app, **keys}}
    except ImportError:  # the messages come with an extra; without it, everything else runs
        return found | {"missing": _NO_MODAL}


# -- slime on SGLang


def _slime_pages(demo: Demo) -> Sequence[EnginePage]:
    row, plan = demo.scenario, demo.cluster.plan
    gigabytes = plan.weight_gigabytes, plan.kv_gigabytes
    return [SglangPage(one, row.model, plan.context_tokens, gigabytes) for one in demo.cluster.engines]


def _slime_routes(demo: Demo) -> Mapping[str, Callable[[], Reply]]:
    path = f"/models/{demo.scenario.model.rpartition('/')[2]}"

    def model_info() -> bytes:
        info = {"model_path": path, "tokenizer_path": path, "is_generation": True}
        return json.dumps(info | {"weight_version": str(demo.cluster.version)}).encode()

    return {
        "/health": lambda: Reply(200, "", b""),
        "/model_info": lambda: Reply(200, "application/json", demo.read(model_info)),
    }


def _write_slime(demo: Demo) -> dict[str, object]:
    """The router's metrics port, and the job's printed log."""
    row, seed, run_dir = demo.scenario, demo.seed, demo.run_dir

    def router() -> Reply:
        page = demo.read(lambda: router_page(demo.cluster.engines, demo.urls, row.model))
        return Reply(200, SglangPage.content_type, page)

    url = demo.serve("router", by_path({"/metrics": router}))
    demo.instrument = SlimeHook(row, seed, demo.start, demo.records_from)
    truth = SlimeTruth(row, seed, demo.folder, demo.start, demo.cluster.faults)
    demo.cluster.observers += [SlimeRun(row, seed, run_dir, demo.start), demo.instrument, truth]
    return {
        "targets": [
            *demo.engine_targets("sglang", _SGLANG_SECONDS),
            {"source": url, "name": "router", "collector": "sglang_router", "seconds": _SGLANG_SECONDS},
            {"source": str(run_dir), "name": "trainer", "collector": "slime"},
        ],
        "facts": {"max_reward": 1.0},
        "pushes": True,
    }


# -- verl on vLLM: synchronous, and asynchronous with agents


def _write_verl(demo: Demo) -> dict[str, object]:
    row, seed, run_dir = demo.scenario, demo.seed, demo.run_dir
    run = VerlRun(row, seed, run_dir, demo.start, demo.records_from)
    demo.cluster.observers += [run, VerlTruth(row, seed, demo.folder, demo.start, demo.cluster.faults)]
    return {
        "targets": [
            *demo.engine_targets("vllm", _VERL_SECONDS),
            {"source": str(run_dir), "name": "trainer", "collector": "verl"},
            {"source": str(run.generations), "name": "rollouts", "collector": "verl_rollouts"},
        ],
        "facts": _VERL_FACTS,
    }


def _write_agents(demo: Demo) -> dict[str, object]:
    row, seed, run_dir = demo.scenario, demo.seed, demo.run_dir
    # A reward function has every sample and may post it; which samples were trained comes from the sampler's hook.
    demo.instrument = Instrument(row, seed, demo.start, demo.records_from, uses=True)
    run = AgentRun(row, seed, demo.cluster.orchestrator, run_dir, demo.start)
    truth = AgentTruth(row, seed, demo.folder, demo.start, None, demo.cluster.faults)
    demo.cluster.observers += [run, demo.instrument, truth]
    return {
        "targets": [
            *demo.engine_targets("vllm", _VERL_SECONDS),
            {"source": str(run_dir), "name": "trainer", "collector": "verl"},
        ],
        "facts": _VERL_FACTS,
        "pushes": True,
    }


def _vllm_pages(demo: Demo, *, served: bool) -> Sequence[EnginePage]:
    return [Page(engine, demo.start, served=served) for engine in demo.cluster.engines]


# In verl the trainer's process holds the engines: their servers show metrics alone.
_BARE_VLLM = partial(_vllm_pages, served=False)

_STACKS = {
    "prime": Stack(Cluster, partial(_vllm_pages, served=True), _prime_routes, _write_prime),
    "slime": Stack(SlimeCluster, _slime_pages, _slime_routes, _write_slime),
    "verl": Stack(VerlCluster, _BARE_VLLM, lambda demo: {}, _write_verl),
    "agents": Stack(Cluster, _BARE_VLLM, lambda demo: {}, _write_agents),
}
