"""Time a request waited for a slot: quantiles and mean, from the engines\' own buckets."""

from server.signals._latency import answer
from server.signals._model import Answer, Signal, View

_HINT = "no engine reports queue times: add its /metrics as a target (SGLang from 0.5.4 on)"


def _compute(view: View) -> Answer:
    return answer(view, "generator_queue_seconds", _HINT, "no request ended within 5 minutes")


SIGNAL = Signal(
    name="generator_queue_seconds",
    title="Queue time",
    unit="seconds",
    actor="generator",
    help="Time a request waited for a slot, of requests that ended: p50, p95, p99 and mean over 5 minutes. Quantiles "
    "below the first bucket edge are left out.",
    inputs=("generator_queue_seconds",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
