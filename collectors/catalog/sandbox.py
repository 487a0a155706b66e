"""Sandbox metrics: what a provider says about the machines rollouts run in.

Providers differ in what they know: no row here is required of any of them. Per-sandbox truth is in records.
"""

from collectors.catalog.row import Rows

_s = Rows("sandbox")

ROWS = (
    _s.gauge("sandboxes", "sandboxes", "Sandboxes by canonical state; label state."),
    _s.gauge("sandbox_quota_used", "", "Quota in use; label resource."),
    _s.gauge("sandbox_quota_limit", "", "Quota granted; label resource."),
    _s.gauge("sandbox_credit_usd", "usd", "Credit left with the provider."),
    _s.gauge("sandbox_cost_usd_per_hour", "usd/h", "Present spending rate, as the provider says."),
    _s.gauge(
        "sandbox_oldest_pending_seconds", "seconds", "Age of the oldest sandbox not yet ready: it is in no histogram."
    ),
    _s.gauge("sandboxes_dangling", "sandboxes", "Sandboxes alive that belong to no known run."),
    _s.counter("sandboxes_created_total", "sandboxes", "Sandboxes requested."),
    _s.counter("sandbox_failures_total", "sandboxes", "Sandboxes that failed; label cause."),
    _s.histogram("sandbox_spinup_seconds", "seconds", "Requested to ready; label image (cached, built, unknown)."),
    _s.histogram("sandbox_exec_seconds", "seconds", "Duration of a command in a sandbox."),
)
