"""What the trainer could take: samples / (step - wait), ratio of sums over the last 10 steps (DESIGN section 4)."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._steps import SYNC_HAS_NO_WAIT, mean, not_in_sync, too_few, total, window

_HINT = (
    "capacity needs samples per step, step time and wait time "
    "(prime-rl `progress/rollouts`, `time/step`, `time/wait_for_batch`)"
)


def samples_per_step(view: View) -> float | None:
    """Mean trainer samples of a step: logged, possibly on another axis, or the configured batch."""
    rows = window(view, "trainer_samples")
    return mean(rows, "trainer_samples") if rows else view.fact("batch_samples")


def _compute(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds", "trainer_wait_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, _HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_HINT)
    busy = total(rows, "trainer_step_seconds") - total(rows, "trainer_wait_seconds")
    return [Value(samples * len(rows) / busy)] if busy > 0 else Unknown("the trainer did nothing but wait")


SIGNAL = Signal(
    name="capacity_samples_per_second",
    title="Trainer capacity",
    unit="samples/s",
    actor="trainer",
    help="Samples the trainer could take per second if it never waited: samples / (step - wait), last 10 steps.",
    inputs=("trainer_step_seconds", "trainer_wait_seconds", "trainer_samples"),
    cadence="step",
    compute=not_in_sync(SYNC_HAS_NO_WAIT, _compute),
    hint=_HINT,
)
