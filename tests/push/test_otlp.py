"""OTLP requests, recorded from the real SDK and built by hand: whose they are and what their names mean."""

import json
from typing import Any

import pytest
from google.protobuf import json_format

from collectors.catalog import METRICS
from collectors.model import Histogram, Sample
from collectors.otlp_names import QUOTAS, RULES, Maps
from server.config import settings
from server.push import otlp
from server.push.targets import ProcessTotals
from tests.push.otlp_requests import NOW, attributes, body, gauge, histogram, recorded, request, total


@pytest.mark.parametrize("kind", ["cumulative", "delta"])
def test_what_the_real_sdk_sends_of_daytona_and_of_a_trainer(kind: str) -> None:
    totals = ProcessTotals()
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
    assert "rollscope.run" in found.reasons[0] and "x-rollscope-run" in found.reasons[0]
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


def test_torchtitans_engines_stay_apart() -> None:
    def engine(rank: int, running: float) -> dict[str, Any]:
        own = attributes(generator_name="gen", rank=rank, engine_index=0, service_name="x")
        metrics = [
            gauge("vllm.num_running_requests", (running, {})), gauge("vllm.kv_cache_usage", (0.5, {})),
            total("vllm.generation_tokens", {"asInt": "10", "timeUnixNano": str(int(NOW * 1e9))}),
            {**histogram("vllm.time_to_first_token", [1, 1], [250.0], 600.0), "unit": "ms"},
            gauge("vllm.their_own", (1, {})),
        ]  # fmt: skip
        return {"resource": {"attributes": own}, "scopeMetrics": [{"metrics": metrics}]}

    both = {"resourceMetrics": [engine(0, 3.0), engine(1, 5.0)]}
    found = body(otlp.decode(json.dumps(both).encode(), otlp.JSON), "run")
    first, second = ((("engine", "0"), ("replica", f"gen/{rank}")) for rank in (0, 1))
    assert {(s.metric, s.labels): s.value for s in found.reading.samples} == {
        ("generator_requests_running", first): 3.0, ("kv_cache_usage_ratio", first): 0.5,
        ("generator_requests_running", second): 5.0, ("kv_cache_usage_ratio", second): 0.5,
    }  # fmt: skip
    assert [(one.value.metric, one.value.labels) for one in found.grown] == [
        ("generator_tokens_total", first), ("time_to_first_token_seconds", first),
        ("generator_tokens_total", second), ("time_to_first_token_seconds", second),
    ]  # fmt: skip
    assert isinstance(found.grown[1].value, Histogram)
    assert (found.grown[1].value.edges, found.grown[1].value.total) == ((0.25,), 0.6)
    assert dict(found.reading.unmapped) == {"vllm.their_own": 2}


def test_vllms_own_names_come_by_any_spelling() -> None:
    metrics = [
        gauge("vllm:num_requests_running", (4, {"engine": "1"})),
        total("vllm.request_success", {"asInt": "2", "attributes": attributes(finished_reason="stop")}),
    ]
    found = body(request(*metrics), "run")
    (running,), (finished,) = found.reading.samples, found.grown
    assert (running.metric, running.labels, running.value) == ("generator_requests_running", (("engine", "1"),), 4.0)
    assert (finished.value.metric, finished.value.labels) == (
        "generator_requests_finished_total", (("reason", "stop"),),
    )  # fmt: skip


def test_gauges_of_engines_under_one_service_name_stay_apart() -> None:
    named = {"service__name": "engines", "rollscope__run": "r"}
    one, two = (request(gauge("kv_cache_usage_ratio", (0.5, {})), service__instance__id=n, **named) for n in "ab")
    one.MergeFrom(two)
    labels = [sample.labels for sample in body(one).reading.samples]
    assert labels == [(("replica", "a"),), (("replica", "b"),)]


def test_of_daytonas_regions_the_fullest_counts() -> None:
    quota = {"total_cpu": (100, 50), "used_cpu": (20, 40), "total_ram": (64, 64), "used_ram": (8, 0)}
    metrics = [
        gauge(f"daytona.sandbox.{name}", *((value, {"region.id": region}) for value, region in zip(both, "ab")))  # noqa: B905
        for name, both in quota.items()
    ]
    assert {(s.metric, s.labels[0][1]): s.value for s in body(request(*metrics), "run").reading.samples} == {
        ("sandbox_quota_limit", "cpu"): 50.0, ("sandbox_quota_used", "cpu"): 40.0,
        ("sandbox_quota_limit", "memory_gb"): 64.0, ("sandbox_quota_used", "memory_gb"): 8.0,
    }  # fmt: skip


def mapped(*rows: dict[str, Any]) -> Maps:
    problems: list[str] = []
    found = settings.parse_otlp(list(rows), lambda where, words: problems.append(f"{where}: {words}"))
    assert problems == []
    return found


def test_a_users_own_names() -> None:
    maps = mapped(
        {"name": "acme.boot", "metric": "sandbox_spinup_seconds", "unit": "ms", "labels": {"image": "cached"}},
        {"name": "acme.failed", "metric": "sandbox_failures_total", "keep": {"why": "cause"}},
        {"name": "acme.queue", "metric": "queue_samples", "scale": 16, "run": "run"},
        {"name": "acme.queue", "ignore": True},
        # A row of the user's wins over ours.
        {"name": "modal.container.running", "ignore": True},
    )
    whole = request(
        histogram("acme.boot", [1, 1], [500.0], 900.0),
        total("acme.failed", {"asInt": "3", "attributes": attributes(why="oom", pod="p")}),
        gauge("acme.queue", (2, {})), gauge("modal.container.running", (1, {})), gauge("acme.other", (1, {})),
    )  # fmt: skip
    found = otlp.read(whole, "run", NOW, maps).parts[("run", "otlp")].body()
    assert [(s.metric, s.value) for s in found.reading.samples] == [("queue_samples", 32.0)]
    boot, failed = (one.value for one in found.grown)
    assert isinstance(boot, Histogram) and isinstance(failed, Sample)
    assert (boot.metric, boot.labels, boot.edges, boot.total) == (
        "sandbox_spinup_seconds", (("image", "cached"),), (0.5,), 0.9,
    )  # fmt: skip
    assert (failed.labels, failed.value) == ((("cause", "oom"),), 3.0)
    assert dict(found.reading.unmapped) == {"acme.other": 1}
    elsewhere = otlp.read(whole, "another", NOW, maps).parts[("another", "otlp")].body()
    assert elsewhere.reading.samples == () and dict(elsewhere.reading.unmapped) == {"acme.other": 1}


def test_a_wrong_table_is_told_whole() -> None:
    problems: dict[str, str] = {}
    rows = [
        {"name": "a", "metric": "queue_sample", "colour": 1}, {"metric": "queue_samples"}, 7,
        {"name": "b", "metric": "queue_samples", "scale": -1}, {"name": "b", "metric": "queue_samples", "unit": "ms"},
        {"name": "c", "metric": "queue_samples", "labels": {"x": 1}},
    ]  # fmt: skip
    settings.parse_otlp(rows, lambda where, words: problems.update({where: words}))
    assert list(problems) == [
        "[0].colour", "[0].metric", "[1].name", "[2]", "[3].scale", "[4].name", "[4].unit", "[5].labels",
    ]  # fmt: skip
    assert "did you mean queue_samples" in problems["[0].metric"]


def test_every_rule_leads_into_the_vocabulary() -> None:
    assert {rule.metric for rule in RULES.values()} | {
        r.failures for r in RULES.values() if r.failures
    } <= METRICS.keys()
    assert not RULES.keys() & (METRICS.keys() | QUOTAS.keys())
