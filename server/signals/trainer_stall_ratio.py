"""Has the trainer stopped? The age of its newest step against what its steps usually take."""

from server.signals._model import STEP_WINDOW, Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._steps import stale_seconds
from server.signals._window import TRAINER

_HINT = "no trainer step so far: add the run's directory as a target"
OVER = {
    "finished": "the run is finished",
    "crashed": "the run has crashed",
    "paused": "the run is paused",
}


def _compute(view: View) -> Answer:
    if view.lifecycle in OVER:
        return NotApplicable(OVER[view.lifecycle])
    newest = view.steps.newest(TRAINER)
    if newest is None:
        return Unknown(_HINT)
    rows = view.steps.rows(("trainer_step_seconds", ()), count=STEP_WINDOW, until=view.now)
    limit = stale_seconds(row.values[("trainer_step_seconds", ())] for row in rows)
    return [Value(max(0.0, view.now - newest.ts) / limit)]


SIGNAL = Signal(
    name="trainer_stall_ratio",
    title="Stall",
    unit="ratio",
    actor="trainer",
    help="Seconds since the newest trainer step over max(6 x the median step, 30 min); from 1 on the run is stalled.",
    inputs=("trainer_step_seconds",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    watch=0.5,
    critical=1.0,
)
