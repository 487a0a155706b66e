"""The process of a slime run: SGLang servers, the router's metrics port, and the job's printed log."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from server.demo.faults import Fault
from server.demo.http_server import Reply, by_path, serve, url_of
from server.demo.scenarios import SCENARIOS
from server.demo.served import Served
from server.demo.sglang_page import SglangPage, router_page
from server.demo.slime_cluster import SlimeCluster
from server.demo.slime_hook import SlimeHook
from server.demo.slime_run import SlimeRun
from server.demo.slime_truth import SlimeTruth

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
