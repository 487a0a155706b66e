"""Rollouts that left, each once, by how."""

from server.signals._model import Counter

COUNTER = Counter(
    name="rollouts_total",
    title="Rollouts",
    unit="rollouts",
    actor="queue",
    help="Training rollouts that left, each counted once, by exit (the first cause). Needs records of all rollouts.",
    metric="rollout_left",
    of="rollout",
    by=("exit",),
)
