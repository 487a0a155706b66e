"""Samples ready for the trainer at this instant, as last reported: it saws between refills and steps."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._queue import INPUTS, waiting
from server.signals._steps import SYNC_HAS_NO_QUEUE, not_in_sync
from server.signals._ticks import last_sum
from server.signals.queue_samples import HINT


def _compute(view: View) -> Answer:
    samples = waiting(view, last_sum)
    return [Value(samples)] if samples is not None else Unknown(HINT)


SIGNAL = Signal(
    name="queue_samples_now",
    title="Queue now",
    unit="samples",
    actor="queue",
    help="Samples ready for the trainer in the newest report.",
    inputs=INPUTS,
    cadence="tick",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _compute),
    hint=HINT,
)
