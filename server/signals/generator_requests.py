"""Requests in the engines by state, summed over the fleet, time-weighted mean over 5 minutes of whole steps.

Engine gauges count turns, evaluations and retries alike: they say how full the engines are, never how
many rollouts were produced.
"""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import window_sum

HINT = (
    "no engine reports requests: add its /metrics as a target "
    "(vLLM serves it by default; verl turns it off with disable_log_stats)"
)
STATES = (("running", "generator_requests_running"), ("waiting", "generator_requests_waiting"))


def _compute(view: View) -> Answer:
    found = [(state, view.fresh(metric)) for state, metric in STATES]
    values = [Value(window_sum(view, gauges), (("state", state),)) for state, gauges in found if gauges]
    return values or Unknown(HINT)


SIGNAL = Signal(
    name="generator_requests",
    title="Generator requests",
    unit="requests",
    actor="generator",
    help="Requests running and waiting, summed over engines; time-weighted mean over 5 minutes of whole steps.",
    inputs=tuple(metric for _, metric in STATES),
    cadence="tick",
    compute=_compute,
    hint=HINT,
)
