"""How full the KV caches of single engines are: one full cache preempts while the fleet's mean looks fine."""

from server.signals._engines import awake, spread
from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine that is awake reports KV cache usage: add its /metrics as a target"
# Without room for a longer mix, as the fleet's own bands have it; the fullest few are for somebody to look at.
_FULL, _NAMED = 0.90, 3


def _compute(view: View) -> Answer:
    means = ((engine.mean("kv_cache_usage_ratio", view), engine) for engine in awake(view))
    known = sorted(((mean, one) for mean, one in means if mean is not None), key=lambda pair: (-pair[0], pair[1].named))
    if not known:
        return Unknown(_HINT)
    full = [(mean, engine) for mean, engine in known[:_NAMED] if mean >= _FULL]
    named = [Value(mean, tuple(sorted((*engine.named, ("stat", "full"))))) for mean, engine in full]
    return [*spread([mean for mean, _ in known]), *named]


SIGNAL = Signal(
    name="kv_cache_engine_usage_ratio",
    title="KV cache per engine",
    unit="ratio",
    actor="generator",
    help="Used share of the KV cache of the emptiest, the average and the fullest engine; 5 minutes of whole steps. "
    "Up to three engines at 90 % or more are named.",
    inputs=("generator_requests_running", "kv_cache_usage_ratio", "generator_asleep"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    # One engine that preempts is worth a look; that the fleet is full is said by its mean.
    watch=0.97,
)
