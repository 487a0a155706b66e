"""Router metrics, reported by processes that pass requests to engines.

The requests are also the engines' own and never added to those. Label worker: the engine's address.
"""

from collectors.catalog.row import Rows

_r = Rows("generator")

ROWS = (
    # Workers.
    _r.gauge("router_workers", "workers", "Workers registered with a router."),
    _r.gauge("router_worker_healthy", "", "1 while a router considers a worker healthy, else 0; label worker."),
    _r.gauge("router_circuit_state", "", "Circuit breaker of a worker: 0 closed, 1 open, 2 half open; label worker."),
    # Load.
    _r.gauge(
        "router_requests_in_flight",
        "requests",
        "Requests that a router has sent to a worker; label worker if reported.",
    ),
    _r.gauge("router_requests_queued", "requests", "Requests that wait in a router; label class or deployment."),
    _r.gauge("router_requests_by_age", "requests", "Requests in flight by age, not cumulative; label up_to_seconds."),
    _r.gauge("router_requests_prefill", "requests", "Requests at a worker without a first token; label worker."),
    _r.gauge("router_requests_decode", "requests", "Requests at a worker after their first token; label worker."),
    _r.gauge("router_requests_per_second", "requests/s", "Requests per second, as the router computes it."),
    # Work done.
    _r.counter(
        "router_requests_total", "requests", "Requests that a router accepted; label worker if it counts per worker."
    ),
    _r.counter("router_errors_total", "requests", "Requests that ended in an error; label reason."),
    _r.counter("router_worker_errors_total", "errors", "Errors between a router and its workers; label reason."),
    _r.counter("router_retries_total", "requests", "Requests retried."),
    _r.counter("router_retries_exhausted_total", "requests", "Requests given up after the last retry."),
    _r.counter("router_rejected_total", "requests", "Requests rejected by a rate limit or a full queue; label reason."),
    _r.counter("router_preemptions_total", "requests", "Requests removed from a router by a more urgent one."),
    _r.counter("router_tokens_total", "tokens", "Tokens of answers that went through a router."),
    _r.counter("router_prompt_tokens_total", "tokens", "Tokens of prompts that went through a router."),
    # Times.
    _r.histogram("router_request_seconds", "seconds", "Arrival at a router to the end of the answer."),
    _r.gauge("router_request_seconds_mean", "seconds", "Mean request time over the router's window; label worker."),
    _r.gauge("router_inter_token_seconds_mean", "seconds", "Mean gap between tokens, router's window; label worker."),
    _r.gauge("router_request_quantile_seconds", "seconds", "Quantile of request times over the router's window."),
    _r.gauge("router_queue_quantile_seconds", "seconds", "Quantile of times in a router's queue; label class."),
    _r.gauge(
        "router_time_to_first_token_quantile_seconds", "seconds", "Quantile of times to a first token; label quantile."
    ),
    _r.gauge("router_inter_token_quantile_seconds", "seconds", "Quantile of gaps between tokens; label quantile."),
)
