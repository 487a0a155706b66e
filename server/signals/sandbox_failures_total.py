"""Sandboxes of the run that failed, each once, by cause."""

from server.signals._model import Counter

COUNTER = Counter(
    name="sandbox_failures_total",
    title="Sandbox failures",
    unit="sandboxes",
    actor="sandbox",
    help="Sandboxes that failed, each id counted once, by cause. Without records, the source's own count.",
    metric="sandbox_failed",
    of="sandbox",
    by=("cause",),
    also="sandbox_failures_total",
)
