"""A TRL run on an MLflow server: answers recorded from the real server (3.17.2), replayed whole and as the run grew."""

import asyncio
import json
import lzma
from collections.abc import Iterator
from statistics import fmean
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from collectors.formats import mlflow as mlflow_format
from collectors.model import Limits, Reading, ScrapeError
from collectors.trainers import mlflow
from tests.collectors._reading import TESTDATA, by_step

RECORDED = json.loads(lzma.decompress((TESTDATA / "mlflow" / "answers.json.xz").read_bytes()))
API = "/api/2.0/mlflow"


class Server:
    """The recorded server as it was when ``until`` (milliseconds) had come; ``asked`` counts histories."""

    def __init__(self) -> None:
        self.until, self.status, self.asked, self.page = 1 << 60, "FINISHED", 0, 1 << 30
        self.runs: list[dict[str, Any]] = RECORDED["runs"]["runs"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = self.answer(scope["path"], parse_qs(scope["query_string"].decode()), scope["method"])
        code = 404 if answer is None else 200
        await send({"type": "http.response.start", "status": code, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def answer(self, path: str, query: dict[str, list[str]], method: str) -> Any:
        if (method, path) == ("POST", f"{API}/experiments/search"):
            return RECORDED["experiments"]
        if (method, path) == ("POST", f"{API}/runs/search"):
            return {"runs": [self.run(run) for run in self.runs]}
        if (method, path) == ("GET", f"{API}/metrics/get-history"):
            self.asked += 1
            known = self.known(query["metric_key"][0])
            start = int(query.get("page_token", ["0"])[0])
            more = {"next_page_token": str(start + self.page)} if start + self.page < len(known) else {}
            return {"metrics": known[start : start + self.page], **more}
        return None

    def known(self, key: str) -> list[dict[str, Any]]:
        return [one for one in RECORDED["histories"][key]["metrics"] if one["timestamp"] <= self.until]

    def run(self, run: dict[str, Any]) -> dict[str, Any]:
        newest = [known[-1] for key in RECORDED["histories"] if (known := self.known(key))]
        return {"info": {**run["info"], "status": self.status}, "data": {**run["data"], "metrics": newest}}


@pytest.fixture
def server() -> Server:
    return Server()


def polls(server: Server, state: dict[str, Any], **limits: float) -> Iterator[Reading]:
    """Polls until there is no more, as the scrape loop does."""

    async def once() -> Reading:
        async with httpx.AsyncClient(base_url="http://mlflow:5000", transport=httpx.ASGITransport(server)) as client:
            return await mlflow.poll(client, state, Limits(**limits))

    while True:
        reading = asyncio.run(once())
        yield reading
        if not reading.more:
            return


def numbers(readings: list[Reading]) -> dict[tuple[str, Any, int | None], float]:
    return {(s.metric, s.labels, s.step): s.value for reading in readings for s in reading.samples}


def test_the_recorded_run(server: Server) -> None:
    readings = list(polls(server, {}))
    samples = [sample for reading in readings for sample in reading.samples]

    def last_ten(metric: str) -> float:
        return fmean(list(by_step(samples, metric).values())[-10:])

    assert last_ten("groups_zero_advantage_ratio") == 0.125
    assert last_ten("response_tokens_mean") == pytest.approx(39.39, abs=0.005)
    assert last_ten("reward_mean") == pytest.approx(1.148, abs=0.0005)
    assert last_ten("trainer_step_seconds") == pytest.approx(0.381, abs=0.0005)
    assert last_ten("generation_seconds") == pytest.approx(0.1365, abs=0.00005)
    facts = readings[-1].facts
    assert (facts["framework"], facts["group_size"], facts["run_name"]) == ("trl", 4, "grpo-tiny-cpu")
    assert (facts["lifecycle"], readings[-1].unmapped, readings[-1].cursor) == ("finished", {}, None)


def test_as_it_grew_it_is_the_same(server: Server) -> None:
    """Looked at every few steps, between a step's profiling and its row too; pages of seven values."""
    whole, state, readings = numbers(list(polls(server, {}))), {}, []
    stamps = sorted({one["timestamp"] for one in RECORDED["histories"]["reward"]["metrics"]})
    server.status, server.page = "RUNNING", 7
    for until in [*stamps[4:40:5], *[stamp - 20 for stamp in stamps[41:60]], *stamps[60:], 1 << 60]:
        server.until = until
        readings += polls(server, state)
        assert "lifecycle" not in readings[-1].facts or until >= stamps[-1]
    assert numbers(readings) == pytest.approx(whole)
    assert len([s for r in readings for s in r.samples]) == len(whole)  # and nothing twice


def test_a_step_later_costs_no_history(server: Server) -> None:
    """The newest values come with the search; only keys logged several times a step are asked for."""
    state: dict[str, Any] = {}
    stamps = sorted({one["timestamp"] for one in RECORDED["histories"]["reward"]["metrics"]})
    server.status, server.until = "RUNNING", stamps[10]
    list(polls(server, state))
    server.asked, server.until = 0, stamps[11]
    (reading,) = polls(server, state)
    assert {s.step for s in reading.samples} == {12}
    assert server.asked == 1  # GRPO's log-probs are timed twice a step


def test_the_newest_run_that_runs_goes_first(server: Server) -> None:
    old = {**server.runs[0], "info": {**server.runs[0]["info"], "run_id": "old", "run_name": "old"}}
    server.runs = [server.runs[0], old]
    (reading, *_) = polls(server, {})
    assert reading.facts["run_name"] == "grpo-tiny-cpu"
    server.run = lambda run: {**run, "info": {**run["info"], "status": "RUNNING" if run is old else "FINISHED"}}
    (reading, *_) = polls(server, {})
    assert reading.facts["run_name"] == "old"


def test_a_run_that_takes_over_begins_anew(server: Server) -> None:
    state: dict[str, Any] = {}
    first = numbers(list(polls(server, state)))
    server.runs = [{**server.runs[0], "info": {**server.runs[0]["info"], "run_id": "next"}}]
    readings = list(polls(server, state))
    assert numbers(readings) == first
    assert min(s.step for s in readings[-1].samples if s.step is not None) == 1  # the steps that go back tell it


@pytest.mark.parametrize("option", ["trl", "pytorch"])
def test_a_framework_may_be_named(server: Server, option: str) -> None:
    state = {"options": {"framework": option}}
    if option == "trl":
        assert list(polls(server, state))[-1].facts["framework"] == "trl"
        return
    with pytest.raises(ScrapeError, match="pytorch is not one of") as caught:
        list(polls(server, state))
    assert caught.value.kind == "not_a_run"


def test_keys_that_are_nobodys_say_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORDED, "histories", {"loss": RECORDED["histories"]["loss"]})
    server.runs = [{**server.runs[0], "data": {"metrics": [], "params": []}}]
    with pytest.raises(ScrapeError, match="trl"):
        list(polls(server, {}))


def test_a_server_without_a_run_says_so(server: Server) -> None:
    server.runs = []
    with pytest.raises(ScrapeError, match="no run on this MLflow server") as caught:
        list(polls(server, {}))
    assert caught.value.kind == "not_a_run"


def test_the_server_is_known_by_its_answer(server: Server) -> None:
    async def ask(path: str) -> bool:
        base = f"http://mlflow:5000{path}"
        async with httpx.AsyncClient(base_url=base, transport=httpx.ASGITransport(server)) as client:
            return await mlflow_format.matches_server(client, Limits())

    assert asyncio.run(ask(""))
    assert not asyncio.run(ask("/elsewhere"))
