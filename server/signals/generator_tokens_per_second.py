"""Tokens generated per second by the whole fleet over 5 minutes: counters' increase, resets as Prometheus has them."""

from server.signals._engines import INPUTS
from server.signals._generated import rates
from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine reports generated tokens: add its /metrics as a target"


def _compute(view: View) -> Answer:
    if not view.fresh("generator_tokens_total") and not view.fresh("generator_token_throughput"):
        return Unknown(_HINT)
    found = rates(view)
    return [Value(sum(found))] if found else Unknown("one page per engine so far; a rate needs two")


SIGNAL = Signal(
    name="generator_tokens_per_second",
    title="Generated tokens",
    unit="tokens/s",
    actor="generator",
    help="Tokens generated per second over 5 minutes, summed over engines, including evaluation and judge traffic.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
