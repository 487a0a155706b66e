"""Groups without a gradient: what a few of them say, and what the spread of rewards allows; by hand (Wilson, 95 %)."""

from dataclasses import replace

import pytest

from server.signals.window import Step
from server.verdict.rules import judge
from server.verdict.thresholds import CONFIDENT
from server.verdict.throughput import gradient, interval
from tests.verdict.support import HEALTHY, seen, steps
from tests.verdict.windows import NO_ZERO, Told

# 18 samples/s could arrive where 8.5 are trained: without a curriculum's share in it the trainer is the limiter.
AHEAD: Told = {"trainer_wait_ratio": 0.0, "queue_arrivals_samples_per_second": 18.0}


def rows(spread: float | None, reward: float = 0.65) -> list[Step]:
    """Ten steps of 30 s without a wait, with the mean standard deviation of rewards within groups."""
    told = {} if spread is None else {("reward_group_std_mean", ()): spread, ("reward_mean", ()): reward}
    return [replace(row, values=row.values | told) for row in steps(*[0.0] * 10)]


def counted(share: float, groups: float | None) -> Told:
    found: dict[str, float | None] = {'zero_advantage_ratio{basis="completed"}': share}
    return found | ({'zero_advantage_groups{basis="completed"}': groups} if groups is not None else {})


@pytest.mark.parametrize(
    "share, count, low, high",
    [(0.5, 6, 0.188, 0.812), (1.0, 8, 0.676, 1.0), (2 / 3, 3, 0.208, 0.939), (0.5, 600, 0.460, 0.540), (0.3, 0, 0, 1)],
)
def test_the_interval_of_a_share(share: float, count: float, low: float, high: float) -> None:
    assert interval(share, count) == (pytest.approx(low, abs=0.001), pytest.approx(high, abs=0.001))


def test_three_of_six_groups_say_nothing() -> None:
    """The published error: half of 6 traced groups, while 12 % of 97 scored ones had no gradient."""
    found = judge(seen(HEALTHY, AHEAD, counted(0.5, 6.0), last=rows(None), group_size=4.0))
    assert (found.outcome, found.cause) == ("trainer_bound", "compute")
    assert found.confidence < CONFIDENT, "it may be four of five as well"
    text = next(one.text for one in found.limiters if one.outcome == "curriculum_bound")
    assert text == "At least 19% of groups carry no gradient (3 of 6 groups counted)"
    # The trainer logs a spread of rewards that allows 42 % at most: no curriculum that a trainer loses to.
    found = judge(seen(HEALTHY, AHEAD, counted(0.5, 6.0), last=rows(0.38), group_size=4.0, max_reward=1.31))
    assert found.outcome == "trainer_bound" and found.confidence >= CONFIDENT
    assert [one.name for one in found.contradictions] == ["gradient"]
    assert found.contradictions[0].values == {"counted": 0.5, "most": pytest.approx(1 - 2 * 0.38 / 1.31)}


def test_all_of_eight_groups_are_most_of_the_run_and_not_all() -> None:
    """Spread 0.062 of rewards up to 2: 94 % at most; 8 of 8 are 68 % at least: four of five is the middle."""
    found = judge(seen(HEALTHY, AHEAD, counted(1.0, 8.0), last=rows(0.062, 1.0), group_size=4.0))
    assert found.outcome == "curriculum_bound" and found.confidence >= CONFIDENT
    assert found.numbers["zero_advantage_ratio"] == pytest.approx((0.676 + 0.938) / 2, abs=0.001)
    assert found.limiters[0].gain == pytest.approx(1 / (1 - 0.807), abs=0.05)
    assert "81% of groups carry no gradient (8 of 8 groups counted)" in found.summary


def test_of_every_group_the_share_is_what_it_is() -> None:
    found = judge(seen(HEALTHY, AHEAD, counted(0.6, 640.0), last=rows(None), group_size=4.0))
    assert found.outcome == "curriculum_bound" and found.numbers["zero_advantage_ratio"] == 0.6
    assert "60% of groups carry no gradient" in found.summary


@pytest.mark.parametrize("spread, sure", [(0.38, True), (0.05, False), (None, False)])
def test_the_spread_of_rewards_stands_in_for_the_share(spread: float | None, sure: bool) -> None:
    """0.38 of rewards of 0.65 on average: 42 % at most have no gradient. 0.05 allow 92 %."""
    found = judge(seen(HEALTHY, AHEAD, NO_ZERO, last=rows(spread), group_size=4.0))
    assert found.outcome == "trainer_bound" and (found.confidence >= CONFIDENT) is sure


def test_a_reward_below_zero_or_too_few_steps_allow_anything() -> None:
    assert gradient(seen(last=rows(0.4, -0.5), group_size=4.0), 255.0).upper_bound is None
    assert gradient(seen(last=rows(0.4)[:2], group_size=4.0), 255.0).upper_bound is None
    assert gradient(seen(last=rows(0.4, 0.5), group_size=4.0), 255.0).upper_bound == pytest.approx(0.2)
