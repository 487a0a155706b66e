"""The demo in a real browser: the program's own process, store, API and page; nothing in between is replaced."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from dashboard.pages.verdict import word
from tests.browser_support import AXE, exposed
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


@pytest.fixture(
    scope="module",
    params=[("light", 1440, 900), ("dark", 1440, 900), ("dark", 390, 844)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def page(request: pytest.FixtureRequest, browser: Browser, demo: Program) -> Iterator[Page]:
    """Opened once per size and theme: what is read off it changes nothing."""
    theme, width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    opened = exposed(context.new_page())
    messages: list[str] = []
    opened.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.goto(demo.url)
    until(opened, "window.RS && RS.boot && RS.chartsReady() && RS.charts().length > 0")
    opened.evaluate("RS.drawAll()")
    yield opened
    assert messages == []
    context.close()


def seen(page: Page) -> tuple[int | None, str, str]:
    """(percent of the headline, the banner's word, the beginning of the ribbon's last line)."""
    headline = page.locator(".banner .text").inner_text()
    found = re.search(r"waits (\d+) ?% of each step", headline.replace("\xa0", " ").replace("\u202f", " "))
    chip, last = page.locator(".banner .chip").inner_text(), page.locator(".ribbon li:visible").last.inner_text()
    return int(found[1]) if found else None, chip, last[: len(chip)]


def said(demo: Program) -> tuple[float, str, str]:
    """The same by the API."""
    run = demo.get("/api/v1/runs").json()[0]["name"]
    status = demo.get(f"/api/v1/runs/{run}/status").json()
    row = demo.get(f"/api/v1/runs/{run}/verdicts").json()[-1]
    wait, told = status["signals"]["trainer_wait_ratio"]["value"], status["verdict"]
    return 100 * wait, word(told["outcome"], told["cause"]), word(row["outcome"], row["cause"])


def test_the_overview_shows_what_the_api_says(page: Page, demo: Program) -> None:
    for _ in range(120):
        shown, told = seen(page), said(demo)
        # A step may end between the two looks, and while the program catches up much does: then both are asked again.
        if shown[0] is not None and abs(shown[0] - told[0]) <= 2 and shown[1:] == told[1:]:
            break
        page.wait_for_timeout(500)
    assert shown[0] is not None and abs(shown[0] - told[0]) <= 2, (shown, told)
    assert shown[1:] == told[1:]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


# Only rollout records tell these, and the demo has records of the hour's last quarter.
SHORT = {"graph-prefill", "graph-tool_calls"}


def test_every_panel_holds_the_first_hour(page: Page) -> None:
    """An hour of points in each chart, as drawn, not as sent."""
    spans = page.evaluate(
        """Object.fromEntries(Array.from(document.querySelectorAll('.js-plotly-plot')).map(gd => {
                const xs = gd.data.flatMap(t => t.x.filter((_, i) => t.y[i] !== null));
                return [gd.parentNode.id, (Math.max(...xs) - Math.min(...xs)) / 60000]; }))"""
    )
    assert len(spans) == 13 and {name for name, span in spans.items() if span <= 45} <= SHORT, spans


def test_new_ticks_reach_the_pixels_without_a_reload(page: Page) -> None:
    newest = "Math.max(...document.querySelector('#graph-requests .js-plotly-plot').data[0].x)"
    before = page.evaluate(newest)
    until(page, f"({newest}) > {before}")


def test_a_socket_takes_no_long_messages(demo: Program) -> None:
    run = demo.get("/api/v1/runs").json()[0]["name"]
    with connect(f"{demo.url.replace('http', 'ws')}/news?run={run}", compression="deflate", proxy=None) as socket:
        # What is compressed could be a thousand times as long.
        assert socket.protocol.extensions == []
        socket.send("a" * 2000)
        with pytest.raises(ConnectionClosedError) as closed:
            for _ in range(1000):
                socket.recv(timeout=30)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


def test_no_serious_accessibility_issue(page: Page) -> None:
    page.evaluate(Path(AXE).read_text("utf-8"))
    found = page.evaluate("axe.run().then(r => r.violations.filter(v => ['serious','critical'].includes(v.impact)))")
    assert [(issue["id"], len(issue["nodes"])) for issue in found] == []
