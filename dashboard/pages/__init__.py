"""Pages: static trees of elements. Their texts come by key from each page's cells (`dashboard.pages.overview.data` and
others).
"""

from dashboard.pages.alerts.layout import PAGE as ALERTS
from dashboard.pages.explore.layout import PAGE as EXPLORE
from dashboard.pages.generator.layout import PAGE as GENERATOR
from dashboard.pages.help.layout import PAGE as HELP
from dashboard.pages.overview.layout import PAGE as OVERVIEW
from dashboard.pages.rollouts.layout import PAGE as ROLLOUTS
from dashboard.pages.runs.layout import PAGE as RUNS
from dashboard.pages.sandboxes.layout import PAGE as SANDBOXES
from dashboard.pages.sources.layout import PAGE as SOURCES
from dashboard.pages.trainer.layout import PAGE as TRAINER
from dashboard.pages.what_if.layout import PAGE as WHAT_IF
from dashboard.shell.page import Page

PAGES: tuple[Page, ...] = (
    *(OVERVIEW, SANDBOXES, GENERATOR, ROLLOUTS, TRAINER, ALERTS, RUNS),
    *(EXPLORE, SOURCES, WHAT_IF, HELP),
)
"""Those of the navigation in its order, as the data flows, then what is about all runs; then those of the header."""


def by_path(path: str) -> Page | None:
    """The page at an address below the dashboard's prefix; slashes around it do not matter."""
    return next((page for page in PAGES if page.path == path.strip("/")), None)


def by_key(key: str) -> Page | None:
    """The page of that name."""
    return next((page for page in PAGES if page.key == key), None)
