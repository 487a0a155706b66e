"""What each quota grants, in its own unit: the number to ask the provider to raise."""

from server.signals._model import Answer, Signal, View
from server.signals._quota import HINT, quotas


def _compute(view: View) -> Answer:
    return quotas(view, "sandbox_quota_limit")


SIGNAL = Signal(
    name="sandbox_quota_limit",
    title="Sandbox quota granted",
    unit="quota",
    actor="sandbox",
    help="Quota granted by resource and account (target): sandboxes, cores, creations per second or hour, GB.",
    inputs=("sandbox_quota_limit",),
    cadence="tick",
    compute=_compute,
    hint=HINT,
)
