"""How many sandboxes fail: what breaks here looks like a hard task to whoever only sees rewards."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._sandboxes import NO_SOURCE, missing


def _compute(view: View) -> Answer:
    gap = missing(view)
    if gap is not None:
        return gap
    failed, decided = view.sandboxes.decided(view.now)
    return [Value(failed / decided)] if decided else Unknown("no sandbox became ready or failed within 5 minutes")


SIGNAL = Signal(
    name="sandbox_failure_ratio",
    title="Sandbox failures",
    unit="ratio",
    actor="sandbox",
    help="Failed sandboxes / sandboxes that failed or became ready within 5 minutes.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
)
