"""Preemptions per finished request: how often a full KV cache threw running work out.

vLLM also counts every running request as preempted when a pause clears its cache, as TRL does at each weight update
(`/pause?mode=keep`, `reset_prefix_cache`). Only preemptions next to a page with a nearly full cache count.
"""

from itertools import pairwise

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import grown, last_sum
from server.signals._window import Gauge

_HINT = "no engine reports preemptions and finished requests: add its /metrics as a target"
_PREEMPTED, _FINISHED, _USAGE = (
    "generator_preemptions_total", "generator_requests_finished_total", "kv_cache_usage_ratio",
)  # fmt: skip
# An engine preempts when no block is free. Between two pages of a recorded run that preempts for want of blocks one of
# the two is at 87 to 100 %; an engine whose cache was cleared by a pause is at 1 % before and after.
NEARLY_FULL = 0.85


def _compute(view: View) -> Answer:
    preempted, finished = grown(view, _PREEMPTED), grown(view, _FINISHED)
    if preempted is None or finished is None:
        return Unknown(_HINT)
    counted = _for_want_of_cache(view) if preempted > 0 else 0.0
    why = (
        f"{preempted - counted:.0f} preemptions while the cache was not full do not count"
        if counted < preempted
        else ""
    )
    if finished <= 0 and counted > 0:
        # Nothing gets through: then what runs is what is thrown out again and again.
        return [Value(counted / max(1.0, last_sum(view.fresh("generator_requests_running"))), why=why)]
    if finished <= 0:
        return Unknown("no request finished within 5 minutes; preemptions are counted per finished request")
    return [Value(counted / finished, why=why)]


def _for_want_of_cache(view: View) -> float:
    """Preemptions of 5 minutes that a nearly full cache explains; all of an engine that does not report its cache."""
    usage = {(one.target, one.labels): one for one in view.fresh(_USAGE)}
    return sum(_counted(one, usage.get((one.target, one.labels)), view.now) for one in view.fresh(_PREEMPTED))


def _counted(preempted: Gauge, usage: Gauge | None, now: float) -> float:
    if usage is None or preempted.increase(now)[0] <= 0:
        return preempted.increase(now)[0]
    full = {ts for ts, value in usage.points if value >= NEARLY_FULL}
    start, found = now - preempted.keep, 0.0
    for (before, old), (ts, new) in pairwise(preempted.points):
        if ts - before <= preempted.carry and (before in full or ts in full):
            # The interval that reaches out of the window counts by its share within, as in `Gauge.increase`.
            found += (new - old if new >= old else new) * (ts - max(before, start)) / (ts - before)
    return found


SIGNAL = Signal(
    name="generator_preemption_ratio",
    title="Preemptions per request",
    unit="ratio",
    actor="generator",
    help="Requests preempted for lack of KV cache per finished request over 5 minutes, all engines together. "
    "Preemptions by a pause for a weight update are not counted while the cache is far from full.",
    inputs=(_PREEMPTED, _FINISHED, "generator_requests_running", _USAGE),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    # Each preemption computes a prefix again: one in ten requests is where throughput begins to show it.
    watch=0.02,
    critical=0.10,
)
