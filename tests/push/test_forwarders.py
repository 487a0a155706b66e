"""What becomes of forwarded readings: a run like one that is read here, an hour that comes late. Both databases."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from collectors.model import Event, Reading, Sample, Sandbox, ScrapeError
from server.store import Store, Writer
from tests.driven_run import ON_SQLITE
from tests.push.test_pushed_targets import HOUR, T0, Lived, health, lived, value
from tests.push.test_readings import Web, step, waiting

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


@pytest.fixture
def web(store: Store) -> Iterator[Web]:
    yield Web(store)


@contextmanager
def run_of(web: Web, at: float = 0.0, **kwargs: Any) -> Iterator[Lived]:
    with lived(web.store, at, **kwargs) as run:
        yield run


def test_a_forwarded_run_looks_like_a_local_one(web: Web) -> None:
    for number in (1, 2, 3):
        web.send(step(number), number, at=30.0 * number)
    engine = Reading(samples=(Sample("generator_requests_running", 5.0),), samples_scraped=41, unmapped={"new": 1})
    web.send(engine, 4, at=90, target="engine", kind="vllm", actor="generator")
    web.send(Reading(events=(Event("checkpoint", "checkpoint-3", T0 + 90),), cursor={}), 5, at=91)
    box = Sandbox("modal", "sb-1", "running", requested_at=T0, ready_at=T0 + 2, latency_source="server")
    web.send(Reading(sandboxes=(box,), listed=("modal",)), 6, at=92, target="modal", kind="modal", actor="sandbox")
    with run_of(web, 92) as run:
        status = run.at(95)
    assert (status.framework, status.mode, status.lifecycle) == ("prime_rl", "async", "running")
    assert value(status, "trainer_wait_ratio") == pytest.approx(0.4)
    assert value(status, "trained_tokens_total") == 3000.0
    assert value(status, 'generator_requests{state="running"}') == 5.0
    assert value(status, 'sandboxes{state="running"}') == 1.0
    assert {one.target: one.kind for one in status.trust} == {"out": "prime_rl", "engine": "vllm", "modal": "modal"}
    rows = {row.name: row for _, row in web.store.runs.targets("run")}
    assert (rows["engine"].samples, rows["engine"].unmapped) == (41, {"new": 1})
    assert rows["out"].last_ok_ts == T0 + 91 and rows["out"].scrape_seconds == 0.25
    assert waiting(web) == 0


def test_an_error_is_told_with_its_cause_and_stands(web: Web) -> None:
    web.send(ScrapeError("unreachable", "connection refused"), 1, target="engine", kind="vllm", actor="generator")
    with run_of(web) as run:
        status = run.at(5)
        assert health(status) == {"engine": (False, "connection refused")}
    # Who makes a start has not heard of it for a while; that does not make it up.
    with run_of(web, 30) as run:
        assert health(run.at(35, 40)) == {"engine": (False, "connection refused")}


def test_a_machine_that_falls_silent_is_seen(web: Web) -> None:
    web.send(step(1), 1)
    with run_of(web) as run:
        assert health(run.at(5, 60)) == {"out": (True, "")}
        assert health(run.at(125)) == {"out": (False, "nothing forwarded for 125 s; expected every 5 s")}


def test_a_clock_that_is_not_ours_is_told(web: Web) -> None:
    web.send(step(1), 1, sent=T0 + 90)
    with run_of(web) as run:
        assert health(run.at(5)) == {"out": (True, "its machine's clock is 90 s ahead of this one's")}


def gauge(value: float) -> Reading:
    return Reading(samples=(Sample("generator_requests_running", value),), samples_scraped=1)


def derived(web: Web, *times: float) -> list[float | None]:
    """The signal's points at these times."""
    (series,) = [
        id
        for id, key in web.store.series.listed("run", "")
        if key.metric == "generator_requests" and ("state", "running") in key.labels
    ]
    found = {ts: one for ts, one, _ in web.store.samples.points([series], 0, round((T0 + 2 * HOUR) * 1000))[series]}
    return [found.get(round((T0 + at) * 1000)) for at in times]


@ON_SQLITE
def test_an_hour_that_comes_late_is_derived_as_if_it_had_not(web: Web) -> None:
    """The server was away from 10 s to 1 h; then the machine tells of that hour, in two goes."""
    query = {"target": "engine", "kind": "vllm", "actor": "generator"}
    web.send(gauge(5), 1, at=4, **query)
    with run_of(web, 4) as run:
        run.at(5, 10)
    web.clock.set(T0 + HOUR)
    with run_of(web, HOUR) as run:
        run.at(HOUR + 5)
        assert run.loop.pipeline.driver.watermark == T0 + 10, "it may go on: nothing is derived beyond what it told"
        for seq in range(2, 362):
            web.send(gauge(5), seq, at=10.0 * (seq - 1), behind=361 - seq, **query)
        run.at(HOUR + 10)
        assert run.loop.pipeline.driver.watermark == T0 + HOUR + 10, "all that waits, while there is time"
        run.at(HOUR + 15, HOUR + 20, HOUR + 25)
        assert run.loop.pipeline.driver.watermark == T0 + HOUR + 25
        web.send(gauge(5), 400, at=HOUR + 20, **query)
        status = run.at(HOUR + 30)
    assert run.loop.pipeline.driver.watermark == T0 + HOUR + 30
    assert value(status, 'generator_requests{state="running"}') == 5.0
    # Every 5 s of the hour: 5 s, 10 s, ..., 3600 s.
    assert derived(web, *range(5, 3605, 5)) == [5.0] * 720


def test_who_does_not_go_on_holds_nobody_up_for_long(web: Web) -> None:
    web.send(gauge(1), 1, at=4, target="engine", kind="vllm", actor="generator", behind=7)
    with run_of(web, 4) as run:
        run.at(5)
        assert run.loop.pipeline.driver.watermark is None
        run.at(25)
        assert run.loop.pipeline.driver.watermark is None
        run.at(35)
        assert run.loop.pipeline.driver.watermark == T0 + 35


def test_a_body_is_collected_once_whatever_dies(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the commit and what is derived of it; then the agent sends it again, for it heard nothing."""
    web.send(step(1), 1, at=30)
    with run_of(web, 30) as run:
        monkeypatch.setattr(run.loop.pipeline.driver, "feed", lambda arrivals: None)
        run.loop._collect_pushes(T0 + 31)
    assert waiting(web) == 0
    assert web.send(step(1), 1, at=30) == [{"seq": 1, "repeated": True}]
    with run_of(web, 70) as run:
        assert value(run.at(75, 110), "trained_tokens_total") == 1000.0


def test_records_are_believed_before_metrics_wherever_they_are_read(web: Web, store: Store) -> None:
    writer = Writer(store)
    try:
        run = Lived(store, writer)
        web.send(step(1), 1, target="b-trl", kind="trl")
        web.send(step(1), 2, target="a-prime")
        run.at(5)
        trust = run.loop.pipeline.targets.trust
        assert [trust.rank(name, ("reward_mean", ())) for name in ("a-prime", "b-trl", "x")] == [(1, 0), (1, 1), (2, 2)]
    finally:
        writer.close()
