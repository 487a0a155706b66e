"""The tab Setup of Sources in a real Chromium: what stands first, the button by mouse and by keyboard, and copying."""

from collections.abc import Callable, Iterator

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.shell import layout as shell_layout
from server.query.preflight import CheckInfo
from tests.browser_support import exposed
from tests.dashboard import fake_preflight as fakes
from tests.dashboard import fake_sandboxes as wall
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import LOOKS, new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
EVIL = "<img src=x onerror=\"document.title='owned'\">"
SAID = "words => document.querySelector('#pf-said').textContent === words"


@pytest.fixture
def reader() -> MemoryReader:
    return fakes.reader()


@pytest.fixture
def serving(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens the page of a run."""
    # The browser and Dash themselves log that nobody answered.
    with new_pages(browser, "ERR_CONNECTION_REFUSED", "the server did not respond") as new:

        def opened(run: str = wall.WALL, theme: str = "light", size: tuple[int, int] = (1440, 900)) -> Page:
            page = new(theme, size, permissions=["clipboard-read", "clipboard-write"])
            page.goto(f"{serving.url}preflight?run={run}")
            page.wait_for_selector("[data-page=ok]")
            until(page, "() => document.querySelector('#pf-run').hasAttribute('aria-disabled')")
            return page

        yield opened


def titles(page: Page, status: str) -> list[str]:
    return page.locator(f"[data-checks={status}] h3").all_inner_texts()


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_what_is_seen_first(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page(theme=theme, size=size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.locator("h1:visible").inner_text() == "The plan does not fit"
    assert page.locator(".checks h2:visible").all_inner_texts() == [
        "Does not fit · 1", "Check before launch · 3", "Unknown · 2", "OK · 6",
    ]  # fmt: skip
    assert titles(page, "fail") == ["Concurrent starts"]
    first = page.locator("[data-checks=fail] .check")
    assert " ".join(first.locator(".figure").inner_text().split()) == "152 sandboxes limit 128"
    assert first.locator(".pill").inner_text() == "Failed"
    assert first.locator(".fix").inner_text().startswith("Fix: lower the create rate")
    assert page.locator("[data-rows=pf-plan] li").first.inner_text().split() == [
        "Concurrent", "sandboxes", "concurrency", "960",
    ]  # fmt: skip
    assert page.title() == f"Sources · {wall.WALL} · Rollscope"
    assert page.locator("#ranges").is_hidden()


def test_the_button_begins_one_and_keeps_the_focus(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(fakes.NEW)
    assert page.locator("h1:visible").inner_text() == "Not checked yet"
    assert page.locator(".checks section:visible").count() == 0
    page.locator("#pf-run").focus()
    page.keyboard.press("Enter")
    until(page, "() => document.querySelector('#pf-run').textContent === 'Reading …'")
    assert page.locator("#pf-run").get_attribute("aria-disabled") == "true"
    assert page.evaluate("document.activeElement.id") == "pf-run"
    page.keyboard.press("Enter")
    until(page, SAID, "Preflight is already running.")
    done = structs.replace(fakes.FOUND, retry_at=reader.clock + 29, finished_at=reader.clock)
    reader.preflights[fakes.NEW] = done
    until(page, SAID, "Done: The plan does not fit.")
    assert titles(page, "warn") == ["Quota", "Credit", "Leftover sandboxes"]
    until(page, "() => /^again in \\d+ s$/.test(document.querySelector('#pf-wait').textContent)")
    assert page.evaluate("document.activeElement.id") == "pf-run"
    assert reader.preflights[fakes.NEW] is done


@pytest.mark.parametrize("lifecycle", ["finished", "crashed"])
def test_of_a_run_that_is_over_the_answer_is_not_waited_for(
    browser: Browser, reader: MemoryReader, lifecycle: str
) -> None:
    """As slow as the program's own clock: what is over is looked at once a minute, and a pre-flight's end at once."""
    reader.change(fakes.NEW, lifecycle=lifecycle)
    with Serving(lambda: application(reader)) as serving:
        page = exposed(browser.new_page())
        page.goto(f"{serving.url}preflight?run={fakes.NEW}")
        until(page, "() => window.RS && RS.boot && RS.boot.over")
        page.locator("#pf-run").click()
        until(page, SAID, "Started.")
        until(page, "() => document.querySelector('#pf-run').textContent === 'Reading …'")
        reader.preflights[fakes.NEW] = structs.replace(fakes.FOUND, retry_at=reader.clock + 1, finished_at=reader.clock)
        until(page, SAID, "Done: The plan does not fit.")
        page.close()


def test_a_press_too_early_says_so_until_it_is_not(open_page: Open, reader: MemoryReader) -> None:
    reader.preflights[wall.WALL] = structs.replace(fakes.FOUND, retry_at=reader.clock + 2000)
    page = open_page()
    page.locator("#pf-run").focus()
    page.keyboard.press("Enter")
    until(page, SAID, "Preflight ran a moment ago.")
    reader.clock += 2001
    until(page, SAID, "")


def test_before_the_first_check_nothing_is_blank(open_page: Open) -> None:
    page = open_page(fakes.NEW)
    main, plan = page.locator("main").bounding_box(), page.locator("#plan").bounding_box()
    assert main is not None and plan is not None
    # At the left margin, and no wider than half of the page: what follows is beside it.
    assert plan["x"] - main["x"] < 40 and plan["width"] < main["width"] / 2
    how = page.locator(".how-plan").bounding_box()
    assert how is not None and how["y"] == plan["y"] and how["x"] > plan["x"]


def test_commands_are_copied_whole(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Copy 20 commands: Leftover sandboxes").click()
    until(page, SAID, "Copied.")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert (len(lines), lines[0], lines[-1]) == (20, "prime sandbox delete sbx-09000", "prime sandbox delete sbx-09019")
    assert page.locator(".commands .note").inner_text() == "The provider's own commands, and 3 more"


def test_copies_where_the_browser_has_no_clipboard(open_page: Open) -> None:
    """As over plain http from another machine."""
    page = open_page()
    page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate(
        "() => document.addEventListener('copy', () => (window.copied = String(document.activeElement.value)))"
    )
    page.get_by_role("button", name="Copy 20 commands: Leftover sandboxes").click()
    until(page, SAID, "Copied.")
    assert page.evaluate("window.copied").startswith("prime sandbox delete sbx-09000\n")
    assert page.evaluate("document.activeElement.textContent").startswith("Cop")
    assert page.locator("textarea").count() == 0


def test_focus_in_a_row_that_goes_is_not_lost(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.get_by_role("button", name="Copy 20 commands: Leftover sandboxes").focus()
    reader.preflights[wall.WALL] = structs.replace(fakes.FOUND, checks=fakes.CHECKS[:1], outcome="ok")
    until(page, "() => document.querySelector('.pf-head h1 span').textContent === 'The plan fits'")
    assert page.evaluate("document.activeElement.id") == "pf-said"


def test_a_run_that_needs_none_and_one_not_configured(open_page: Open) -> None:
    page = open_page(wall.MATH)
    assert page.locator("h1:visible").inner_text() == "The plan fits"
    assert len(titles(page, "not_applicable")) == 9 and titles(page, "fail") == []
    page = open_page(wall.BARE)
    assert page.locator("h1:visible").inner_text() == "Not configured here"
    assert page.locator("#pf-run").is_hidden() and page.locator("#plan").is_hidden()
    assert page.locator(".how-plan code").last.inner_text().startswith("rollscope preflight no-provider -c")


def test_a_server_that_is_away_is_told_in_words(open_page: Open, serving: Serving) -> None:
    page = open_page()
    serving.stop()
    page.locator("#pf-run").click()
    until(page, SAID, "Not started: The server cannot be reached.")
    serving.start()


def test_markup_in_answers_stays_text(open_page: Open, reader: MemoryReader) -> None:
    evil = CheckInfo(EVIL, "fail", EVIL, EVIL, 1.0, 2.0, EVIL, (EVIL,), (EVIL,), (EVIL,))
    plan = {**fakes.PLAN, "images": [EVIL]}
    reader.preflights[wall.WALL] = structs.replace(
        fakes.FOUND, checks=(evil, structs.replace(evil, commands=())), error=EVIL, plan=plan
    )
    page = open_page()
    assert titles(page, "fail") == [EVIL, EVIL]
    assert page.locator(".commands code").inner_text() == EVIL
    assert page.locator("main img, main script").count() == 0
    assert page.title() == f"Sources · {wall.WALL} · Rollscope"
    assert page.evaluate("document.documentElement.scrollWidth") == 1440
