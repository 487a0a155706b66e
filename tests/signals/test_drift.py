"""The drift watch by itself: what is a change, what is none, and that nothing depends on restarts or units."""

import json
import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.signals.drift_detector import NEEDED, DriftWatch, PageHinkley, baseline, robust_spread, trend

# 20 +- 1 in a pattern of seven: median 20, the same in every week.
WEEK = (21.0, 20.5, 20.0, 20.0, 19.5, 19.0, 20.0)


def flat(count: int, level: float = 20.0) -> list[float]:
    return [level / 20 * WEEK[at % 7] for at in range(count)]


# The lowest point of the sums lies where the noise left it: a step or two beside the change.
NEAR = 3


def watched(values: Iterable[float], watch: DriftWatch | None = None, cut: float | None = None) -> DriftWatch:
    """A point a minute; they go on behind what the watch has."""
    watch = watch or DriftWatch()
    for value in values:
        watch.add((watch.last + 1, 60.0 * (watch.last + 1), value, cut))
    return watch


# ---- the parts, by hand


def test_page_hinkley_by_hand() -> None:
    test = PageHinkley(n=1)  # one score of 0 was before
    for at, score in enumerate((0.0, 3.0, 3.0)):
        test.add((at, 0.0), score, 0.5)
    # Means 0, 1, 1.5: the rising sum goes -0.5, +1, +2; its lowest point was the first score.
    assert (test.mean, test.up, test.low, test.began(1)) == (1.5, 2.0, -0.5, (1, 0.0))
    assert (test.found(2.49), test.found(2.5)) == (1, 0)
    # The falling one goes 0.5, 3, 5: its highest point is the newest.
    assert (test.down, test.high, test.began(-1)) == (5.0, 5.0, None)


def test_a_fall_is_found_as_a_rise_is() -> None:
    up, down = PageHinkley(), PageHinkley()
    for at, score in enumerate((0.0, 1.0, 4.0, 5.0)):
        up.add((at, 0.0), score, 0.5)
        down.add((at, 0.0), -score, 0.5)
    assert (up.up - up.low, up.began(1)) == (down.high - down.down, down.began(-1))
    # Means 0, 0.5, 5/3, 2.5: the sum goes -0.5, -0.5, 1.33, 3.33.
    assert (up.found(3.8), down.found(3.8), up.found(3.9)) == (1, -1, 0)


def test_the_slope_is_the_median_of_all_and_one_wild_point_does_not_move_it() -> None:
    line = [(float(x), 2.0 * x) for x in range(10)]
    found = trend(line)
    assert found is not None and (found.slope, found.low, found.high, found.significant) == (2.0, 2.0, 2.0, True)
    wild = trend([*line[:5], (5.0, 1000.0), *line[6:]])
    assert wild is not None and wild.slope == 2.0 and wild.significant


def test_sens_interval_by_hand() -> None:
    # x 0..7, y alternates 0 and 1. Of the 28 slopes 12 are 0; 10 are above, 6 below.
    found = trend([(float(x), float(x % 2)) for x in range(8)])
    assert found is not None
    # 1.96 sqrt(8 * 7 * 21 / 18) = 15.84; (28 - 15.84) / 2 = 6.08: six are cut off on each side. Above that are four
    # slopes of 1 and three of 1/3, below all that are negative.
    assert (found.slope, found.low, found.high, found.significant) == (0.0, 0.0, 1 / 3, False)


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)] * 20, [(float(x), 1.0) for x in range(7)]])
def test_no_slope_of_too_few_points_or_of_one_instant(points: list[tuple[float, float]]) -> None:
    assert trend(points) is None


def test_wild_values_do_not_widen_the_spread() -> None:
    values = flat(35)
    assert robust_spread(values) == pytest.approx(0.634, abs=0.01)
    assert robust_spread([*values, 100.0, 0.0]) == pytest.approx(0.70, abs=0.02)
    assert robust_spread([3.0] * 30) == 0.0


def test_the_baseline_knows_its_steps() -> None:
    found = baseline([(step, 0.0, value, 0.02) for step, value in enumerate(flat(30), 5)])
    assert (found.first, found.last, found.size, found.cut) == (5, 34, 30, 0.02)
    assert found.level == pytest.approx(20.0, abs=0.1)


# ---- what is a change


def test_no_factor_before_the_baseline_is_whole() -> None:
    assert watched(flat(NEEDED - 1)).factor is None
    assert watched(flat(NEEDED)).factor == pytest.approx(1.0, abs=0.01)


def test_burn_in_is_in_no_baseline() -> None:
    watch = watched([200.0] * 5 + flat(30))
    assert watch.base is not None and watch.base.level == pytest.approx(20.0, abs=0.1)


def test_a_run_that_stays_flat_has_no_change() -> None:
    watch = watched(flat(400))
    assert (watch.changes, watch.since, watch.final) == ([], None, True)


@pytest.mark.parametrize("factor", [1.3, 2.5, 0.5])
def test_a_step_is_found_where_it_was(factor: float) -> None:
    watch = watched([*flat(63), *flat(12, 20 * factor)])
    (change,) = watch.changes
    assert abs(change.step - 63) <= NEAR and change.direction == (1 if factor > 1 else -1)
    assert watch.since == (change.step, 60.0 * change.step)
    assert watch.factor == pytest.approx(factor, rel=0.03)


@pytest.mark.parametrize("factor", [1.1, 0.9])
def test_a_tenth_is_no_news_however_sure(factor: float) -> None:
    watch = watched([*flat(63), *flat(200, 20 * factor)])
    assert watch.changes == [] and watch.factor == pytest.approx(factor, rel=0.03)


@pytest.mark.parametrize("wild", [100.0, 4.0, 1e12])
def test_one_wild_step_is_no_drift(wild: float) -> None:
    watch = watched([*flat(63), wild, *flat(63)])
    assert watch.changes == [] and watch.factor == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_says_nothing(value: float) -> None:
    watch = watched([*flat(63), value])
    assert watch.last == 62 and watch.factor == pytest.approx(1.0, abs=0.01)


def test_a_ramp_is_one_change_until_it_stands() -> None:
    ramp = [level / 20 * one for level, one in zip((20 + 0.31 * n for n in range(100)), flat(100), strict=True)]
    watch = watched([*flat(50), *ramp])
    (change,) = watch.changes
    assert abs(change.step - 50) <= 2 * NEAR and watch.moving is not None
    watched(flat(40, 51.0), watch)
    assert (len(watch.changes), watch.moving) == (1, None)
    assert watch.since == (change.step, 60.0 * change.step) and watch.factor == pytest.approx(2.55, rel=0.02)
    # From the new level on, what comes is a change of its own; the run is away from its first steps since the first.
    watched(flat(12, 102.0), watch)
    assert [one.direction for one in watch.changes] == [1, 1] and abs(watch.changes[1].step - 190) <= NEAR
    assert watch.since == (change.step, 60.0 * change.step)


# Tool calls per rollout of a run whose agents call ever more tools: 20 until step 12, 51 from step 47 on.
TOOL_CALLS = (
    18.99, 19.37, 20.31, 20.04, 19.85, 20.62, 20.11, 20.28, 18.84, 20.20, 20.58, 20.16, 23.91, 20.85, 23.74, 23.04,
    24.30, 26.32, 25.35, 25.85, 24.71, 26.23, 26.15, 25.63, 27.27, 29.76, 28.88, 31.09, 32.23, 32.70, 31.91, 32.33,
    34.72, 37.35, 36.51, 36.66, 38.80, 41.08, 41.84, 40.44, 43.12, 45.51, 44.31, 43.65, 42.58, 43.98, 48.91, 46.00,
    51.01, 50.42, 51.50, 55.84, 52.38, 51.88, 52.85, 52.74, 49.30, 49.30, 50.93, 50.84,
)  # fmt: skip


# 20 without a pattern from step to step.
UNEVEN = (20.1, 20.6, 19.5, 20.3, 19.7, 20.4, 19.4)


def ramp(start: int, steps: int, to: float = 51.0, after: int = 30) -> list[float]:
    """20 until ``start``, then in so many equal steps to a level, which stays."""
    levels = [20.0] * start + [20 + (to - 20) * (n + 1) / steps for n in range(steps)] + [to] * after
    return [one / 20 * level for one, level in zip(flat(len(levels)), levels, strict=True)]


@pytest.mark.parametrize(
    ("values", "since", "first", "factor"),
    [
        # Steps 5 to 14 are at 20.6, the last ten at 51.4.
        (TOOL_CALLS, 12, 5, 2.49),
        # The baseline of 30 steps would be 29 (x1.8) and watch from step 35 on.
        (ramp(12, 36), 12, 5, 2.5),
        # From the first step on: steps 5 to 14 are at 23.2.
        (ramp(0, 100), 12, 5, 2.2),
        # A step within the 30 points: they would be at 25.3, x1.2.
        ([one * (1.0 if n < 19 else 1.5) for n, one in enumerate(UNEVEN * 11)], 19, 5, 1.5),
        # A fall.
        (ramp(10, 30, 8.0), 10, 5, 0.4),
    ],
)
def test_a_run_that_drifts_from_its_start_is_held_against_its_first_steps(
    values: Sequence[float], since: int, first: int, factor: float
) -> None:
    watch = watched(values)
    assert watch.base is not None and watch.since is not None
    assert (watch.base.first, watch.base.last, len(watch.changes)) == (first, first + 9, 1)
    assert abs(watch.since[0] - since) <= NEAR and watch.factor == pytest.approx(factor, rel=0.04)


@pytest.mark.parametrize("steps", [8, 15, 20])
def test_a_warm_up_is_no_drift(steps: int) -> None:
    """From 10 to 20 within the first steps, then flat: what follows the warm-up is the baseline."""
    warm = [one * (0.5 + 0.5 * min(1.0, n / steps)) for n, one in enumerate(flat(120))]
    watch = watched(warm)
    assert watch.changes == [] and watch.factor == pytest.approx(1.0, abs=0.05)


def test_a_trend_of_less_than_a_change_leaves_the_baseline_as_it_is() -> None:
    watch = watched([one * (1 + 0.004 * n) for n, one in enumerate(flat(35))])  # 12 % in 30 steps
    assert watch.base is not None and (watch.base.size, watch.changes) == (30, [])


def test_back_at_the_baseline_nothing_has_moved() -> None:
    watch = watched([*flat(63), *flat(60, 40.0), *flat(63)])
    assert [one.direction for one in watch.changes] == [1, -1]
    assert [abs(one.step - at) <= NEAR for one, at in zip(watch.changes, (63, 123), strict=True)] == [True, True]
    assert watch.since is None and watch.factor == pytest.approx(1.0, abs=0.01)


def test_a_behaviour_that_vanishes_is_a_fall() -> None:
    watch = watched([*flat(63), *[0.0] * 60])
    (change,) = watch.changes
    assert (change.direction, change.factor) == (-1, 0.0) and abs(change.step - 63) <= NEAR
    assert watch.factor == 0.0
    watched(flat(20), watch)
    assert [one.direction for one in watch.changes] == [-1, 1]


def test_no_factor_against_nothing() -> None:
    watch = watched([*[0.0] * 60, *flat(60)])
    assert watch.factor is None and watch.changes == []


def test_what_never_varies_is_watched_too() -> None:
    watch = watched([*[1.0] * 60, *[1.01] * 100])
    assert watch.changes == []
    watched([2.0] * 10, watch)
    assert [(one.step, one.direction) for one in watch.changes] == [(160, 1)]


def test_memory_is_bounded() -> None:
    watch = DriftWatch()
    sizes = []
    for _ in range(30):
        watched([*flat(40), *flat(40, 40.0)], watch)
        sizes.append(len(json.dumps(watch.saved())))
    assert max(sizes[10:]) < 1.1 * sizes[9] and max(sizes) < 6000


# ---- resumed


def test_a_resumed_run_keeps_its_baseline_and_forgets_what_was_thrown_away() -> None:
    watch = watched([*flat(63), *flat(30, 40.0)])
    assert watch.since is not None
    base = watch.base
    watch.rewind(55)
    assert (watch.last, watch.since, watch.changes, watch.base) == (54, None, [], base)
    watched(flat(63), watch)
    assert watch.changes == [] and watch.factor == pytest.approx(1.0, abs=0.01)
    assert abs(watched(flat(12, 40.0), watch).changes[0].step - 118) <= NEAR


def test_one_that_was_resumed_within_its_baseline_fills_it_once() -> None:
    watch = watched(flat(20))
    watch.rewind(10)
    watched(flat(24), watch)
    assert watch.factor is None and len(watch.first) == 34
    assert watched([20.0], watch).factor is not None


# ---- what changes nothing

values = st.lists(st.floats(0.5, 60.0, allow_nan=False), min_size=30, max_size=60)


@given(values, st.integers(0, 250), st.floats(0.3, 3.0))
def test_a_restart_at_any_point_changes_no_number(more: list[float], died: int, factor: float) -> None:
    series = [*flat(63), *flat(80, 20 * factor), *more]
    whole, other = DriftWatch(), DriftWatch()
    for at, value in enumerate(series):
        point = (at, 60.0 * at, value, None)
        whole.add(point)
        other.add(point)
        if at == died:
            other = DriftWatch.load(json.loads(json.dumps(other.saved())))
    assert json.dumps(whole.saved()) == json.dumps(other.saved())


@given(values, st.floats(0.3, 3.0), st.integers(-10, 10))
def test_the_unit_changes_no_number(more: list[float], factor: float, power: int) -> None:
    series = [*flat(63), *flat(80, 20 * factor), *more]
    one, other = watched(series), watched([value * 2.0**power for value in series])
    assert (one.factor, one.since, one.changes) == (other.factor, other.since, other.changes)
