"""What the trainer does take: samples / step, ratio of sums over the last 10 steps."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._steps import too_few, total, window
from server.signals.capacity_samples_per_second import samples_per_step

_HINT = (
    "needs samples per step and step time "
    "(prime-rl `progress/rollouts`, `time/step`; TRL async `batch/samples_per_step`)"
)


def _compute(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, _HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_HINT)
    seconds = total(rows, "trainer_step_seconds")
    return [Value(samples * len(rows) / seconds)] if seconds > 0 else Unknown(_HINT)


SIGNAL = Signal(
    name="trainer_samples_per_second",
    title="Trained samples",
    unit="samples/s",
    actor="trainer",
    help="Samples the trainer consumed per second of wall time over the last 10 steps.",
    inputs=("trainer_step_seconds", "trainer_samples"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
