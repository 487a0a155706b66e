"""Pages: static trees of elements. Their texts come by key from each page's cells (`dashboard.view` and others)."""

from dashboard.page import Page
from dashboard.pages.alerts import PAGE as ALERTS
from dashboard.pages.overview import PAGE as OVERVIEW
from dashboard.pages.preflight import PAGE as PREFLIGHT
from dashboard.pages.rollouts import PAGE as ROLLOUTS
from dashboard.pages.sandboxes import PAGE as SANDBOXES
from dashboard.pages.what_if import PAGE as WHAT_IF

PAGES: tuple[Page, ...] = (OVERVIEW, ALERTS, ROLLOUTS, SANDBOXES, WHAT_IF, PREFLIGHT)
"""In the order of the navigation. A new page is one file here and one entry."""


def by_path(path: str) -> Page | None:
    """The page at an address below the dashboard's prefix; slashes around it do not matter."""
    return next((page for page in PAGES if page.path == path.strip("/")), None)


def by_key(key: str) -> Page | None:
    """The page of that name."""
    return next((page for page in PAGES if page.key == key), None)
