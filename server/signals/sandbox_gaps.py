"""Reasons why sandbox signals have no value. Shared by all of them."""

from server.signals.model import Answer, NotApplicable, Unknown, View
from server.signals.sandbox_window import NEVER
from server.signals.window import Gauge

NO_SOURCE = (
    'no sandbox provider is read: add it as a target (collector = "prime_sandboxes", ...) or post what create() does '
    "to /api/v1/runs/{run}/sandboxes"
)
NEEDS_NONE = "this task uses no sandbox"


def metered(view: View, metric: str) -> list[Gauge]:
    """A source's own count of sandboxes, used only where no records of single sandboxes are read."""
    return view.fresh(metric) if view.sandboxes.silent(view.now) == NEVER else []


def missing(view: View, *, reported: bool = False) -> Answer | None:
    """Why there is no value: not applicable without sandboxes, unknown without a recent answer. None: there is one.

    ``reported``: the run's own files have records of ended sandboxes. They are valid without a provider; where a
    provider is read, its missing answers count.
    """
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    why = view.sandboxes.silent(view.now)
    if why == NEVER:
        return None if reported else Unknown(NO_SOURCE)
    return Unknown(why) if why else None
