"""Counters of rollouts in event time: they go forward whatever the times say, and make few series."""

from typing import Any

import pytest

from collectors.model import Sample
from collectors.sandbox_providers.traces import MAX_NAMES, TracedRollout, count

NOW = 1_795_300_500.0


def ended(at: float | None, lost: bool = False, env: str = "swe", errors: tuple[str, ...] = ()) -> TracedRollout:
    return TracedRollout(env, "", "train", at, True, lost, errors)


def series(samples: list[Sample], metric: str) -> list[tuple[float, float]]:
    return [(round(one.ts - NOW, 3), one.value) for one in samples if one.metric == metric and one.ts is not None]


def test_a_pause_gets_a_sample_before_the_increase() -> None:
    found = list(count({}, [ended(NOW - 100), ended(NOW - 98), ended(NOW - 40, lost=True)], NOW))
    assert series(found, "rollouts_seen_total") == [
        (-100.001, 0), (-100.0, 1), (-98.0, 2), (-40.001, 2), (-40.0, 3),
    ]  # fmt: skip
    assert [value for _, value in series(found, "rollouts_infra_failed_total")] == [0, 0, 0, 0, 1]


def test_late_equal_and_impossible_times_still_go_forward() -> None:
    counts: dict[str, Any] = {}
    found = list(count(counts, [ended(NOW - 10), ended(NOW - 10), ended(None), ended(NOW + 9e6)], NOW))
    found += count(counts, [ended(NOW - 60)], NOW)
    times = [ts for ts, _ in series(found, "rollouts_seen_total")]
    assert times == sorted(set(times)) and times[-1] == pytest.approx(0.004)
    assert counts["swe"]["seen"] == 5


def test_names_without_end_make_few_series() -> None:
    counts: dict[str, Any] = {}
    list(count(counts, [ended(NOW, env=f"e{n}", errors=(f"E{n}",)) for n in range(200)], NOW))
    assert len(counts) == MAX_NAMES + 1 and counts["other"]["seen"] == 200 - MAX_NAMES
