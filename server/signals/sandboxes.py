"""Live sandboxes of the run by canonical state: starting is apart from running, for that is what providers limit."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._sandboxes import NO_SOURCE, missing

STATES = ("queued", "building_image", "starting", "running", "paused", "stopping", "unknown")


def _compute(view: View) -> Answer:
    counts = view.sandboxes.by_state()
    return missing(view) or [Value(float(counts[state]), (("state", state),)) for state in STATES]


SIGNAL = Signal(
    name="sandboxes",
    title="Sandboxes",
    unit="sandboxes",
    actor="sandbox",
    help="Live sandboxes of the run by state, as the providers' last answers have it.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
)
