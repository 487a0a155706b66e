"""A router's merged page and the engines themselves, both watched: 12 requests run, not 24."""

import logging

import httpx
import pytest

import collectors
from collectors.generators import sglang
from collectors.model import Collector, Histogram, Labels, Limits, Reading, Sample, State, Target
from server.lib.clock import ScaledClock
from server.query import Reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.scrape.target_reader import DuplicateEngineFilter
from server.store import Store, Writer
from server.targets.model import Attached
from tests.scrape.test_run_loop import T0, drive

ROUTER = Target("router", "run", "sglang", "generator", url="http://10.0.0.9:30000/engine_metrics")
ENGINES = tuple(Target(f"e{n}", "run", "sglang", "generator", url=f"http://10.0.0.{n}:30000") for n in (1, 2))
MERGED = "".join(
    f'sglang_num_running_reqs{{worker_addr="http://10.0.0.{n}:30000",tp_rank="0"}} 6\n' for n in (1, 2, 3)
).encode()
OWN = b'sglang:num_running_reqs{tp_rank="0"} 6\n'


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    merged = client.base_url.path.rstrip("/").endswith("engine_metrics")
    return sglang.parse(MERGED if merged else OWN, state, limits)


@pytest.mark.parametrize(("targets", "running"), [((ROUTER,), 18.0), ((ROUTER, *ENGINES), 18.0), (ENGINES, 12.0)])
def test_engines_count_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, targets: tuple[Target, ...], running: float
) -> None:
    """Three engines behind the router, of which two are targets of their own."""
    known = {**collectors.load(), "sglang": Collector("sglang", "generator", "", "", poll=poll)}
    monkeypatch.setattr("server.scrape.run_loop.collectors.load", lambda: known)
    clock, writer = ScaledClock(T0), Writer(store)
    drive(RunLoop(Attached("run", tuple(targets)), LoopServices(store, writer, clock)), clock, [T0, T0 + 5])
    writer.close()
    found = {one.name: one.value for one in Reader(store, clock).status("run").signals.values()}
    assert found['generator_requests_now{state="running"}'] == running
    assert found['generator_engines{state="up"}'] == running / 6


def _of(*replicas: str) -> Reading:
    labels: list[Labels] = [(("engine", "0"), ("replica", one)) if one else () for one in replicas]
    return Reading(
        samples=tuple(Sample("generator_requests_running", 6.0, own) for own in labels),
        histograms=tuple(Histogram("e2e_request_seconds", (), (1.0,), 1.0, own) for own in labels),
    )


@pytest.mark.parametrize(
    ("url", "replica", "doubled"),
    [
        ("http://Node-1:30000", "node-1:30000", True),
        ("http://localhost:30000", "127.0.0.1:30000", True),
        ("http://[::1]:30000/metrics", "[::1]:30000", True),
        ("http://node-1:30000/metrics", "node-1:30001", False),
        ("http://node-1:30000", "node-1", False),  # a name, not an address
        ("http://node-1", "node-1:80", True),
        ("http://node-1:30000", "node-1:port", False),
        ("http://node-1:30000", "", False),
    ],
)
def test_an_engine_is_known_by_its_address(url: str, replica: str, doubled: bool) -> None:
    other = Target("e", "run", "sglang", "generator", url=url)
    found = DuplicateEngineFilter().without(ROUTER, _of(replica, "elsewhere:1"), [ROUTER, other])
    assert found == (_of("elsewhere:1") if doubled else _of(replica, "elsewhere:1"))


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    twice = DuplicateEngineFilter()
    with caplog.at_level(logging.INFO, logger="rollscope.collect"):
        for _ in range(2):
            twice.without(ROUTER, _of("10.0.0.1:30000"), [ROUTER, *ENGINES])
    assert [one.message for one in caplog.records] == ["target e1 is also read through router: its own page counts"]


def test_an_engines_own_page_is_left_as_it_is() -> None:
    page = _of("10.0.0.2:30000")
    assert DuplicateEngineFilter().without(ENGINES[0], page, ENGINES) is page
