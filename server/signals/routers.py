"""Routers in front of the engines: requests, retries, errors, workers, and whether requests go where their prefix is.

Sources: sglang-router and its gateway, vllm-router, the production-stack router, Ray Serve, and Dynamo's frontend.
"""

from collections.abc import Sequence

from server.signals.aggregates import grown, last_sum, rate_sum, window_sum
from server.signals.model import Answer, Unknown, Value, View, signal

HINT = (
    "no router reports: add its metrics port as a target (sglang-router and vllm-router: --prometheus-port, 29000 by "
    "default)"
)
ONE_PAGE = "one page per router so far; a rate needs two"
_REQUESTS = {
    "queued": ("router_requests_queued", "frontend_requests_queued"),
    "in_flight": ("router_requests_in_flight", "frontend_requests_in_flight"),
}
_RETRIES = {"retried": "router_retries_total", "exhausted": "router_retries_exhausted_total"}
_ERRORS = {
    "request": "router_errors_total", "worker": "router_worker_errors_total", "rejected": "router_rejected_total",
}  # fmt: skip
_OPEN = 1.0


@signal(
    title="Requests at the router",
    unit="requests",
    actor="generator",
    inputs=tuple(metric for metrics in _REQUESTS.values() for metric in metrics),
    cadence="tick",
    hint=HINT,
)
def router_requests(view: View) -> Answer:
    """Requests that wait in a router (queued) and that it has sent to workers (in_flight), summed over routers; mean
    over 5 minutes of whole steps.
    """
    found = [(state, [one for metric in metrics for one in view.fresh(metric)]) for state, metrics in _REQUESTS.items()]
    return [Value(window_sum(view, gauges), (("state", state),)) for state, gauges in found if gauges] or Unknown(HINT)


def _rates(view: View, metrics: Sequence[tuple[str, str]], label: str, hint: str) -> Answer:
    """Increase per second of each counter over 5 minutes, summed over its series."""
    rates = [(name, rate_sum(view, gauges)) for name, metric in metrics if (gauges := view.fresh(metric))]
    values = [Value(rate, ((label, name),)) for name, rate in rates if rate is not None]
    return values or Unknown(ONE_PAGE if rates else hint)


@signal(
    title="Router retries",
    unit="requests/s",
    actor="generator",
    inputs=tuple(_RETRIES.values()),
    cadence="tick",
    hint="no router reports retries (sglang-router and vllm-router do)",
)
def router_retries_per_second(view: View) -> Answer:
    """Requests that routers sent again (retried) and gave up after the last retry (exhausted), per second over 5
    minutes.
    """
    return _rates(view, tuple(_RETRIES.items()), "outcome", router_retries_per_second.hint)


@signal(
    title="Router errors",
    unit="requests/s",
    actor="generator",
    inputs=tuple(_ERRORS.values()),
    cadence="tick",
    hint=HINT,
)
def router_errors_per_second(view: View) -> Answer:
    """Requests that ended in an error (request), errors between router and workers (worker), and requests rejected by a
    rate limit or a full queue (rejected), per second over 5 minutes.
    """
    return _rates(view, tuple(_ERRORS.items()), "of", HINT)


@signal(
    title="Router workers",
    unit="workers",
    actor="generator",
    inputs=("router_workers", "router_worker_healthy", "router_circuit_state"),
    cadence="tick",
    hint=HINT,
)
def router_workers_now(view: View) -> Answer:
    """Workers that routers know (registered), consider healthy (healthy), and send nothing to because of errors
    (circuit_open); on their newest pages.
    """
    health, circuits = view.fresh("router_worker_healthy"), view.fresh("router_circuit_state")
    registered = float(len(health)) if health else last_sum(view.fresh("router_workers"))
    counts = {
        "registered": registered or None,
        "healthy": float(sum(one.last > 0 for one in health)) if health else None,
        "circuit_open": float(sum(one.last == _OPEN for one in circuits)) if circuits else None,
    }
    values = [Value(count, (("state", state),)) for state, count in counts.items() if count is not None]
    return values or Unknown(HINT)


@signal(
    title="Router cache hits",
    unit="ratio",
    actor="generator",
    inputs=("router_cache_hits_total", "router_cache_misses_total"),
    cadence="tick",
    hint="no router reports whether requests go where their prefix is cached (sglang-router to 0.1.9 and vllm-router "
    "with the policy cache_aware)",
)
def router_cache_hit_ratio(view: View) -> Answer:
    """Share of requests that routers sent to a worker with a long prefix of theirs, over 5 minutes, by the router's own
    tree of prefixes.
    """
    hits, misses = grown(view, "router_cache_hits_total"), grown(view, "router_cache_misses_total")
    if hits is None or misses is None:
        return Unknown(router_cache_hit_ratio.hint)
    return [Value(hits / (hits + misses))] if hits + misses > 0 else Unknown("no request was routed within 5 minutes")
