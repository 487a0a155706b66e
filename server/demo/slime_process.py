"""The process of a slime run: SGLang servers, the router's metrics port, and the job's printed log."""

import json
from collections.abc import Callable, Mapping, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path

from server.demo.faults import Fault
from server.demo.http_server import NOT_FOUND, Reply, serve, url_of
from server.demo.scenarios import SCENARIOS
from server.demo.served import Served
from server.demo.sglang_page import SglangPage, router_page
from server.demo.slime_cluster import SlimeCluster
from server.demo.slime_hook import SlimeHook
from server.demo.slime_run import SlimeRun
from server.demo.slime_truth import SlimeTruth

_PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# A dozen pages of fifty kilobytes: as often as Prometheus asks by default.
_PAGE_SECONDS = 15.0


class SlimeDemo(Served):
    """The simulation with its servers and files. All times here are epoch seconds."""

    def __init__(
        self, scenario: str, seed: int, folder: Path, start: float, records_from: float = 0.0,
        faults: Sequence[Fault] = (),
    ) -> None:  # fmt: skip
        self.cluster = SlimeCluster(SCENARIOS[scenario], seed, faults)
        super().__init__(self.cluster, start)
        row, plan = self.cluster.scenario, self.cluster.plan
        gigabytes = plan.weight_gigabytes, plan.kv_gigabytes
        self.pages = [SglangPage(one, row.model, plan.context_tokens, gigabytes) for one in self.cluster.engines]
        self._servers = [self._serve_engine(index) for index in range(len(self.pages))]
        self.urls = [url_of(server) for server in self._servers]
        self._servers.append(serve("router", self._router))
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
        engines = [
            {"source": url, "name": f"engine-{index}", "collector": "sglang", "seconds": _PAGE_SECONDS}
            for index, url in enumerate(self.urls)
        ]
        router = {"source": url_of(self._servers[-1]), "name": "router", "collector": "sglang_router"}
        trainer = {"source": str(run_dir), "name": "trainer", "collector": "slime"}
        return {
            "ready": True,
            "run": row.run,
            "scenario": row.name,
            "seed": seed,
            "start": self.start,
            "engines": self.urls,
            "run_dir": str(run_dir),
            "truth": str(folder / "truth.jsonl"),
            "targets": [*engines, router | {"seconds": _PAGE_SECONDS}, trainer],
            "facts": {"max_reward": 1.0},
            "pushes": True,
        }

    def page(self, index: int) -> bytes:
        return self._look(lambda: self.pages[index].render(self.cluster.now))

    def _serve_engine(self, index: int) -> ThreadingHTTPServer:
        routes: dict[str, Callable[[], Reply]] = {
            "/metrics": lambda: Reply(200, _PAGE_TYPE, self.page(index)),
            "/health": lambda: Reply(200, "", b""),
            "/model_info": lambda: Reply(200, "application/json", self._look(self._model_info)),
        }

        def respond(path: str, headers: Mapping[str, str]) -> Reply:
            route = routes.get(path.split("?", 1)[0])
            return route() if route else NOT_FOUND

        return serve(f"engine-{index}", respond)

    def _model_info(self) -> bytes:
        path = f"/models/{self.cluster.scenario.model.rpartition('/')[2]}"
        told = {"model_path": path, "tokenizer_path": path, "is_generation": True}
        return json.dumps(told | {"weight_version": str(self.cluster.version)}).encode()

    def _router(self, path: str, headers: Mapping[str, str]) -> Reply:
        if path.split("?", 1)[0] != "/metrics":
            return NOT_FOUND
        page = self._look(lambda: router_page(self.cluster.engines, self.urls, self.cluster.scenario.model))
        return Reply(200, _PAGE_TYPE, page)
