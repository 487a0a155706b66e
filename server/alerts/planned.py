"""Signals that rules may name before this version derives them: the words of DESIGN, with what is missing.

A rule on one of them is checked like any other, shown as "no source yet", and comes alive with the signal's file.
"""

from collections.abc import Mapping

PLANNED: Mapping[str, tuple[str, str]] = {
    "response_length_drift_ratio": ("ratio", "drift against the run's own first steps is not derived yet"),
    "turns_drift_ratio": ("ratio", "drift against the run's own first steps is not derived yet"),
    "tool_calls_drift_ratio": ("ratio", "drift against the run's own first steps is not derived yet"),
    "kv_concurrency_limit_forecast_seconds": ("seconds", "forecasts are not derived yet"),
    "bottleneck": ("", "no verdict is derived yet"),
    "idle_usd_total": ("usd", "costs are not derived yet"),
    "idle_usd_per_hour": ("usd/h", "costs are not derived yet"),
    "cost_usd_per_million_tokens": ("usd", "costs are not derived yet"),
    "cost_target_ratio": ("ratio", "costs are not derived yet"),
}
"""Name -> (unit, what is missing)."""
