"""What engines tell beside the page: asked seldom, bounded, and never at the page's cost."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx
import pytest

from collectors.engine_pages import side_requests
from collectors.generators import sglang, vllm
from collectors.model import Collector, Limits, Reading, ScrapeError
from tests.collectors._reading import TESTDATA, value

VLLM_PAGE = (TESTDATA / "vllm" / "default" / "metrics_1795246807140_idle.prom").read_bytes()
SGLANG_PAGE = (TESTDATA / "sglang" / "driven" / "metrics_1795248877036_load.prom").read_bytes()
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 1024}]}
DEVELOPMENT = {
    "/is_paused": {"is_paused": True},
    "/weight_info": {"weight_version": "17"},
    "/v1/models": MODELS,
    "/version": {"version": "0.32.0"},
    # As recorded, 0.32.0; a hundred more keys left out.
    "/server_info": {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": 2048, "max_num_seqs": 32}}},
}
Answer = object | int | Callable[[], bytes]


@dataclass
class Engine:
    """A server: its page, and JSON (or a status, or bytes) by route. What is not there is 404."""

    page: bytes | int
    routes: Mapping[str, Answer]
    asked: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    slow: str = ""
    state: dict[str, object] = field(default_factory=dict)

    async def __call__(self, scope, receive, send) -> None:
        path = scope["path"]
        self.asked.append(path)
        self.queries.append(scope["query_string"].decode())
        if path == self.slow:
            await asyncio.Event().wait()
        answer = self.page if path.endswith("metrics") else self.routes.get(path, 404)
        status = answer if isinstance(answer, int) else 200
        body = answer if isinstance(answer, bytes) else b"sekret" if status != 200 else json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def poll(self, collector: Collector, now: float, url: str = "http://engine:8000") -> Reading:
        """One poll at an event time; `asked` holds what it asked beside the page."""
        self.state["now"] = now
        self.asked.clear()

        async def run() -> Reading:
            async with httpx.AsyncClient(base_url=url, transport=httpx.ASGITransport(self)) as client:
                return await collector.poll(client, self.state, Limits())

        reading = asyncio.run(run())
        self.asked = [path for path in self.asked if not path.endswith("metrics")]
        return reading


def metrics(reading: Reading) -> set[str]:
    return {sample.metric for sample in reading.samples}


def test_a_vllm_engine_in_dev_mode() -> None:
    engine = Engine(VLLM_PAGE, DEVELOPMENT)
    reading = engine.poll(vllm.COLLECTOR, 1000.0)
    assert value(reading, "generator_paused") == 1
    assert value(reading, "generator_policy_version") == 17
    assert value(reading, "generator_max_sequence_tokens") == 1024
    assert value(reading, "generator_request_limit") == 32
    assert [(e.kind, e.detail) for e in reading.events] == [("config_change", "an engine is vLLM 0.32.0")]
    assert reading.gaps == ()
    assert engine.asked == ["/is_paused", "/weight_info", "/v1/models", "/version", "/server_info"]


def test_the_configuration_is_asked_for_as_json() -> None:
    engine = Engine(VLLM_PAGE, DEVELOPMENT)
    engine.poll(vllm.COLLECTOR, 1000.0)
    assert (engine.queries[-1], set(engine.queries[:-1])) == ("config_format=json", {""})


@pytest.mark.parametrize(
    "answer",
    ["text", {}, {"vllm_config": "max_num_seqs=32"}, {"vllm_config": {"scheduler_config": {"max_num_seqs": None}}}],
)
def test_a_configuration_of_another_shape_tells_no_limit(answer: object) -> None:
    reading = Engine(VLLM_PAGE, {"/server_info": answer}).poll(vllm.COLLECTOR, 1000.0)
    assert "generator_request_limit" not in metrics(reading)


def test_answers_hold_until_the_next_which_comes_after_15_seconds() -> None:
    engine = Engine(VLLM_PAGE, dict(DEVELOPMENT))
    engine.poll(vllm.COLLECTOR, 1000.0)
    engine.routes["/weight_info"] = {"weight_version": "18"}
    for now in (1005.0, 1010.0):
        reading = engine.poll(vllm.COLLECTOR, now)
        assert engine.asked == []
        assert value(reading, "generator_policy_version") == 17
        assert value(reading, "generator_max_sequence_tokens") == 1024
        assert reading.events == ()  # told once
    reading = engine.poll(vllm.COLLECTOR, 1015.0)
    assert engine.asked == ["/is_paused", "/weight_info"]
    assert value(reading, "generator_policy_version") == 18
    engine.poll(vllm.COLLECTOR, 1600.0)
    assert engine.asked == ["/is_paused", "/weight_info", "/v1/models", "/version", "/server_info"]


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_what_is_not_available_is_no_error_and_asked_again_after_10_minutes(status: int) -> None:
    engine = Engine(VLLM_PAGE, dict.fromkeys(DEVELOPMENT, status))
    reading = engine.poll(vllm.COLLECTOR, 1000.0)
    assert (reading.gaps, reading.events) == ((), ())
    assert not {"generator_paused", "generator_policy_version"} & metrics(reading)
    for now in (1015.0, 1300.0, 1599.0):
        engine.poll(vllm.COLLECTOR, now)
        assert engine.asked == []
    engine.poll(vllm.COLLECTOR, 1600.0)
    assert len(engine.asked) == 5


@pytest.mark.parametrize("answer", [500, b"sekret {", b""])
def test_a_failure_is_told_once_and_never_fails_the_page(answer: Answer) -> None:
    engine = Engine(VLLM_PAGE, {**DEVELOPMENT, "/is_paused": answer})
    first = engine.poll(vllm.COLLECTOR, 1000.0)
    assert value(first, "generator_requests_running", (("engine", "0"),)) == 0
    (gap,) = first.gaps
    assert gap.startswith("is_paused: ") and "sekret" not in gap
    # The others wait for the next page, so that a dying engine is asked one thing at a time.
    assert engine.asked == ["/is_paused"]
    second = engine.poll(vllm.COLLECTOR, 1005.0)
    assert value(second, "generator_policy_version") == 17
    again = engine.poll(vllm.COLLECTOR, 1015.0)
    assert (engine.asked[0], again.gaps) == ("/is_paused", ())


def test_an_answer_that_does_not_come_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_requests, "BUDGET_SECONDS", 0.02)
    engine = Engine(VLLM_PAGE, DEVELOPMENT, slow="/is_paused")
    reading = engine.poll(vllm.COLLECTOR, 1000.0)
    assert reading.samples_scraped == 425
    assert "is_paused: no complete answer" in reading.gaps[0]
    assert engine.asked == ["/is_paused"]


def test_what_failed_is_not_remembered() -> None:
    engine = Engine(VLLM_PAGE, dict(DEVELOPMENT))
    engine.poll(vllm.COLLECTOR, 1000.0)
    engine.routes["/weight_info"] = 500
    for now in (1015.0, 1020.0):
        assert "generator_policy_version" not in metrics(engine.poll(vllm.COLLECTOR, now))


def test_a_page_newer_than_the_answer_ends_the_pause() -> None:
    call = 'http_requests_total{{handler="/{}",method="POST",status="2xx"}} 1\n'
    paused = b'vllm:num_requests_running{engine="0"} 32\n' + call.format("pause").encode()
    engine = Engine(paused, DEVELOPMENT)
    assert value(engine.poll(vllm.COLLECTOR, 1000.0), "generator_paused") == 1
    engine.page = paused + call.format("resume").encode()
    assert value(engine.poll(vllm.COLLECTOR, 1005.0), "generator_paused") == 0


def test_a_failed_page_asks_for_the_health_only() -> None:
    engine = Engine(500, DEVELOPMENT)
    with pytest.raises(ScrapeError, match="500"):
        engine.poll(vllm.COLLECTOR, 1000.0)
    assert engine.asked == ["/metrics", "/health"]


def test_a_clock_that_went_back_asks_again() -> None:
    engine = Engine(VLLM_PAGE, DEVELOPMENT)
    engine.poll(vllm.COLLECTOR, 1000.0)
    engine.poll(vllm.COLLECTOR, 500.0)
    assert len(engine.asked) == 5


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://engine:8000/metrics", "/is_paused"),
        ("http://proxy/engine-0", "/engine-0/is_paused"),
        ("http://proxy/engine-0/metrics/", "/engine-0/is_paused"),
    ],
)
def test_the_server_behind_the_page_is_asked(url: str, asked: str) -> None:
    engine = Engine(VLLM_PAGE, {})
    engine.poll(vllm.COLLECTOR, 1000.0, url)
    assert engine.asked[0] == asked


def test_a_router_is_not_asked_for_its_engines() -> None:
    engine = Engine(VLLM_PAGE, DEVELOPMENT)
    assert "generator_policy_version" not in metrics(
        engine.poll(vllm.COLLECTOR, 1000.0, "http://router:30000/engine_metrics")
    )
    assert engine.asked == []


@pytest.mark.parametrize(
    ("version", "number"), [("3", 3.0), (4, 4.0), ("default", None), ("", None), (None, None), ({}, None), (True, None)]
)
def test_versions_of_weights(version: object, number: float | None) -> None:
    told = side_requests.weights({"weight_version": version})
    assert [sample.value for sample in told.samples] == ([] if number is None else [number])
    assert told.events == ()


def test_a_version_that_is_no_number_is_an_event_with_its_name_as_key() -> None:
    told = side_requests.weights({"weight_version": "step-12/checkpoint\nx" + "y" * 200})
    (event,) = told.events
    assert told.samples == ()
    assert (event.kind, len(event.key)) == ("weights_published", len("served:") + 64)
    assert "\n" not in event.key + event.detail
    assert event.version is None
    (numbered,) = side_requests.weights({"weight_version": "step-12"}).events
    assert (numbered.key, numbered.version) == ("served:step-12", 12)


@pytest.mark.parametrize("answer", [None, [], {}, 3, "x", {"data": []}, {"data": [3]}, {"data": [{}]}])
def test_answers_of_another_shape_say_nothing(answer: object) -> None:
    for read in (
        side_requests.weights,
        side_requests.sequence_limit,
        side_requests.version("x"),
        vllm._is_paused,
        sglang._configured,
    ):
        assert read(answer) == side_requests.SideAnswer()


def test_a_paused_that_is_no_flag_says_nothing() -> None:
    assert vllm._is_paused({"is_paused": "false"}) == side_requests.SideAnswer()


def test_an_sglang_engine() -> None:
    loads = {"version": "0.5.23", "loads": [{"dp_rank": 0, "max_running_requests": 64}]}
    engine = Engine(SGLANG_PAGE, {"/model_info": {"weight_version": "5"}, "/v1/loads": loads})
    reading = engine.poll(sglang.COLLECTOR, 1000.0)
    assert value(reading, "generator_policy_version") == 5
    assert value(reading, "generator_request_limit") == 64
    assert value(reading, "generator_requests_running") == 61
    assert engine.asked == ["/model_info", "/v1/loads"]


def test_the_limit_of_every_data_parallel_rank() -> None:
    loads = [{"dp_rank": rank, "max_running_requests": 64} for rank in (0, 1)]
    assert [sample.labels for sample in sglang._configured({"loads": loads}).samples] == [
        (("engine", "0"),),
        (("engine", "1"),),
    ]


def test_an_older_sglang_engine_is_asked_by_the_older_name() -> None:
    engine = Engine(SGLANG_PAGE, {"/get_model_info": {"weight_version": "5"}})
    assert value(engine.poll(sglang.COLLECTOR, 1000.0), "generator_policy_version") == 5
    assert engine.asked == ["/model_info", "/get_model_info", "/v1/loads"]
    # It logs a warning in newer ones, and the newer name costs an answer here: what answered is kept.
    engine.poll(sglang.COLLECTOR, 1015.0)
    assert engine.asked == ["/get_model_info"]


LOADS = (
    b"# TYPE sglang_num_running_reqs gauge\n"
    b'sglang_num_running_reqs{dp_rank="0"} 12\nsglang_num_running_reqs{dp_rank="1"} 11\n'
    b'# TYPE sglang_num_waiting_reqs gauge\nsglang_num_waiting_reqs{dp_rank="0"} 3\n'
    b'# TYPE sglang_num_used_tokens gauge\nsglang_num_used_tokens{dp_rank="0"} 900\n'
    b'# TYPE sglang_max_total_num_tokens gauge\nsglang_max_total_num_tokens{dp_rank="0"} 1000\n'
    b'# TYPE sglang_token_usage gauge\nsglang_token_usage{dp_rank="0"} 0.9\n'
    b'# TYPE sglang_max_running_requests gauge\nsglang_max_running_requests{dp_rank="0"} 64\n'
    b'# TYPE sglang_queues_paused gauge\nsglang_queues_paused{dp_rank="0"} 2\n'
)


def test_an_sglang_engine_without_enable_metrics_is_read_over_its_loads() -> None:
    engine = Engine(404, {"/v1/loads": LOADS})
    reading = engine.poll(sglang.COLLECTOR, 1000.0)
    zero = (("engine", "0"),)
    assert value(reading, "generator_requests_running", (("engine", "1"),)) == 11
    assert value(reading, "generator_requests_waiting", zero) == 3
    assert value(reading, "kv_cache_used_tokens", zero) == 900
    assert value(reading, "kv_cache_capacity_tokens", zero) == 1000
    assert value(reading, "generator_request_limit", zero) == 64
    assert value(reading, "generator_requests_paused", zero) == 2
    assert engine.asked == ["/v1/loads", "/model_info", "/get_model_info"]
    assert sglang.matches_page(LOADS)


def test_without_either_the_flag_is_named() -> None:
    with pytest.raises(ScrapeError, match="HTTP 404: there is no such page: started without --enable-metrics"):
        Engine(404, {}).poll(sglang.COLLECTOR, 1000.0)


def test_the_health_check_of_sglang_which_generates_a_token_is_never_requested() -> None:
    engine = Engine(500, {"/get_model_info": {}, "/health": {}})
    with pytest.raises(ScrapeError, match="the engine works") as raised:
        engine.poll(sglang.COLLECTOR, 1000.0)
    assert raised.value.kind == "no_metrics"
    assert engine.asked == ["/metrics", "/model_info", "/get_model_info"]


def test_another_failure_of_the_page_is_not_covered_up() -> None:
    with pytest.raises(ScrapeError, match=r"HTTP 500$"):
        Engine(500, {"/v1/loads": LOADS}).poll(sglang.COLLECTOR, 1000.0)
