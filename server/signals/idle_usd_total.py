"""Dollars that idle GPUs have cost since Rollscope watches, by cause."""

from server.signals._model import Counter

COUNTER = Counter(
    name="idle_usd_total",
    title="Idle cost so far",
    unit="usd",
    actor="trainer",
    help="Dollars of idle GPUs by cause: idle_usd_per_hour added up over the time between ticks. Gaps of more than a "
    "minute are not counted.",
    metric="idle_usd_per_hour",
    of="signal",
    by=("cause",),
)
