"""Process of a verl run: the pages of its vLLM servers, and the run directory."""

from collections.abc import Sequence
from pathlib import Path

from server.demo.faults import Fault
from server.demo.scenarios import SCENARIOS
from server.demo.served import Served
from server.demo.verl_cluster import VerlCluster
from server.demo.verl_run import VerlRun
from server.demo.verl_truth import VerlTruth
from server.demo.vllm_page import Page

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
