"""How fast the run asks for sandboxes, over five minutes."""

from server.signals._model import TICK_WINDOW_SECONDS, Answer, Signal, Value, View
from server.signals._sandboxes import NO_SOURCE, missing


def _compute(view: View) -> Answer:
    start = view.now - TICK_WINDOW_SECONDS
    asked = sum(1 for ts in view.sandboxes.created if start < ts <= view.now)
    return missing(view) or [Value(asked / TICK_WINDOW_SECONDS)]


SIGNAL = Signal(
    name="sandbox_creates_per_second",
    title="Sandbox creations",
    unit="sandboxes/s",
    actor="sandbox",
    help="Sandboxes requested per second over 5 minutes.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
)
