"""Pushing metrics over HTTP, through the whole application with its gate. Both databases."""

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from json import dumps
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from collectors.otlp_names import Maps
from server.api import push as api_push
from server.api.app import close_api, create_api
from server.api.gate import PUSH_BYTES, Gate
from server.api.push import add_pushes
from server.api.runs import add_sandboxes
from server.config import settings
from server.lib.clock import ScaledClock
from server.push import metrics, otlp
from server.push.inbox import unpack_body
from server.push.targets import TOO_MANY
from server.query import Reader
from server.signals.model import TargetState
from server.store import Store
from server.store import inbox as store_inbox
from server.store.types import Batch

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")

DATA = Path(__file__).parent.parent / "testdata/otlp"
NOW = 1_795_300_870.0


class Web:
    """The application over a store, without a socket."""

    def __init__(
        self, store: Store, token: str | None = None, admitted: Callable[[str], bool] = lambda run: True,
        maps: Maps | None = None,
    ) -> None:  # fmt: skip
        clock = ScaledClock(NOW)
        self.store, reader = store, Reader(store, clock)
        api: FastAPI = create_api(reader, version="1", ready=lambda: None)
        add_sandboxes(api, reader, store, clock, admitted)
        add_pushes(api, store, clock, admitted, maps)
        close_api(api)
        self.app = Gate(api, hosts=["test"], token=token)

    def __call__(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return asyncio.run(self.ask(method, path, **kwargs))

    async def ask(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as client:
            return await client.request(method, path, **kwargs)

    def write(self, text: str | bytes, query: str = "run=r", **headers: str) -> httpx.Response:
        return self("POST", f"/api/v1/write?{query}", content=text, headers=headers)

    def otlp(self, body: bytes, query: str = "", **headers: str) -> httpx.Response:
        given = {"content-type": otlp.PROTOBUF, "content-encoding": "gzip", **headers}
        return self("POST", f"/v1/metrics{query}", content=body, headers={k: v for k, v in given.items() if v})


@pytest.fixture
def web(store: Store) -> Iterator[Web]:
    yield Web(store)


def one_point(name: str) -> bytes:
    gauge = {"name": name, "gauge": {"dataPoints": [{"asInt": "1"}]}}
    return dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [gauge]}]}]}).encode()


def waiting(web: Web, run: str = "r") -> list[tuple[str, str, float, int]]:
    return [(one.target, one.actor, one.interval_seconds, one.rows) for one in web.store.pushes.waiting(run, 100)]


def test_what_is_taken_waits_and_what_is_refused_is_named(web: Web) -> None:
    answer = web.write("queue_samples 7\nnope 1\nreward_mean 0.5\n", "run=r&target=loop&interval=600&step=3")
    assert answer.status_code == 207
    found = answer.json()
    assert (found["taken"], found["refused_count"]) == (2, 1)
    assert [one["line"] for one in found["refused"]] == [2]
    assert waiting(web) == [("loop", "generator", 600.0, 2)]
    assert web("GET", "/api/v1/runs/r/status").json()["lifecycle"] == "starting"
    assert web.write("queue_samples 7\n").status_code == 200


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "the run is missing"),
        ("run=a/b", "run name"),
        ("run=" + "x" * 201, "run name"),
        ("run=r&target=" + "x" * 101, "target"),
        ("run=r&target=pushed", "and not 'pushed'"),
        ("run=r&interval=1", "interval must be 5 to 86400 seconds"),
        ("run=r&interval=soon", "interval must be"),
        ("run=r&interval=nan", "interval must be"),
        ("run=r&step=-1", "step must be a whole number"),
        ("run=r&axis=a+b", "axis must be a word"),
        ("run=r&mode=fast", "mode must be one of"),
        ("run=r&lifecycle=done", "lifecycle must be one of"),
        ("run=r&job=x", "unknown parameter 'job'"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_why(web: Web, query: str, said: str) -> None:
    answer = web.write("queue_samples 7\n", query)
    assert answer.status_code == 400 and said in answer.json()["detail"]
    assert web.store.runs.all() == []


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"nope"], ids=["empty", "html", "binary", "no-number"])
def test_a_body_that_says_nothing_makes_no_run(web: Web, body: bytes) -> None:
    assert web.write(body).status_code in (400, 207)
    assert web.store.runs.all() == []


def test_facts_need_no_numbers(web: Web) -> None:
    assert web.write("", "run=r&lifecycle=finished").status_code == 200
    assert waiting(web) == [("push", "trainer", 60.0, 1)]


def test_gzip_is_unpacked_as_far_as_the_limit(web: Web) -> None:
    packed = gzip.compress(b"queue_samples 7\n")
    assert web.write(packed, **{"content-encoding": "gzip"}).json()["taken"] == 1
    assert web.write(packed[:-6], **{"content-encoding": "gzip"}).status_code == 400
    assert web.write(b"queue_samples 7\n", **{"content-encoding": "gzip"}).status_code == 400
    assert web.write(packed, **{"content-encoding": "br"}).status_code == 415
    bomb = gzip.compress(b"\n" * (PUSH_BYTES + 1))
    assert len(bomb) < 50_000
    answer = web.write(bomb, **{"content-encoding": "gzip"})
    assert answer.status_code == 413 and "after decompression" in answer.json()["detail"]


def test_a_push_may_be_larger_than_other_requests_and_no_larger(web: Web) -> None:
    text = "# " + "x" * 8000 + "\n"
    body = (text * (2 << 7) + "queue_samples 7\n").encode()
    assert len(body) > 2_000_000 and web.write(body).json()["taken"] == 1
    answer = web.write(b"x" * (PUSH_BYTES + 1))
    assert (answer.status_code, answer.json()) == (
        413,
        {"detail": f"a request body may have at most {PUSH_BYTES} bytes"},
    )
    records = [{"id": f"{n}", "detail": "x" * 2000} for n in range(700)]
    answer = web("POST", "/api/v1/runs/r/sandboxes", json=records)
    assert (answer.status_code, answer.json()["taken"]) == (200, 700)
    answer = web("POST", "/api/v1/runs/r/sandboxes", content=b"x" * (PUSH_BYTES + 1))
    assert (answer.status_code, answer.json()) == (
        413,
        {"detail": f"a request body may have at most {PUSH_BYTES} bytes"},
    )
    assert web("POST", "/api/v1/runs/r/preflight", content=b"x" * 2_000_000).status_code == 413
    assert web.write("queue_samples 1\n" * (metrics.LIMITS.samples + 1)).status_code == 413


def test_a_full_inbox_says_when_to_come_again(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_inbox, "INBOX_ROWS", 1)
    assert web.write("queue_samples 1\n").status_code == 200
    answer = web.write("queue_samples 2\n")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
    assert "1 pushed samples wait" in answer.json()["detail"]
    assert web.otlp((DATA / "delta_0.pb.gz").read_bytes()).status_code == 429


def test_one_run_too_many_is_refused_by_every_door(store: Store) -> None:
    web = Web(store, admitted=lambda run: run == "known")
    for answer in (
        web.write("queue_samples 1\n"),
        web("POST", "/api/v1/runs/r/sandboxes", json=[{"id": "a"}]),
    ):
        assert (answer.status_code, answer.json()["detail"]) == (429, TOO_MANY)
    sent = web.otlp((DATA / "delta_0.pb.gz").read_bytes())
    assert (sent.status_code, sent.headers["retry-after"]) == (429, "5") and TOO_MANY.encode() in sent.content
    assert store.runs.all() == []
    assert web.write("queue_samples 1\n", "run=known").status_code == 200


def test_targets_of_a_run_are_bounded_and_those_we_read_are_ours(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_push, "TARGETS", 2)
    assert [web.write("queue_samples 1\n", f"run=r&target={n}").status_code for n in "abab"] == [200] * 4
    assert web.write("queue_samples 1\n", "run=r&target=c").status_code == 429
    web.store.write(Batch("r", targets=[TargetState("engine-0", "vllm", "generator", True, 1)]))
    answer = web.write("queue_samples 1\n", "run=r&target=engine-0")
    assert answer.status_code == 409 and "engine-0" in answer.json()["detail"]


def test_the_token_guards_pushes_too(store: Store) -> None:
    web = Web(store, token="0123456789abcdef")
    assert web.write("queue_samples 1\n").status_code == 401
    assert web.otlp((DATA / "delta_0.pb.gz").read_bytes()).status_code == 401
    assert web.write("queue_samples 1\n", authorization="Bearer 0123456789abcdef").status_code == 200
    assert (
        web.write("queue_samples 1\n", origin="http://evil", authorization="Bearer 0123456789abcdef").status_code == 403
    )


def test_the_real_sdks_request_is_taken_and_answered_in_kind(web: Web) -> None:
    packed = (DATA / "cumulative_0.pb.gz").read_bytes()
    answer = web.otlp(packed)
    assert (answer.status_code, answer.headers["content-type"]) == (200, otlp.PROTOBUF)
    assert ExportMetricsServiceResponse.FromString(answer.content) == ExportMetricsServiceResponse()
    assert waiting(web, "otel-run") == [("rollouts", "sandbox", 60.0, 6)]


def test_a_request_without_a_run_says_what_to_set(web: Web) -> None:
    json = one_point("queue_samples")
    plain = {"content-type": otlp.JSON, "content-encoding": ""}
    answer = web.otlp(json, **plain)
    assert (answer.status_code, answer.json()) == (400, {"code": 3, "message": otlp.NO_RUN})
    assert web.otlp(json, **plain, **{"x-rollscope-run": "h"}).json() == {}
    assert web.otlp(json, "?run=q", **plain).status_code == 200
    assert sorted(run.name for run in web.store.runs.all()) == ["h", "q"]
    assert waiting(web, "h") == waiting(web, "q") == [("otlp", "generator", 60.0, 1)]


def test_an_otlp_refusal_is_a_status_in_the_requests_format(web: Web) -> None:
    """google.rpc.Status: code is field 1, message field 2. Read back by the protobuf library itself."""
    answer = web.otlp(b"not gzip")
    assert (answer.status_code, answer.headers["content-type"]) == (400, otlp.PROTOBUF)
    # A message of another type with a string as field 2 and without field 1 reads the words.
    found = AnyValue.FromString(b"\x0a" + answer.content[3:])
    assert (answer.content[:3], found.string_value) == (b"\x08\x03\x12", "the body is not gzip")
    long = otlp.refusal("x" * 300, otlp.PROTOBUF, 14)
    assert AnyValue.FromString(b"\x0a" + long[3:]).string_value == "x" * 300


def test_a_store_that_fails_asks_the_exporter_to_come_again(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("password=sekret")

    monkeypatch.setattr(type(web.store.pushes), "offer", broken)
    answer = web.otlp((DATA / "cumulative_0.pb.gz").read_bytes())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert b"RuntimeError" in answer.content and b"sekret" not in answer.content


def test_otlp_names_of_the_users_own(store: Store) -> None:
    problems: list[str] = []
    rows = [{"name": "acme.queue", "metric": "queue_samples"}]
    web = Web(store, maps=settings.parse_otlp(rows, lambda where, words: problems.append(words)))
    plain = {"content-type": otlp.JSON, "content-encoding": ""}
    assert web.otlp(one_point("acme.queue"), "?run=r", **plain).json() == {}
    (push,) = store.pushes.waiting("r", 10)
    assert [sample.metric for sample in unpack_body(push.body).reading.samples] == ["queue_samples"]


def test_otlp_of_another_kind_is_refused_in_words(web: Web) -> None:
    assert web.otlp(b"x", **{"content-type": "text/plain"}).status_code == 415
    assert web.otlp(b"not gzip").status_code == 400
    assert (
        "not an OTLP metrics request"
        in web.otlp(b"{", "?run=r", **{"content-type": otlp.JSON, "content-encoding": ""}).text
    )
    assert web.store.runs.all() == []


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    "body",
    [
        b'["\\ud800"]',
        b'{"\\ud800": 1}',
        one_point("x").replace(b'"asInt": "1"', f'"asDouble": {HUGE}'.encode()),
        one_point("x").replace(b'"asInt": "1"', f'"asDouble": -{HUGE}'.encode()),
    ],
    ids=["surrogate", "surrogate-key", "number-beyond-a-float", "below"],
)
def test_a_malformed_otlp_body_is_the_senders_fault(web: Web, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = web.otlp(body, "?run=r", **{"content-type": otlp.JSON, "content-encoding": ""})
    assert answer.status_code == 400 and answer.json()["message"].startswith("the body is not an OTLP metrics request")
    assert caplog.records == [] and web.store.runs.all() == []


def test_what_is_unknown_is_still_answered_with_success(web: Web) -> None:
    json = one_point("their.own")
    assert web.otlp(json, "?run=r", **{"content-type": otlp.JSON, "content-encoding": ""}).json() == {}
    assert waiting(web) == [("otlp", "trainer", 60.0, 1)]


def test_the_loop_turns_while_a_body_is_parsed(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing waits for a health check that is sent after it: on the event loop it would wait for ever."""
    answered = threading.Event()
    plain = metrics.parse

    def parse(*args: Any) -> metrics.ParsedText:
        assert answered.wait(30)
        return plain(*args)

    monkeypatch.setattr(metrics, "parse", parse)

    async def both() -> tuple[int, int]:
        large = asyncio.create_task(web.ask("POST", "/api/v1/write?run=r", content="queue_samples 7\n"))
        await asyncio.sleep(0)
        health = await web.ask("GET", "/healthz")
        answered.set()
        return health.status_code, (await large).status_code

    assert asyncio.run(both()) == (200, 200)
