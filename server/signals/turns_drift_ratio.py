"""How far the turns per rollout have moved from the run's own first steps."""

from server.signals._drift_answers import ratio
from server.signals._drift_points import TURNS
from server.signals._model import Signal, fold

_HINT = "no turns by step: log them (prime-rl `train/agg/effective/num_turns/mean`), or give rollout records"

SIGNAL = Signal(
    name="turns_drift_ratio",
    title="Turns drift",
    unit="ratio",
    actor="generator",
    help="Median turns of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the first 10 of a "
    "run that drifts from its start), by environment if records name it.",
    inputs=TURNS.inputs,
    cadence="step",
    hint=_HINT,
    records=True,
    **fold(ratio(TURNS, _HINT)),
)
