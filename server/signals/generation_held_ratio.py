"""How long production was held back, as a share of the step: the queue was full, or dispatch waited for a policy."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._steps import SYNC_HAS_NO_QUEUE, not_in_sync, total, window

_HINT = (
    "this run reports no time its production was held (TRL async `rollout/backpressure_s`, prime-rl "
    "`time/wait_for_policy`, open-instruct `time/generation_waiting_for_trainer`)"
)
BY = {"backpressure": "backpressure_seconds", "gate": "dispatch_gate_wait_seconds"}


def _compute(view: View) -> Answer:
    steps = window(view, "trainer_step_seconds")
    seconds = total(steps, "trainer_step_seconds")
    found = []
    for by, metric in BY.items():
        rows = window(view, metric)
        # A step without a row of it was not held: TRL logs `backpressure_s` only when there was some.
        within = [row for row in rows if steps and row.ts >= steps[0].ts]
        if rows and seconds > 0:
            found.append(Value(min(1.0, total(within, metric) / seconds), (("by", by),)))
    return found or Unknown(_HINT)


SIGNAL = Signal(
    name="generation_held_ratio",
    title="Production held",
    unit="ratio",
    actor="queue",
    help="Share of the last 10 steps in which production was held back: by a full queue (backpressure), or because "
    "dispatch waited for the next policy (gate).",
    inputs=("trainer_step_seconds", *BY.values()),
    cadence="step",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _compute),
    hint=_HINT,
)
