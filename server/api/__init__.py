"""HTTP routes of `/api/v1`, `/metrics` and access control; no logic."""
