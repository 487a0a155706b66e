"""Navigation in a real Chromium: seven pages, the chip of the sources, drawers over the page, earlier addresses."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from dashboard.pages import PAGES
from dashboard.shell import layout as shell_layout
from tests.dashboard import everything, fake_what_if
from tests.dashboard.fake import RICH
from tests.dashboard.fake_sandboxes import MATH, WALL
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
SHOWN = "key => RS.boot.key === key && !document.querySelector('.drawer:modal')"
OVER = "key => RS.boot.key === key && document.querySelector('.drawer:modal')?.dataset.place === key"


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shell_layout, "INTERVAL_MS", 500)
        with Serving(lambda: application(everything.reader())) as running:
            yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens an address."""
    with new_pages(browser) as new:

        def opened(path: str, size: tuple[int, int] = (1440, 900), state: str = "ok") -> Page:
            page = new("light", size)
            page.goto(serving.url + path)
            page.wait_for_selector(f"[data-page={state}]")
            return page

        yield opened


def where(page: Page) -> str:
    """Path and query."""
    found = urlsplit(page.url)
    return found.path + ("?" + found.query if found.query else "")


def test_seven_pages_and_the_last_is_set_apart(open_page: Open) -> None:
    page = open_page(f"?run={RICH}")
    links = page.locator("#pages > a:visible")
    names = links.evaluate_all("all => all.map(el => el.firstChild.textContent)")
    assert names == ["Overview", "Sandboxes", "Generator", "Rollouts", "Trainer", "Alerts", "Runs"]
    boxes = [box for link in links.all() if (box := link.bounding_box())]
    gaps = [after["x"] - one["x"] - one["width"] for one, after in pairwise(boxes)]
    assert max(gaps[:-1]) == 4 and gaps[-1] > 300
    # Nothing of the header overlaps.
    for width in (1440, 1280, 1024, 740):
        page.set_viewport_size({"width": width, "height": 900})
        until(page, "width => document.documentElement.scrollWidth === width", width)
        found = page.locator("#run-menu, #ranges, #sources, #what-if, #live, #theme, #help")
        boxes = sorted((box["y"] > 44, box["x"], box["width"]) for one in found.all() if (box := one.bounding_box()))
        assert len(boxes) == 7
        assert all(one[1] + one[2] <= after[1] for one, after in pairwise(boxes) if one[0] == after[0]), width


def test_sandboxes_is_dimmed_where_the_run_uses_none_and_opens_all_the_same(open_page: Open) -> None:
    page = open_page(f"?run={MATH}")
    link = page.locator("#pages > [data-nav=sandboxes]")
    assert link.get_attribute("title") == "This run uses no sandboxes"
    assert link.evaluate("el => getComputedStyle(el).fontWeight") == "400"
    link.click()
    until(page, SHOWN, "sandboxes")
    page.goto(page.url.replace(MATH, WALL))
    page.wait_for_selector("[data-page=ok]")
    assert not link.get_attribute("title")
    assert link.evaluate("el => getComputedStyle(el).fontWeight") == "600"


def test_the_chip_opens_the_sources_and_setup_is_its_second_tab(open_page: Open) -> None:
    page = open_page(f"trainer?run={RICH}&range=6h")
    chip = page.locator("#sources")
    assert chip.inner_text() == "2/3 sources, 1 down" and chip.get_attribute("data-state") == "watch"
    chip.click()
    until(page, SHOWN, "sources")
    assert page.locator("h1:visible").inner_text() == "2 of 3 targets up"
    assert chip.inner_text() == "2/3 sources, 1 down" and chip.get_attribute("aria-current") == "page"
    assert page.title().endswith(f"Sources · {RICH} · Rollscope")
    page.get_by_role("link", name="Setup").click()
    until(page, "() => RS.view['sources.tab'] === 'setup'")
    assert where(page) == f"/sources?run={RICH}&range=6h&tab=setup"
    assert page.locator(".tabs [aria-current]").inner_text() == "Setup"
    assert page.locator(".of-list").is_hidden() and page.locator(".of-setup").is_visible()
    page.go_back()
    until(page, "() => RS.view['sources.tab'] === 'list'")
    assert page.locator(".tabs [aria-current]").inner_text() == "Sources"
    page.get_by_role("button", name="All runs").click()
    until(page, "() => RS.boot.all && document.querySelectorAll('[data-rows=targets] tr').length > 3")
    # The chip is about the run, whatever the list shows.
    assert chip.inner_text() == "2/3 sources, 1 down"


@pytest.mark.parametrize(
    ("old", "new", "tab"),
    [
        (f"targets?run={RICH}&unhealthy=1", f"/sources?run={RICH}&unhealthy=1", "list"),
        (f"preflight?run={WALL}", f"/sources?tab=setup&run={WALL}", "setup"),
    ],
)
def test_earlier_addresses_open_the_sources(open_page: Open, old: str, new: str, tab: str) -> None:
    page = open_page(old)
    until(page, "tab => RS.view['sources.tab'] === tab", tab)
    assert where(page) == new


def test_what_if_lies_over_the_page_and_gives_the_focus_back(open_page: Open) -> None:
    page = open_page(f"alerts?run={RICH}&range=6h")
    page.evaluate("window.scrollTo(0, 120)")
    below = page.locator("#page-alerts h1").inner_text()
    for close in ("Escape", "button", "backdrop", "back"):
        page.locator("#what-if").focus()
        page.keyboard.press("Enter")
        until(page, OVER, "what-if")
        assert where(page) == f"/what-if?run={RICH}&range=6h"
        # The page below stays as it was, out of reach; the focus is in the drawer.
        assert page.locator("#page-alerts h1").inner_text() == below
        assert page.evaluate("document.activeElement.closest('.drawer').dataset.place") == "what-if"
        box = page.locator(".drawer:modal").bounding_box()
        assert box is not None and (box["x"], box["width"], box["height"]) == (400, 1040, 900)
        if close == "Escape":
            page.keyboard.press("Escape")
        elif close == "button":
            page.get_by_role("button", name="Close").click()
        elif close == "backdrop":
            page.mouse.click(100, 500)
        else:
            page.go_back()
        until(page, SHOWN, "alerts")
        assert where(page) == f"/alerts?run={RICH}&range=6h"
        assert page.evaluate("document.activeElement.id") == "what-if"
        assert page.evaluate("scrollY") == 120


def test_a_changed_slider_is_in_the_address_and_gone_after_closing(open_page: Open) -> None:
    page = open_page(f"?run={fake_what_if.LONG}")
    page.keyboard.press("g")
    page.keyboard.press("w")
    until(page, "() => document.querySelector('#wi-move_gpus')?.dataset.step")
    page.locator("#wi-move_gpus").focus()
    page.keyboard.press("ArrowRight")
    until(page, "() => new URLSearchParams(location.search).get('move_gpus') === '1'")
    shared = page.url
    page.get_by_role("button", name="Reset", exact=True).click()
    page.keyboard.press("Escape")
    until(page, SHOWN, "overview")
    assert where(page) == f"/?run={fake_what_if.LONG}"
    # Opened directly it is a page of its own, with the navigation.
    page.goto(shared)
    page.wait_for_selector("[data-page=ok]")
    until(page, SHOWN, "what-if")
    assert page.locator("[data-slider=move_gpus] output").inner_text() == "1 to the generator"
    assert page.get_by_role("button", name="Close").count() == 0
    page.locator("#pages > [data-nav=overview]").click()
    until(page, SHOWN, "overview")
    page.go_back()
    until(page, OVER, "what-if")
    page.keyboard.press("Escape")
    until(page, SHOWN, "overview")


def test_what_if_on_a_phone_has_the_result_above_the_sliders(open_page: Open) -> None:
    page = open_page(f"what-if?run={fake_what_if.LONG}&move_gpus=8", size=(390, 844))
    until(page, "() => document.querySelector('#wi-move_gpus')")
    tops = [page.locator(f".whatif {one}").bounding_box() for one in (".sides", ".wi-figures", ".sliders", ".wi-words")]
    found = [box["y"] for box in tops if box]
    assert len(found) == 4 and found == sorted(found)


def test_help_is_a_drawer_and_the_meaning_of_a_chart_leads_into_it(open_page: Open) -> None:
    page = open_page(f"?run={RICH}")
    until(page, "() => RS.chartsReady() && document.querySelector('#panel-queue .tip')")
    page.keyboard.press("?")
    until(page, OVER, "help")
    page.keyboard.press("Escape")
    until(page, SHOWN, "overview")
    tip, info = page.locator("#panel-queue .tip"), page.locator("#panel-queue .info")
    assert tip.is_hidden() and info.get_attribute("aria-label") == "About Queue depth"
    info.click()
    assert tip.is_visible() and "queue_samples_now" in tip.inner_text()
    page.mouse.move(0, 0)
    assert tip.is_visible()
    info.click()
    page.mouse.move(0, 0)
    until(page, "() => !document.querySelector('#panel-queue .tip').checkVisibility()")
    # By keyboard: the title has the focus, and Tab leads into its tip.
    page.locator("#panel-queue h2").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "what it means"
    page.keyboard.press("Enter")
    until(page, OVER, "help")
    assert page.url.endswith(f"/help?run={RICH}#queue_samples_now")
    page.keyboard.press("Escape")
    until(page, SHOWN, "overview")
    assert where(page) == f"/?run={RICH}"


def test_nothing_is_wider_than_a_phone(open_page: Open) -> None:
    page = open_page(f"?run={RICH}", size=(390, 844))
    for one in PAGES:
        for run in (RICH, WALL):
            for tab in ("", "&tab=setup") if one.key == "sources" else ("",):
                page.goto(page.url.split("/", 3)[0] + f"//{urlsplit(page.url).netloc}/{one.path}?run={run}{tab}")
                page.wait_for_selector("[data-page=ok]")
                until(page, "() => RS.chartsReady()")
                assert page.evaluate("document.documentElement.scrollWidth") <= 390, (one.key, run, tab)


@pytest.mark.parametrize(
    ("path", "message", "back", "then"),
    [
        (f"alerts?run={RICH}&range=2w", "“2w” is not a time range. Ranges: 15m, 1h, 6h, 24h, 7d, all.",
         "Show the last hour", f"/alerts?run={RICH}&range=1h"),
        (f"nowhere?run={RICH}", "There is no page at /nowhere.", "Go to Overview", "/"),
    ],
)  # fmt: skip
def test_a_wrong_address_has_a_way_back(open_page: Open, path: str, message: str, back: str, then: str) -> None:
    page = open_page(path, state="error")
    page.forgiven = True  # type: ignore[attr-defined]  # the browser itself logs an answer of 404
    assert page.locator("#message").inner_text() == message
    page.get_by_role("link", name=back).click()
    page.wait_for_selector("[data-page=ok]")
    assert where(page) == then and page.locator("#message").is_hidden()
