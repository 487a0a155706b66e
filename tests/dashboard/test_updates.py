"""Events over time, in columns of whole minutes or hours: weight updates, restarts, changes, alerts."""

from typing import Literal

import pytest
from msgspec import structs

from dashboard.callbacks import cells as of_page
from dashboard.charts import time_columns
from dashboard.charts.events import MOST_UPDATES, cells, events
from dashboard.charts.time_columns import grid
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from server.query.types import AlertInfo, EventInfo
from tests.dashboard import fake, fake_alerts
from tests.dashboard import fake_rollouts as made
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.rollout_cells import HOUR


@pytest.fixture
def reader() -> MemoryReader:
    return made.reader()


@pytest.mark.parametrize(("seconds", "width"), [(900, 60), (3600, 60), (3601, 120), (21_600, 360), (86_400, 1440),
                                                (216_001, 7200), (604_800, 10_800)])  # fmt: skip
def test_columns_are_whole_minutes_or_hours(seconds: float, width: float) -> None:
    found = grid(Span(made.NOW - seconds, made.NOW, True))
    assert found.width == width and found.count <= time_columns.COLUMNS + 2
    assert found.start <= made.NOW - seconds < found.start + width and found.end - width <= made.NOW < found.end


def published(times: list[float]) -> list[EventInfo]:
    return [EventInfo(at, "weights_published", str(i), "", 10 + i) for i, at in enumerate(times)]


def test_weight_updates_stand_in_columns() -> None:
    columns_of = grid(Span(600, 1200, True))
    found = cells(published([605.0, 630.5, 1190.0]), columns_of)
    assert found == {
        "weight_updates.10": [[5.0, 10], [30.5, 11]], "weight_updates.19": [[50.0, 12]],
        "weight_updates.width": 60.0, "weight_updates.n": 3, "weight_updates.whole": 1,
        "weight_updates.note": "3 weight updates, v10 to v12",
    }  # fmt: skip


def test_other_events_have_kind_and_text() -> None:
    made = [
        EventInfo(605.0, "restart", "a", "step 380"), EventInfo(606.5, "resume", "b", ""),
        EventInfo(642.5, "drift", "drift:tool_calls::40", "tool calls x2.5 from step 40 on"),
        EventInfo(660.0, "eval", "c", ""), EventInfo(670.0, "unheard_of", "d", ""),
    ]  # fmt: skip
    assert cells([*published([605.0]), *made], grid(Span(600, 1200, True))) == {
        "weight_updates.10": [[5.0, 10]], "weight_updates.width": 60.0, "weight_updates.n": 1,
        "weight_updates.whole": 1, "weight_updates.note": "1 weight update",
        "other_events.10": [[5.0, "restart", "Restart: step 380"], [6.5, "resume", "Resumed"],
                   [42.5, "drift", "Behaviour changed: tool calls x2.5 from step 40 on", "tool_calls"]],
        "other_events.11": [[0.0, "eval", "Evaluation"]],
    }  # fmt: skip


def test_of_very_many_weight_updates_the_first_of_each_column_are_sent() -> None:
    found = cells(published([1.0 * i for i in range(3600)]), grid(Span(0, 3599, True)))
    drawn = [cell for key, cell in found.items() if key.removeprefix("weight_updates.").isdigit()]
    assert len(drawn) == 60 and all(len(cell) == 25 for cell in drawn if isinstance(cell, list))
    assert (found["weight_updates.n"], found["weight_updates.whole"]) == (3600, 0)
    assert found["weight_updates.note"] == "3,600 weight updates, v10 to v3,609"
    whole = cells(published([2.4 * i for i in range(MOST_UPDATES)]), grid(Span(0, 3599, True)))
    assert sum(len(cell) for key, cell in whole.items() if isinstance(cell, list)) == MOST_UPDATES


def alert(name: str, at: float | None, severity: str, over: float | None = None) -> AlertInfo:
    made = fake_alerts.alert(name, 1.0, "ratio", 0, run=fake.RICH)
    state: Literal["resolved", "firing"] = "resolved" if over else "firing"
    return structs.replace(made, fired_at=at, severity=severity, resolved_at=over, state=state, signal="reward")


def test_alerts_are_marked_when_they_began_to_fire() -> None:
    made = MemoryReader(1200.0)
    made.add_run(fake.RICH)
    now = [alert("TrainerStarved", 1190.0, "critical"), alert("DataTrust", None, "warning")]
    made.set_alerts(
        *now, alert("LengthDrift", 700.5, "warning", over=900.0), alert("TargetDown", 100.0, "critical", 200.0)
    )
    found = events(made, fake.RICH, now, Span(600, 1200, True), TimedCache())
    assert {key: cell for key, cell in found.items() if key.startswith("fired_alerts")} == {
        "fired_alerts.11": [[40.5, "LengthDrift", "warning", "reward"]],
        "fired_alerts.19": [[50.0, "TrainerStarved", "critical", "reward"]],
    }


def test_weight_updates_are_on_every_page_with_charts(reader: MemoryReader) -> None:
    made.publish(reader, made.BARE, 600)
    for key in ("overview", "rollouts", "sandboxes"):
        page = by_key(key)
        assert page is not None
        found = of_page(page, Scope(reader, made.BARE, span=HOUR))
        assert found["weight_updates.note"] == "14 weight updates, v558 to v571"
