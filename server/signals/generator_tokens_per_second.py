"""Tokens generated per second by the whole fleet over 5 minutes: counters' increase, resets as Prometheus has them."""

from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine reports generated tokens: add its /metrics as a target"


def _compute(view: View) -> Answer:
    gauges = view.fresh("generator_tokens_total")
    if not gauges:
        return Unknown(_HINT)
    rates = []
    for gauge in gauges:
        grown, seconds = gauge.increase(view.now)
        if seconds > 0:
            rates.append(grown / seconds)
    return [Value(sum(rates))] if rates else Unknown("one page per engine so far; a rate needs two")


SIGNAL = Signal(
    name="generator_tokens_per_second",
    title="Generated tokens",
    unit="tokens/s",
    actor="generator",
    help="Tokens generated per second over 5 minutes, summed over engines; eval and judge traffic included.",
    inputs=("generator_tokens_total",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
