"""One part of the spin-up histogram that `/metrics` shows as `sandbox_spinup_seconds`."""

from server.signals._model import Counter

COUNTER = Counter(
    name="sandbox_spinup_bucket_total",
    title="Spin-ups by bucket",
    unit="sandboxes",
    actor="sandbox",
    help="Sandboxes by their longest time from requested to ready; on /metrics the histogram sandbox_spinup_seconds.",
    metric="sandbox_spinup",
    of="sandbox",
    by=("le",),
)
