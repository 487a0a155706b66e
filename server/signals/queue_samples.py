"""Samples ready for the trainer: the buffer between generator and trainer, mean over 5 minutes of whole steps."""

from functools import partial

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._queue import INPUTS, waiting
from server.signals._steps import SYNC_HAS_NO_QUEUE, not_in_sync
from server.signals._ticks import window_sum

HINT = (
    "this run reports no queue depth: prime-rl prints it in the orchestrator log (give the run directory with its "
    "logs), TRL async logs `sample/rollout_queue_size`"
)


def _compute(view: View) -> Answer:
    samples = waiting(view, partial(window_sum, view))
    return [Value(samples)] if samples is not None else Unknown(HINT)


SIGNAL = Signal(
    name="queue_samples",
    title="Queue depth",
    unit="samples",
    actor="queue",
    help="Samples ready for the trainer and not yet consumed; time-weighted mean over 5 minutes of whole steps.",
    inputs=INPUTS,
    cadence="tick",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _compute),
    hint=HINT,
)
