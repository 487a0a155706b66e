"""Signals of the update, beside staleness: gradient, mismatch, clipped tokens, learning rate, weights.

Numbers by hand.
"""

from collections.abc import Mapping

import pytest

from server.signals.model import Signal, Unknown, Value
from server.signals.training_health import clip_ratio as CLIPPED
from server.signals.training_health import effective_sample_ratio as EFFECTIVE
from server.signals.training_health import gradient_norm as NORM
from server.signals.training_health import importance_ratio as IMPORTANCE
from server.signals.training_health import learning_rate as RATE
from server.signals.training_health import mismatch_logprob_difference as DIFFERENCE
from server.signals.weights import weight_sync_bandwidth as BANDWIDTH
from server.signals.weights import weight_sync_part_seconds as PARTS
from tests.signals.support import book, view

MEANS = [
    (NORM, "gradient_norm"),
    (CLIPPED, "clip_ratio"),
    (IMPORTANCE, "importance_ratio_mean"),
    (EFFECTIVE, "effective_sample_ratio"),
]


@pytest.mark.parametrize(("signal", "metric"), MEANS)
def test_means_of_the_last_ten_steps_that_tell_it(signal: Signal, metric: str) -> None:
    # Two steps before the window, ten in it, of which the newest says nothing of it: eleven tell, the last ten count.
    rows: list[Mapping[str, float]] = [
        {metric: 9.0},
        {metric: 9.0},
        *({metric: 0.1 * i} for i in range(1, 11)),
        {"trainer_step_seconds": 30.0},
    ]
    (found,) = signal.compute(view(steps=book(rows)))  # type: ignore[misc]
    assert found.value == pytest.approx(0.55)


@pytest.mark.parametrize(("signal", "metric"), MEANS)
def test_two_steps_are_too_few_and_none_says_what_to_log(signal: Signal, metric: str) -> None:
    few = signal.compute(view(steps=book([{metric: 0.3}] * 2)))
    assert few == Unknown("2 of the 3 steps needed so far; no action needed")
    assert signal.compute(view(steps=book([{"trainer_step_seconds": 30.0}] * 5))) == Unknown(signal.hint)


def test_the_learning_rate_is_the_newest_steps_that_tells_it() -> None:
    rows: list[Mapping[str, float]] = [{"learning_rate": 1e-7}, {"learning_rate": 4e-7}, {"trainer_step_seconds": 30.0}]
    assert RATE.compute(view(steps=book(rows))) == [Value(4e-7)]
    assert RATE.compute(view(steps=book([{"learning_rate": 0.0}]))) == [Value(0.0)]
    assert RATE.compute(view()) == Unknown(RATE.hint)


def test_the_log_prob_difference_is_a_mean_of_means_and_a_maximum_of_maxima() -> None:
    mean, largest = "mismatch_logprob_difference_mean", "mismatch_logprob_difference_max"
    rows: list[Mapping[str, float]] = [{mean: 0.01 * i, largest: 2.0 if i == 2 else 0.5} for i in range(1, 5)]
    both = DIFFERENCE.compute(view(steps=book(rows)))
    assert both == [Value(pytest.approx(0.025), (("stat", "mean"),)), Value(2.0, (("stat", "max"),))]
    # OAT logs the maximum alone.
    alone = DIFFERENCE.compute(view(steps=book([{largest: 0.5}] * 3)))
    assert alone == [Value(0.5, (("stat", "max"),))]
    assert DIFFERENCE.compute(view(steps=book([{"trainer_step_seconds": 30.0}] * 5))) == Unknown(DIFFERENCE.hint)


SYNC, SENT, TRANSFER = "trainer_weight_sync_seconds", "weight_sync_bytes", "weight_sync_transfer_seconds"


def test_the_parts_of_a_weight_sync_and_its_rest() -> None:
    row = {SYNC: 2.0, "weight_sync_pause_seconds": 0.5, "weight_sync_barrier_seconds": 0.25, TRANSFER: 1.0}
    parts = PARTS.compute(view(steps=book([row] * 3)))
    assert parts == [Value(seconds, (("part", part),)) for part, seconds in
                     (("pause", 0.5), ("barrier", 0.25), ("transfer", 1.0), ("other", 0.25))]  # fmt: skip
    # NeMo-RL logs the transfer of a synchronous run, without the weight sync: there is no rest.
    assert PARTS.compute(view(steps=book([{TRANSFER: 1.0}] * 3))) == [Value(1.0, (("part", "transfer"),))]
    assert PARTS.compute(view(steps=book([row] * 2))) == Unknown("2 of the 3 steps needed so far; no action needed")
    assert PARTS.compute(view(steps=book([{SYNC: 2.0}] * 3))) == Unknown(PARTS.hint)


def test_bandwidth_is_over_the_transfer_or_a_lower_bound_over_the_whole_sync() -> None:
    rows = [{SENT: 6e9, SYNC: 2.0, TRANSFER: 0.5}] * 3
    assert BANDWIDTH.compute(view(steps=book(rows))) == [Value(12.0)]
    lower = BANDWIDTH.compute(view(steps=book([{SENT: 6e9, SYNC: 2.0}] * 3)))
    assert lower == [Value(3.0, why="lower bound: over the whole weight sync")]
    assert BANDWIDTH.compute(view(steps=book([{SYNC: 2.0}] * 3))) == Unknown(BANDWIDTH.hint)
    assert BANDWIDTH.compute(view(steps=book([{SENT: 6e9, SYNC: 0.0}] * 3))) == Unknown("the weight sync takes no time")
