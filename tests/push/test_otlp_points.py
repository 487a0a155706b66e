"""OTLP points, built by hand: what is refused and why, exponential histograms, restarts, damage. Numbers by hand."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Histogram
from server.push import otlp
from server.push.targets import ProcessTotals
from tests.push.otlp_requests import DATA, NOW, body, gauge, histogram, request, total


def exponential(scale: int, offset: int, counts: list[int], **more: Any) -> dict[str, Any]:
    """Seconds of commands; `count` is that of the buckets and zeros where it is not given."""
    given = (
        sum(counts) + int(more.get("zeroCount", 0)) + sum(map(int, more.get("negative", {}).get("bucketCounts", [])))
    )
    point = {
        "timeUnixNano": str(int(NOW * 1e9)), "count": str(given), "sum": 1.0, "scale": scale,
        "positive": {"offset": offset, "bucketCounts": [str(count) for count in counts]}, **more,
    }  # fmt: skip
    return {
        "name": "sandbox_exec_seconds", "exponentialHistogram": {"aggregationTemporality": 2, "dataPoints": [point]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ({"name": "sandbox_exec_seconds", "summary": {"dataPoints": [{"count": "1"}]}}, "a summary has no buckets"),
        (total("queue_samples", {"asDouble": 1}, temporality=1), "this sum has delta temporality"),
        (total("generator_tokens_total", {"asInt": "1"}, temporality=0), "it has no aggregation temporality"),
        (total("generator_tokens_total", {"asInt": "1"}, monotonic=False), "this sum is not monotonic"),
        (total("generator_tokens_total", {"asInt": "-1"}), "generator_tokens_total -1: tokens cannot be below 0"),
        (total("generator_tokens_total", {"asDouble": "NaN"}), "not a finite number"),
        (histogram("sandbox_exec_seconds", [], [], 1.0), "configure explicit ones"),
        # One bucket without an edge would make every quantile 0.
        (histogram("sandbox_exec_seconds", [3], [], 1.0), "configure explicit ones"),
        (histogram("sandbox_exec_seconds", [1, 2], [1.0, 2.0], 1.0), "not complete"),
        (histogram("sandbox_exec_seconds", [1, 2, 3], [2.0, 1.0], 1.0), "edges must grow"),
        (histogram("sandbox_exec_seconds", [1, 2], [1.0], "NaN"), "sum is not a finite number"),  # type: ignore[arg-type]
        (histogram("queue_samples", [1, 2], [1.0], 1.0), "queue_samples is a gauge, not a histogram"),
        (exponential(-1, 0, [1]), "wider than powers of two"),
        (exponential(2, 0, [1], zeroThreshold=1.0), "zero threshold is above 2^-14"),
        (exponential(2, 0, [1], count="2"), "its buckets hold 1 observations, its count is 2"),
        (gauge("reward_mean", (1, {})), "a value of one step"),
    ],
)
def test_what_cannot_be_taken_is_counted_with_its_reason(metric: dict[str, Any], why: str) -> None:
    found = otlp.read(request(metric, gauge("queue_samples", (2, {}))), "run", NOW)
    assert found.refused == 1
    (words,) = found.reasons
    assert words.startswith(f"{metric['name']}: ") and why in words
    kept = found.parts[("run", "otlp")].body()
    assert ([s.value for s in kept.reading.samples], kept.grown) == ([2.0], ())
    # Shown at the target too: who looks at a chart has not seen the answer.
    assert (kept.reading.dropped, kept.reading.why_dropped) == (1, words)
    told = json.loads(otlp.answer(found, otlp.JSON))["partialSuccess"]
    assert told == {"rejectedDataPoints": "1", "errorMessage": words}


def test_of_two_points_of_one_series_one_counts() -> None:
    """Containers are added up: one that is sent twice must not count twice, nor an older value beside a newer."""
    one, other = {"container_id": "a"}, {"container_id": "b"}
    metric = gauge("modal.container.running", (1, one), (1, one), (1, other))
    found = otlp.read(request(metric), "run", NOW)
    assert (found.refused, found.reasons) == (1, ["modal.container.running: two points of one series at one time"])
    (sample,) = found.parts[("run", "otlp")].body().reading.samples
    assert sample.value == 2.0

    metric["gauge"]["dataPoints"][0]["timeUnixNano"] = str(int((NOW - 5) * 1e9))
    (sample,) = body(request(metric), "run").reading.samples
    assert sample.value == 2.0


def test_a_histogram_that_leaves_its_sum_out_or_says_another_count_is_refused() -> None:
    bare, other = (histogram("sandbox_exec_seconds", [1, 2], [1.0], 5.0) for _ in range(2))
    del bare["histogram"]["dataPoints"][0]["sum"]
    other["histogram"]["dataPoints"][0]["count"] = "4"
    found = otlp.read(request(bare, other), "run", NOW)
    assert found.refused == 2 and found.parts[("run", "otlp")].grown == []
    assert "without a sum" in found.reasons[0] and "hold 3 observations, its count is 4" in found.reasons[1]


def whole(metric: dict[str, Any]) -> dict[float, float]:
    """An exponential histogram's buckets that hold something: upper edge -> observations."""
    (one,) = body(request(metric), "run").grown
    assert isinstance(one.value, Histogram)
    edges, counts = (*one.value.edges, float("inf")), one.value.counts
    return {
        edge: now - before for edge, now, before in zip(edges, counts, (0.0, *counts), strict=False) if now > before
    }


def test_exponential_histograms_keep_their_counts_under_fixed_edges() -> None:
    # Scale 2 is ours: bucket i ends at 2^((i+1)/4). Scale 4 is merged by fours, negative indices downwards.
    assert whole(exponential(2, 3, [5, 0, 7])) == {2.0: 5.0, 2.0**1.5: 7.0}
    assert whole(exponential(4, -2, [1, 2, 4, 8, 16])) == {1.0: 3.0, 2.0**0.25: 28.0}
    # Scales 0 and 1 are coarser than that: under powers of two.
    assert whole(exponential(1, 2, [1, 2, 4])) == {4.0: 3.0, 8.0: 4.0}
    # Zeros and what is below zero are at most the first edge; what is beyond the last is only that.
    assert whole(exponential(0, 28, [9], zeroCount="2", negative={"offset": 3, "bucketCounts": ["4"]})) == {
        2.0**-14: 6.0,
        float("inf"): 9.0,
    }


def test_exponential_histograms_add_up_while_their_scale_changes() -> None:
    totals = ProcessTotals()
    first, second = exponential(6, 0, [1, 1]), exponential(3, -2, [0, 1, 1, 2])
    second["exponentialHistogram"]["dataPoints"][0]["timeUnixNano"] = str(int((NOW + 10) * 1e9))
    totals.add(body(request(first), "run").grown, NOW)
    _, (found,) = totals.add(body(request(second), "run").grown, NOW + 10)
    assert (totals.dropped, found.counts[-1]) == (0, 4.0)


def started(value: int, start: float, at: float) -> Any:
    stamps = {"startTimeUnixNano": str(int(start * 1e9)), "timeUnixNano": str(int(at * 1e9))}
    return request(total("generator_tokens_total", {"asInt": str(value), **stamps}))


def test_a_process_that_began_again_is_known_by_its_start_alone() -> None:
    totals = ProcessTotals()
    values = [
        [s.value for s in totals.add(body(started(value, NOW + start, NOW + at), "run").grown, NOW + at)[0]]
        for value, start, at in [(100, 0, 1), (130, 0, 10), (150, 15, 20), (160, 15, 30)]
    ]
    # 150 is more than 130 and yet all of it is new: 130 + 150, then 10 more.
    assert values == [[0.0, 100.0], [130.0], [280.0], [290.0]]
    assert ProcessTotals.of(json.loads(json.dumps(totals.cursor()))).starts == totals.starts


def test_two_libraries_of_one_process_may_use_one_name() -> None:
    def scope(name: str, value: int) -> dict[str, Any]:
        point = {"asInt": str(value), "timeUnixNano": str(int(NOW * 1e9)), "startTimeUnixNano": str(int(NOW * 1e9))}
        return {"scope": {"name": name}, "metrics": [total("generator_tokens_total", point)]}

    both = {"resourceMetrics": [{"scopeMetrics": [scope("a", 3), scope("b", 4)]}]}
    samples, _ = ProcessTotals().add(body(otlp.decode(json.dumps(both).encode(), otlp.JSON), "run").grown, NOW)
    assert [sample.value for sample in samples] == [0.0, 7.0]


def test_too_many_points_are_refused_before_any_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "POINTS", 3)
    with pytest.raises(ValueError, match="at most 3 points"):
        otlp.read(request(gauge("queue_samples", *[(1.0, {})] * 4)), "run", NOW)


def test_json_is_bounded_more_closely() -> None:
    with pytest.raises(ValueError, match="may have at most 4194304 bytes: send protobuf"):
        otlp.decode(b" " * (otlp.JSON_BYTES + 1), otlp.JSON)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_an_error_in_words(data: bytes) -> None:
    for kind in (otlp.PROTOBUF, otlp.JSON):
        try:
            message = otlp.decode(data, kind)
        except ValueError as error:
            assert "not an OTLP metrics request" in str(error)
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
        ProcessTotals().add(part.body().grown, NOW)
