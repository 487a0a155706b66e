"""OTLP requests, recorded from the real SDK and built by hand: what is taken of them. Numbers by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from collectors.catalog import METRICS
from collectors.model import Histogram, Sample
from server import otlp
from server.otlp_names import QUOTAS, RULES
from server.push_body import Body
from server.push_totals import Totals

DATA = Path(__file__).parent.parent / "testdata/otlp"
NOW = 1_795_300_870.0


def recorded(name: str) -> Any:
    return otlp.decode(gzip.decompress((DATA / f"{name}.pb.gz").read_bytes()), otlp.PROTOBUF)


def body(request: Any, run: str = "") -> Body:
    found = otlp.read(request, run, NOW)
    assert found.refused == 0, found.words
    (part,) = found.parts.values()
    return part.body()


def attributes(**values: str | int) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
        for key, v in values.items()
    ]


def request(*metrics: dict[str, Any], **resource: str) -> Any:
    given = attributes(**{key.replace("__", "."): value for key, value in resource.items()})
    whole = {"resourceMetrics": [{"resource": {"attributes": given}, "scopeMetrics": [{"metrics": list(metrics)}]}]}
    return otlp.decode(json.dumps(whole).encode(), otlp.JSON)


def gauge(name: str, *points: tuple[float, dict[str, Any]]) -> dict[str, Any]:
    rows = [{"asDouble": v, "timeUnixNano": str(int(NOW * 1e9)), "attributes": attributes(**a)} for v, a in points]
    return {"name": name, "gauge": {"dataPoints": rows}}


def histogram(
    name: str, counts: list[int], bounds: list[float], total: float, temporality: int = 2, **labels: str
) -> dict[str, Any]:
    point = {
        "timeUnixNano": str(int(NOW * 1e9)), "count": str(sum(counts)), "sum": total, "explicitBounds": bounds,
        "bucketCounts": [str(count) for count in counts], "attributes": attributes(**labels),
    }  # fmt: skip
    return {"name": name, "histogram": {"aggregationTemporality": temporality, "dataPoints": [point]}}


@pytest.mark.parametrize("kind", ["cumulative", "delta"])
def test_what_the_real_sdk_sends_of_daytona_and_of_a_trainer(kind: str) -> None:
    totals = Totals()
    first = body(recorded(f"{kind}_0"))
    assert [(s.metric, s.value, s.step) for s in first.reading.samples] == [
        ("queue_samples", 7.0, None),
        ("reward_mean", 0.5, 3),
    ]
    assert dict(first.reading.unmapped) == {"my.own.count": 1}
    assert {one.delta for one in first.grown} == {kind == "delta"}
    samples, histograms = totals.add(first.grown, NOW)
    # Milliseconds became seconds; the create that failed is a failure, not a duration. Zeros come first.
    assert [(h.metric, h.edges, h.counts, h.total) for h in histograms[2:]] == [
        ("sandbox_spinup_seconds", (1.0, 5.0, 30.0, 120.0), (1.0, 2.0, 2.0, 3.0, 3.0), 42.5),
        ("sandbox_exec_seconds", (1.0, 5.0, 30.0, 120.0), (1.0, 1.0, 1.0, 1.0, 1.0), 0.25),
    ]
    assert [(s.metric, s.labels, s.value) for s in samples[2:]] == [
        ("sandbox_failures_total", (("cause", "unknown"),), 1.0),
        ("generator_tokens_total", (), 100.0),
    ]
    samples, histograms = totals.add(body(recorded(f"{kind}_1")).grown, NOW + 10)
    assert [h.counts for h in histograms if h.metric == "sandbox_spinup_seconds"] == [(1.0, 2.0, 3.0, 4.0, 4.0)]
    assert [h.total for h in histograms if h.metric == "sandbox_spinup_seconds"] == [52.5]
    assert [s.value for s in samples if s.metric == "generator_tokens_total"] == [150.0]
    # The exporter repeats a request that was not answered.
    assert totals.add(body(recorded(f"{kind}_1")).grown, NOW + 12) == ([], [])


@pytest.mark.parametrize("name", ["cumulative_0", "cumulative_1", "delta_0", "delta_1"])
def test_json_says_the_same_as_protobuf(name: str) -> None:
    message = recorded(name)
    text = json_format.MessageToJson(message).encode()
    assert body(otlp.decode(text, otlp.JSON)) == body(message)


def test_the_run_is_the_resources_else_the_requests_and_never_the_services() -> None:
    found = otlp.read(request(gauge("queue_samples", (1, {})), service__name="my-service"), "", NOW)
    assert (found.refused, found.runless, dict(found.parts)) == (1, 1, {})
    assert "rollscope.run" in found.words[0] and "x-rollscope-run" in found.words[0]
    found = otlp.read(request(gauge("queue_samples", (1, {})), service__name="my-service"), "asked", NOW)
    assert list(found.parts) == [("asked", "my-service")]
    named = {"rollscope__run": "own", "rollscope__target": "workers", "service__name": "x"}
    assert list(otlp.read(request(gauge("queue_samples", (1, {})), **named), "asked", NOW).parts) == [
        ("own", "workers")
    ]
    assert list(otlp.read(request(gauge("queue_samples", (1, {}))), "asked", NOW).parts) == [("asked", "otlp")]


def test_rocks_gateway() -> None:
    total = {
        "xrl_gateway.sandbox.count.total": 40.0, "xrl_gateway.resource.cpu.total": 512.0,
        "xrl_gateway.resource.cpu.available": 112.0, "xrl_gateway.resource.mem.total": 2048.0,
        "xrl_gateway.request.rt": 9.0,
    }  # fmt: skip
    failures = {
        "name": "xrl_gateway.sandbox.phase.failure",
        "sum": {
            "aggregationTemporality": 2, "isMonotonic": True,
            "dataPoints": [
                {"asInt": "3", "attributes": attributes(phase_name="image_pull", phase_status="failed", pod="p")},
                {"asInt": "2", "attributes": attributes(phase_name="docker_run", phase_status="timeout", pod="p")},
            ],
        },
    }  # fmt: skip
    found = body(request(*(gauge(name, (value, {"pod": "p"})) for name, value in total.items()), failures), "run")
    assert {(s.metric, s.labels): s.value for s in found.reading.samples} == {
        ("sandboxes", (("state", "unknown"),)): 40.0,
        ("sandbox_quota_limit", (("resource", "cpu"),)): 512.0,
        ("sandbox_quota_used", (("resource", "cpu"),)): 400.0,
        ("sandbox_quota_limit", (("resource", "memory"),)): 2048.0,
    }
    assert {one.value.labels: one.value.value for one in found.grown if isinstance(one.value, Sample)} == {
        (("cause", "image"),): 3.0,
        (("cause", "timeout"),): 2.0,
    }
    assert dict(found.reading.unmapped) == {"xrl_gateway.request.rt": 1}


def test_modals_containers_are_added_up() -> None:
    points = [(1.0, {"container_id": f"ta-{n}", "app_name": "rl"}) for n in range(3)]
    (sample,) = body(request(gauge("modal.container.running", *points)), "run").reading.samples
    assert (sample.metric, sample.labels, sample.value) == ("sandboxes", (("state", "running"),), 3.0)


def test_agent_sandbox_times_a_start_once() -> None:
    names = ("agent_sandbox_creation_latency_ms", "agent_sandbox_claim_startup_latency_ms")
    found = body(request(*(histogram(name, [1, 1], [500.0], 900.0, launch_type="warm") for name in names)), "run")
    (one,) = found.grown
    assert isinstance(one.value, Histogram)
    assert (one.value.metric, one.value.labels, one.value.edges, one.value.counts, one.value.total) == (
        "sandbox_spinup_seconds", (("image", "cached"),), (0.5,), (1.0, 2.0), 0.9,
    )  # fmt: skip


def test_a_canonical_duration_in_milliseconds_becomes_seconds() -> None:
    metric = {**gauge("rollscope.trainer.step.seconds", (30_500.0, {"step": 2, "axis": "trainer"})), "unit": "ms"}
    (sample,) = body(request(metric), "run").reading.samples
    assert (sample.metric, sample.value, sample.step, sample.axis, sample.labels) == (
        "trainer_step_seconds", 30.5, 2, "trainer", (),
    )  # fmt: skip


def test_what_cannot_be_taken_is_counted_with_its_reason() -> None:
    exponential = {
        "name": "sandbox_exec_seconds",
        "exponentialHistogram": {"dataPoints": [{"count": "1"}, {"count": "2"}]},
    }
    summary = {"name": "sandbox_exec_seconds", "summary": {"dataPoints": [{"count": "1"}]}}
    moved = {"name": "queue_samples", "sum": {"aggregationTemporality": 1, "dataPoints": [{"asDouble": 1}]}}
    bare = histogram("sandbox_exec_seconds", [], [], 1.0)
    whole = request(exponential, summary, moved, bare, gauge("reward_mean", (1, {})), gauge("queue_samples", (2, {})))
    found = otlp.read(whole, "run", NOW)
    assert found.refused == 6
    assert [words.split(":")[0] for words in found.words] == [
        "sandbox_exec_seconds", "sandbox_exec_seconds", "queue_samples", "sandbox_exec_seconds", "reward_mean",
    ]  # fmt: skip
    assert "exponential" in found.words[0] and "explicit buckets" in found.words[0]
    assert [s.value for s in found.parts[("run", "otlp")].body().reading.samples] == [2.0]
    answer = json.loads(otlp.answer(found, otlp.JSON))["partialSuccess"]
    assert answer["rejectedDataPoints"] == "6" and "exponential" in answer["errorMessage"]


def test_too_many_points_are_refused_before_any_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "POINTS", 3)
    with pytest.raises(ValueError, match="at most 3 points"):
        otlp.read(request(gauge("queue_samples", *[(1.0, {})] * 4)), "run", NOW)


def test_json_is_bounded_more_closely() -> None:
    with pytest.raises(ValueError, match="may hold 4194304 bytes: send protobuf"):
        otlp.decode(b" " * (otlp.JSON_BYTES + 1), otlp.JSON)


def test_every_rule_leads_into_the_vocabulary() -> None:
    assert {rule.metric for rule in RULES.values()} | {
        r.failures for r in RULES.values() if r.failures
    } <= METRICS.keys()
    assert not RULES.keys() & (METRICS.keys() | QUOTAS.keys())


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_an_error_in_words(data: bytes) -> None:
    for kind in (otlp.PROTOBUF, otlp.JSON):
        try:
            message = otlp.decode(data, kind)
        except ValueError as error:
            assert "no OTLP metrics request" in str(error)
        else:
            otlp.read(message, "run", NOW)


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
def test_a_damaged_request_is_read_or_refused(at: int, damage: bytes) -> None:
    whole = gzip.decompress((DATA / "cumulative_0.pb.gz").read_bytes())
    at %= len(whole)
    try:
        message = otlp.decode(whole[:at] + damage + whole[at + len(damage) :], otlp.PROTOBUF)
    except ValueError:
        return
    for part in otlp.read(message, "run", NOW).parts.values():
        Totals().add(part.body().grown, NOW)
