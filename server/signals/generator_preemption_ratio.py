"""Preemptions per finished request: how often the KV cache threw running work out."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import grown, last_sum

_HINT = "no engine reports preemptions and finished requests: add its /metrics as a target"


def _compute(view: View) -> Answer:
    preempted = grown(view, "generator_preemptions_total")
    finished = grown(view, "generator_requests_finished_total")
    if preempted is None or finished is None:
        return Unknown(_HINT)
    if finished <= 0 and preempted > 0:
        # Nothing gets through: then what runs is what is thrown out again and again.
        return [Value(preempted / max(1.0, last_sum(view.fresh("generator_requests_running"))))]
    if finished <= 0:
        return Unknown("no request finished within 5 minutes; preemptions are counted per finished request")
    return [Value(preempted / finished)]


SIGNAL = Signal(
    name="generator_preemption_ratio",
    title="Preemptions per request",
    unit="ratio",
    actor="generator",
    help="Requests preempted for want of KV cache per finished request over 5 minutes, all engines together.",
    inputs=("generator_preemptions_total", "generator_requests_finished_total", "generator_requests_running"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    # Each preemption computes a prefix again: one in ten requests is where throughput begins to show it.
    watch=0.02,
    critical=0.10,
)
