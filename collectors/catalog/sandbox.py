"""Sandbox metrics, reported by providers about the machines of rollouts.

Providers differ in what they report; no row is required. Data of single sandboxes is in records.
"""

from collectors.catalog.row import Rows

_s = Rows("sandbox")

ROWS = (
    _s.gauge("sandboxes", "sandboxes", "Sandboxes by canonical state; label state."),
    _s.gauge(
        "sandbox_quota_used", "", "Quota in use; label resource: concurrent, starting, creates_per_second, cpu, ..."
    ),
    _s.gauge("sandbox_quota_limit", "", "Quota granted; label resource, as for sandbox_quota_used."),
    _s.gauge("sandbox_account_suspended", "", "1 while the provider has suspended the account, else 0."),
    _s.gauge("sandbox_creates_per_second", "sandboxes/s", "Creations per second, as the provider counts them."),
    _s.gauge("sandbox_sessions", "sessions", "Sessions of an environment server; label state."),
    _s.gauge("sandbox_credit_usd", "usd", "Credit left with the provider."),
    _s.gauge("sandbox_cost_usd_per_hour", "usd/h", "Current spending rate, as reported by the provider."),
    _s.gauge(
        "sandbox_oldest_pending_seconds",
        "seconds",
        "Age of the oldest sandbox that is not ready; it is in no histogram yet.",
    ),
    _s.gauge("sandboxes_dangling", "sandboxes", "Live sandboxes that belong to no known run."),
    _s.counter("sandboxes_created_total", "sandboxes", "Sandboxes requested."),
    _s.counter("sandbox_failures_total", "sandboxes", "Sandboxes that failed; label cause."),
    _s.counter("sandbox_throttled_total", "calls", "Calls that a provider throttled; label provider."),
    _s.counter(
        "rollouts_seen_total", "rollouts", "Rollouts in sandboxes that ended, including lost ones, by environment."
    ),
    _s.counter(
        "rollouts_infra_failed_total", "rollouts", "Rollouts that ended because their sandbox failed, by environment."
    ),
    _s.counter(
        "rollout_attempt_errors_total",
        "errors",
        "Errors of rollouts, including retried attempts; labels environment, type.",
    ),
    _s.histogram("sandbox_spinup_seconds", "seconds", "Requested to ready; label image (cached, built, unknown)."),
    _s.histogram("sandbox_exec_seconds", "seconds", "Duration of a command in a sandbox."),
)
