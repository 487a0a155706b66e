"""Which steps belong to the present: found soon after a change, and none in noise."""

import random

import pytest

from server.verdict.regime import present


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
