"""Entropy of the policy, as the trainer computes it."""

from server.signals._model import Signal
from server.signals._steps import single

_HINT = "this trainer reports no entropy (TRL `entropy`, prime-rl `entropy/all/mean`)"

SIGNAL = Signal(
    name="entropy",
    title="Entropy",
    unit="nats",
    actor="trainer",
    help="Policy entropy in nats per token, mean over the last 10 steps.",
    inputs=("entropy_mean",),
    cadence="step",
    compute=single("entropy_mean", _HINT),
    hint=_HINT,
)
