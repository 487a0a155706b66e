"""How full the KV caches of single engines are: one full cache preempts while the fleet's mean looks fine."""

from server.signals._engines import awake, spread
from server.signals._model import Answer, Signal, Unknown, View

_HINT = "no engine that is awake reports KV cache usage: add its /metrics as a target"


def _compute(view: View) -> Answer:
    known = [mean for engine in awake(view) if (mean := engine.mean("kv_cache_usage_ratio", view)) is not None]
    return spread(known) if known else Unknown(_HINT)


SIGNAL = Signal(
    name="kv_cache_engine_usage_ratio",
    title="KV cache per engine",
    unit="ratio",
    actor="generator",
    help="Used share of the KV cache of the emptiest, the mean and the fullest engine; 5 minutes of whole steps.",
    inputs=("generator_requests_running", "kv_cache_usage_ratio", "generator_asleep"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
