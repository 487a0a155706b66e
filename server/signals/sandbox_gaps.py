"""What sandbox signals share: when there is nothing to say, and the words for it."""

from server.signals.model import Answer, NotApplicable, Unknown, View
from server.signals.sandbox_window import NEVER
from server.signals.window import Gauge

NO_SOURCE = (
    'no sandbox provider is read: add it as a target (collector = "prime_sandboxes", ...) or post what create() does '
    "to /api/v1/runs/{run}/sandboxes"
)
NEEDS_NONE = "this task uses no sandbox"


def metered(view: View, metric: str) -> list[Gauge]:
    """A source's own count of sandboxes, where no record of a single one is read: records know more, and count once."""
    return view.fresh(metric) if view.sandboxes.silent(view.now) == NEVER else []


def missing(view: View, *, told: bool = False) -> Answer | None:
    """Not applicable where the task needs none, unknown where nobody speaks; None: there is something to say.

    ``told``: it is in files that the run writes. They say nothing of live sandboxes, and what they do say stands
    without a provider; where one is read, its silence counts.
    """
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    why = view.sandboxes.silent(view.now)
    if why == NEVER:
        return None if told else Unknown(NO_SOURCE)
    return Unknown(why) if why else None
