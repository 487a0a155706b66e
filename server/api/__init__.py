"""HTTP routes of `/api/v1`, `/metrics` and access control; no logic."""

# The start of every name on `/metrics` and in exported rules.
PROMETHEUS_PREFIX = "rollscope_"
