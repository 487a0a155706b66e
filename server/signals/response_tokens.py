"""Response length in tokens over the last 10 steps.

`p90` is the mean of the steps' own p90: quantiles of steps cannot be merged exactly, and it says so.
"""

from server.signals._model import Signal
from server.signals._steps import average, stats

_HINT = (
    "this trainer reports no response length: log it in tokens "
    "(TRL `completions/mean_length`, prime-rl `train/agg/effective/num_output_tokens/mean`)"
)

SIGNAL = Signal(
    name="response_tokens",
    title="Response length",
    unit="tokens",
    actor="generator",
    help="Response tokens per rollout: mean of the last 10 steps' means, mean of their p90s, max of their maxima.",
    inputs=("response_tokens_mean", "response_tokens_p90", "response_tokens_max"),
    cadence="step",
    compute=stats(
        _HINT,
        ("mean", "response_tokens_mean", average),
        ("p90", "response_tokens_p90", average),
        ("max", "response_tokens_max", max),
    ),
    hint=_HINT,
)
