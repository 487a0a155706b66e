"""Prompt tokens per generated token: tools and turns make it grow, longer answers make it fall."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import grown

_HINT = "no engine reports prompt and generated tokens: add its /metrics as a target"


def _compute(view: View) -> Answer:
    prompt, generated = grown(view, "generator_prompt_tokens_total"), grown(view, "generator_tokens_total")
    if prompt is None or generated is None:
        return Unknown(_HINT)
    if generated <= 0:
        return Unknown("no token was generated within 5 minutes")
    return [Value(prompt / generated)]


SIGNAL = Signal(
    name="generator_prefill_decode_ratio",
    title="Prefill to decode",
    unit="ratio",
    actor="generator",
    help="Prompt tokens per generated token over 5 minutes, all engines together, including prompt tokens found in "
    "the cache.",
    inputs=("generator_prompt_tokens_total", "generator_tokens_total"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
