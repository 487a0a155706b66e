"""The KV ceiling: how many requests the engines can run at once, at the length that sequences have now."""

from server.signals._engines import INPUTS, engines
from server.signals._live import LOWEST_USAGE, Live, fleet, length
from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine reports running requests with the usage and the size of its KV cache: add its /metrics as a target"


def _ceiling(one: Live, others: float) -> float:
    """An engine that is nearly empty is taken at the fleet's length: work moves to it, and looks the same."""
    own = length([one]) if one.judged else None
    holds = (one.capacity or 0.0) / (own or others)
    limit = one.engine.series.get("generator_request_limit")
    return min(holds, limit.last) if limit is not None else holds


def _compute(view: View) -> Answer:
    known = [one for one in fleet(view) if one.capacity and one.usage is not None and one.tokens is not None]
    if not known:
        asleep = any(engine.state == "asleep" for engine in engines(view))
        return Unknown("every engine is asleep" if asleep else _HINT)
    mix = length(one for one in known if one.judged)
    if mix is None:
        return Unknown(
            f"less than {LOWEST_USAGE:.0%} of the KV cache is in use: how long sequences get is not seen yet"
        )
    return [Value(sum(_ceiling(one, mix) for one in known))]


SIGNAL = Signal(
    name="kv_concurrency_limit",
    title="KV ceiling",
    unit="requests",
    actor="generator",
    help="Requests the engines can run at once: KV capacity by the mean length of running sequences, at most the "
    "engine's own limit, summed; unknown below 5 % usage and asleep.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
