"""Arrival of a request to its first token: quantiles and mean, from the engines\' own buckets."""

from server.signals._latency import answer
from server.signals._model import Answer, Signal, View

_HINT = "no engine reports times to the first token: add its /metrics as a target"


def _compute(view: View) -> Answer:
    return answer(view, "time_to_first_token_seconds", _HINT, "no request got its first token within 5 minutes")


SIGNAL = Signal(
    name="time_to_first_token_seconds",
    title="Time to first token",
    unit="seconds",
    actor="generator",
    help="Time from arrival to first token: p50, p95, p99 and mean over 5 minutes. Quantiles below the first bucket "
    "edge are left out.",
    inputs=("time_to_first_token_seconds",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
