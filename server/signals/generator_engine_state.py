"""Which engines do not work now, by name: at most ten of a state."""

from collections import defaultdict

from server.signals._engines import INPUTS, STATES, engines
from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View

_HINT = "no engine is a target yet: add its /metrics"
# A name is for somebody to go and look at; a hundred are a count, which `generator_engines` has.
_NAMED = 10


def _compute(view: View) -> Answer:
    known = engines(view)
    if not known:
        return Unknown(_HINT)
    found = defaultdict(list)
    for engine in known:
        found[engine.state].append(tuple(sorted((*engine.named, ("state", engine.state)))))
    values = [Value(1.0, labels) for state in STATES if state != "up" for labels in found[state][:_NAMED]]
    return values or NotApplicable("every engine is up")


SIGNAL = Signal(
    name="generator_engine_state",
    title="Engines that do not work",
    unit="",
    actor="generator",
    help="1 for each engine that is now down, paused, asleep, hung or silent, with its name; at most ten per state.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
