"""Process of an asynchronous verl run: pages of its vLLM servers, its run directory, and posted rollouts."""

from collections.abc import Sequence
from pathlib import Path

from server.demo.agent_run import AgentRun, AgentTruth
from server.demo.cluster import Cluster
from server.demo.faults import Fault
from server.demo.instrument import Instrument
from server.demo.scenarios import SCENARIOS
from server.demo.served import Served
from server.demo.verl_process import FACTS, PAGE_SECONDS
from server.demo.vllm_page import Page


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
