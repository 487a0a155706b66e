"""A Ray agent's page shows a gauge once per report: what it is, and what it says, is found over several looks."""

import itertools
from collections.abc import Callable, Iterator

import httpx
import pytest

from server.cli import check_report
from server.scrape import target_reader
from server.targets import resolve as attaching
from server.targets.model import RunSettings, TargetSettings
from server.targets.resolve import attach
from tests.driven_run import T0
from tests.recorded import TESTDATA

URL = "http://node:8080"
GAUGES = (TESTDATA / "skyrl" / "gauges_wait.prom").read_bytes()
BLANK = b'# TYPE ray_node_cpu_utilization gauge\nray_node_cpu_utilization{ip="192.0.2.2"} 5\n'
GPUS = b'# TYPE ray_node_gpus_utilization gauge\nray_node_gpus_utilization{GpuIndex="0",ip="192.0.2.2"} 5\n'
Serve = Callable[..., list[str]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Answer with these pages in turn, over and over; the list grows with what was asked."""
    plain = httpx.AsyncClient
    monkeypatch.setattr(attaching, "RAY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(check_report, "PAUSE_SECONDS", 0.0)

    def start(*pages: bytes) -> list[str]:
        turns, asked = itertools.cycle(pages), list[str]()

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            return httpx.Response(200, stream=httpx.ByteStream(next(turns)))

        transport = httpx.MockTransport(answer)
        for module, name in ((httpx, "AsyncClient"), (target_reader, "PageClient")):
            monkeypatch.setattr(module, name, lambda **options: plain(**{**options, "transport": transport}))
        return asked

    yield start


def attached() -> list[tuple[str, str]]:
    run = attach(RunSettings("run", (TargetSettings(URL),)))
    return [(target.name, target.collector) for target in run.targets]


@pytest.mark.parametrize("pages", [(BLANK, GAUGES), (GAUGES, BLANK), (BLANK, BLANK, GAUGES)])
def test_a_blank_page_between_two_reports_decides_nothing(serve: Serve, pages: tuple[bytes, ...]) -> None:
    serve(*pages)
    assert attached() == [("skyrl-node-8080", "skyrl")]


def test_a_node_is_one_after_three_looks(serve: Serve) -> None:
    asked = serve(BLANK)
    assert attached() == [("ray_node-node-8080", "ray_node")]
    assert len(asked) == 3


def test_a_trainers_page_with_gpus_is_both(serve: Serve) -> None:
    serve(GPUS, GAUGES)
    assert attached() == [("skyrl-node-8080", "skyrl"), ("ray_node-node-8080", "ray_node")]


def test_check_reads_a_blank_page_again(serve: Serve) -> None:
    serve(GAUGES, BLANK)
    (target,) = attach(RunSettings("run", (TargetSettings(URL),))).targets
    (seen,) = check_report.probe_targets([target], T0)
    assert seen.up, seen.error
    assert seen.count > 0
    assert seen.identity()["mode"] == "async"
