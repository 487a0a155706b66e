"""A gauge's running sums against adding up all its points, over hours of samples by chance."""

import random
from itertools import pairwise

import pytest

from server.signals.window import Gauge


def increase(gauge: Gauge, now: float) -> tuple[float, float]:
    """By definition: each interval by its share within the window, none longer than `carry`."""
    total = seconds = 0.0
    for (before, old), (ts, new) in pairwise(gauge.points):
        span = ts - max(before, now - gauge.keep)
        if span > 0 and ts - before <= gauge.carry:
            total += (new - old if new >= old else new) * span / (ts - before)
            seconds += span
    return total, seconds


def mean(gauge: Gauge, now: float, seconds: float = 300.0) -> float:
    """By definition: each value until the next, at most for `carry`, over what is covered."""
    area = covered = 0.0
    for (ts, value), (end, _) in pairwise([*gauge.points, (now, 0.0)]):
        span = min(end, ts + gauge.carry) - max(ts, now - seconds)
        if span > 0:
            area, covered = area + value * span, covered + span
    return area / covered if covered > 0 else gauge.last


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_those_of_the_points(seed: int) -> None:
    chance, ts, value = random.Random(seed), 1_800_000_000.0, 0.0
    gauge = Gauge("e", "m", (), carry=15.0)
    for _ in range(2000):
        ts += 5.0 if chance.random() < 0.97 else chance.choice([0.5, 14.999, 15.0, 40.0, 400.0])
        value = 0.0 if chance.random() < 0.01 else value + chance.choice([0.0, 0.1, 3.0, 1e6])
        gauge.add(ts, value)
        now = ts + chance.choice([0.0, 0.0, 2.5, 30.0, 299.0, 310.0])
        assert gauge.increase(now) == pytest.approx(increase(gauge, now), rel=1e-9, abs=1e-5)
        assert gauge.mean(now) == pytest.approx(mean(gauge, now), rel=1e-9, abs=1e-5)
        assert gauge.mean(now, 300.0) == gauge.mean(now) == gauge.mean(now, 1000.0)
        window = chance.choice([7.0, 60.0, 287.5])
        assert gauge.mean(now, window) == pytest.approx(mean(gauge, now, window), rel=1e-9, abs=1e-5)
        assert (gauge.last_ts, gauge.last) == gauge.points[-1]


def test_what_is_no_number_leaves_with_its_points() -> None:
    gauge = Gauge("e", "m", (), carry=15.0)
    for n in range(200):
        gauge.add(1_800_000_000.0 + 5 * n, float("nan") if n == 20 else 2.0)
    assert (gauge.mean(1_800_000_995.0), gauge.increase(1_800_000_995.0)) == (2.0, (0.0, 300.0))
