"""Gap between two tokens of a request: quantiles and mean, from the engines\' own buckets."""

from server.signals._latency import answer
from server.signals._model import Answer, Signal, View

_HINT = "no engine reports gaps between tokens: add its /metrics as a target (vLLM 0.10.2, SGLang 0.4.6 on)"


def _compute(view: View) -> Answer:
    return answer(view, "inter_token_latency_seconds", _HINT, "no token followed another within 5 minutes")


SIGNAL = Signal(
    name="inter_token_latency_seconds",
    title="Time between tokens",
    unit="seconds",
    actor="generator",
    help="Time between two tokens of a request: p50, p95, p99 and mean over 5 minutes. Quantiles below the first "
    "bucket edge are left out.",
    inputs=("inter_token_latency_seconds",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
