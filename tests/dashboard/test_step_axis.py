"""Charts over steps: which step was under way when, also over a restart."""

import pytest

from dashboard.callbacks import cells as of_page
from dashboard.charts.step_axis import Knot, Steps, cells, knots
from dashboard.pages import by_key
from dashboard.shell.page import Scope
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from server.query.types import StepAt
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader

# Steps 1 to 5 every 10 s; then a restart from a checkpoint of step 3, and steps 4 to 6 of 20 s.
TOLD = [StepAt(100.0 + 10 * n, n, 0) for n in range(1, 6)] + [StepAt(200.0 + 20 * i, 4 + i, 1) for i in range(3)]


def test_what_a_restart_has_lost_has_no_place() -> None:
    assert knots(TOLD) == [
        Knot(110, 120, 1, 2), Knot(120, 130, 2, 3), Knot(150, 200, 3, 4), Knot(200, 220, 4, 5), Knot(220, 240, 5, 6),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ts", "step"),
    [(110, 1), (115, 1.5), (120, 2), (130, 3), (140, None), (150, 3), (175, 3.5), (230, 5.5), (240, 6), (241, None),
     (109, None)],
)  # fmt: skip
def test_a_time_is_at_the_step_under_way(ts: float, step: float | None) -> None:
    assert Steps(TOLD).at(ts) == step


def test_a_step_was_at_its_last_time() -> None:
    steps = Steps(TOLD)
    assert [steps.when(step) for step in (1, 1.5, 3, 3.5, 6, 7, 0)] == [110, 115, 130, 175, 240, None, None]
    assert (steps.low, steps.high, bool(Steps(TOLD[:1]))) == (1, 6, False)


def test_steps_that_jump_are_one_line() -> None:
    logged = [StepAt(0.0, 10, 0), StepAt(100.0, 20, 0)]
    assert Steps(logged).at(50.0) == 15


def reader() -> MemoryReader:
    made = fake.reader(600)
    steps = [StepAt(fake.NOW - 42 * (10 - i), 402 + i, 0) for i in range(11)]
    made.records(fake.RICH).steps = steps
    return made


def test_cells_stand_in_columns_and_say_what_does_not_go_on() -> None:
    made = reader()
    made.records(fake.RICH).steps = TOLD
    found = cells(made, fake.RICH, Span(60, 300, True), TimedCache())
    # Columns of a minute: 60 to 120 s, 120 to 180 s, ...; begun 10 s before at step 1; 50 s before at step 3.
    assert found == {
        "step_axis.width": 60.0, "step_axis.2": [[0.0, 2, 10.0, 1], [10.0, 3]],
        "step_axis.3": [[20.0, 4, 50.0, 3], [40.0, 5]],
        "step_axis.4": [[0.0, 6]],
    }  # fmt: skip


def test_charts_over_time_have_the_steps_for_their_tooltip() -> None:
    made, page = reader(), by_key("overview")
    assert page is not None
    found = of_page(page, Scope(made, fake.RICH, span=Span(fake.NOW - 600, fake.NOW, True)))
    rows = [cell for key, cell in found.items() if key.startswith("step_axis.") and isinstance(cell, list)]
    assert sum(map(len, rows)) == 10
