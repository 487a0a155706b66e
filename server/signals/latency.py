"""Latency of requests over the fleet, and the size of the engines' batches."""

from server.signals.model import Answer, Unknown, Value, View, signal
from server.signals.observed_histograms import observed, quantiles, totals

QUANTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


def _statistics(view: View, metric: str, hint: str, none: str) -> Answer:
    """Quantiles and the mean of a histogram over five minutes, of the whole fleet. Label: stat.

    A quantile below the first bucket edge is left out: vLLM's is 10 ms, and fast decoding is below it.

    Args:
        hint: reason where no engine reports the histogram.
        none: reason where nothing was observed within the five minutes.
    """
    pools = [pool for pool in view.observed.get(metric, ()) if pool.fresh(view.now)]
    if not pools:
        return Unknown(hint)
    count, total = totals(pools, view.now)
    if count <= 0:
        return Unknown(none)
    found = quantiles(observed(pools, view.now), QUANTILES)
    return [Value(total / count, (("stat", "mean"),)), *(Value(value, (("stat", name),)) for name, value in found)]


@signal(
    title="Request time",
    unit="seconds",
    actor="generator",
    inputs=("e2e_request_seconds",),
    cadence="tick",
    hint="no engine reports request times: add its /metrics as a target",
)
def e2e_request_seconds(view: View) -> Answer:
    """Time from arrival to last token, of requests that ended: p50, p95, p99 and mean over 5 minutes. Quantiles below
    the first bucket edge are left out.
    """
    return _statistics(view, "e2e_request_seconds", e2e_request_seconds.hint, "no request ended within 5 minutes")


@signal(
    title="Time to first token",
    unit="seconds",
    actor="generator",
    inputs=("time_to_first_token_seconds",),
    cadence="tick",
    hint="no engine reports times to the first token: add its /metrics as a target",
)
def time_to_first_token_seconds(view: View) -> Answer:
    """Time from arrival to first token: p50, p95, p99 and mean over 5 minutes. Quantiles below the first bucket edge
    are left out.
    """
    return _statistics(
        view,
        "time_to_first_token_seconds",
        time_to_first_token_seconds.hint,
        "no request got its first token within 5 minutes",
    )


@signal(
    title="Time between tokens",
    unit="seconds",
    actor="generator",
    inputs=("inter_token_latency_seconds",),
    cadence="tick",
    hint="no engine reports gaps between tokens: add its /metrics as a target (vLLM 0.10.2, SGLang 0.4.6 on)",
)
def inter_token_latency_seconds(view: View) -> Answer:
    """Time between two tokens of a request: p50, p95, p99 and mean over 5 minutes. Quantiles below the first bucket
    edge are left out.
    """
    return _statistics(
        view,
        "inter_token_latency_seconds",
        inter_token_latency_seconds.hint,
        "no token followed another within 5 minutes",
    )


@signal(
    title="Queue time",
    unit="seconds",
    actor="generator",
    inputs=("generator_queue_seconds",),
    cadence="tick",
    hint="no engine reports queue times: add its /metrics as a target (SGLang from 0.5.4 on)",
)
def generator_queue_seconds(view: View) -> Answer:
    """Time a request waited for a slot, of requests that ended: p50, p95, p99 and mean over 5 minutes. Quantiles below
    the first bucket edge are left out.
    """
    return _statistics(
        view, "generator_queue_seconds", generator_queue_seconds.hint, "no request ended within 5 minutes"
    )


@signal(
    title="Tokens per iteration",
    unit="tokens",
    actor="generator",
    inputs=("generator_iteration_tokens",),
    cadence="tick",
    hint="no engine reports tokens per iteration (vLLM does)",
)
def generator_iteration_tokens(view: View) -> Answer:
    """Tokens that an engine computes in one iteration, of prefill and decode: p50, p95, p99 and mean over 5 minutes,
    all engines together. Quantiles below the first bucket edge are left out.
    """
    return _statistics(
        view, "generator_iteration_tokens", generator_iteration_tokens.hint, "no iteration ended within 5 minutes"
    )


@signal(
    title="KV cache transfer",
    unit="seconds",
    actor="generator",
    inputs=("kv_transfer_seconds",),
    cadence="tick",
    hint="no engine reports transfers of KV caches (SGLang's prefill engines do, `kv_transfer_latency_ms`)",
)
def kv_transfer_seconds(view: View) -> Answer:
    """Transfer of a request's KV cache from a prefill to a decode engine: p50, p95, p99 and mean over 5 minutes, all
    engines together. Quantiles below the first bucket edge are left out.
    """
    return _statistics(view, "kv_transfer_seconds", kv_transfer_seconds.hint, "no KV cache was sent within 5 minutes")
