"""Running requests per engine: the fleet's mean hides that one engine idles while another is full."""

from server.signals._engines import awake, spread
from server.signals._model import Answer, Signal, Unknown, View

_HINT = "no engine that is awake reports running requests: add its /metrics as a target"


def _compute(view: View) -> Answer:
    means = (engine.mean("generator_requests_running", view) for engine in awake(view))
    known = [mean for mean in means if mean is not None]
    return spread(known) if known else Unknown(_HINT)


SIGNAL = Signal(
    name="generator_engine_requests",
    title="Requests per engine",
    unit="requests",
    actor="generator",
    help="Running requests of the least busy, the average and the busiest awake engine; 5 minutes of whole steps.",
    inputs=("generator_requests_running", "generator_asleep"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
