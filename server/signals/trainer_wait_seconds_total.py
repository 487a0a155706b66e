"""Seconds the trainer waited for rollouts, each step counted once."""

from server.signals._model import Counter

COUNTER = Counter(
    name="trainer_wait_seconds_total",
    title="Trainer wait",
    unit="seconds",
    actor="trainer",
    help="Seconds the trainer waited for rollouts, each step counted once.",
    metric="trainer_wait_seconds",
    of="step",
    by=(),
)
