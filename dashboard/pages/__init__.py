"""Pages: static trees of elements. Their texts come by key from each page's cells (`dashboard.pages.overview.data` and
others).
"""

from dashboard.pages.alerts.layout import PAGE as ALERTS
from dashboard.pages.generator.layout import PAGE as GENERATOR
from dashboard.pages.help.layout import PAGE as HELP
from dashboard.pages.overview.layout import PAGE as OVERVIEW
from dashboard.pages.preflight.layout import PAGE as PREFLIGHT
from dashboard.pages.rollouts.layout import PAGE as ROLLOUTS
from dashboard.pages.runs.layout import PAGE as RUNS
from dashboard.pages.sandboxes.layout import PAGE as SANDBOXES
from dashboard.pages.targets.layout import PAGE as TARGETS
from dashboard.pages.trainer.layout import PAGE as TRAINER
from dashboard.pages.what_if.layout import PAGE as WHAT_IF
from dashboard.shell.page import Page

ORDER = (
    "overview", "rollouts", "generator", "trainer", "sandboxes", "alerts", "runs", "targets", "what-if", "preflight",
    "help",
)  # fmt: skip
"""Of the navigation: what is about one run's actors first, then what is about all runs, then the tools."""

PAGES: tuple[Page, ...] = tuple(
    sorted(
        (OVERVIEW, ALERTS, ROLLOUTS, GENERATOR, TRAINER, SANDBOXES, RUNS, TARGETS, WHAT_IF, PREFLIGHT, HELP),
        key=lambda page: ORDER.index(page.key),
    )
)
"""A new page needs a package here, an entry and a position in `ORDER`."""


def by_path(path: str) -> Page | None:
    """The page at an address below the dashboard's prefix; slashes around it do not matter."""
    return next((page for page in PAGES if page.path == path.strip("/")), None)


def by_key(key: str) -> Page | None:
    """The page of that name."""
    return next((page for page in PAGES if page.key == key), None)
