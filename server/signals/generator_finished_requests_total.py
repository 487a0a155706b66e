"""Requests the engines finished since Rollscope watches them, by finish reason; turns, eval and retries included."""

from server.signals._model import Counter

COUNTER = Counter(
    name="generator_finished_requests_total",
    title="Finished requests",
    unit="requests",
    actor="generator",
    help="Requests that engines finished since Rollscope began to watch them, by finish reason, including turns, "
    "evaluation and retries.",
    metric="generator_requests_finished_total",
    of="counter",
    by=("reason",),
)
