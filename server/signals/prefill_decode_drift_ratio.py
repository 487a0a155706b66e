"""How far prompt tokens per generated token have moved from the run's own first steps."""

from server.signals._drift_answers import ratio
from server.signals._drift_points import PREFILL_DECODE
from server.signals._model import Signal, fold

_HINT = (
    "no prompt and response length by step, and no engine that counts its tokens while the trainer's steps are read: "
    "log both, or add the engines' /metrics as targets"
)

SIGNAL = Signal(
    name="prefill_decode_drift_ratio",
    title="Prefill to decode drift",
    unit="ratio",
    actor="generator",
    help="Prompt tokens per generated token, median of the last 10 steps / the run's own first steps (30 after 5 of "
    "burn-in, or the first 10 of a run that drifts from its start). From the trainer's log of both, or else from the "
    "engines' counters over 5 minutes, for steps that are 5 minutes apart.",
    inputs=("trainer_step_seconds", *PREFILL_DECODE.inputs),
    cadence="step",
    hint=_HINT,
    **fold(ratio(PREFILL_DECODE, _HINT)),
)
