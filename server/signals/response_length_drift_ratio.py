"""How far the response length has moved from the run's own first steps."""

from server.signals._drift_answers import ratio
from server.signals._drift_points import RESPONSE_LENGTH
from server.signals._model import Signal, fold

_HINT = (
    "no response length by step: log it in tokens "
    "(TRL `completions/mean_length`, prime-rl `train/agg/effective/num_output_tokens/mean`), or give rollout records"
)

SIGNAL = Signal(
    name="response_length_drift_ratio",
    title="Response length drift",
    unit="ratio",
    actor="generator",
    help="Median response length of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the "
    "first 10 of a run that drifts from its start), by environment if records name it. Compare with the truncation "
    "ratio.",
    inputs=RESPONSE_LENGTH.inputs,
    cadence="step",
    hint=_HINT,
    records=True,
    **fold(ratio(RESPONSE_LENGTH, _HINT)),
)
