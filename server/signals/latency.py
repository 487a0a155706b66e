"""Latency of requests over the fleet."""

from server.signals.model import Answer, Counter, Signal, Unknown, Value, View
from server.signals.observed_histograms import observed, quantiles, totals

QUANTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


def _statistics(view: View, metric: str, hint: str, none: str) -> Answer:
    """Quantiles and the mean of a latency histogram over five minutes, of the whole fleet. Label: stat.

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


# ---- e2e_request_seconds

# Arrival of a request to its last token: quantiles and mean, from the engines' own buckets.

_E2E_REQUEST_SECONDS_HINT = "no engine reports request times: add its /metrics as a target"


def _e2e_request_seconds(view: View) -> Answer:
    return _statistics(view, "e2e_request_seconds", _E2E_REQUEST_SECONDS_HINT, "no request ended within 5 minutes")


E2E_REQUEST_SECONDS = Signal(
    name="e2e_request_seconds",
    title="Request time",
    unit="seconds",
    actor="generator",
    help="Time from arrival to last token, of requests that ended: p50, p95, p99 and mean over 5 minutes. Quantiles "
    "below the first bucket edge are left out.",
    inputs=("e2e_request_seconds",),
    cadence="tick",
    compute=_e2e_request_seconds,
    hint=_E2E_REQUEST_SECONDS_HINT,
)


# ---- time_to_first_token_seconds

# Arrival of a request to its first token: quantiles and mean, from the engines' own buckets.

_TIME_TO_FIRST_TOKEN_SECONDS_HINT = "no engine reports times to the first token: add its /metrics as a target"


def _time_to_first_token_seconds(view: View) -> Answer:
    return _statistics(
        view,
        "time_to_first_token_seconds",
        _TIME_TO_FIRST_TOKEN_SECONDS_HINT,
        "no request got its first token within 5 minutes",
    )


TIME_TO_FIRST_TOKEN_SECONDS = Signal(
    name="time_to_first_token_seconds",
    title="Time to first token",
    unit="seconds",
    actor="generator",
    help="Time from arrival to first token: p50, p95, p99 and mean over 5 minutes. Quantiles below the first bucket "
    "edge are left out.",
    inputs=("time_to_first_token_seconds",),
    cadence="tick",
    compute=_time_to_first_token_seconds,
    hint=_TIME_TO_FIRST_TOKEN_SECONDS_HINT,
)


# ---- inter_token_latency_seconds

# Gap between two tokens of a request: quantiles and mean, from the engines' own buckets.

_INTER_TOKEN_LATENCY_SECONDS_HINT = (
    "no engine reports gaps between tokens: add its /metrics as a target (vLLM 0.10.2, SGLang 0.4.6 on)"
)


def _inter_token_latency_seconds(view: View) -> Answer:
    return _statistics(
        view,
        "inter_token_latency_seconds",
        _INTER_TOKEN_LATENCY_SECONDS_HINT,
        "no token followed another within 5 minutes",
    )


INTER_TOKEN_LATENCY_SECONDS = Signal(
    name="inter_token_latency_seconds",
    title="Time between tokens",
    unit="seconds",
    actor="generator",
    help="Time between two tokens of a request: p50, p95, p99 and mean over 5 minutes. Quantiles below the first "
    "bucket edge are left out.",
    inputs=("inter_token_latency_seconds",),
    cadence="tick",
    compute=_inter_token_latency_seconds,
    hint=_INTER_TOKEN_LATENCY_SECONDS_HINT,
)


# ---- generator_queue_seconds

# Time a request waited for a slot: quantiles and mean, from the engines' own buckets.

_GENERATOR_QUEUE_SECONDS_HINT = "no engine reports queue times: add its /metrics as a target (SGLang from 0.5.4 on)"


def _generator_queue_seconds(view: View) -> Answer:
    return _statistics(
        view, "generator_queue_seconds", _GENERATOR_QUEUE_SECONDS_HINT, "no request ended within 5 minutes"
    )


GENERATOR_QUEUE_SECONDS = Signal(
    name="generator_queue_seconds",
    title="Queue time",
    unit="seconds",
    actor="generator",
    help="Time a request waited for a slot, of requests that ended: p50, p95, p99 and mean over 5 minutes. Quantiles "
    "below the first bucket edge are left out.",
    inputs=("generator_queue_seconds",),
    cadence="tick",
    compute=_generator_queue_seconds,
    hint=_GENERATOR_QUEUE_SECONDS_HINT,
)


SIGNALS: tuple[Signal | Counter, ...] = (
    E2E_REQUEST_SECONDS,
    TIME_TO_FIRST_TOKEN_SECONDS,
    INTER_TOKEN_LATENCY_SECONDS,
    GENERATOR_QUEUE_SECONDS,
)
