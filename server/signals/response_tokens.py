"""Response length in tokens over the last 10 steps.

From rollout records quantiles are exact. Of a log `mean` weights each step by its samples, and `p90` is the mean of the
steps' own p90: quantiles of steps cannot be merged exactly.
"""

from server.signals._model import Answer, Signal, Value, View
from server.signals._recorded import distribution, either
from server.signals._steps import average, stats, window

_HINT = (
    "this trainer reports no response length: log it in tokens "
    "(TRL `completions/mean_length`, prime-rl `train/agg/effective/num_output_tokens/mean`)"
)
_means = stats(
    _HINT,
    ("mean", "response_tokens_mean", average),
    ("p90", "response_tokens_p90", average),
    ("max", "response_tokens_max", max),
)


def _logged(view: View) -> Answer:
    answer = _means(view)
    if not isinstance(answer, list):
        return answer
    rows = window(view, "response_tokens_mean")
    samples = [row.get("trainer_samples") or 0.0 for row in rows]
    if 0.0 in samples:  # not logged with every step: all steps count alike
        return answer
    tokens = sum(row.values[("response_tokens_mean", ())] * count for row, count in zip(rows, samples, strict=True))
    return [Value(tokens / sum(samples), answer[0].labels), *answer[1:]]


SIGNAL = Signal(
    name="response_tokens",
    title="Response length",
    unit="tokens",
    actor="generator",
    help="Response tokens per trained rollout of the last 10 consumed versions. From a trainer's log: mean of the "
    "last 10 steps' means, weighted by samples; mean of their p90s; maximum of their maxima.",
    inputs=("response_tokens_mean", "response_tokens_p90", "response_tokens_max", "trainer_samples"),
    cadence="step",
    compute=either(distribution("response_tokens", "response_tokens", "mean", "p50", "p90", "p99", "max"), _logged),
    hint=_HINT,
    records=True,
)
