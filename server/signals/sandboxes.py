"""Live sandboxes of the run by canonical state: starting is apart from running, for that is what providers limit.

Where no record of a single sandbox is read, what a source counts itself stands: only the states it tells are known.
"""

from collections import defaultdict

from server.signals._model import Answer, Signal, Value, View
from server.signals._sandboxes import NO_SOURCE, metered, missing

STATES = ("queued", "building_image", "starting", "running", "paused", "stopping", "unknown")


def _compute(view: View) -> Answer:
    told: dict[str, float] = defaultdict(float)
    for gauge in metered(view, "sandboxes"):
        told[dict(gauge.labels).get("state", "unknown")] += gauge.last
    if told and view.facts.get("has_sandbox") != 0:
        return [Value(count, (("state", state),)) for state, count in sorted(told.items())]
    counts = view.sandboxes.by_state()
    return missing(view) or [Value(float(counts[state]), (("state", state),)) for state in STATES]


SIGNAL = Signal(
    name="sandboxes",
    title="Sandboxes",
    unit="sandboxes",
    actor="sandbox",
    help="Live sandboxes of the run by state, from the providers' last answers.",
    inputs=("sandboxes",),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
)
