"""Signals the verdict separates look-alikes by, against numbers worked out by hand."""

from collections.abc import Sequence

import pytest

from collectors.model import Labels
from server.signals.generator import generation_held_ratio as HELD
from server.signals.model import Answer, NotApplicable, Unknown
from server.signals.queue import NO_GROWTH
from server.signals.queue import compute_capacity_samples_per_second as COMPUTE
from server.signals.queue import queue_arrivals_samples_per_second as ARRIVALS
from server.signals.rollouts import in_flight_ratio as IN_FLIGHT
from server.signals.rollouts import rollout_phase_seconds as PHASES
from server.signals.rollouts import scoring_busy_ratio as SCORING
from server.signals.rollouts import tail_bubble_ratio as BUBBLE
from server.signals.trainer import trainer_overhead_seconds as OVERHEAD
from server.signals.window import Gauge, StepBook
from tests.signals.support import NOW, book, gauge, view

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
    steps = book([STEP] * 4, seconds=20.0)
    assert values(ARRIVALS.compute(view(steady, steps=steps))) == {(): pytest.approx(3.2)}
    assert values(ARRIVALS.compute(view(growing, steps=steps))) == {(): pytest.approx(3.7)}
    # Read for less than two steps its growth is unknown: half a saw is none.
    (short,) = ARRIVALS.compute(view(gauge("queue_samples", *saw[:4]), steps=steps))  # type: ignore[misc]
    assert (short.value, short.why) == (3.2, NO_GROWTH)
    assert isinstance(ARRIVALS.compute(view(steps=book([STEP] * 4))), Unknown)


# Steps 4 to 14 of a recorded trainer-bound run (TRL): end, seconds, queue, dropped as stale; 16 samples a step.
TRAINER_BOUND = (
    (687.395, 5.408, 435.5, 0), (692.863, 5.493, 551.5, 0), (698.730, 5.854, 471.5, 140), (704.858, 6.150, 343.5, 208),
    (712.907, 7.747, 335.5, 100), (718.032, 5.417, 351.5, 116), (723.035, 5.004, 475.5, 64),
    (729.819, 6.765, 499.5, 76), (735.344, 5.486, 607.5, 92), (742.180, 6.896, 535.5, 132),
    (750.540, 8.352, 511.5, 188),
)  # fmt: skip
# Two-second steps of 16 samples, a queue of 8; one step takes 92 s while 10 samples/s pile up; then 924 are dropped.
HANG = (
    *((2.0 * n, 2.0, 8.0, 0) for n in range(4)), (98.0, 92.0, 912.0, 0), (100.0, 2.0, 8.0, 908),
    *((100.0 + 2.0 * n, 2.0, 8.0, 4) for n in range(1, 9)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # (160 trained + 1,116 dropped + 511.5 - 435.5) / 63.164 s. The scorer's own record has 346 groups of 4: 21.9.
        (TRAINER_BOUND, 21.405),
        # The last ten steps in 110 s: 160 trained + 940 dropped, a queue of 8 before and after.
        (HANG, 10.0),
        # After the hang, 18 s: 144 trained + 940 dropped - 904 of the backlog.
        (HANG[4:], 10.0),
    ],
)
def test_a_backlog_that_is_dropped_is_no_arrival(rows: Sequence[tuple[float, ...]], expected: float) -> None:
    steps, live = StepBook(), Gauge("trainer", "queue_samples", (), carry=60.0)
    for number, (at, seconds, queue, stale) in enumerate(rows, 1):
        live.add(NOW - rows[-1][0] + at, queue)
        told = {"trainer_step_seconds": seconds, "queue_samples": queue, "stale_dropped_rollouts": stale}
        values_ = {(metric, ()): float(value) for metric, value in (told | {"trainer_samples": 16.0}).items()}
        steps.put("trainer", 0, number, NOW - rows[-1][0] + at, values_)
    found = values(ARRIVALS.compute(view(live, steps=steps)))
    assert found == {(): pytest.approx(expected, abs=1e-3)}


def test_the_tail_of_a_step_leaves_engines_empty() -> None:
    # Two engines, each 8 for 40 s; then one alone with 2 for another 40 s.
    first, second = [8.0] * 8 + [0.0] * 8, [8.0] * 8 + [2.0] * 8
    gauges = [gauge("generator_requests_running", *one, target=f"e{n}") for n, one in enumerate((first, second))]
    assert values(BUBBLE.compute(view(*gauges, steps=book([STEP] * 3)))) == {(): pytest.approx(1 - 9 / 16)}
    assert isinstance(BUBBLE.compute(view(gauge("generator_requests_running", 1.0, 0.0, 0.0, 0.0))), Unknown)
