"""Addresses of the charts at an alert's moment. Pure."""

from urllib.parse import urlencode

from collectors.catalog import METRICS
from server import signals
from server.alerts.model import Rule

# Long enough before to see it come, and after to see what it did; the charts have a point per tick at this width.
BEFORE_SECONDS, AFTER_SECONDS = 1800.0, 900.0

_ACTORS = {item.name: item.actor for item in signals.load()} | {name: one.actor for name, one in METRICS.items()}


def moment(run: str, rule: Rule | None, active_at: float, resolved_at: float | None = None) -> str:
    """The page of what is watched around an alert, absolute in time: the same view for whoever opens it, whenever.

    ``rule``: None for one that is configured no more, which leads to the overview.
    """
    until = resolved_at if resolved_at is not None else active_at
    span = {"run": run, "start": f"{active_at - BEFORE_SECONDS:.0f}", "end": f"{until + AFTER_SECONDS:.0f}"}
    return f"/{_page(rule)}?" + urlencode(span)


def _page(rule: Rule | None) -> str:
    """What is watched of sandboxes has its charts on their page; the overview has everybody else's."""
    return "sandboxes" if rule is not None and _ACTORS.get(rule.condition.name) == "sandbox" else ""
