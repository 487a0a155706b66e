"""The trainer in the strip of actors: silent, new, or of a mode nobody told."""

import pytest

from dashboard.pages.overview.flow import flow
from dashboard.widgets.status import LAST, StatusFacts
from server.query.types import SignalNow, Status, TargetTrust
from server.verdict.model import Verdict
from tests.dashboard.fake import by_name
from tests.dashboard.shown import shown

NONE = Verdict("unknown")

NOW = 1_790_000_000.0
WAIT = SignalNow("trainer_wait_ratio", "trainer_wait_ratio", {}, None, "ratio", "not_applicable", 0, "", "sync", NOW)
LOG = TargetTrust("log", "run", "slime", "trainer", True, 3.0, "", 0.1, 0, 0, {})


def trainer(
    why: str, life: str = "running", mode: str = "sync_colocated", value: float | None = None, usual: str = ""
) -> tuple[object, object]:
    """(state, subtitle) of the card, given what is said of the step."""
    state = "ok" if value is not None else "unknown"
    step = SignalNow("trainer_step_seconds", "trainer_step_seconds", {}, value, "seconds", state, 0, "log", why, NOW)  # type: ignore[arg-type]
    facts = {"framework": "slime", "usual_mode": usual}
    cells = flow(StatusFacts(Status("run", "slime", mode, life, NOW, NONE, by_name(WAIT, step), (), (LOG,), facts)))
    return shown(cells)["actor.trainer.state"], shown(cells)["actor.trainer.sub"]


@pytest.mark.parametrize(
    ("why", "life", "expected"),
    [
        ("no step time yet: the trainer must log one", "starting", "slime · no step yet"),
        ("no step time yet: the trainer must log one", "running", "slime · no step time yet"),
        ("2 of the 3 steps needed so far; no action needed", "running", "slime · 2 of the 3 steps needed so far"),
        (f"no step for 3 h{LAST}41.2", "paused", "slime · no step for 3 h"),
        ("no step time yet: the trainer must log one", "finished", "slime"),
    ],
)
def test_a_silent_synchronous_trainer_says_why(why: str, life: str, expected: str) -> None:
    """That it waits for nobody is not all there is to say of it."""
    assert trainer(why, life) == ("unknown", expected)


def test_with_steps_nothing_is_said() -> None:
    assert trainer("", value=41.2) == ("ok", "slime")


def test_a_mode_that_no_source_reports() -> None:
    assert (
        trainer("", value=41.2, mode="", usual="sync_colocated")[1] == "slime · mode unknown (usually sync_colocated)"
    )
    assert trainer("", value=41.2, mode="")[1] == "slime · mode unknown"
