"""Whatever a log says its step is: no row of it stops a tail."""

from typing import Any

import pytest

from collectors.formats.rows import Logged, Logs
from collectors.training_logs.model import whole_steps


@pytest.mark.parametrize("step", [True, 2.5, float("nan"), float("inf"), "3", [], 10**400])
def test_a_step_that_is_no_whole_number_is_counted(step: Any) -> None:
    logs = Logs([Logged({}, 1), Logged({}, step), Logged({}, 2)], dropped=1)
    whole_steps(logs)
    assert ([row.step for row in logs.rows], logs.dropped) == ([1, 2], 2)
    assert logs.why == "a step that is not a whole number"


def test_others_stay_as_they_are() -> None:
    logs = Logs([Logged({}, 3.0), Logged({}), Logged({}, 2**53 + 1)])  # type: ignore[arg-type]
    whole_steps(logs)
    assert [(row.step, type(row.step)) for row in logs.rows] == [(3, int), (None, type(None)), (2**53 + 1, int)]
    assert (logs.dropped, logs.why) == (0, "")
