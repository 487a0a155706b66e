"""Banner and ribbon in a real Chromium: what is seen, hovered, reached by the keyboard and clicked."""

from collections.abc import Callable, Iterator

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.shell import layout as shell_layout
from tests.dashboard import fake
from tests.dashboard.fake import NOW, RICH
from tests.dashboard.fake_verdicts import NASTY, UNKNOWN, hour, judged, span
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

DRAWN = "() => RS.boot && !RS.boot.error && RS.chartsReady() && RS.charts().length > 0"
PARTS = """() => [...document.querySelectorAll('.ribbon li:not([hidden])')].map(li => {
    const box = li.getBoundingClientRect(), whole = li.parentNode.getBoundingClientRect();
    const share = wide => Math.round(1000 * wide / whole.width);
    return [li.dataset.state, share(box.left - whole.left), share(box.width)];
})"""

Open = Callable[..., Page]


@pytest.fixture
def reader() -> MemoryReader:
    return judged(fake.reader())


@pytest.fixture
def serving(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    with new_pages(browser) as new:

        def opened(theme: str = "light", size: tuple[int, int] = (1440, 900)) -> Page:
            page = new(theme, size)
            page.goto(serving.url)
            page.wait_for_selector("[data-page=ok]")
            until(page, DRAWN)
            return page

        yield opened


@pytest.mark.parametrize(("theme", "size"), [("light", (1440, 900)), ("dark", (390, 844))])
def test_the_verdict_is_seen(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page(theme, size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    since = page.evaluate("at => new Date(1000 * at + RS.tz).toISOString().slice(11, 16)", NOW - 720)
    assert page.locator(".banner h1").inner_text() == f"Generator-bound since {since}: the KV cache is full"
    assert page.locator(".banner h1 .num").evaluate("el => getComputedStyle(el).backgroundColor") == "rgb(184, 74, 0)"
    assert page.locator(".banner .chip:visible").count() == 0
    page.locator("summary", has_text="Why?").click()
    assert NASTY in page.locator(".evidence").inner_text()
    assert page.locator(".next-steps .steps li:visible").count() == 1
    assert NASTY in page.locator(".next-steps .beyond").inner_text()
    # ln 2.2 of ln 2.2 + ln 1.3. Labels that a phone's bar has no room for are below it.
    shown, hidden = (".gap span", ".gap-legend li") if size[0] > 720 else (".gap-legend li", ".gap span")
    labels = page.locator(f"{shown}:visible").all_inner_texts()
    assert [" ".join(label.split()) for label in labels] == ["KV capacity 75%", "Spin up 25%"]
    assert page.locator(f"{hidden}:visible").count() == 0
    # Red marks what limits the run; what waits for it is not red.
    pills = [page.locator(f".actor.{one} .pill") for one in ("generator", "queue", "trainer")]
    assert [(pill.inner_text(), pill.get_attribute("data-state")) for pill in pills] == [
        ("Saturated", "critical"), ("Draining", "unknown"), ("Waiting", "unknown"),
    ]  # fmt: skip
    first = "els => els.sort((a, b) => a.offsetTop - b.offsetTop || a.offsetLeft - b.offsetLeft)[0].id"
    assert page.locator("#page-overview .kpi").evaluate_all(first) == "card-kv"
    assert page.evaluate("window.hacked") is None and page.locator(".banner img, .flow img").count() == 0
    until(page, "() => document.querySelectorAll('.ribbon li:not([hidden])').length === 4")
    # An hour: 960 s of balance, 120 s unknown, 1,800 s of sandboxes, 720 s of generation.
    assert page.evaluate(PARTS) == [
        ["balanced", 0, 267],
        ["none", 267, 33],
        ["sandbox", 300, 500],
        ["generator", 800, 200],
    ]


def test_cursor_and_keyboard_read_the_verdict_of_a_time(open_page: Open) -> None:
    page = open_page()
    page.locator(".ribbon li").nth(2).hover()
    tooltip = page.locator(".tooltip")
    rows = tooltip.locator("p").all_inner_texts()
    assert rows[-2] == "Sandbox-bound (spin up)" and "p95 of a start is 140 s" in rows[-1]
    page.locator(".ribbon a").nth(0).focus()
    assert "Balanced" in tooltip.inner_text()
    assert page.locator(".ribbon a").nth(3).get_attribute("aria-label") == (
        "Generator-bound (KV capacity) for 12 min: Generation limits the run: the trainer waits 74% of each step"
        "; the KV cache is full"
    )
    page.mouse.move(5, 5)
    page.locator(".ribbon a").nth(0).blur()
    assert tooltip.is_hidden()
    assert page.locator(".lane .note").inner_text() == "3 changes"


def test_a_click_shows_that_time(open_page: Open) -> None:
    page = open_page()
    page.locator(".ribbon a").nth(2).click()
    until(page, "() => location.search.includes('start=')")
    assert f"start={NOW - 2520:.0f}&end={NOW - 720:.0f}" in page.url and f"run={RICH}" in page.url
    until(page, f"() => RS.boot.start === {NOW - 2520} && RS.boot.end === {NOW - 720}")
    until(page, "() => document.querySelectorAll('.ribbon li:not([hidden])').length === 1")
    assert page.evaluate(PARTS) == [["sandbox", 0, 1000]]


def test_a_zoom_shows_verdict_and_cards_as_of_its_end(open_page: Open) -> None:
    page = open_page()
    wait = page.locator("#card-wait .num").inner_text()
    end = NOW - 1200
    zoom = """([start, end]) => {
        const [, gd] = RS.plots()[0], local = (at) => 1000 * at + RS.tz;
        return Plotly.relayout(gd, { "xaxis.range[0]": local(start), "xaxis.range[1]": local(end) });
    }"""
    page.evaluate(zoom, [end - 600, end])
    until(page, "() => document.querySelector('.banner .chip').textContent === 'Sandbox-bound'")
    assert page.locator(".banner h1").inner_text().startswith("The trainer waited ")
    assert page.locator("#card-wait .num").inner_text() != wait
    until(page, "() => document.getElementById('live').dataset.live === 'past'")
    assert page.locator("#live-word").inner_text() == "Past range" and page.locator(".next-steps:visible").count() == 0
    page.locator("#unzoom").click()
    until(page, "() => document.querySelector('.banner .chip').textContent === 'Generator-bound'")
    until(page, "() => document.getElementById('live').dataset.live === 'live'")


def test_a_new_verdict_comes_without_a_reload(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.evaluate("window.same = 1")
    reader.clock += 30
    before = hour()[:-1]
    unknown = span(-15, None, "unknown", "missing", UNKNOWN.summary)
    last = span(720, -15, "generator_bound", "kv_capacity", "full")
    reader.set_verdict(RICH, structs.replace(UNKNOWN, as_of=NOW + 30), *before, last, unknown)
    until(page, "() => document.querySelector('.banner .chip').textContent === 'No verdict yet'")
    page.locator("summary", has_text="Why?").click()
    assert page.locator(".missing li:visible").count() == 2
    assert page.locator(".evidence li").count() == 0 and page.locator(".gap:visible").count() == 0
    until(page, "() => document.querySelectorAll('.ribbon li:not([hidden])').length === 5")
    assert page.evaluate("window.same") == 1


def test_without_a_verdict_the_ribbon_is_empty(open_page: Open, reader: MemoryReader) -> None:
    reader.set_verdict(RICH, None)
    page = open_page()
    assert page.locator(".ribbon li").count() == 0
    assert page.locator(".banner .chip").inner_text() == "No verdict yet"
