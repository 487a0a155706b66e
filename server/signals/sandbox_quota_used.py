"""What is used of each quota, in its own unit: a share alone does not say how many more will start."""

from server.signals._model import Answer, Signal, View
from server.signals._quota import HINT, quotas


def _compute(view: View) -> Answer:
    return quotas(view, "sandbox_quota_used")


SIGNAL = Signal(
    name="sandbox_quota_used",
    title="Sandbox quota in use",
    unit="quota",
    actor="sandbox",
    help="Quota in use by resource and account (target): sandboxes, cores, creations per second or hour, GB.",
    inputs=("sandbox_quota_used",),
    cadence="tick",
    compute=_compute,
    hint=HINT,
)
