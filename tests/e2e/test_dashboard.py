"""The demo in a real browser: the program's own process, store, API and page; nothing in between is replaced."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from dashboard.verdict import word
from tests.browser_support import AXE
from tests.dashboard.serving import until
from tests.e2e.program import Program

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A demo whose first hour is there."""
    home = tmp_path_factory.mktemp("demo")
    with Program(home, "demo", "--scenario", "generator-bound", "--seed", "1") as program:
        # The dearest wait of all: on a busy machine three minutes are not enough for an hour.
        program.until(
            "/api/v1/runs", lambda runs: runs and (runs[0]["last_ts"] or 0) - (runs[0]["first_ts"] or 0) > 3500, 600.0
        )
        yield program


@pytest.fixture(params=[("light", 1440, 900), ("dark", 1440, 900), ("dark", 390, 844)], ids=lambda p: f"{p[0]}-{p[1]}")
def page(request: pytest.FixtureRequest, browser: Browser, demo: Program) -> Iterator[Page]:
    theme, width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    opened = context.new_page()
    messages: list[str] = []
    opened.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.goto(demo.url)
    until(opened, "document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    yield opened
    assert messages == []
    context.close()


def test_the_overview_shows_what_the_api_says(page: Page, demo: Program) -> None:
    run = demo.get("/api/v1/runs").json()[0]["name"]
    status = demo.get(f"/api/v1/runs/{run}/status").json()
    wait = status["signals"]["trainer_wait_ratio"]["value"]
    headline = page.locator("h1:visible").inner_text()
    found = re.search(r"waits (\d+) ?% of each step", headline.replace("\xa0", " ").replace("\u202f", " "))
    assert found is not None, headline
    assert abs(int(found[1]) - 100 * wait) <= 2  # a step may end between the two looks
    told = status["verdict"]
    assert page.locator(".banner .chip").inner_text() == word(told["outcome"], told["cause"])
    rows = demo.get(f"/api/v1/runs/{run}/verdicts").json()
    assert (rows[-1]["outcome"], rows[-1]["cause"]) == (told["outcome"], told["cause"])
    assert page.locator(".ribbon li:visible").last.inner_text().startswith(word(told["outcome"], told["cause"]))
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_every_panel_holds_the_first_hour(page: Page) -> None:
    """An hour of points in each chart, as drawn, not as sent."""
    until(page, "document.querySelectorAll('.js-plotly-plot').length >= 10")
    spans = page.evaluate(
        """Array.from(document.querySelectorAll('.js-plotly-plot')).map(gd => {
            const xs = gd.data.flatMap(t => t.x.filter((_, i) => t.y[i] !== null));
            return (Math.max(...xs) - Math.min(...xs)) / 60000; })"""
    )
    assert len(spans) == 10 and min(spans) > 45, spans


def test_new_ticks_reach_the_pixels_without_a_reload(page: Page) -> None:
    newest = "Math.max(...document.querySelector('#graph-requests .js-plotly-plot').data[0].x)"
    before = page.evaluate(newest)
    until(page, f"({newest}) > {before}")


def test_no_serious_accessibility_issue(page: Page) -> None:
    page.evaluate(Path(AXE).read_text("utf-8"))
    found = page.evaluate("axe.run().then(r => r.violations.filter(v => ['serious','critical'].includes(v.impact)))")
    assert [(issue["id"], len(issue["nodes"])) for issue in found] == []
