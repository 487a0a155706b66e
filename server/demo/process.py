"""Process of a prime-rl run: HTTP servers for vLLM engines and the sandbox provider, and the run directory."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from server.demo.cluster import Cluster
from server.demo.engine_stats import MAX_MODEL_LEN
from server.demo.fates import Evals
from server.demo.faults import Fault
from server.demo.grpc_server import GrpcServer
from server.demo.http_server import Reply, serve, url_of
from server.demo.instrument import Instrument
from server.demo.modal_api import ModalApi
from server.demo.prime_api import PrimeApi
from server.demo.prime_run import PrimeRun
from server.demo.rollout_truth import RolloutTruth
from server.demo.sandbox_truth import SandboxTruth
from server.demo.scenarios import SCENARIOS
from server.demo.served import Served
from server.demo.traces import Traces
from server.demo.truth import Truth
from server.demo.vllm_page import Page

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
