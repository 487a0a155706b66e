"""How long publishing new weights holds the step up."""

from server.signals._model import Signal
from server.signals._steps import single

_HINT = "this trainer reports no weight sync time (prime-rl `time/broadcast_weights`, TRL async `perf/weight_sync_s`)"

SIGNAL = Signal(
    name="weight_sync_seconds",
    title="Weight sync",
    unit="seconds",
    actor="trainer",
    help="Seconds of the step spent on publishing weights, mean over the last 10 steps.",
    inputs=("trainer_weight_sync_seconds",),
    cadence="step",
    compute=single("trainer_weight_sync_seconds", _HINT),
    hint=_HINT,
)
