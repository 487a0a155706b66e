"""How many engines are in which state. Each is in one: what stands still on purpose is not hung."""

from collections import Counter

from server.signals._engines import INPUTS, STATES, engines
from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "no engine is a target yet: add its /metrics"


def _compute(view: View) -> Answer:
    counts = Counter(engine.state for engine in engines(view))
    return [Value(float(counts[state]), (("state", state),)) for state in STATES] if counts else Unknown(_HINT)


SIGNAL = Signal(
    name="generator_engines",
    title="Engines",
    unit="engines",
    actor="generator",
    help="Engines by state: up, down, paused, asleep, hung (requests run and nothing moves for 60 s), silent (the "
    "page responds but no longer contains this engine's metrics).",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
