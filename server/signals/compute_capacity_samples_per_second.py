"""What the trainer could take if it did nothing but compute: samples / compute, last 10 steps (DESIGN section 4).

Beside `capacity_samples_per_second`, which counts weight sync, checkpoints and the like as the trainer's own time.
"""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._steps import mean, too_few, total, window
from server.signals.capacity_samples_per_second import samples_per_step

_HINT = "needs samples per step and the time the step computes (log-probs, forward, backward, optimizer)"


def _compute(view: View) -> Answer:
    rows = window(view, "trainer_compute_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, _HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_HINT)
    if not total(rows, "trainer_compute_seconds"):
        return Unknown("the steps of the window computed nothing")
    return [Value(samples / mean(rows, "trainer_compute_seconds"))]


SIGNAL = Signal(
    name="compute_capacity_samples_per_second",
    title="Compute capacity",
    unit="samples/s",
    actor="trainer",
    help="Samples the trainer could take per second if it did nothing but compute: samples / compute, last 10 steps.",
    inputs=("trainer_compute_seconds", "trainer_samples"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
