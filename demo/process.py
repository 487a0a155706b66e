"""Process of a prime-rl run: HTTP servers for vLLM engines and the sandbox provider, and the run directory."""

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TextIO, TypeVar

from demo.cluster import Cluster
from demo.engine import MAX_MODEL_LEN, Engine
from demo.faults import Fault
from demo.orchestrator import Evals
from demo.pages import Page, SglangPage, router_page
from demo.prime import PrimeRun, Traces
from demo.pushes import Instrument, Poster
from demo.records import Watcher
from demo.scenarios import SCENARIOS, Scenario
from demo.servers import GrpcServer, ModalApi, PrimeApi, Reply, by_path, serve, url_of
from demo.slime import SlimeCluster, SlimeHook, SlimeRun, SlimeTruth
from demo.truth import RolloutTruth, SandboxTruth, Truth
from demo.verl import AgentRun, AgentTruth, VerlCluster, VerlRun, VerlTruth

# ---- served
# Base of every stack's process: event time, one lock, the servers, the control channel on standard input and output.

# Interval of following the wall clock, s. Four times per second is documented; this leaves room on a busy machine.
_FOLLOW_SECONDS = 0.2

T = TypeVar("T")


class Simulated(Protocol):
    """A cluster of any stack. Times are seconds since the run began."""

    scenario: Scenario
    now: float

    @property
    def engines(self) -> Sequence[Engine]: ...
    @property
    def observers(self) -> Sequence[Watcher]: ...
    def advance(self, until: float) -> None: ...


class EnginePage(Protocol):
    """State of an engine at a moment, in seconds since the run began."""

    content_type: ClassVar[str]

    def render(self, now: float) -> bytes: ...


class Teller(Protocol):
    """Collects the lines that are posted."""

    def take(self) -> list[str]: ...


@dataclass(frozen=True)
class Pace:
    """Event time as a function of the wall clock: `sim` at `wall`, then `speed` times as fast. Epoch seconds."""

    wall: float
    sim: float
    speed: float

    def at(self, wall: float) -> float:
        return self.sim + (wall - self.wall) * self.speed


class Served(ABC):
    """A simulation with its servers and files. All times are epoch seconds. `ready`: contents of the ready line."""

    def __init__(self, cluster: Simulated, start: float, pages: Sequence[EnginePage]) -> None:
        self._simulated = cluster
        self.pages = pages
        self.start = start
        self.ready: dict[str, object] = {}
        self.pace: Pace | None = None
        # Destination of posts, of an instrumented scenario.
        self.poster: Poster | None = None
        self._lock = threading.Lock()
        # The engines' servers come first, in their order.
        self._servers = [serve(f"engine-{i}", by_path(self._routes(i))) for i in range(len(pages))]
        self.urls = [url_of(server) for server in self._servers]
        self._buried: set[int] = set()

    @property
    @abstractmethod
    def teller(self) -> Teller | None:
        """Returns the collector of posts; None if the scenario posts nothing."""

    @abstractmethod
    def tell_what_is_under_way(self) -> None:
        """Switches to live: from now on starts are posted too, if the scenario posts."""

    def page(self, index: int) -> bytes:
        return self._look(lambda: self.pages[index].render(self._simulated.now))

    def _routes(self, index: int) -> Mapping[str, Callable[[], Reply]]:
        """Returns the answers of an engine's server, by path."""
        return {"/metrics": lambda: Reply(200, self.pages[index].content_type, self.page(index))}

    def _engine_targets(self, collector: str, seconds: float) -> list[dict[str, object]]:
        """Returns every engine as a target, with its interval."""
        return [
            {"source": url, "name": f"engine-{index}", "collector": collector, "seconds": seconds}
            for index, url in enumerate(self.urls)
        ]

    def _told(self, seed: int, folder: Path, run_dir: Path) -> dict[str, object]:
        """Returns the ready line's contents that all stacks share."""
        row = self._simulated.scenario
        return {
            "ready": True,
            "run": row.run,
            "scenario": row.name,
            "seed": seed,
            "start": self.start,
            "engines": self.urls,
            "run_dir": str(run_dir),
            "truth": str(folder / "truth.jsonl"),
        }

    def advance(self, until: float) -> float:
        """Simulates up to `until`; returns the event time reached, which never goes back."""
        with self._lock:
            reached = self._advance(until)
            lines = self.teller.take() if self.teller and self.poster else []
        # Outside the lock, because the receiver may request a page meanwhile.
        if lines and self.poster:
            self.poster.post(lines)
        return reached

    def push_to(self, url: str, token: str) -> None:
        """Sets the server for posts; earlier lines are posted with the next advance."""
        self.poster = Poster(url, self._simulated.scenario.run, token)

    def _advance(self, until: float) -> float:
        if until - self.start > self._simulated.now:
            self._simulated.advance(until - self.start)
            self._bury()
        return self.start + self._simulated.now

    def _bury(self) -> None:
        """Closes the port of a dead engine."""
        for engine in self._simulated.engines:
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
        """From now on rollouts in flight are posted too, if the scenario posts."""
        with self._lock:
            self.tell_what_is_under_way()

    def _keep_up(self) -> None:
        while self.pace is not None:
            self.advance(self.pace.at(time.time()))
            time.sleep(_FOLLOW_SECONDS)

    def _look(self, answer: Callable[[], T]) -> T:
        with self._lock:
            self._catch_up()
            return answer()

    def _catch_up(self) -> None:
        if self.pace is not None:
            self._advance(self.pace.at(time.time()))

    def close(self) -> None:
        """Stops serving and closes the files; the process ends by `leave`."""
        self.pace = None
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for observer in self._simulated.observers:
            observer.close()


# -- control channel -------------------------------------------------------------------------------------------


def control(demo: Served, commands: Iterable[str], answers: TextIO) -> None:
    """Answers one JSON object per line until the commands end."""
    _say(answers, demo.ready)
    for line in commands:
        try:
            _say(answers, _obey(demo, json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            _say(answers, {"error": f"{type(error).__name__}: {error}"})


def _obey(demo: Served, command: dict[str, object]) -> dict[str, object]:
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


_NO_MODAL = "the run's sandboxes on Modal are not served: they need the extra modal (uv tool install '.[modal]')"


class Demo(Served):
    """The simulation with its servers and files. All times here are epoch seconds."""

    def __init__(
        self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        self._records_from = records_from
        self.cluster = Cluster(SCENARIOS[scenario], seed, faults)
        plan = self.cluster.scenario.sandboxes
        # A run may have started before the clock begins.
        began = start - (plan.age_seconds if plan else 0.0)
        super().__init__(self.cluster, began, [Page(engine, began) for engine in self.cluster.engines])
        self.instrument = Instrument(self.cluster.scenario, seed, self.start, records_from) if plan else None
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
        """Serves the second account, if there is one; returns its part of the ready line.

        Its messages come with an extra; without it, everything else runs.
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
        run_dir = folder / "run"
        run_dir.mkdir(parents=True)
        harness = orchestrator.harness
        run = PrimeRun(scenario, seed, orchestrator, run_dir, self.start, self.urls)
        traces = Traces(scenario, seed, orchestrator, run_dir, self.start, self._records_from)
        self.rollout_truth = RolloutTruth(orchestrator, folder, self.start)
        self.cluster.observers += [run, traces, self.rollout_truth]
        self.cluster.observers.append(Truth(scenario, seed, folder, self.start, harness, self.cluster.faults))
        if scenario.evals is not None:
            observers = [traces, self.rollout_truth, *([self.instrument] if self.instrument else [])]
            self.cluster.observers.append(Evals(scenario.evals, seed, observers))
        ready = self._told(seed, folder, run_dir)
        ready["truth_rollouts"] = str(folder / "truth_rollouts.jsonl")
        if self.instrument is not None:
            self.cluster.observers.append(self.instrument)
            ready["pushes"] = True
        if harness is not None and self.api is not None:
            self.cluster.observers.append(SandboxTruth(orchestrator, harness, folder, self.start))
            ready["sandbox_api"] = {"url": url_of(self._servers[-1]), "key": self.api.key}
            ready["truth_sandboxes"] = str(folder / "truth_sandboxes.jsonl")
            ready |= self._serve_modal(seed)
        return ready

    def _routes(self, index: int) -> Mapping[str, Callable[[], Reply]]:
        return {
            **super()._routes(index),
            "/health": lambda: Reply(200, "", b""),
            "/version": lambda: Reply(200, "application/json", b'{"version":"0.32.0"}'),
            "/v1/models": lambda: Reply(200, "application/json", self._models()),
        }

    def _models(self) -> bytes:
        model = self.cluster.scenario.model
        card = {"id": model, "object": "model", "created": int(self.start), "owned_by": "vllm", "root": model}
        card |= {"parent": None, "max_model_len": MAX_MODEL_LEN}
        return json.dumps({"object": "list", "data": [card]}, separators=(",", ":")).encode()

    def _ask(self, api: PrimeApi, path: str, headers: Mapping[str, str]) -> Reply:
        return self._look(lambda: api.respond(path, headers, self.cluster.now))

    @property
    def teller(self) -> Instrument | None:
        return self.instrument

    def tell_what_is_under_way(self) -> None:
        if self.instrument is not None and not self.instrument.is_live:
            groups = self.cluster.orchestrator.incomplete.values()
            self.instrument.go_live(rollout for group in groups for rollout in group.rollouts)

    def close(self) -> None:
        super().close()
        if self._modal is not None:
            self._modal.close()


# ---- slime process
# The process of a slime run: SGLang servers, the router's metrics port, and the job's printed log.

# Interval of pages, s: Prometheus' default. There are a dozen pages of fifty kilobytes.
_PAGE_SECONDS = 15.0


class SlimeDemo(Served):
    """The simulation with its servers and files. All times here are epoch seconds."""

    def __init__(
        self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        self.cluster = SlimeCluster(SCENARIOS[scenario], seed, faults)
        row, plan = self.cluster.scenario, self.cluster.plan
        gigabytes = plan.weight_gigabytes, plan.kv_gigabytes
        pages = [SglangPage(one, row.model, plan.context_tokens, gigabytes) for one in self.cluster.engines]
        super().__init__(self.cluster, start, pages)
        self._servers.append(serve("router", by_path({"/metrics": self._router})))
        self.hook = SlimeHook(row, seed, start, records_from)
        self.ready = self._write_files(seed, folder)
        self._advance(start)

    @property
    def teller(self) -> SlimeHook:
        return self.hook

    def tell_what_is_under_way(self) -> None:
        if not self.hook.is_live:
            self.hook.go_live(rollout for group in self.cluster.open.values() for rollout in group.rollouts)

    def _write_files(self, seed: int, folder: Path) -> dict[str, object]:
        row, run_dir = self.cluster.scenario, folder / "run"
        run_dir.mkdir(parents=True)
        truth = SlimeTruth(row, seed, folder, self.start, self.cluster.faults)
        self.cluster.observers += [SlimeRun(row, seed, run_dir, self.start), self.hook, truth]
        engines = self._engine_targets("sglang", _PAGE_SECONDS)
        router = {"source": url_of(self._servers[-1]), "name": "router", "collector": "sglang_router"}
        trainer = {"source": str(run_dir), "name": "trainer", "collector": "slime"}
        return self._told(seed, folder, run_dir) | {
            "targets": [*engines, router | {"seconds": _PAGE_SECONDS}, trainer],
            "facts": {"max_reward": 1.0},
            "pushes": True,
        }

    def _routes(self, index: int) -> Mapping[str, Callable[[], Reply]]:
        return {
            **super()._routes(index),
            "/health": lambda: Reply(200, "", b""),
            "/model_info": lambda: Reply(200, "application/json", self._look(self._model_info)),
        }

    def _model_info(self) -> bytes:
        path = f"/models/{self.cluster.scenario.model.rpartition('/')[2]}"
        info = {"model_path": path, "tokenizer_path": path, "is_generation": True}
        return json.dumps(info | {"weight_version": str(self.cluster.version)}).encode()

    def _router(self) -> Reply:
        page = self._look(lambda: router_page(self.cluster.engines, self.urls, self.cluster.scenario.model))
        return Reply(200, SglangPage.content_type, page)


# ---- verl process
# Process of a verl run: the pages of its vLLM servers, and the run directory.

# The interval in the scrape configuration that verl writes for Prometheus, s.
PAGE_SECONDS = 10.0
# Facts in no file, which the user configures: a task's largest reward, and that it needs no sandbox.
FACTS = {"max_reward": 1.0, "has_sandbox": 0.0}


class VerlDemo(Served):
    """The simulation with its servers and files. All times here are epoch seconds."""

    def __init__(
        self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        self.cluster = VerlCluster(SCENARIOS[scenario], seed, faults)
        super().__init__(self.cluster, start, [Page(one, start, served=False) for one in self.cluster.engines])
        self.ready = self._write_files(seed, folder, records_from)
        self._advance(start)

    @property
    def teller(self) -> None:
        """Nothing to do, because its files contain everything."""

    def tell_what_is_under_way(self) -> None:
        """Nothing is posted."""

    def _write_files(self, seed: int, folder: Path, since: float) -> dict[str, object]:
        row, run_dir = self.cluster.scenario, folder / "run"
        run_dir.mkdir(parents=True)
        run = VerlRun(row, seed, run_dir, self.start, since)
        self.cluster.observers += [run, VerlTruth(row, seed, folder, self.start, self.cluster.faults)]
        return self._told(seed, folder, run_dir) | {
            "targets": [
                *self._engine_targets("vllm", PAGE_SECONDS),
                {"source": str(run_dir), "name": "trainer", "collector": "verl"},
                {"source": str(run.generations), "name": "rollouts", "collector": "verl_rollouts"},
            ],
            "facts": FACTS,
        }


# ---- agent process
# Process of an asynchronous verl run: pages of its vLLM servers, its run directory, and posted rollouts.


class AgentDemo(Served):
    """The simulation with its servers and files. All times here are epoch seconds."""

    def __init__(
        self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        self.cluster = Cluster(SCENARIOS[scenario], seed, faults)
        super().__init__(self.cluster, start, [Page(one, start, served=False) for one in self.cluster.engines])
        # A reward function has every sample and may post it; which samples were trained comes from the sampler's hook.
        self.instrument = Instrument(self.cluster.scenario, seed, start, records_from, uses=True)
        self.ready = self._write_files(seed, folder)
        self._advance(start)

    @property
    def teller(self) -> Instrument:
        return self.instrument

    def tell_what_is_under_way(self) -> None:
        if not self.instrument.is_live:
            groups = self.cluster.orchestrator.incomplete.values()
            self.instrument.go_live(rollout for group in groups for rollout in group.rollouts)

    def _write_files(self, seed: int, folder: Path) -> dict[str, object]:
        row, run_dir = self.cluster.scenario, folder / "run"
        run_dir.mkdir(parents=True)
        run = AgentRun(row, seed, self.cluster.orchestrator, run_dir, self.start)
        truth = AgentTruth(row, seed, folder, self.start, None, self.cluster.faults)
        self.cluster.observers += [run, self.instrument, truth]
        return self._told(seed, folder, run_dir) | {
            "targets": [
                *self._engine_targets("vllm", PAGE_SECONDS),
                {"source": str(run_dir), "name": "trainer", "collector": "verl"},
            ],
            "facts": FACTS,
            "pushes": True,
        }


# ---- stacks
# The process of a scenario, by its stack.


def begin(
    scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0, faults: Sequence[Fault] = ()
) -> Served:
    """Simulated up to `start` and served. Epoch times."""
    row = SCENARIOS[scenario]
    kind = SlimeDemo if row.slime else VerlDemo if row.verl else AgentDemo if row.agents else Demo
    return kind(scenario, seed, folder, start, records_from, faults)
