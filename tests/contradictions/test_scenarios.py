"""No page of any demo scenario contradicts itself, another page, the API, `/metrics` or the command line."""

import pytest

from server.demo.scenarios import SCENARIOS
from tests.contradictions.checks import CHECKS
from tests.contradictions.recorded import MOMENTS, moments

# One of each stack; the others take 10 to 25 s of CPU each.
SHORT = ("glm5-easy-curriculum", "math-sync-colocated", "qwen3-235b-slime")


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in SCENARIOS]
)
def test_no_page_contradicts_another(scenario: str) -> None:
    found = moments(scenario)
    assert tuple(shown.moment for shown in found) == MOMENTS
    expected = ["catching_up", "live", "live", "not_collected", "stale", "finished"]
    assert [shown.state for shown in found] == expected
    contradictions = [
        f"{shown.moment}: {check.__name__}: {words}" for shown in found for check in CHECKS for words in check(shown)
    ]
    assert contradictions == []
