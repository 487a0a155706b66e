"""How long a running sequence is now, prompt and answer so far: what fills the KV cache."""

from server.signals._engines import INPUTS
from server.signals._live import fleet, length
from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine reports running requests together with the tokens in its KV cache: add its /metrics as a target"


def _compute(view: View) -> Answer:
    known = [one for one in fleet(view) if one.tokens is not None]
    found = length(known)
    if found is not None:
        return [Value(found)]
    return Unknown("no request ran within 5 minutes" if known else _HINT)


SIGNAL = Signal(
    name="live_sequence_length_tokens",
    title="Live sequence length",
    unit="tokens",
    actor="generator",
    help="Mean tokens of a running sequence over 5 minutes of whole steps: the engines' sum of lengths, or else the "
    "tokens in their KV caches, per running request.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
