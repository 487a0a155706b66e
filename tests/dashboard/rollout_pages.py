"""Opens the Rollouts page in a real Chromium, for the tests of what it shows and of how it lives."""

from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from dashboard.charts import time_columns
from dashboard.pages.rollouts import records as rollouts_records
from dashboard.shell import layout as shell_layout
from tests.dashboard import fake_rollouts as made
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, until

Open = Callable[..., Page]
IDS = "() => RS.all('[data-rows=rollouts] tr').map(tr => tr.dataset.id)"
READY = "() => document.querySelector('[data-rows=rollouts] tr') && document.querySelector('.exits .count')"


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live test waits for a tick or two: shorter ones test the same."""
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    monkeypatch.setattr(rollouts_records, "KEEP_SECONDS", 0.2)
    monkeypatch.setattr(time_columns, "_LEAST_SECONDS", 0.2)
    monkeypatch.setattr(time_columns, "_LOOKS_PER_COLUMN", 1000)


def opening(browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens the page of a run."""
    with new_pages(browser) as new:

        def opened(
            run: str = made.ASYNC, more: str = "", theme: str = "light", size: tuple[int, int] = (1440, 900),
            path: str = "rollouts",
        ) -> Page:  # fmt: skip
            page = new(theme, size)
            page.goto(f"{serving.url}{path}?run={run}{more}")
            page.wait_for_selector("[data-page=ok]")
            until(page, "() => RS.chartsReady()")
            if run == made.ASYNC and path == "rollouts" and not more:
                until(page, READY)
            return page

        yield opened


def asked(page: Page) -> dict[str, str]:
    found = parse_qs(urlsplit(page.url).query)
    return {key: values[0] for key, values in found.items() if key not in ("run", "range")}
