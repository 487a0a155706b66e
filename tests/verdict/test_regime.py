"""Which steps belong to the present: found soon after a change, and none in noise."""

import random

import pytest

from server.signals.window import Step
from server.verdict.steps import of_work
from server.verdict.steps import present_start as present


@pytest.mark.parametrize("before, after", [(0.05, 0.5), (0.5, 0.05), (0.3, 0.7)])
def test_a_change_is_found_at_its_second_step(before: float, after: float) -> None:
    noise = random.Random(3)
    shares = [before + noise.gauss(0, 0.02) for _ in range(8)] + [after + noise.gauss(0, 0.02) for _ in range(2)]
    assert present(shares) == 2
    assert present([*shares[2:], after, after]) == 4


def test_one_step_is_an_accident() -> None:
    assert present([0.05] * 9 + [0.8]) == 10


@pytest.mark.parametrize("deviation", [0.02, 0.05, 0.1])
def test_noise_is_no_change(deviation: float) -> None:
    """5,000 windows of ten steps: less than one in a hundred is cut."""
    noise = random.Random(7)
    cut = sum(present([min(1.0, max(0.0, noise.gauss(0.3, deviation))) for _ in range(10)]) < 10 for _ in range(5_000))
    assert cut <= 50


def test_waits_in_bursts_are_one_regime() -> None:
    assert present([0.0, 0.6, 0.0, 0.1, 0.7, 0.0, 0.0, 0.5, 0.0, 0.6]) == 10


def test_few_steps_are_all_there_is() -> None:
    assert present([]) == 0 and present([0.1, 0.9, 0.9]) == 3


def worked(*seconds: float, saves: float = 0.0) -> list[Step]:
    """Steps that wait 10 s each and then work so long; each fourth writes a checkpoint as well."""
    found = []
    for number, one in enumerate(seconds, 1):
        more = saves if number % 4 == 0 else 0.0
        names = ("trainer_step_seconds", "trainer_wait_seconds", "trainer_checkpoint_seconds")
        values = dict(zip(((name, ()) for name in names), (10 + one + more, 10.0, more), strict=True))
        found.append(Step("trainer", 1, number, 1000.0 * number, dict(values)))
    return found


def test_work_that_grew_is_found_whatever_was_waited() -> None:
    """27 s, then 54: of the step's 37 s a quarter was waited, of 64 a sixth; no share shows it."""
    steps = worked(27, 28, 26, 27, 27, 28, 26, 27, 54, 55)
    assert (of_work(steps), of_work(steps[:9]), of_work(steps[2:5])) == (2, 9, 3)
    # One is an accident, unless the next has worked for as long already.
    assert of_work(steps[:9], more=True) == 1 and of_work(steps[:8], more=True) == 8


def test_what_comes_now_and_then_is_no_change_of_work() -> None:
    assert of_work(worked(*[27, 28, 26] * 3, saves=200.0)) == 9
    assert of_work(worked(27, 27, 27, 27, 0, 54, 54)) == 7, "a step that tells no work tells of no change"
