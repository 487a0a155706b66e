"""How long a trainer step takes, mean over the last 10 steps."""

from server.signals._model import Signal
from server.signals._steps import single

_HINT = "no step time yet: the trainer must log one (prime-rl `time/step`, TRL `step_time` or `perf/step_s`)"

SIGNAL = Signal(
    name="trainer_step_seconds",
    title="Trainer step",
    unit="seconds",
    actor="trainer",
    help="Wall time of a trainer step, mean over the last 10 steps.",
    inputs=("trainer_step_seconds",),
    cadence="step",
    compute=single("trainer_step_seconds", _HINT),
    hint=_HINT,
)
