"""The queue in units that matter to the trainer: 500 samples are starved when a batch is 512."""

from functools import partial

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._queue import INPUTS, waiting
from server.signals._steps import SYNC_HAS_NO_QUEUE, not_in_sync
from server.signals._ticks import window_sum
from server.signals.capacity_samples_per_second import samples_per_step
from server.signals.queue_samples import HINT


def _compute(view: View) -> Answer:
    samples = waiting(view, partial(window_sum, view))
    if samples is None:
        return Unknown(HINT)
    batch = view.fact("batch_samples") or samples_per_step(view)
    if not batch:
        return Unknown("the batch size is unknown: it is in the run's configuration, or in the samples per step")
    return [Value(samples / batch)]


SIGNAL = Signal(
    name="queue_batches",
    title="Queue in batches",
    unit="batches",
    actor="queue",
    help="Samples ready for the trainer / samples of one batch; time-weighted mean over 5 minutes of whole steps.",
    inputs=INPUTS,
    cadence="tick",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _compute),
    hint=HINT,
    # Below one batch the trainer cannot start when it is ready; below half a batch it waits most of the time.
    watch=1.0,
    critical=0.6,
    higher_is_worse=False,
)
