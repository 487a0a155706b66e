"""Arrival of a request to its last token: quantiles and mean, from the engines\' own buckets."""

from server.signals._latency import answer
from server.signals._model import Answer, Signal, View

_HINT = "no engine reports request times: add its /metrics as a target"


def _compute(view: View) -> Answer:
    return answer(view, "e2e_request_seconds", _HINT, "no request ended within 5 minutes")


SIGNAL = Signal(
    name="e2e_request_seconds",
    title="Request time",
    unit="seconds",
    actor="generator",
    help="Time from arrival to last token, of requests that ended: p50, p95, p99 and mean over 5 minutes. Quantiles "
    "below the first bucket edge are left out.",
    inputs=("e2e_request_seconds",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
