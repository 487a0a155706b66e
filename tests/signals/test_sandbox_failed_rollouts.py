"""Rollouts lost to their sandbox, over five minutes of counters that only speak when something ends."""

import pytest

from server.signals.model import Answer, NotApplicable, Unknown
from server.signals.sandboxes import sandbox_failed_rollout_ratio
from server.signals.window import Gauge
from tests.signals.support import NOW, view

SEEN, LOST = "rollouts_seen_total", "rollouts_infra_failed_total"


def counter(metric: str, *points: tuple[float, float], env: str = "swe") -> Gauge:
    """(seconds before NOW, value), oldest first."""
    made = Gauge("traces", metric, (("environment", env),), carry=15.0)
    for age, value in points:
        made.add(NOW - age, value)
    return made


def ratio(*gauges: Gauge, **facts: float) -> Answer:
    return sandbox_failed_rollout_ratio.compute(view(*gauges, **facts))


def value(answer: Answer) -> float:
    assert not isinstance(answer, (Unknown, NotApplicable)), answer
    (one,) = answer
    return one.value


def test_only_what_ended_within_the_window_counts_and_environments_add_up() -> None:
    """Before the window 90 of 100 were lost; in it 3 of 10 and 1 of 6."""
    found = ratio(
        counter(SEEN, (400.001, 0), (400, 100), (200.001, 100), (200, 110)),
        counter(LOST, (400.001, 0), (400, 90), (200.001, 90), (200, 93)),
        counter(SEEN, (100.001, 0), (100, 6), env="web"),
        counter(LOST, (100.001, 0), (100, 1), env="web"),
    )
    assert value(found) == pytest.approx(4 / 16)


def test_silence_between_two_ends_is_no_staleness() -> None:
    """Rollouts of minutes end rarely: the last one 100 s ago, far beyond what a gauge is carried."""
    assert value(ratio(counter(SEEN, (100.001, 0), (100, 1)), counter(LOST, (100.001, 0), (100, 1)))) == 1.0


def test_none_lost_is_a_zero_and_none_ended_is_unknown() -> None:
    assert value(ratio(counter(SEEN, (10.001, 0), (10, 4)), counter(LOST, (10.001, 0), (10, 0)))) == 0.0
    quiet = ratio(counter(SEEN, (900.001, 0), (900, 4)), counter(LOST, (900.001, 0), (900, 0)))
    assert quiet == Unknown("no rollout in a sandbox ended within 5 minutes")


def test_without_a_source_it_says_what_would_be_one() -> None:
    answer = ratio()
    assert isinstance(answer, Unknown) and "traces of verifiers" in answer.why


def test_a_task_without_sandboxes_has_none_to_lose() -> None:
    assert isinstance(ratio(counter(SEEN, (10, 4)), has_sandbox=0.0), NotApplicable)
