"""Has the trainer stopped? The age of its newest step against what its rows usually take."""

from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._steps import row_limit

_HINT = "no trainer step so far: add the run's directory as a target"
OVER = {
    "finished": "the run is finished",
    "crashed": "the run has crashed",
    "paused": "the run is paused",
}


def _compute(view: View) -> Answer:
    if view.lifecycle in OVER:
        return NotApplicable(OVER[view.lifecycle])
    newest = view.steps.newest_of_all()
    if newest is None:
        return Unknown(_HINT)
    # Nobody stalls whom we do not see: that is another alert.
    trainers = [target for target in view.targets if target.actor == "trainer" and target.last_ok_ts is not None]
    if trainers and not any(target.answers(view.now) for target in trainers):
        return Unknown("the trainer's target does not answer: whether it makes steps is not known")
    # From whichever came last: its own time, when we met it (its clock may be behind), or the run's new beginning.
    since = max(newest.ts, view.step_met or newest.ts, view.running_since or newest.ts)
    return [Value(max(0.0, view.now - since) / row_limit(view.steps))]


SIGNAL = Signal(
    name="trainer_stall_ratio",
    title="Stall",
    unit="ratio",
    actor="trainer",
    help="Seconds since the newest trainer step / max(6 x the usual step, 30 min); 1 or more is stalled.",
    inputs=("trainer_step_seconds",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    watch=0.5,
    critical=1.0,
)
