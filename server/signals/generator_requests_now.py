"""Requests in the engines at this instant: the newest page of each engine, without any averaging."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import last_sum
from server.signals.generator_requests import HINT, STATES


def _compute(view: View) -> Answer:
    found = [(state, view.fresh(metric)) for state, metric in STATES]
    return [Value(last_sum(gauges), (("state", state),)) for state, gauges in found if gauges] or Unknown(HINT)


SIGNAL = Signal(
    name="generator_requests_now",
    title="Generator requests now",
    unit="requests",
    actor="generator",
    help="Requests running and waiting on the newest page of each engine, summed over engines.",
    inputs=tuple(metric for _, metric in STATES),
    cadence="tick",
    compute=_compute,
    hint=HINT,
)
