"""After the first hour of a demo the pages show the figures of the published run that it simulates."""

import re
from contextlib import closing
from dataclasses import replace

import pytest

from dashboard.charts.events import events
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from server.config.alerts import defaults
from server.lib.clock import ScaledClock
from server.query import Reader
from server.store import Store
from tests.contradictions.recorded import LIVE, WHOLE, moments
from tests.contradictions.snapshot import Snapshot
from tests.demo.watched import START

FIRST_HOUR = replace(WHOLE, moments=("live",))
# Points of a percentage: the last ten steps of one seed.
POINTS = 3.5


def numbers(shown: Snapshot, page: str, key: str) -> list[float]:
    """The numbers in a text of a page."""
    return [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", str(shown.text(page, key)))]


def test_over_sampling_aborts_three_in_five() -> None:
    (shown,) = moments("qwen3-235b-slime", FIRST_HOUR)
    assert numbers(shown, "overview", "card.wait.figure") == pytest.approx([30], abs=POINTS)
    assert numbers(shown, "trainer", "card.tr_rate.figure") == pytest.approx([1.95], rel=0.03)
    assert numbers(shown, "overview", "chart.rates.0.text") == pytest.approx([1.95], rel=0.03)
    assert numbers(shown, "trainer", "card.tr_rate.note") == pytest.approx([2.75], rel=0.03)
    assert "60% of rollouts are aborted once enough others are done" in shown.text("overview", "answer.text")
    exits = {row["exit"]: row["rollouts"] for row in (shown.text("rollouts", f"exits.{i}") for i in range(2))}
    assert exits["aborted_oversample"] / sum(exits.values()) == pytest.approx(0.60, abs=0.01)
    assert (shown.verdict["outcome"], shown.verdict["cause"]) == ("generator_bound", "long_tail")


def test_easy_tasks_and_more_and_more_tool_calls() -> None:
    (shown,) = moments("glm5-easy-curriculum", FIRST_HOUR)
    assert numbers(shown, "overview", "card.wait.figure") == pytest.approx([74], abs=POINTS)
    assert numbers(shown, "overview", "card.zero.figure") == pytest.approx([55], abs=POINTS)
    assert numbers(shown, "overview", "chart.zero.0.text") == pytest.approx([55], abs=POINTS)
    before, now, factor, step = numbers(shown, "overview", "chart.tool_calls.drift")
    assert (before, now, factor) == pytest.approx((20, 51, 2.5), rel=0.06)
    # The calls grow from second 400 on, which is in the ninth step; 16 % more are needed to tell a change.
    assert 9 <= step <= 15
    stored = LIVE["glm5-easy-curriculum", FIRST_HOUR]
    with closing(Store.open(stored.url)) as store:
        reader = Reader(store, ScaledClock(stored.now), defaults())
        found = events(reader, stored.run, (), Span(START, stored.now, False), TimedCache())
    cells = [cell for key, cell in found.items() if key.startswith("other_events.") and isinstance(cell, list)]
    assert {row[3] for cell in cells for row in cell if row[1] == "drift"} >= {"tool_calls", "turns", "response_length"}
    assert f"since step {step:.0f}" in shown.text("overview", "card.length.note")


@pytest.mark.long
def test_ten_times_as_many_rollouts_reach_the_limit_on_starts() -> None:
    (shown,) = moments("gb300-sandbox-wall", FIRST_HOUR)
    assert shown.text("overview", "arrow.to_queue.figure") == "960 rollouts"
    assert shown.text("sandboxes", "card.sb_starting.figure") == "128"
    assert shown.text("sandboxes", "chart.boxes.watch") == "start at once 128 (inferred)"
    requested, ready, refused, limit = (numbers(shown, "sandboxes", f"chart.creates.{line}.text") for line in range(4))
    assert (requested, ready, refused, limit) == ([4.39], [4.25], [0.04], [40.0])
    assert numbers(shown, "sandboxes", "chart.commands.0.text") == pytest.approx([23], rel=0.05)
    produced, consumed = (numbers(shown, "overview", f"chart.rates.{line}.text") for line in (1, 0))
    assert produced == pytest.approx(consumed, rel=0.1)
    # 27 % of the groups have no gradient, and 3 % of the samples are too stale.
    assert numbers(shown, "overview", "chart.rates.2.text") == pytest.approx([0.7 * consumed[0]], rel=0.05)
    stored = LIVE["gb300-sandbox-wall", FIRST_HOUR]
    with closing(Store.open(stored.url)) as store:
        reader = Reader(store, ScaledClock(stored.now), defaults())
        (flight,) = reader.signals.series(stored.run, ["rollouts_in_flight"], START - 1_200.0, START, 10)
    assert {value for value in flight.mean if value is not None} == {96.0}
