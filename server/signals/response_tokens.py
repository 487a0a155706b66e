"""Response length in tokens over the last 10 steps.

From rollout records quantiles are exact. Of a log `p90` is the mean of the steps' own p90: quantiles of steps cannot be
merged exactly, and it says so.
"""

from server.signals._model import Signal
from server.signals._recorded import distribution, either
from server.signals._steps import average, stats

_HINT = (
    "this trainer reports no response length: log it in tokens "
    "(TRL `completions/mean_length`, prime-rl `train/agg/effective/num_output_tokens/mean`)"
)
_logged = stats(
    _HINT,
    ("mean", "response_tokens_mean", average),
    ("p90", "response_tokens_p90", average),
    ("max", "response_tokens_max", max),
)

SIGNAL = Signal(
    name="response_tokens",
    title="Response length",
    unit="tokens",
    actor="generator",
    help="Response tokens per trained rollout of the last 10 consumed versions; of a trainer's log: mean of the last "
    "10 steps' means, mean of their p90s, max of their maxima.",
    inputs=("response_tokens_mean", "response_tokens_p90", "response_tokens_max"),
    cadence="step",
    compute=either(distribution("response_tokens", "response_tokens", "mean", "p50", "p90", "p99", "max"), _logged),
    hint=_HINT,
    records=True,
)
