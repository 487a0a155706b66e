"""How full the KV caches are: mean over the engines that are awake, time-weighted over 5 minutes of whole steps."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import window_sum

_HINT = "no engine reports KV cache usage: add its /metrics as a target"


def _compute(view: View) -> Answer:
    # An engine asleep holds no cache: counting its 0 would make a full fleet look half empty.
    asleep = {(gauge.target, gauge.labels) for gauge in view.fresh("generator_asleep") if gauge.last > 0}
    gauges = [gauge for gauge in view.fresh("kv_cache_usage_ratio") if (gauge.target, gauge.labels) not in asleep]
    if not gauges:
        return Unknown("every engine is asleep" if asleep else _HINT)
    return [Value(window_sum(view, gauges) / len(gauges))]


SIGNAL = Signal(
    name="kv_cache_usage_ratio",
    title="KV cache",
    unit="ratio",
    actor="generator",
    help="Used share of the KV cache, mean over awake engines; time-weighted over 5 minutes of whole steps.",
    inputs=("kv_cache_usage_ratio", "generator_asleep"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    # 90 %: no room for a longer mix; 97 %: the engine preempts instead of admitting.
    watch=0.90,
    critical=0.97,
)
