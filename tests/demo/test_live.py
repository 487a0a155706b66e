"""The verdict of each scenario while it is live: with records, without, and while they begin."""

import pytest

from bench.verdict.contradictions import report
from bench.verdict.demo_live import BELIEVED, judge, modes
from demo.scenarios import SCENARIOS

# Live ticks that are right; the hand-over to records may leave a minute without a verdict.
RIGHT = 0.9
CASES = [(scenario, mode, seed) for scenario in SCENARIOS for mode in modes(scenario) for seed in (1, 2)]


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "mode", "seed"), CASES)
def test_a_live_scenario(scenario: str, mode: str, seed: int) -> None:
    found = judge(scenario, seed, mode)
    assert found.wrong(BELIEVED) == []
    assert found.misnamed() == []
    assert list(report(found.contradictions)) == []
    assert sum(map(found.right, found.live)) >= RIGHT * len(found.live)
