"""The share of rollouts cut at the length cap. A cap hides length drift: read it beside the response length."""

from server.signals._model import Signal
from server.signals._steps import single

_HINT = "this trainer reports no truncation share (TRL `completions/clipped_ratio`, prime-rl `.../is_truncated/mean`)"

SIGNAL = Signal(
    name="truncation_ratio",
    title="Truncated",
    unit="ratio",
    actor="generator",
    help="Share of rollouts truncated at the length cap, mean over the last 10 steps.",
    inputs=("truncation_ratio",),
    cadence="step",
    compute=single("truncation_ratio", _HINT),
    hint=_HINT,
    # A tenth of the rollouts without an end already biases the reward; at 30 % the cap decides what is learned.
    watch=0.10,
    critical=0.30,
)
