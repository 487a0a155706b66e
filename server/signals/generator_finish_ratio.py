"""Why requests ended: the share of each finish reason over 5 minutes, all engines together."""

from collections import defaultdict

from server.signals._model import Answer, Signal, Unknown, Value, View

_METRIC = "generator_requests_finished_total"
_HINT = "no engine reports why requests end (vLLM does; SGLang counts requests without a reason)"
_SHOWN = 10


def _compute(view: View) -> Answer:
    reasons: dict[str, float] = defaultdict(float)
    for gauge in view.fresh(_METRIC):
        # An engine that counts without a reason says nothing about shares.
        if reason := dict(gauge.labels).get("reason"):
            reasons[reason] += gauge.increase(view.now)[0]
    if not reasons:
        return Unknown(_HINT)
    whole = sum(reasons.values())
    if whole <= 0:
        return Unknown("no request finished within 5 minutes")
    largest = sorted(reasons, key=lambda reason: (-reasons[reason], reason))[:_SHOWN]
    return [Value(reasons[reason] / whole, (("reason", reason),)) for reason in sorted(largest)]


SIGNAL = Signal(
    name="generator_finish_ratio",
    title="Finish reasons",
    unit="ratio",
    actor="generator",
    help="Share of each finish reason among requests that ended within 5 minutes, including turns, evaluation and "
    "retries.",
    inputs=(_METRIC,),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
