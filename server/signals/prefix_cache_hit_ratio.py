"""How much of the prompts is found in the prefix cache: by the engines' counters, else by their own ratio."""

from statistics import fmean

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import grown

_HINT = "no engine reports its prefix cache: add its /metrics as a target"


def _compute(view: View) -> Answer:
    queries, hits = grown(view, "prefix_cache_queries_total"), grown(view, "prefix_cache_hits_total")
    if queries and hits is not None:
        return [Value(hits / queries)]
    ratios = view.fresh("prefix_cache_hit_ratio")
    if ratios and not queries:
        # The engine's window is its own, and what it weighs by is not told: the plain mean is all there is.
        return [Value(fmean(gauge.mean(view.now) for gauge in ratios))]
    return Unknown(_HINT if queries is None or hits is None else "no prompt was looked up within 5 minutes")


SIGNAL = Signal(
    name="prefix_cache_hit_ratio",
    title="Prefix cache hits",
    unit="ratio",
    actor="generator",
    help="Share of prompt tokens found in the prefix cache over 5 minutes, all engines together.",
    inputs=("prefix_cache_queries_total", "prefix_cache_hits_total", "prefix_cache_hit_ratio"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
