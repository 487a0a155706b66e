"""How empty the engines run while the slowest rollouts of a step end: 1 - mean running / peak (DESIGN section 4)."""

from server.signals._model import TICK_WINDOW_SECONDS, Answer, Signal, Unknown, Value, View
from server.signals._window import Gauge

_HINT = "no engine reports running requests: add its /metrics as a target"
# What engines are asked at; a tail shorter than that costs nothing.
GRID_SECONDS = 5.0
_INSTANTS = round(TICK_WINDOW_SECONDS / GRID_SECONDS)
# Fewer instants with work are no generation phase that could be judged.
_LEAST = 6


def _compute(view: View) -> Answer:
    gauges = view.fresh("generator_requests_running")
    if not gauges:
        return Unknown(_HINT)
    running = [one for one in _running(view.now, gauges) if one > 0]
    if len(running) < _LEAST:
        return Unknown("the engines generated for less than half a minute of the last five")
    return [Value(1.0 - sum(running) / len(running) / max(running))]


def _running(now: float, gauges: list[Gauge]) -> list[float]:
    """Requests running in all engines at each instant of the window's grid."""
    totals = [0.0] * _INSTANTS
    start = now - TICK_WINDOW_SECONDS
    for gauge in gauges:
        points = list(gauge.points)
        place = 0
        for number in range(_INSTANTS):
            at = start + (number + 1) * GRID_SECONDS
            while place + 1 < len(points) and points[place + 1][0] <= at:
                place += 1
            ts, value = points[place]
            totals[number] += value if ts <= at <= ts + gauge.carry else 0.0
    return totals


SIGNAL = Signal(
    name="tail_bubble_ratio",
    title="Tail bubble",
    unit="ratio",
    actor="generator",
    help="1 - mean running requests / their peak, over the time with running requests, in the 5 minutes before the "
    "newest step's end: engines that empty while the slowest rollouts finish.",
    inputs=("generator_requests_running", "trainer_step_seconds"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
