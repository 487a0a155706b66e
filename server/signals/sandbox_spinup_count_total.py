"""One part of the spin-up histogram that `/metrics` shows as `sandbox_spinup_seconds`."""

from server.signals._model import Counter

COUNTER = Counter(
    name="sandbox_spinup_count_total",
    title="Spin-ups",
    unit="sandboxes",
    actor="sandbox",
    help="Sandboxes with a known spin-up time; on /metrics the histogram sandbox_spinup_seconds.",
    metric="sandbox_spinup",
    of="sandbox",
)
