"""Engines that a Prometheus scrapes for us: one that dies there is down, and missed, as one that is read directly."""

from msgspec import structs

from server.config.alerts import defaults
from server.store import Store as Kept
from tests.collectors._promql_store import Row, Store, engine
from tests.driven_run import ENGINE, T0, Bench, bench

PROMETHEUS = structs.replace(ENGINE, collector="prometheus")
UP: list[Row] = [({"instance": name, "job": "vllm"}, 1.0) for name in ("e0:8000", "e1:8000")]
DOWN: list[Row] = [UP[0], (UP[1][0], 0.0)]


def show(run: Bench, store: Store, first: int, last: int, *, dead: bool) -> None:
    """A scrape of both every 5 s; of the dead one only `up` tells."""
    for at in range(first, last + 1, 5):
        scraped = [engine(T0 + at, 3.0), engine(T0 + at, 5.0, instance="e1:8000")][: 1 if dead else 2]
        store.seen, store.values = [seen for seen, _ in scraped], [row for _, row in scraped]
        store.at, store.up = T0 + at, DOWN if dead else UP
        run.commit(PROMETHEUS, store.poll(now=T0 + at, scrape_seconds="5"), T0 + at)
        run.advance(T0 + at)


def told(run: Bench) -> tuple[dict[str, float | None], list[tuple[str, str, str]]]:
    """(engines by state, alerts that fire)."""
    found = [one for one in run.reader.status("run").signals.values() if one.signal == "generator_engines"]
    firing = [one for one in run.reader.alerts.active("run") if one.state == "firing"]
    return (
        {one.labels["state"]: one.value for one in found if one.value},
        [(one.name, one.labels["target"], one.labels.get("replica", "")) for one in firing],
    )


def test_an_engine_that_dies_behind_a_prometheus_is_down_and_missed(store: Kept) -> None:
    prometheus = Store()
    with bench(store, alerts=defaults(), lifecycle="running") as run:
        show(run, prometheus, 0, 30, dead=False)
        assert told(run) == ({"up": 2.0}, [])
        show(run, prometheus, 35, 35, dead=True)
        assert told(run) == ({"up": 1.0, "down": 1.0}, [])
        show(run, prometheus, 40, 95, dead=True)  # long after its numbers were carried
        assert told(run) == ({"up": 1.0, "down": 1.0}, [("EngineDown", "engine-0", "e1:8000")])
        assert run.value('generator_requests_now{state="running"}') == 3
        show(run, prometheus, 100, 105, dead=False)
        assert told(run) == ({"up": 2.0}, [])
        assert run.value('generator_requests_now{state="running"}') == 8


def test_a_prometheus_that_is_down_is_one_alert(store: Kept) -> None:
    prometheus = Store()
    with bench(store, alerts=defaults(), lifecycle="running") as run:
        show(run, prometheus, 0, 30, dead=False)
        for at in range(35, 121, 5):
            run.fail(PROMETHEUS, "unreachable", "connection refused", T0 + at)
            run.advance(T0 + at)
        assert told(run) == ({"down": 2.0}, [("TargetDown", "engine-0", "")])
