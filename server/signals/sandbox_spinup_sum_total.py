"""One part of the spin-up histogram that `/metrics` shows as `sandbox_spinup_seconds`."""

from server.signals._model import Counter

COUNTER = Counter(
    name="sandbox_spinup_sum_total",
    title="Spin-up seconds",
    unit="seconds",
    actor="sandbox",
    help="Seconds from requested to ready, summed over sandboxes; on /metrics the histogram sandbox_spinup_seconds.",
    metric="sandbox_spinup",
    of="sandbox",
)
