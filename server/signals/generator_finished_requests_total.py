"""Requests the engines finished since Rollscope watches them, by finish reason; turns, eval and retries included."""

from server.signals._model import Counter

COUNTER = Counter(
    name="generator_finished_requests_total",
    title="Finished requests",
    unit="requests",
    actor="generator",
    help="Requests the engines finished since Rollscope watches, by finish reason; turns, eval and retries count.",
    metric="generator_requests_finished_total",
    of="counter",
    by=("reason",),
)
