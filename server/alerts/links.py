"""Addresses of the charts at an alert's moment. Pure."""

from urllib.parse import urlencode

# Long enough before to see it come, and after to see what it did; the charts have a point per tick at this width.
BEFORE_SECONDS, AFTER_SECONDS = 1800.0, 900.0


def moment(run: str, active_at: float, resolved_at: float | None = None) -> str:
    """The overview around an alert, absolute in time: the same view for whoever opens it, whenever."""
    until = resolved_at if resolved_at is not None else active_at
    span = {"run": run, "start": f"{active_at - BEFORE_SECONDS:.0f}", "end": f"{until + AFTER_SECONDS:.0f}"}
    return "/?" + urlencode(span)
