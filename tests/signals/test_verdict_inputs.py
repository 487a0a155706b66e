"""Signals the verdict separates look-alikes by, against numbers worked out by hand."""

import pytest

from collectors.model import Labels
from server.signals._model import Answer, NotApplicable, Unknown
from server.signals.compute_capacity_samples_per_second import SIGNAL as COMPUTE
from server.signals.generation_held_ratio import SIGNAL as HELD
from server.signals.in_flight_ratio import SIGNAL as IN_FLIGHT
from server.signals.queue_arrivals_samples_per_second import SIGNAL as ARRIVALS
from server.signals.rollout_phase_seconds import SIGNAL as PHASES
from server.signals.scoring_busy_ratio import SIGNAL as SCORING
from server.signals.tail_bubble_ratio import SIGNAL as BUBBLE
from server.signals.trainer_overhead_seconds import SIGNAL as OVERHEAD
from tests.signals.support import book, gauge, view

STEP = {"trainer_step_seconds": 20.0, "trainer_samples": 64.0}


def values(answer: Answer) -> dict[Labels, float]:
    assert isinstance(answer, (list, tuple)), answer
    return {value.labels: value.value for value in answer}


def test_compute_capacity_counts_nothing_but_computing() -> None:
    rows = [STEP | {"trainer_compute_seconds": seconds} for seconds in (8.0, 8.0, 16.0, 8.0)]
    assert values(COMPUTE.compute(view(steps=book(rows)))) == {(): pytest.approx(6.4)}  # 64 / 10 s


def test_overhead_is_told_by_cause_over_all_steps_of_the_window() -> None:
    rows: list[dict[str, float]] = [STEP | {"trainer_weight_sync_seconds": 2.0, "trainer_other_seconds": 3.0}] * 4
    rows[1] = rows[1] | {"trainer_checkpoint_seconds": 6.0, "trainer_eval_seconds": 4.0, "trainer_other_seconds": 7.0}
    assert values(OVERHEAD.compute(view(steps=book(rows)))) == {
        (("phase", "weight_sync"),): 2.0,
        (("phase", "checkpoint"),): 1.5,
        (("phase", "eval"),): 1.0,
        (("phase", "other"),): 3.0,  # (3 + 7 + 3 + 3) / 4 less the evaluation in it
    }


def test_phases_of_a_rollout_are_those_that_are_told() -> None:
    rows = [{"rollout_setup_seconds_mean": 3.0, "tool_call_seconds_mean": 0.5, "tool_calls_mean": 12.0}] * 3
    assert values(PHASES.compute(view(steps=book(rows)))) == {(("phase", "setup"),): 3.0, (("phase", "tools"),): 6.0}
    assert isinstance(PHASES.compute(view(steps=book([STEP] * 3))), Unknown)


def test_a_step_that_says_nothing_of_it_was_not_held() -> None:
    rows = [STEP, STEP | {"backpressure_seconds": 10.0}, STEP, STEP | {"backpressure_seconds": 6.0}]
    assert values(HELD.compute(view(steps=book(rows)))) == {(("by", "backpressure"),): 0.2}  # 16 of 80 s
    assert isinstance(HELD.compute(view(steps=book([STEP] * 4))), Unknown)
    assert isinstance(HELD.compute(view(steps=book(rows), mode="sync_split")), NotApplicable)


def test_at_the_cap_is_one_and_evaluations_take_places_too() -> None:
    states = [gauge("in_flight_rollouts", n, labels=(("state", s),)) for s, n in (("generating", 40.0), ("eval", 8.0))]
    assert values(IN_FLIGHT.compute(view(*states, max_in_flight=48.0))) == {(): 1.0}
    assert values(IN_FLIGHT.compute(view(*states, gauge("in_flight_capacity_rollouts", 96.0)))) == {(): 0.5}
    assert isinstance(IN_FLIGHT.compute(view(*states)), Unknown)


def test_a_scorer_takes_a_group_at_a_time() -> None:
    rows = [STEP | {"reward_seconds": 2.0, "stale_dropped_rollouts": 16.0}] * 3
    # 8 groups of 8 trained and 2 dropped, 2 s each, in 20 s.
    assert values(SCORING.compute(view(steps=book(rows), group_size=8.0))) == {(): 1.0}
    assert values(SCORING.compute(view(steps=book(rows), mode="sync_colocated"))) == {(): 0.1}
    assert isinstance(SCORING.compute(view(steps=book([STEP | {"reward_seconds": 2.0}] * 3))), Unknown)


def test_what_arrives_is_trained_dropped_and_left_over() -> None:
    rows = [STEP | ({"stale_dropped_rollouts": 32.0} if n == 2 else {}) for n in range(4)]
    # 64 / 20 s trained, 32 / 80 s dropped.
    assert values(ARRIVALS.compute(view(steps=book(rows)))) == {(): pytest.approx(3.6)}
    # A queue that fills by 64 in every step of 20 s and is emptied by its batch gains nothing; 10 more each time do.
    saw = [16.0 * (n % 4) for n in range(17)]
    steady, growing = (gauge("queue_samples", *(one + n // 4 * more for n, one in enumerate(saw))) for more in (0, 10))
    assert values(ARRIVALS.compute(view(steady, steps=book([STEP] * 4)))) == {(): pytest.approx(3.2)}
    assert values(ARRIVALS.compute(view(growing, steps=book([STEP] * 4)))) == {(): pytest.approx(3.7)}
    # Within one step nobody can tell: half a saw is no growth.
    assert values(ARRIVALS.compute(view(gauge("queue_samples", *saw[:4]), steps=book([STEP] * 4)))) == {(): 3.2}
    assert isinstance(ARRIVALS.compute(view(steps=book([STEP] * 4))), Unknown)


def test_the_tail_of_a_step_leaves_engines_empty() -> None:
    # Two engines, each 8 for 40 s; then one alone with 2 for another 40 s.
    first, second = [8.0] * 8 + [0.0] * 8, [8.0] * 8 + [2.0] * 8
    gauges = [gauge("generator_requests_running", *one, target=f"e{n}") for n, one in enumerate((first, second))]
    assert values(BUBBLE.compute(view(*gauges, steps=book([STEP] * 3)))) == {(): pytest.approx(1 - 9 / 16)}
    assert isinstance(BUBBLE.compute(view(gauge("generator_requests_running", 1.0, 0.0, 0.0, 0.0))), Unknown)
