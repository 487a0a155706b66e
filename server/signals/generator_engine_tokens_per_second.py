"""Generated tokens per second of single engines: the fleet's mean, its slowest and its fastest."""

from server.signals._engines import INPUTS, awake, spread
from server.signals._generated import rate
from server.signals._model import Answer, Signal, Unknown, View

_HINT = "no engine reports generated tokens: add its /metrics as a target"


def _compute(view: View) -> Answer:
    fleet = awake(view)
    known = [found for engine in fleet if (found := rate(engine, view)) is not None]
    if known:
        return spread(known)
    if any("generator_tokens_total" in engine.shared for engine in fleet):
        return Unknown("the page counts the tokens of all its engines together")
    return Unknown("one page per engine so far; a rate needs two" if fleet else _HINT)


SIGNAL = Signal(
    name="generator_engine_tokens_per_second",
    title="Tokens per engine",
    unit="tokens/s",
    actor="generator",
    help="Tokens generated per second by the slowest, the average and the fastest awake engine, over 5 minutes.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
