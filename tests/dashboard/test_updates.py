"""Weight updates and change points over time, in columns of whole minutes or hours."""

import pytest

from dashboard.callbacks import cells as of_page
from dashboard.charts import time_columns
from dashboard.charts.time_columns import grid
from dashboard.charts.weight_updates import MOST, cells
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from dashboard.state.url import Span
from server.query.types import EventInfo
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
        "w.10": [[5.0, 10], [30.5, 11]], "w.19": [[50.0, 12]], "w.width": 60.0, "w.n": 3,
        "w.note": "3 weight updates in this range, v10 to v12",
    }  # fmt: skip


def test_change_points_stand_beside_weight_updates_and_are_none() -> None:
    columns_of = grid(Span(600, 1200, True))
    drift = EventInfo(642.5, "drift", "drift:tool_calls::40", "tool calls x2.5 from step 40 on")
    assert cells([*published([605.0]), drift], columns_of) == {
        "w.10": [[5.0, 10]], "w.d.10": [[42.5, "tool calls x2.5 from step 40 on"]], "w.width": 60.0, "w.n": 1,
        "w.note": "1 weight update in this range",
    }  # fmt: skip


def test_many_weight_updates_are_thinned_and_that_is_said() -> None:
    found = cells(published([2.0 * i for i in range(1800)]), grid(Span(0, 3599, True)))
    drawn = [cell for key, cell in found.items() if key.removeprefix("w.").isdigit()]
    assert len(drawn) == 60 and all(len(cell) == 3 for cell in drawn if isinstance(cell, list))
    assert found["w.n"] == 1800
    assert found["w.note"] == "1,800 weight updates in this range, v10 to v1,809; 180 shown"
    whole = cells(published([18.0 * i for i in range(MOST)]), grid(Span(0, 3599, True)))
    assert sum(len(cell) for key, cell in whole.items() if isinstance(cell, list)) == MOST


def test_weight_updates_are_on_every_page_with_charts(reader: MemoryReader) -> None:
    made.publish(reader, made.BARE, 600)
    for key in ("overview", "rollouts", "sandboxes"):
        page = by_key(key)
        assert page is not None
        found = of_page(page, Scope(reader, made.BARE, span=HOUR))
        assert found["w.note"] == "14 weight updates in this range, v558 to v571"
