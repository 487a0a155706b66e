"""Prompt tokens per second of the whole fleet over 5 minutes, those found in the prefix cache included."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import rate_sum

_HINT = "no engine reports prompt tokens: add its /metrics as a target"


def _compute(view: View) -> Answer:
    gauges = view.fresh("generator_prompt_tokens_total")
    if not gauges:
        return Unknown(_HINT)
    found = rate_sum(view, gauges)
    return [Value(found)] if found is not None else Unknown("one page per engine so far; a rate needs two")


SIGNAL = Signal(
    name="generator_prompt_tokens_per_second",
    title="Prompt tokens",
    unit="tokens/s",
    actor="generator",
    help="Prompt tokens processed per second over 5 minutes, summed over engines, including those found in the cache.",
    inputs=("generator_prompt_tokens_total",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
