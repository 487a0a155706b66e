"""Histograms over five minutes: what is added, what is a restart, what leaves the window. Numbers by hand."""

import math

import pytest

from collectors.model import Histogram
from server.signals import latency
from server.signals.model import Answer, Unknown
from server.signals.observed_histograms import Histograms, Pool, totals
from tests.signals.support import NOW, histogram, view

TTFT, ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
EDGES = (0.5, 1.0, 2.0)


def told(answer: Answer) -> dict[str, float]:
    assert not isinstance(answer, Unknown) and isinstance(answer, list), answer
    return {dict(value.labels)["stat"]: value.value for value in answer}


def ttft(found: Histograms) -> Answer:
    return latency.time_to_first_token_seconds.compute(view(histograms=found))


def test_quantiles_and_mean_of_the_whole_fleet() -> None:
    """100 requests: 40 within 0.5 to 1 s on one engine, 60 within 1 to 2 s on the other, in 100 s together."""
    found = Histograms()
    histogram(found, TTFT, EDGES, ((5, 5, 5, 5), 1.0), ((5, 45, 45, 45), 31.0))
    histogram(found, TTFT, EDGES, ((0, 0, 0, 0), 0.0), ((0, 0, 60, 60), 70.0), target="e1")
    # The 50th is the 10th of the 60 from 1 s on; 95th: the 55th; 99th: the 59th.
    assert told(ttft(found)) == {
        "mean": pytest.approx(1.0),
        "p50": pytest.approx(1 + 10 / 60),
        "p95": pytest.approx(1 + 55 / 60),
        "p99": pytest.approx(1 + 59 / 60),
    }


def test_what_is_below_the_first_edge_is_told_by_the_mean_alone() -> None:
    """Fast decode: 96 of 100 gaps are below vLLM's first edge of 10 ms, and take 4 ms."""
    found = Histograms()
    histogram(found, ITL, (0.01, 0.025), ((0, 0, 0), 0.0), ((96, 100, 100), 0.4))
    answer = told(latency.inter_token_latency_seconds.compute(view(histograms=found)))
    assert answer == {"mean": pytest.approx(0.004), "p99": pytest.approx(0.01 + 0.015 * 3 / 4)}


def test_other_edges_are_never_added_up() -> None:
    """The mean is exact over both; quantiles are those of the layout that saw most."""
    found = Histograms()
    histogram(found, TTFT, EDGES, ((0, 0, 0, 0), 0.0), ((0, 10, 10, 10), 8.0))
    histogram(found, TTFT, (8.0,), ((0, 0), 0.0), ((0, 30), 300.0), target="e1")
    # All thirty are beyond 8 s, the last edge: not beyond the first is said of none.
    assert told(ttft(found)) == {"mean": pytest.approx(308 / 40)}


def test_a_restart_counts_from_zero_and_new_edges_are_one() -> None:
    found = Histograms()
    histogram(found, TTFT, EDGES, ((9, 90, 90, 90), 50.0), ((0, 4, 4, 4), 3.0))
    assert totals(found.by_metric()[TTFT], NOW) == (4.0, 3.0)
    found = Histograms()
    histogram(found, TTFT, EDGES, ((9, 90, 90, 90), 50.0), age=5.0)
    histogram(found, TTFT, (0.5, 1.0, 4.0), ((0, 2, 91, 91), 51.0))
    assert totals(found.by_metric()[TTFT], NOW) == (91.0, 51.0)


def test_a_reading_that_comes_late_or_twice_adds_nothing() -> None:
    found = Histograms()
    histogram(found, TTFT, EDGES, ((0, 0, 0, 0), 0.0), ((0, 4, 4, 4), 3.0))
    histogram(found, TTFT, EDGES, ((0, 2, 2, 2), 1.5), age=2.0)
    histogram(found, TTFT, EDGES, ((0, 4, 4, 4), 3.0))
    assert totals(found.by_metric()[TTFT], NOW) == (4.0, 3.0)


def test_the_window_takes_the_minute_it_begins_in_by_its_share() -> None:
    """NOW is 40 s into its minute: of the minute that began 340 s ago the last 20 s are within the window."""
    pool = Pool("m", (), (1.0,))
    minute = int(NOW // 60)
    pool.add(minute - 5, (30.0, 30.0, 6.0))
    pool.add(minute, (1.0, 2.0, 3.0))
    assert NOW % 60 == 40
    assert pool.within(NOW) == [pytest.approx(11.0), pytest.approx(12.0), pytest.approx(5.0)]
    pool.add(minute + 1, (1.0, 1.0, 1.0))
    assert sorted(pool.minutes) == [minute, minute + 1]  # one of six minutes ago can never count again


def test_nothing_observed_is_unknown_and_says_which() -> None:
    found = Histograms()
    assert "no engine reports" in ttft(found).why  # type: ignore[union-attr]
    histogram(found, TTFT, EDGES, ((5, 5, 5, 5), 1.0), ((5, 5, 5, 5), 1.0))
    assert ttft(found) == Unknown("no request got its first token within 5 minutes")
    silent = Histograms()
    histogram(silent, TTFT, EDGES, ((0, 0, 0, 0), 0.0), ((0, 4, 4, 4), 3.0), age=20.0)
    assert "no engine reports" in ttft(silent).why  # type: ignore[union-attr]


def test_requests_that_ended_speak_for_themselves() -> None:
    found = Histograms()
    histogram(found, "e2e_request_seconds", (30.0,), ((0, 0), 0.0), ((0, 2), 90.0))
    assert told(latency.e2e_request_seconds.compute(view(histograms=found)))["mean"] == 45.0


def test_memory_follows_neither_time_nor_engines_that_left() -> None:
    found = Histograms()
    for n in range(1000):
        item = Histogram(TTFT, (1.0,), (float(n), float(n)), float(n))
        found.read(NOW + 30 * n, f"e{n % 3}", item, carry=15.0)
    (pool,) = found.by_metric()[TTFT]
    assert len(pool.minutes) <= 6
    found.forget(NOW + 30 * 1000 + 3001)
    assert not found.by_metric() and math.isinf(found.pool("e0", TTFT, (), (1.0,)).last_ts)
