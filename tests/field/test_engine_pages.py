"""Engine pages with other prefixes, labels and units than those of the newest versions."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.field.product import INPUTS, RUN, watching

T0 = 1_795_600_000.0
Answer = tuple[int, bytes]


@contextmanager
def engine(answer: Callable[[str], Answer]) -> Iterator[str]:
    """Serves ``answer(path)`` on a free port; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def page(body: bytes) -> Callable[[str], Answer]:
    return lambda path: (200, body) if path == "/metrics" else (200, b"") if path == "/health" else (404, b"")


def recorded(case: str) -> bytes:
    return (INPUTS / case / "metrics.prom").read_bytes()


@pytest.mark.parametrize("prefix", [b"ray_vllm:", b"ray_vllm_", b"otel_vllm_", b"platform_vllm:"])
def test_two_engines_on_the_page_of_a_ray_node(prefix: bytes) -> None:
    body = recorded("02-ray-agent-colon-names").replace(b"ray_vllm:", prefix)
    with engine(page(body)) as url, watching([url], T0) as product:
        product.step(20)
        assert product.value('generator_requests{state="running"}') == 37 + 41
        assert product.value('generator_requests{state="waiting"}') == 3
        assert product.value("kv_cache_usage_ratio") == pytest.approx((0.412 + 0.655) / 2)
        assert product.value('generator_engines{state="up"}') == 2
        found = {
            engine.labels["replica"]: (engine.running, engine.kv_ratio) for engine in product.reader.engines.now(RUN)
        }
        assert found == {"LLMServer#a1": (37, 0.412), "LLMServer#b2": (41, 0.655)}
        assert product.value("generator_prompt_tokens_per_second") == 0
        # The same page has the GPUs and Ray Serve's queues.
        assert {target.kind for target in product.status().trust} == {"vllm", "ray_node"}


@pytest.mark.parametrize("label", [b"name", b"model_name"])
def test_a_hit_rate_in_percent_is_a_share_or_unknown(label: bytes) -> None:
    """The label `name` is that of versions that report percent; the other has shares, and 86.4 is none."""
    body = recorded("04-sglang-hit-rate-percent").replace(b"{name=", b"{" + label + b"=")
    with engine(page(body)) as url, watching([url], T0) as product:
        product.step(20)
        assert product.value("prefix_cache_hit_ratio") == (pytest.approx(0.864) if label == b"name" else None)
        assert product.value('generator_requests{state="running"}') == 162
        assert product.value('generator_requests{state="waiting"}') == 2826
        assert product.value("kv_cache_usage_ratio") == pytest.approx(0.28)


def test_a_gauge_of_each_api_server_process() -> None:
    with engine(page(recorded("10-vllm-kv-by-process"))) as url, watching([url], T0) as product:
        product.step(20)
        assert product.value("kv_cache_usage_ratio") == pytest.approx(0.6530455880475035)
        assert product.value('generator_requests{state="running"}') == 61
        assert product.value('generator_requests{state="waiting"}') == 4


def verl_log(folder: Path, now: float, seconds: float) -> Callable[[float], None]:
    """A trainer that completed 30 steps by ``now``; the returned function writes the steps due at a time."""
    log = folder / "exp.jsonl"
    done = 0

    def write(at: float) -> None:
        nonlocal done
        due = 30 + max(0, int((at - now) // seconds)) if seconds else 30
        with log.open("a") as file:
            for step in range(done + 1, due + 1):
                data = {
                    "training/global_step": step, "critic/score/mean": 0.4, "response_length/mean": 812.0,
                    "timing_s/gen": 2.0, "timing_s/update_actor": 5.0, "timing_s/step": 8.0, "actor/grad_norm": 0.3,
                    "fully_async/count/current_param_version": step,
                }  # fmt: skip
                file.write(json.dumps({"step": step, "data": data}) + "\n")
        if due > done:
            os.utime(log, (at, at))
            done = due

    write(now)
    return write


def aborted_pages(counted: bool) -> Callable[[int], bytes]:
    """Pages under load, then a last one that stays: all requests were aborted. ``counted``: vLLM counted the aborts."""
    texts = [(INPUTS / "01-stale-gauges-after-abort" / "pages" / f"{n}.prom").read_bytes() for n in range(4)]
    if counted:
        texts[3] = texts[3].replace(b'finished_reason="abort"} 0.0', b'finished_reason="abort"} 121.0')
    return lambda number: texts[min(number, 3)]


@pytest.mark.parametrize(
    ("counted", "seconds", "state"),
    [
        pytest.param(False, 8.0, "stale", id="the trainer goes on"),
        pytest.param(True, 40.0, "up", id="as many aborts as requests, although no step follows"),
        pytest.param(False, 0.0, "hung", id="work waits, no abort, and the trainer starves"),
    ],
)
def test_an_idle_engine_with_stale_gauges_is_told_from_a_frozen_one(
    tmp_path: Path, counted: bool, seconds: float, state: str
) -> None:
    pages, number = aborted_pages(counted), -1

    def answer(path: str) -> Answer:
        nonlocal number
        number += path == "/metrics"
        return page(pages(number))(path)

    write = verl_log(tmp_path, T0, seconds)
    with engine(answer) as url, watching([url, tmp_path], T0) as product:
        number = -1  # detection reads a page, too
        status = product.step(100, write)
        assert status.verdict is not None
        states = {name: one.value for name, one in product.signals().items() if name.startswith("generator_engines{")}
        assert states[f'generator_engines{{state="{state}"}}'] == 1, states
        frozen = [alert for alert in status.alerts if alert.name == "EngineFrozen"]
        if state == "hung":
            assert (status.verdict.outcome, status.verdict.cause) == ("stalled", "frozen_engine")
            assert frozen
            return
        assert status.verdict.outcome != "stalled" and not frozen
        running = product.signals()['generator_requests_now{state="running"}']
        if state == "up":
            assert running.value == 0 and product.value('generator_requests_now{state="waiting"}') == 0
        else:
            assert (running.state, running.value) == ("unknown", None)
            assert "their gauges are stale" in running.why
            assert product.signals()["kv_cache_usage_ratio"].value is None


@pytest.mark.parametrize("fails_from", [0.0, 40.0])
@pytest.mark.parametrize("healthy", [True, False])
def test_a_metrics_page_that_fails_on_an_engine_that_works(tmp_path: Path, fails_from: float, healthy: bool) -> None:
    """From the start or after 40 s. Without a health check that answers, the engine is down."""
    if not healthy and not fails_from:
        return  # nothing answers: there is nothing to attach to
    body, now = (INPUTS / "08-metrics-500-health-200" / "pages" / "0.prom").read_bytes(), T0

    def answer(path: str) -> Answer:
        failing = now >= T0 + fails_from
        if path == "/metrics":
            return (500, b"Internal Server Error") if failing else (200, body)
        if path == "/version":
            return 200, b'{"version":"0.11.2"}'
        return (200, b"") if path == "/health" and (healthy or not failing) else (503, b"")

    write = verl_log(tmp_path, T0, 8.0)

    def clock(at: float) -> None:
        nonlocal now
        now = at
        write(at)

    with engine(answer) as url, watching([url, tmp_path], T0) as product:
        status = product.step(150, clock)
        state = "silent" if healthy else "down"
        counts = {name: one.value for name, one in product.signals().items() if name.startswith("generator_engines{")}
        assert {name for name, count in counts.items() if count} == {f'generator_engines{{state="{state}"}}'}
        (target,) = (target for target in status.trust if target.actor == "generator")
        assert not target.up and "HTTP 500" in target.error
        assert ("/health answers" in target.error) is healthy
        # What it does is unknown, and no number is shown.
        requests = [one.state for one in product.signals().values() if one.signal == "generator_requests"]
        assert requests and set(requests) == {"unknown"}
        (alert,) = [alert for alert in status.alerts if alert.name == "TargetDown"]
        assert "HTTP 500" in str(alert)


SGLANG_PAGE = (
    b'# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{model_name="q"} 61.0\n'
    b'# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{model_name="q"} 38.0\n'
    b'# TYPE sglang:token_usage gauge\nsglang:token_usage{model_name="q"} 0.86\n'
)
VLLM_VERSION = {"/version": b'{"version":"0.11.2"}'}
SGLANG_MODEL = {"/get_model_info": b'{"model_path":"q","tokenizer_path":"q","is_generation":true}'}
HTML = b"<!DOCTYPE html><html><body>log in</body></html>"
FLAG = "started without --enable-metrics?"


@pytest.mark.parametrize("fails_from", [0.0, 40.0])
@pytest.mark.parametrize(
    ("kind", "failure", "told"),
    [
        ("vllm", (503, b""), "HTTP 503: the server is not ready"),
        ("vllm", (404, b""), "HTTP 404: there is no such page"),
        ("vllm", (200, HTML), "the page is not metrics text (HTML or binary)"),
        ("vllm", (200, b""), "the page is empty"),
        ("sglang", (503, b""), "HTTP 503: the server is not ready"),
        ("sglang", (404, b""), f"HTTP 404: there is no such page: {FLAG}"),
        ("sglang", (200, HTML), "the page is not metrics text (HTML or binary)"),
        ("sglang", (200, b""), "the page is empty"),
    ],
)
def test_other_failures_of_a_page_of_an_engine_that_works(
    tmp_path: Path, kind: str, failure: Answer, told: str, fails_from: float
) -> None:
    vllm = (INPUTS / "08-metrics-500-health-200" / "pages" / "0.prom").read_bytes()
    good, others, now = (200, vllm if kind == "vllm" else SGLANG_PAGE), VLLM_VERSION | {"/health": b""}, T0
    alive = "/health"
    if kind == "sglang":
        others, alive = SGLANG_MODEL, "/get_model_info"

    def answer(path: str) -> Answer:
        if path == "/metrics":
            return failure if now >= T0 + fails_from else good
        return (200, others[path]) if path in others else (404, b"")

    write = verl_log(tmp_path, T0, 8.0)

    def clock(at: float) -> None:
        nonlocal now
        now = at
        write(at)

    with engine(answer) as url, watching([url, tmp_path], T0) as product:
        status = product.step(100, clock)
        (target,) = (target for target in status.trust if target.actor == "generator")
        assert (target.kind, target.up) == (kind, False)
        assert target.error == f"the engine works ({alive} answers), but its metrics page fails: {told}"
        counts = {name: one.value for name, one in product.signals().items() if name.startswith("generator_engines{")}
        assert {name for name, count in counts.items() if count} == {'generator_engines{state="silent"}'}


def test_an_sglang_engine_without_metrics_is_read_from_its_loads() -> None:
    """`/v1/loads` is read although `/health` answers, too."""
    pages = {"/v1/loads": SGLANG_PAGE, "/health": b""}
    with (
        engine(lambda path: (200, pages[path]) if path in pages else (404, b"")) as url,
        watching([url], T0) as product,
    ):
        product.step(20)
        assert product.value('generator_requests{state="running"}') == 61
        assert product.value('generator_requests{state="waiting"}') == 38
        assert product.value('generator_engines{state="up"}') == 1
