"""How large the update's gradient was before clipping: its jumps come before the reward's fall."""

from server.signals._model import Signal
from server.signals._steps import single

_HINT = "this trainer reports no gradient norm (TRL `grad_norm`, verl `actor/grad_norm`)"

SIGNAL = Signal(
    name="gradient_norm",
    title="Gradient norm",
    unit="",
    actor="trainer",
    help="Norm of the gradient before clipping, mean over the last 10 steps, without steps whose norm is not finite.",
    inputs=("gradient_norm",),
    cadence="step",
    compute=single("gradient_norm", _HINT),
    hint=_HINT,
)
