"""URLs of the charts at an alert's moment. Pure."""

from urllib.parse import urlencode

from collectors.catalog import METRICS
from server import signals
from server.alerts.model import Rule

# Time shown before the alert, s: long enough to see it develop. The charts have a point per tick at this width.
BEFORE_SECONDS = 1800.0
# Time shown after the alert, s.
AFTER_SECONDS = 900.0

_ACTORS = {item.name: item.actor for item in signals.load()} | {name: one.actor for name, one in METRICS.items()}


def moment(run: str, rule: Rule | None, active_at: float, resolved_at: float | None = None) -> str:
    """Returns the URL of the page around an alert, with absolute times, so that the view is always the same.

    ``rule``: None for a rule that is no longer configured, which leads to the overview.
    """
    until = resolved_at if resolved_at is not None else active_at
    span = {"run": run, "start": f"{active_at - BEFORE_SECONDS:.0f}", "end": f"{until + AFTER_SECONDS:.0f}"}
    return f"/{_page(rule)}?" + urlencode(span)


def _page(rule: Rule | None) -> str:
    """Returns the page of a signal's charts: the sandboxes' page for sandboxes, else the overview."""
    return "sandboxes" if rule is not None and _ACTORS.get(rule.condition.name) == "sandbox" else ""
