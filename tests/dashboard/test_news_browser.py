"""Push in a real Chromium: data without a tick, and ticks without push; and a page without plotly.js."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from dashboard.shell import layout as shell_layout
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until
from tests.dashboard.test_browser import DRAWN, GD, LAST, SHOWN, tell

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
NEWEST = f"value => ({LAST})('queue.0')[1] === value"


@pytest.fixture
def reader() -> MemoryReader:
    return fake.reader()


@pytest.fixture
def interval() -> int:
    """Between two ticks, in ms."""
    return 200


@pytest.fixture
def serving(reader: MemoryReader, interval: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", interval)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    with new_pages(browser, "ERR_CONNECTION_REFUSED", "did not respond") as new:

        def opened(search: str = "", before: Callable[[Page], None] = lambda page: None) -> Page:
            page = new()
            page.add_init_script(GD)
            before(page)
            page.goto(serving.url + search)
            until(page, DRAWN)
            return page

        yield opened


# The clock of the page does not tick while the test lasts.
@pytest.mark.parametrize("interval", [3_600_000])
def test_news_reach_the_pixels_without_a_tick(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, "() => RS.pushed()")
    ticks = page.evaluate("RS.ticks()")
    for value in (55.0, 77.0):
        tell(reader, 0, value)
        until(page, NEWEST, value)
    assert page.evaluate("RS.ticks()") == ticks
    # Paused is paused; what was missed comes when it goes on.
    page.locator("#live").click()
    until(page, "() => !RS.pushed()")
    tell(reader, 0, 99.0)
    page.locator("#live").click()
    until(page, NEWEST, 99.0)


def test_a_tab_that_is_told_asks_less_often(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, "() => RS.pushed()")
    ticks, looks = page.evaluate("RS.ticks()"), len(reader.calls)
    until(page, "ticks => RS.ticks() >= ticks + 36", ticks)
    asked = page.evaluate("RS.ticks()") - ticks
    # Every twelfth tick to know that the server is there; one more may have been under way.
    assert 3 <= reader.calls[looks:].count(f"since {fake.RICH}") <= asked / 12 + 1


def test_what_a_tab_was_told_counts_as_asked(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, "() => RS.pushed()")
    looks = len(reader.calls)
    for value in range(4):
        ticks = page.evaluate("RS.ticks()")
        tell(reader, 0, float(value))
        until(page, NEWEST, float(value))
        until(page, "ticks => RS.ticks() >= ticks + 8", ticks)
    # One for each piece of news, and none by the clock.
    assert reader.calls[looks:].count(f"since {fake.RICH}") <= 5


def test_without_push_there_are_ticks(open_page: Open, reader: MemoryReader) -> None:
    closed: list[str] = []

    def behind_a_proxy(page: Page) -> None:
        page.route_web_socket("**/news?*", lambda socket: (closed.append(socket.url), socket.close()))

    page = open_page(f"?run={fake.RICH}", before=behind_a_proxy)
    until(page, "() => !RS.pushed()")
    tell(reader, 0, 55.0)
    until(page, NEWEST, 55.0)
    assert closed and not page.evaluate("RS.pushed()")
    assert page.locator("#live-word").inner_text() == "Live"


# Every word beside the light, from now on; and a minute passes.
WATCH = """() => {
  const word = document.getElementById("live-word");
  window.words = [];
  new MutationObserver(() => words.push(word.textContent)).observe(word, {childList: true});
  window.hidden = false;
  Object.defineProperty(document, "hidden", {configurable: true, get: () => window.hidden});
}"""
A_MINUTE = "() => { const now = performance.now.bind(performance); performance.now = () => now() + 60000; }"
HIDE = "hidden => { window.hidden = hidden; document.dispatchEvent(new Event('visibilitychange')); }"


def test_who_did_not_ask_has_not_lost_the_server(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, "() => RS.pushed()")
    page.evaluate(WATCH)
    for value, away, back in (
        (55.0, lambda: page.locator("#live").click(), lambda: page.locator("#live").click()),
        (77.0, lambda: page.evaluate(HIDE, True), lambda: page.evaluate(HIDE, False)),
    ):
        away()
        until(page, "() => !RS.pushed()")
        page.evaluate(A_MINUTE)
        tell(reader, 0, value)
        back()
        until(page, NEWEST, value)
        assert page.locator("#live-word").inner_text() == "Live"
    assert "No connection" not in page.evaluate("words")


def test_a_server_that_comes_back_pushes_again(open_page: Open, reader: MemoryReader, serving: Serving) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, "() => RS.pushed()")
    serving.stop()
    until(page, "() => !RS.pushed()")
    tell(reader, 0, 55.0)
    serving.start()
    until(page, NEWEST, 55.0)
    until(page, "() => RS.pushed()")


@pytest.mark.parametrize("interval", [3_600_000])
def test_another_run_is_listened_to_when_it_is_shown(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.DONE}")
    # What is over has no news.
    assert page.evaluate("RS.pushed()") is False
    page.locator("#run-menu summary").click()
    page.get_by_role("link", name=fake.RICH).click()
    until(page, "() => RS.pushed()")
    tell(reader, 0, 55.0)
    until(page, NEWEST, 55.0)


def test_plotly_that_did_not_come_is_asked_for_again(open_page: Open, reader: MemoryReader) -> None:
    # The second answer is not whole: it arrives and does not run.
    answers = [lambda route: route.abort(), lambda route: route.fulfill(body="/* half", content_type="text/javascript")]

    def unreachable(page: Page) -> None:
        page.forgiven = True  # type: ignore[attr-defined]
        page.route("**/plotly.min.js", lambda route: answers.pop(0)(route) if answers else route.continue_())

    page = open_page(f"?run={fake.RICH}", before=unreachable)
    # All else lives meanwhile, and somebody who walks along a chart that is not there breaks nothing.
    tell(reader, 0, 55.0)
    until(page, f"() => ({LAST})('queue.0')[1] === 55")
    page.locator("#panel-queue .plot").focus()
    page.keyboard.press("ArrowLeft")
    until(page, SHOWN, "queue")
    assert not answers and page.locator("#live-word").inner_text() == "Live"
