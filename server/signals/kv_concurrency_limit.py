"""The KV ceiling: how many requests the engines can run at once, at the length that sequences have now."""

from server.signals._engines import INPUTS, engines
from server.signals._live import LOWEST_USAGE, Live, fleet, length
from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine reports running requests with the usage and the size of its KV cache: add its /metrics as a target"


def _ceiling(one: Live, others: float, stated: float | None) -> float:
    """An engine that is nearly empty is taken at the fleet's length: work moves to it, and looks the same.

    ``stated``: the engines' own limit by the run's configuration; what an engine says of itself comes first.
    """
    own = length([one]) if one.judged else None
    holds = (one.capacity or 0.0) / (own or others)
    told = one.engine.series.get("generator_request_limit")
    limit = told.last if told is not None else stated
    return min(holds, limit) if limit is not None else holds


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
    stated = view.fact("max_num_seqs")
    return [Value(sum(_ceiling(one, mix, stated) for one in known))]


SIGNAL = Signal(
    name="kv_concurrency_limit",
    title="KV ceiling",
    unit="requests",
    actor="generator",
    help="Requests the engines can run at once: KV capacity by the mean length of running sequences, at most the "
    "engine's own limit (or the fact `max_num_seqs`), summed; unknown below 5 % usage and asleep.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
