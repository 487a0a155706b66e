"""The process of an asynchronous verl run: the pages of its vLLM servers, its directory, and what is posted."""

from collections.abc import Mapping, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path

from server.demo.agent_run import AgentRun, AgentTruth
from server.demo.cluster import Cluster
from server.demo.faults import Fault
from server.demo.http_server import NOT_FOUND, Reply, serve, url_of
from server.demo.instrument import Instrument
from server.demo.scenarios import SCENARIOS
from server.demo.served import Served
from server.demo.vllm_page import Page

_CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
# As often as the scrape configuration has it that verl writes for Prometheus.
_PAGE_SECONDS = 10.0


class AgentDemo(Served):
    """The simulation with its servers and files. All times here are epoch seconds."""

    def __init__(
        self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        self.cluster = Cluster(SCENARIOS[scenario], seed, faults)
        super().__init__(self.cluster, start)
        self.pages = [Page(engine, start, served=False) for engine in self.cluster.engines]
        self._servers = [self._serve_engine(index) for index in range(len(self.pages))]
        # A reward function sees every sample and may post it; what was trained on it learns from the sampler's hook.
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
        urls = [url_of(server) for server in self._servers]
        engines = [
            {"source": url, "name": f"engine-{index}", "collector": "vllm", "seconds": _PAGE_SECONDS}
            for index, url in enumerate(urls)
        ]
        return {
            "ready": True,
            "run": row.run,
            "scenario": row.name,
            "seed": seed,
            "start": self.start,
            "engines": urls,
            "run_dir": str(run_dir),
            "truth": str(folder / "truth.jsonl"),
            "targets": [*engines, {"source": str(run_dir), "name": "trainer", "collector": "verl"}],
            # No file says what a task's largest reward is, nor that it needs no sandbox: its user does.
            "facts": {"max_reward": 1.0, "has_sandbox": 0.0},
            "pushes": True,
        }

    def page(self, index: int) -> bytes:
        return self._look(lambda: self.pages[index].render(self.cluster.now))

    def _serve_engine(self, index: int) -> ThreadingHTTPServer:
        def respond(path: str, headers: Mapping[str, str]) -> Reply:
            found = path.split("?", 1)[0] == "/metrics"
            return Reply(200, _CONTENT_TYPE, self.page(index)) if found else NOT_FOUND

        return serve(f"engine-{index}", respond)
