"""Weight updates counted by each target's engines: from their histogram, else from the calls that trigger updates."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from server.signals.model import TICK_WINDOW_SECONDS, View
from server.signals.observed_histograms import Pool, totals
from server.signals.window import Gauge

INPUTS = ("generator_control_requests_total", "generator_control_seconds_total", "generator_weight_update_seconds")
PAUSED = "generator_paused"
HINT = (
    "no engine counts weight updates (vLLM from 0.32 on by its own routes, else the HTTP calls that bring weights in; "
    "updates from Python inside the engine's process show nowhere)"
)
# One of these calls is made once per update; which one depends on the framework. The first with any call counts.
# vLLM's collective_rpc is left out, because TRL and OpenRLHF use it for other purposes and the route does not say
# which.
_ONCE = ("update_weights_finish", "update_weights", "load_lora_adapter", "update_weight_version")
# During these calls the engine generates nothing, or nothing new.
_STALL = frozenset(
    {"pause", "resume", "update_weights_begin", "update_weights", "update_weights_finish", "load_lora_adapter"}
)
_OPERATIONS = frozenset({"start", "start_draft", "update", "finish"})  # not init, shutdown: once per incarnation

Calls = Mapping[str, float]


def counts(view: View) -> dict[str, float]:
    """Updates within five minutes, by target."""
    called = {target: _once(calls) for target, calls in _calls(view, INPUTS[0]).items()}
    found = {target: count for target, count in called.items() if count is not None}
    for target, pools in _timed(view).items():
        finished = [pool for pool in pools if ("operation", "finish") in pool.labels]
        updated = [pool for pool in pools if ("operation", "update") in pool.labels]
        found[target] = totals(finished or updated, view.now)[0]
    return found


def stalls(view: View) -> dict[str, float]:
    """Seconds within five minutes in which an engine was paused or loaded weights, by target.

    Only of targets that count pauses or updates. Weights are brought in during the pause, so the longer of both counts.
    """
    found = {}
    for target, calls in _calls(view, INPUTS[1]).items():
        if any(call in calls for call in (*_ONCE, "pause")):
            found[target] = sum(seconds for call, seconds in calls.items() if call in _STALL)
    found |= {target: totals(pools, view.now)[1] for target, pools in _timed(view).items()}
    for target, seconds in _pauses(view).items():
        if target in found or seconds > 0:
            found[target] = max(seconds, found.get(target, 0.0))
    return found


def _pauses(view: View) -> dict[str, float]:
    """Seconds for which pages reported a pause, each until the next page; of several replicas, the longest."""
    found: dict[str, float] = {}
    for gauge in view.fresh(PAUSED):
        # Most engines were not paused, so a check of the sum is enough.
        seconds = _on(gauge, view.now) if gauge.mean(view.now) > 0 else 0.0
        found[gauge.target] = max(seconds, found.get(gauge.target, 0.0))
    return found


def _on(gauge: Gauge, now: float) -> float:
    spans = pairwise((*gauge.points, (now, 0.0)))
    start = now - TICK_WINDOW_SECONDS
    return sum(
        max(0.0, min(ts, before + gauge.carry) - max(before, start)) for (before, on), (ts, _) in spans if on > 0
    )


def _once(calls: Calls) -> float | None:
    return next((calls[call] for call in _ONCE if call in calls), None)


def _calls(view: View, metric: str) -> dict[str, dict[str, float]]:
    """Increase within five minutes by target and call; of a page of several replicas, the busiest."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for gauge in view.fresh(metric):
        call = dict(gauge.labels).get("call", "")
        if gauge.last > 0:
            grown = gauge.increase(view.now)[0]
            found[gauge.target][call] = max(grown, found[gauge.target].get(call, 0.0))
    return found


def _timed(view: View) -> dict[str, list[Pool]]:
    found: dict[str, list[Pool]] = defaultdict(list)
    for pool in view.observed.get(INPUTS[2], ()):
        labels = dict(pool.labels)
        if pool.fresh(view.now) and labels.get("operation") in _OPERATIONS:
            found[labels["target"]].append(pool)
    return found
