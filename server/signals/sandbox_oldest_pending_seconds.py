"""The age of the oldest sandbox that is not usable yet: a straggler is in no histogram until it ends."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._sandboxes import NO_SOURCE, missing


def _compute(view: View) -> Answer:
    gap = missing(view)
    if gap is not None:
        return gap
    # None pending is a zero that is known: nobody waits.
    return [Value(max(view.sandboxes.waiting(view.now), default=0.0))]


SIGNAL = Signal(
    name="sandbox_oldest_pending_seconds",
    title="Oldest pending sandbox",
    unit="seconds",
    actor="sandbox",
    help="Seconds since the oldest sandbox that is not ready was requested. It is in no spin-up time until it ends.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
    # A cold image pull takes minutes; ten are longer than any rollout should wait.
    watch=180.0,
    critical=600.0,
)
