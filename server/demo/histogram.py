"""A histogram as prometheus_client keeps it, with the edges of vLLM 0.32 (vllm/v1/metrics/buckets.py) and of
prometheus-fastapi-instrumentator 8 (HTTP_*)."""

from bisect import bisect_left
from itertools import accumulate

# vLLM's request_latency buckets: end to end, queue, inference, prefill and decode share them.
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
# The first edge is 10 ms: fast decoding all falls below it, so only sum / count says how fast.
TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
ITERATION_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
HTTP_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0,
    2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
# Latencies by handler have few edges, latencies without labels many.
HTTP_COARSE_SECONDS = (0.1, 0.5, 1.0)
PARAMS_N = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_edges(max_model_len: int) -> tuple[float, ...]:
    """vLLM's 1-2-5 series, up to the model's context length in tokens."""
    steps = [digit * 10.0**power for power in range(7) for digit in (1, 2, 5)]
    return tuple(edge for edge in steps if edge <= max_model_len)


class Histogram:
    """Counts per bucket and a sum. Weights may be fractions of a token; the page shows whole numbers."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0.0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float, weight: float = 1.0) -> None:
        self.counts[bisect_left(self.edges, value)] += weight
        self.total += value * weight

    def cumulative(self) -> list[float]:
        """Returns counts at or below each edge, +Inf last. Rounded down after adding, so that no bucket decreases."""
        return [float(int(count)) for count in accumulate(self.counts)]
