"""The numbers of the evidence: a signal's own with its window, or means over the judged steps without a signal."""

from dataclasses import replace

import pytest

from server.verdict.explain import evidence, span
from server.verdict.model import Evidence, VerdictInput
from server.verdict.throughput import numbers
from tests.verdict.support import HEALTHY, NOW, STARVED, seen, steps


def facts(given: VerdictInput) -> dict[str, Evidence]:
    """The evidence by the first three words of its text."""
    return {" ".join(one.text.split()[:3]): one for one in evidence(numbers(given), (), None)}


def test_a_signals_own_number_names_the_signal_and_its_window() -> None:
    # The rollouts in flight are left out so that the queue is among the eight facts shown.
    told = seen(HEALTHY, {"generation_held_ratio": 0.25, "in_flight_rollouts*": None})
    found = {one.text: one.signal for one in facts(told).values()}
    assert found == {
        "The trainer waits 6% of each step": "trainer_wait_ratio",
        "The trainer consumes 8.5 samples/s; its capacity is 9.04 (last 10 steps)": "capacity_samples_per_second",
        "Cross-check: arrivals (8.6 samples/s) predict a wait of 5% (last 10 steps)":
            "queue_arrivals_samples_per_second",
        "Production was held 25% of the time (last 10 steps)": "generation_held_ratio",
        "Engines run 56 requests of 110 that fit, 0 wait (5 min mean)": "generator_requests",
        "KV cache 50% full (5 min mean)": "kv_cache_usage_ratio",
        "In flight: 95% of the limit (now)": "in_flight_ratio",
        "1.5 batches wait in the queue (5 min mean)": "queue_batches",
    }  # fmt: skip


def test_means_of_the_judged_steps_state_their_window_and_name_no_signal() -> None:
    counts = [
        (NOW - 240 + 60 * number, {"requests:running": running, "requests:waiting": 112.0, "cap": cap})
        for number, (running, cap) in enumerate(((280.0, 0.7), (284.0, 0.8), (288.0, 0.9)))
    ]
    # The trainer's last 14 steps of 20 s begin before the first count.
    given = replace(seen(HEALTHY, last=steps(*[0.06] * 14, seconds=20.0)), instants=counts)
    found = facts(given)
    engines, cap = found["Engines ran 284"], found["In flight: 80%"]
    assert engines.text == "Engines ran 284 requests of 110 that fit, 112 waited (mean of the last 4 min)"
    assert cap.text == "In flight: 80% of the limit (mean of the last 4 min)"
    assert (engines.signal, engines.value, engines.age_seconds) == ("", 284.0, None)
    assert (cap.signal, cap.value) == ("", pytest.approx(0.8))
    assert found["KV cache 50%"].signal == "kv_cache_usage_ratio"


def test_numbers_of_the_newest_steps_are_not_those_of_the_last_ten() -> None:
    # Seven steps that wait for 6 % and three that wait for 70 %: the signal's mean of the ten is 25 %.
    told = seen(HEALTHY, {"trainer_wait_ratio": 0.25}, last=steps(*[0.06] * 7, 0.7, 0.7, 0.7))
    wait, capacity = facts(told)["The trainer waited"], facts(told)["The trainer consumes"]
    assert wait.text == "The trainer waited 70% of the time in its last 3 steps (25% in the last ten)"
    assert (wait.signal, wait.value) == ("", pytest.approx(0.7))
    assert capacity.text.endswith("(last 3 steps)") and capacity.signal == ""


@pytest.mark.parametrize(
    ("told", "text", "signal"),
    [
        ({'rollout_exit_ratio{exit="stale"}': 0.23}, "(last 10 versions)", "rollout_exit_ratio"),
        ({"discarded_rollout_ratio": 0.23}, "(last 10 steps)", "discarded_rollout_ratio"),
    ],
)
def test_the_share_dropped_as_stale_names_the_signal_that_reports_it(
    told: dict[str, float], text: str, signal: str
) -> None:
    last = steps(0.4, 0.4, 0.4)
    for row in last:
        row.values["stale_dropped_rollouts", ()] = 23.0
    found = facts(seen(HEALTHY, STARVED, told, last=last))["23% of the"]
    assert (found.text, found.signal) == (f"23% of the samples were dropped as stale {text}", signal)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(85, "85 s"), (90, "90 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h")],
)
def test_a_growing_duration_does_not_jump(seconds: float, text: str) -> None:
    assert span(seconds) == text
