"""Seconds of forward and backward computation, each step counted once."""

from server.signals._model import Counter

COUNTER = Counter(
    name="trainer_busy_seconds_total",
    title="Trainer busy",
    unit="seconds",
    actor="trainer",
    help="Seconds of forward and backward computation, each step counted once.",
    metric="trainer_compute_seconds",
    of="step",
    by=(),
)
