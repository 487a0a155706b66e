"""Pushing into a real process, as a user does it: no configuration, a kill in between, the recipe as printed."""

import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests import support_postgres
from tests.e2e.program import Program, run

ROOT = Path(__file__).parent.parent.parent


def post(program: Program, path: str, **kwargs: Any) -> httpx.Response:
    return httpx.post(program.url + path, timeout=30, trust_env=False, **kwargs)


def known(status: dict[str, Any]) -> dict[str, float]:
    return {name: one["value"] for name, one in status["signals"].items() if one["value"] is not None}


def the_printed_recipe_pushes(program: Program) -> None:
    recipe, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/push.md").read_text("utf-8"), re.DOTALL)
    code = [line for line in recipe.splitlines() if line.strip()]
    assert len(code) <= 10 and recipe in (ROOT / "README.md").read_text("utf-8")
    names: dict[str, Any] = {}
    exec(recipe, names)
    for step in (1, 2, 3):
        answer = names["push"](
            "mine", step, url=program.url, trainer_step_seconds=31.5, reward_mean=0.42, entropy_mean=None
        )
        assert b'"taken":2' in answer
    wanted = {"trainer_step_seconds": 31.5, 'reward{stat="mean"}': 0.42}
    program.until("/api/v1/runs/mine/status", lambda s: known(s).items() >= wanted.items())


def test_a_run_that_only_pushes_survives_a_kill(tmp_path: Path) -> None:
    """An empty server needs no configuration; on its second life the recipe of the documentation is tried too."""
    with Program(tmp_path, "up") as program:
        assert program.get("/api/v1/runs").json() == []
        assert (program.get("/").status_code, program.get("/readyz").status_code) == (200, 200)
        assert program.get("/api/nope").headers["content-type"] == "application/json"
        asked = time.time() - 50
        boxes = [{"id": "a", "requested_at": asked}, {"id": "b", "requested_at": asked, "ready_at": asked + 10}]
        assert post(program, "/api/v1/runs/fresh/sandboxes", json=boxes).status_code == 200
        for step in range(1, 5):
            text = "trainer_step_seconds 30\nrollscope_trainer_wait_seconds 12\ntrained_tokens 1000\n"
            query = {"run": "fresh", "step": step, "interval": 600}
            assert post(program, "/api/v1/write", params=query, content=text).json()["taken"] == 3
        wanted = {"trainer_wait_ratio": 0.4, "trained_tokens_total": 4000.0, "sandboxes_created_total": 2.0}
        path = "/api/v1/runs/fresh/status"
        status = program.until(path, lambda s: known(s).items() >= wanted.items())
        assert status["lifecycle"] == "running"
        assert [(one["target"], one["kind"], one["up"]) for one in status["trust"]] == [("push", "push", True)]
        # One that is acknowledged and not yet collected when everything ends.
        assert post(program, "/api/v1/write", params={**query, "step": 5}, content=text).status_code == 200
        program.end(signal.SIGKILL)
    with Program(tmp_path, "up") as program:
        again = {**wanted, "trained_tokens_total": 5000.0}
        status = program.until(path, lambda s: known(s).items() >= again.items())
        assert (status["lifecycle"], known(status)['sandboxes{state="starting"}']) == ("running", 1.0)
        assert run(tmp_path, "status", "fresh", "--url", program.url).returncode == 0
        the_printed_recipe_pushes(program)
        assert program.end()[0] == 0


def otlp(value: float) -> bytes:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.name = "rollscope.queue_samples"
    point = metric.gauge.data_points.add()
    point.as_double, point.time_unix_nano = value, time.time_ns()
    return request.SerializeToString()


@pytest.mark.postgres
def test_who_takes_pushes_and_who_collects_may_be_two(tmp_path: Path, postgres_server: str) -> None:
    headers = {"content-type": "application/x-protobuf", "x-rollscope-run": "split"}
    with (
        support_postgres.database(postgres_server) as url,
        Program(tmp_path, "up", "--role", "collect", "--store", url) as collect,
        Program(tmp_path, "up", "--role", "web", "--store", url) as web,
    ):
        assert post(web, "/v1/metrics", content=otlp(7), headers=headers).status_code == 200
        web.until("/api/v1/runs/split/status", lambda s: known(s).get("queue_samples_now") == 7)
        # What it says of the run may come a tick after its first number.
        web.until("/api/v1/runs/split/status", lambda s: s["lifecycle"] == "running")
        collect.end(signal.SIGKILL)
        # Nobody collects: it waits.
        assert post(web, "/v1/metrics", content=otlp(9), headers=headers).status_code == 200
        with Program(tmp_path, "up", "--role", "collect", "--store", url) as heir:
            web.until("/api/v1/runs/split/status", lambda s: known(s).get("queue_samples_now") == 9)
            assert heir.end()[0] == 0
