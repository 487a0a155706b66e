"""The queue over a window: Burrow's rules, and where Burrow fails."""

from itertools import pairwise

import pytest

from server.verdict import throughput as queue
from server.verdict.thresholds import QUEUE_KEPT
from server.verdict.throughput import Sample

STEP, BATCH = 30.0, 512.0


def window(*queue: float, versions: list[int] | None = None, every: float = 15.0) -> list[Sample]:
    """One sample every 15 s; a version every second sample unless told."""
    numbers = versions or [n // 2 for n in range(len(queue))]
    return [Sample(n * every, level, numbers[n], BATCH) for n, level in enumerate(queue)]


def state(samples: list[Sample], hold_ratio: float | None = None, wait: float | None = 0.0) -> str:
    return queue.state(samples, STEP, hold_ratio, wait)


def test_500_of_a_batch_of_512_is_starved_not_full() -> None:
    # Just before a batch is taken 500 are there; the queue never reaches one batch.
    assert state(window(*[250.0, 500.0] * 8), wait=0.3) == "starved"
    assert state(window(*[300.0, 520.0] * 8), wait=0.3) == "ok"


def test_a_queue_that_is_empty_after_each_batch_is_not_starved() -> None:
    """A lag that is often 0 means nothing by itself: what counts is the instant the trainer is ready."""
    samples = window(*[600.0, 0.0] * 8, versions=[(n + 1) // 2 for n in range(16)])
    assert state(samples, wait=0.3) == "ok"


def test_batches_wait_and_none_is_taken() -> None:
    assert state(window(*[1024.0] * 16, versions=[7] * 16)) == "stall"
    assert state(window(*[512.0 + n for n in range(16)], versions=[7] * 16)) == "stall"


def test_nothing_comes_and_nothing_is_taken() -> None:
    assert state(window(*[40.0] * 16, versions=[7] * 16)) == "stop"


def test_a_constant_queue_that_both_sides_move_is_fine() -> None:
    """Burrow calls a lag that does not fall an error; here one batch comes for each that goes."""
    assert state(window(*[1024.0] * 16)) == "ok"


def test_a_version_that_goes_back_is_a_restart() -> None:
    assert state(window(*[600.0] * 16, versions=[9] * 8 + [4] * 8)) == "rewind"


def test_held_while_it_moves() -> None:
    assert state(window(*[1024.0] * 16), hold_ratio=0.4) == "gated"


@pytest.mark.parametrize("samples", [window(*[600.0] * 9), window(*[600.0] * 5) + window(*[600.0] * 16)[12:]])
def test_a_window_that_is_not_full_says_nothing(samples: list[Sample]) -> None:
    assert state(samples) == "unknown"


def test_a_long_step_is_no_stall() -> None:
    """An hour a step: 16 samples of 450 s without a version are two hours, less than three steps."""
    samples = window(*[1024.0] * 16, versions=[7] * 16, every=450.0)
    assert queue.state(samples, 3600.0, None, 0.0) == "ok"


def test_the_window_is_bounded_and_spaced() -> None:
    samples: list[Sample] = []
    for n in range(2000):
        samples = queue.add(samples, Sample(5.0 * n, 1.0, n, BATCH), STEP)
    assert len(samples) == QUEUE_KEPT
    assert {b.ts - a.ts for a, b in pairwise(samples)} == {15.0}
