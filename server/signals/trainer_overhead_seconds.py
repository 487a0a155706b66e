"""What a step spends beside waiting and computing, by what on: mean seconds per step over the last 10 steps."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import mean, too_few, window

_HINT = "no overhead by cause: the trainer must log the step time and its weight sync, checkpoint or evaluation"
PHASES = {
    "weight_sync": "trainer_weight_sync_seconds",
    "checkpoint": "trainer_checkpoint_seconds",
    "eval": "trainer_eval_seconds",
    "other": "trainer_other_seconds",
}


def _compute(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds")
    known = {phase: metric for phase, metric in PHASES.items() if any((metric, ()) in row.values for row in rows)}
    missing = too_few(rows if known else [], _HINT)
    if missing is not None:
        return missing
    # A step without a checkpoint spent none of its time on one: the mean is over all steps of the window.
    seconds = {phase: mean(rows, metric) for phase, metric in known.items()}
    if "eval" in seconds and "other" in seconds:
        # An evaluation inside the step is part of what is left over of it.
        seconds["other"] = max(0.0, seconds["other"] - seconds["eval"])
    return [Value(value, (("phase", phase),)) for phase, value in seconds.items()]


SIGNAL = Signal(
    name="trainer_overhead_seconds",
    title="Overhead by cause",
    unit="seconds",
    actor="trainer",
    help="Mean seconds per step by cause: weight_sync, checkpoint, eval, other (the rest of the step), last 10 steps.",
    inputs=("trainer_step_seconds", *PHASES.values()),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
