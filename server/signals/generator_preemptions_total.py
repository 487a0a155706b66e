"""Requests preempted for want of KV cache since Rollscope watches."""

from server.signals._model import Counter

COUNTER = Counter(
    name="generator_preemptions_total",
    title="Preemptions",
    unit="preemptions",
    actor="generator",
    help="Requests preempted for lack of KV cache since Rollscope began to watch.",
    metric="generator_preemptions_total",
    of="counter",
    by=(),
)
