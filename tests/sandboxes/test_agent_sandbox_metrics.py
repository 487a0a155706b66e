"""Pages of agent-sandbox's controller and router and of a kubelet: one histogram per wait, in seconds."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from collectors.detect import detect_page
from collectors.model import Histogram as Read
from collectors.model import Limits, Reading, ScrapeError
from collectors.sandboxes import agent_sandbox_metrics as metrics
from tests.collectors._reading import TESTDATA
from tests.sandboxes.fake_engines import FakeServer
from tests.sandboxes.fake_http import KEY, Poller, Reply

CONTROLLER = (TESTDATA / "agent_sandbox_metrics" / "controller.prom").read_bytes()


def parse(body: bytes) -> Reading:
    return metrics.parse(body, {}, Limits())


def without(body: bytes, family: bytes) -> bytes:
    return b"".join(line for line in body.splitlines(keepends=True) if family not in line)


def page(**families: tuple[list[float], dict[str, list[float]]]) -> bytes:
    """Histograms by name: edges, and observations by the value of a label ``kind``."""
    registry = CollectorRegistry()
    for name, (edges, observed) in families.items():
        histogram = Histogram(name, "h", ["kind"], buckets=edges, registry=registry)
        for kind, values in observed.items():
            for value in values:
                histogram.labels(kind).observe(value)
    return generate_latest(registry)


def test_milliseconds_become_seconds_edges_too() -> None:
    cold, warm = sorted(parse(CONTROLLER).histograms, key=lambda one: one.labels, reverse=True)
    edges = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 240.0)
    assert warm == Read(
        "sandbox_spinup_seconds", edges, (0, 2, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4), 3.44, (("image", "cached"),)
    )
    # Two templates added up; the hour-long straggler and the one of 300 s are only "more than 240 s".
    assert cold == Read(
        "sandbox_spinup_seconds",
        edges,
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 4, 4, 4, 6),
        3960.6,
        (("image", "unknown"),),
    )


def test_counts() -> None:
    reading = parse(CONTROLLER)
    assert {(sample.metric, sample.labels): sample.value for sample in reading.samples} == {
        ("sandboxes", (("state", "running"),)): 11.0,
        ("sandboxes", (("state", "unknown"),)): 2.0,  # not ready: starting, suspended or failed
        ("sandboxes", (("state", "terminated"),)): 3.0,
        ("sandboxes_created_total", ()): 15.0,
    }
    assert reading.unmapped == {}


def test_without_claims_the_sandboxes_own_latency_is_used() -> None:
    (warm,) = parse(without(CONTROLLER, b"agent_sandbox_claim_startup_latency_ms")).histograms
    assert (warm.edges[0], warm.counts[:3], warm.total) == (0.05, (0.0, 2.0, 2.0), 0.135)


def test_of_the_kubelets_three_the_one_with_pulls_is_used() -> None:
    body = page(
        kubelet_pod_start_sli_duration_seconds=([1, 60], {"": [1.2]}),
        kubelet_pod_start_duration_seconds=([1, 60], {"": [13.0]}),
        kubelet_pod_start_total_duration_seconds=([1, 60], {"": [14.0, 700.0]}),
    )
    (one,) = parse(body).histograms
    assert one == Read("sandbox_spinup_seconds", (1.0, 60.0), (0.0, 1.0, 2.0), 714.0, (("image", "unknown"),))


def test_the_router_times_requests() -> None:
    body = page(sandbox_router_request_duration_seconds=([0.1, 1], {"a": [0.05], "b": [0.5, 3]}))
    assert parse(body).histograms == (Read("sandbox_exec_seconds", (0.1, 1.0), (1.0, 2.0, 3.0), 3.55),)


def test_series_with_other_edges_are_not_added_up() -> None:
    other = CONTROLLER.replace(b'le="60000.0",sandbox_template="terminal"', b'le="61000.0",sandbox_template="terminal"')
    reading = parse(other)
    assert [one.labels for one in reading.histograms] == [(("image", "cached"),)]
    assert reading.unmapped == {"agent_sandbox_claim_startup_latency_ms": 1}


def test_new_families_are_counted() -> None:
    body = CONTROLLER + b"# TYPE agent_sandbox_snapshot_seconds gauge\nagent_sandbox_snapshot_seconds 1\n"
    assert parse(body).unmapped == {"agent_sandbox_snapshot_seconds": 1}


def test_values_that_are_none() -> None:
    body = b'# TYPE agent_sandboxes gauge\nagent_sandboxes{ready_condition="true"} NaN\nagent_sandboxes -4\n'
    assert parse(body).samples == ()


def test_it_is_told_from_other_pages() -> None:
    assert detect_page(CONTROLLER) == "agent_sandbox_metrics"
    assert not metrics.matches_page(b"# HELP agent_sandboxes x\nvllm:agent_sandboxes 1\n")
    with pytest.raises(ScrapeError) as caught:
        parse(b"go_goroutines 3\n")
    assert caught.value.kind == "garbage"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply({}, 401), "auth"),
        (Reply({}, 403), "auth"),
        (Reply({}, 500), "status"),
        (Reply(raw=b"agent_sandboxes 3"), "garbage"),
        (Reply(hang=True), "timeout"),
        (Reply(raw=b"# x\n", drip=True), "timeout"),
    ],
)
def test_refusals(reply: Reply, kind: str) -> None:
    with FakeServer("Authorization", f"Bearer {KEY}", metrics=reply).serve() as fake:
        poller = Poller(fake, "agent_sandbox_metrics")
        poller.limits = Limits(timeout_seconds=0.3) if kind == "timeout" else Limits()
        assert poller.error().kind == kind


@pytest.mark.parametrize("base", ["", "/metrics"])
def test_a_poll_reads_the_page(base: str) -> None:
    with FakeServer("Authorization", f"Bearer {KEY}", metrics=Reply(raw=CONTROLLER)).serve() as fake:
        assert len(Poller(fake, "agent_sandbox_metrics").poll(base).histograms) == 2
    assert fake.paths() == ["/metrics"]
