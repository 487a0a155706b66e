"""Tick signals and their windows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.signals.generator import generator_requests as REQUESTS
from server.signals.generator import generator_requests_now as REQUESTS_NOW
from server.signals.generator import generator_tokens_per_second as RATE
from server.signals.kv_cache import kv_cache_usage_ratio as KV
from server.signals.model import Answer, Unknown, View
from server.signals.queue import queue_batches as BATCHES
from server.signals.queue import queue_samples as QUEUE
from server.signals.queue import queue_samples_now as QUEUE_NOW
from server.signals.rollouts import in_flight_rollouts as IN_FLIGHT
from server.signals.window import Gauge
from tests.signals.support import NOW, book, gauge, view

RUNNING, WAITING = (("state", "running"),), (("state", "waiting"),)


def values(answer: Answer) -> dict[tuple[tuple[str, str], ...], float]:
    assert isinstance(answer, (list, tuple)), answer
    return {value.labels: value.value for value in answer}


def test_the_queues_window_holds_whole_steps() -> None:
    """A buffer sawing 0..90 every 100 s, seen 40 s into a step: 5 minutes hold 3 whole steps, or one of 200 s."""
    series = Gauge("e", "queue_samples", (), carry=60)
    for second in range(0, 640, 10):
        series.add(NOW - 640 + second, float(second % 100))
    steps = book([{"trainer_step_seconds": 100.0}] * 5, seconds=100.0)
    assert values(QUEUE.compute(view(series, steps=steps))) == {(): 45.0}
    assert values(QUEUE.compute(view(series, steps=book([{"trainer_step_seconds": 200.0}] * 5)))) == {(): 45.0}
    assert values(QUEUE.compute(view(series, steps=book([{"trainer_step_seconds": 900.0}] * 5)))) == {(): 45.0}


def test_requests_add_engines_and_keep_states_apart() -> None:
    found = view(
        gauge("generator_requests_running", 100, target="e0"),
        gauge("generator_requests_running", 28, target="e1"),
        gauge("generator_requests_waiting", 723, target="e0"),
    )
    assert values(REQUESTS.compute(found)) == {RUNNING: 128.0, WAITING: 723.0}


def test_data_parallel_engines_of_one_page_are_different_series() -> None:
    found = view(
        gauge("generator_requests_running", 3, labels=(("engine", "0"),)),
        gauge("generator_requests_running", 4, labels=(("engine", "1"),)),
    )
    assert values(REQUESTS_NOW.compute(found)) == {RUNNING: 7.0}


def test_window_mean_is_weighted_by_time() -> None:
    # 10 for 10 s, then 40 for 20 s.
    series = Gauge("e", "queue_samples", (), carry=60)
    series.add(NOW - 30, 10)
    series.add(NOW - 20, 40)
    assert values(QUEUE.compute(view(series))) == {(): pytest.approx((10 * 10 + 40 * 20) / 30)}
    assert values(QUEUE_NOW.compute(view(series))) == {(): 40.0}


def test_what_is_older_than_five_minutes_counts_only_as_the_value_held_at_the_start() -> None:
    series = Gauge("e", "queue_samples", (), carry=400)
    for ts, value in ((NOW - 900, 1000.0), (NOW - 400, 8.0), (NOW - 100, 2.0)):
        series.add(ts, value)
    assert series.mean(NOW) == pytest.approx((8 * 200 + 2 * 100) / 300)
    assert len(series.points) == 3 - 1  # one sample before the window is kept, no more


def test_a_stale_engine_leaves_the_sum() -> None:
    found = view(
        gauge("generator_requests_running", 5, 5, target="alive"),
        gauge("generator_requests_running", 9, 9, target="dead", age=16.0),
    )
    assert values(REQUESTS.compute(found)) == {RUNNING: 5.0}


def test_one_missing_page_is_carried() -> None:
    assert values(REQUESTS.compute(view(gauge("generator_requests_running", 7, age=10.0)))) == {RUNNING: 7.0}


def test_all_stale_is_unknown() -> None:
    assert isinstance(REQUESTS.compute(view(gauge("generator_requests_running", 7, age=600.0))), Unknown)


def test_a_value_is_held_for_three_reports_not_for_an_hour() -> None:
    """200 requests, an hour of silence, then none: the mean knows of 15 s with 200 and nothing of the hour."""
    series = Gauge("e", "generator_requests_running", (), carry=15.0)
    series.add(NOW - 3600, 200.0)
    series.add(NOW, 0.0)
    assert values(REQUESTS.compute(view(series))) == {RUNNING: 0.0}
    series.add(NOW + 5, 0.0)
    assert series.mean(NOW + 5) == 0.0


def test_a_rate_does_not_reach_over_a_gap() -> None:
    """1,000 tokens/s all the time; an hour without pages in between."""
    series = Gauge("e", "generator_tokens_total", (), carry=15.0)
    for ts in (NOW - 3610, NOW - 3605, NOW - 5, NOW):
        series.add(ts, 1000.0 * (ts - NOW + 4000))
    assert values(RATE.compute(view(series))) == {(): pytest.approx(1000.0)}


def test_a_rate_of_slow_reports_is_not_inflated_by_the_windows_edge() -> None:
    series = Gauge("e", "generator_tokens_total", (), carry=400.0)
    for n in range(6):
        series.add(NOW - 600 + 120 * n, 1000.0 * 120 * n)
    assert values(RATE.compute(view(series))) == {(): pytest.approx(1000.0)}


def test_sleeping_engines_do_not_dilute_the_cache() -> None:
    found = view(
        gauge("kv_cache_usage_ratio", 0.9, target="e0"),
        gauge("kv_cache_usage_ratio", 0.0, target="e1"),
        gauge("generator_asleep", 1, target="e1"),
        gauge("generator_asleep", 0, target="e0"),
    )
    assert values(KV.compute(found)) == {(): 0.9}


def test_all_asleep_is_unknown_and_says_it() -> None:
    found = view(gauge("kv_cache_usage_ratio", 0.0), gauge("generator_asleep", 1))
    assert KV.compute(found) == Unknown("every engine is asleep")


def test_rate_survives_a_reset() -> None:
    # 0 -> 500 -> 1000, restart, 100 -> 600: 500 + 500 + 100 + 500 over 20 s.
    assert values(RATE.compute(view(gauge("generator_tokens_total", 0, 500, 1000, 100, 600)))) == {(): 80.0}


def test_a_rate_needs_two_pages() -> None:
    assert isinstance(RATE.compute(view(gauge("generator_tokens_total", 500))), Unknown)


def test_queue_in_batches_knows_the_batch_from_facts() -> None:
    assert values(BATCHES.compute(view(gauge("queue_samples", 500.0), batch_samples=512.0))) == {(): 500 / 512}
    assert isinstance(BATCHES.compute(view(gauge("queue_samples", 500.0))), Unknown)


def test_a_queue_counted_in_groups_needs_their_size() -> None:
    groups = gauge("queue_groups", 5.0)
    assert isinstance(QUEUE_NOW.compute(view(groups)), Unknown)
    # The same queue in samples, from the log: it is not added.
    both = view(groups, gauge("queue_samples", 24.0), group_size=8.0, batch_samples=80.0)
    assert values(QUEUE_NOW.compute(both)) == values(QUEUE.compute(both)) == {(): 40.0}
    assert values(BATCHES.compute(both)) == {(): 0.5}
    assert values(QUEUE_NOW.compute(view(groups, gauge("queue_samples", 24.0)))) == {(): 24.0}


def test_in_flight_by_state() -> None:
    found = view(
        gauge("in_flight_rollouts", 480, labels=(("state", "generating"),)),
        gauge("in_flight_rollouts", 20, labels=(("state", "in_tool"),)),
    )
    assert values(IN_FLIGHT.compute(found)) == {(("state", "generating"),): 480.0, (("state", "in_tool"),): 20.0}


samples = st.lists(st.tuples(st.floats(0.1, 120), st.floats(0, 1e6)), min_size=1, max_size=60)


@given(samples, st.floats(0, 100))
def test_the_mean_lies_between_the_extremes_of_what_the_window_saw(
    gaps: list[tuple[float, float]], wait: float
) -> None:
    series, ts = Gauge("e", "m", (), carry=1e9), NOW
    for gap, value in gaps:
        ts += gap
        series.add(ts, value)
    seen = [value for _, value in series.points]
    assert min(seen) - 1e-6 <= series.mean(ts + wait) <= max(seen) + 1e-6


@given(samples)
def test_the_window_never_holds_more_than_its_seconds_and_one_sample(gaps: list[tuple[float, float]]) -> None:
    series, ts = Gauge("e", "m", (), carry=1e9), NOW
    for gap, value in gaps:
        ts += gap
        series.add(ts, value)
    assert sum(point[0] < ts - series.keep for point in series.points) <= 1
    assert math.isclose(series.last_ts, ts)


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=50))
def test_an_increase_is_never_negative_and_equals_the_difference_without_resets(counts: list[float]) -> None:
    rising = sorted(counts)
    series = gauge("generator_tokens_total", *rising)
    assert series.increase(NOW)[0] == pytest.approx(rising[-1] - rising[0], abs=1e-3)
    assert gauge("generator_tokens_total", *counts).increase(NOW)[0] >= 0


def test_a_view_without_gauges_is_legal() -> None:
    assert isinstance(QUEUE.compute(View(NOW, "async", "running", {})), Unknown)
