"""How far the trainer's probabilities are from the generator's for the same tokens."""

from server.signals._model import Signal
from server.signals._steps import single

_HINT = "this trainer reports no mismatch KL (prime-rl `mismatch_kl/all/mean`)"

SIGNAL = Signal(
    name="mismatch_kl",
    title="Mismatch KL",
    unit="nats",
    actor="trainer",
    help="KL between generator and trainer on the trained tokens, mean over the last 10 steps.",
    inputs=("mismatch_kl_mean",),
    cadence="step",
    compute=single("mismatch_kl_mean", _HINT),
    hint=_HINT,
)
