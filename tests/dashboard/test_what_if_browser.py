"""The What-if page in a real Chromium: sliders by keyboard and mouse, the address that is their state, what is seen."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from dashboard.pages.what_if.data import ASKS
from dashboard.shell import layout as shell_layout
from tests.dashboard import fake_what_if as fakes
from tests.dashboard.fake import POOR
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import LOOKS, new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
HEAD = "words => document.querySelector('.whatif h1').textContent === words"
TODAY = "Now the trainer waits 29% of each step"


@pytest.fixture(scope="module")
def reader() -> MemoryReader:
    return fakes.reader()


@pytest.fixture(scope="module")
def serving(reader: MemoryReader) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shell_layout, "INTERVAL_MS", 500)
        with Serving(lambda: application(reader)) as running:
            yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens the page of a run."""
    with new_pages(browser) as new:

        def opened(
            query: str = "", run: str = fakes.LONG, theme: str = "light", size: tuple[int, int] = (1440, 900)
        ) -> Page:
            page = new(theme, size)
            page.goto(f"{serving.url}what-if?run={run}{query}")
            page.wait_for_selector("[data-page=ok]")
            until(page, "() => document.querySelectorAll('[data-slider] input').length === 8")
            return page

        yield opened


def value(page: Page, name: str) -> str:
    return page.locator(f"[data-slider={name}] output").inner_text()


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_a_shared_link_opens_the_same_sliders(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page("&move_gpus=8&max_staleness=2", theme=theme, size=size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.locator("h1:visible").inner_text() == "Trainer wait would drop from 29% to 16%"
    assert (value(page, "move_gpus"), value(page, "max_staleness")) == ("8 to the generator", "2 versions")
    assert value(page, "oversampling") == "2.5 per kept one"
    states = page.locator("[data-slider]").evaluate_all("all => all.map(el => el.dataset.state)")
    assert states == [
        "changed" if name in ("move_gpus", "max_staleness") else "today" for name in ASKS
    ]  # fmt: skip
    # Today's mark stands where the thumb would: 191 of 254 GPUs along the track.
    track, mark = (page.locator(f"[data-slider=move_gpus] {one}").bounding_box() for one in (".track", ".today"))
    assert track is not None and mark is not None
    assert mark["x"] - track["x"] == pytest.approx(191 / 254 * (track["width"] - 18) + 8, abs=1)
    assert page.locator("#ranges").is_hidden()
    assert page.title() == f"What-if · {fakes.LONG} · Rollscope"


def test_by_keyboard_until_the_limit_flips(open_page: Open) -> None:
    page = open_page()
    until(page, HEAD, TODAY)
    page.locator("#wi-move_gpus").focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    until(page, HEAD, "Trainer wait would drop from 29% to 16%")
    assert page.evaluate("new URLSearchParams(location.search).get('move_gpus')") == "8"
    assert page.locator("#wi-move_gpus").get_attribute("aria-valuetext") == "8 to the generator, now none"
    assert page.locator(".side-of[data-limits='1'] b").inner_text() == "Generation"
    page.keyboard.press("PageUp")
    until(page, "() => document.querySelector('.limits').dataset.state === 'flipped'")
    assert page.locator(".side-of[data-limits='1'] b").inner_text() == "Trainer"
    assert page.locator(".limits .then").inner_text() == "then: the trainer"
    row = page.locator("[data-key=trained_samples_per_second]")
    # 2.75 * 46/64, of which the engines could make more
    assert row.locator(".num").inner_text() == "1.98 samples/s"
    assert page.evaluate("document.activeElement.id") == "wi-move_gpus"
    page.keyboard.press("Home")
    until(page, "() => new URLSearchParams(location.search).get('move_gpus') === '-191'")


def test_back_to_today_and_back_again(open_page: Open) -> None:
    page = open_page("&move_gpus=8&group_size=16")
    page.get_by_role("button", name="now 8 rollouts: reset Group size").click()
    until(page, "() => !new URLSearchParams(location.search).has('group_size')")
    assert value(page, "group_size") == "8 rollouts"
    assert page.evaluate("document.activeElement.id") == "wi-group_size"
    page.get_by_role("button", name="Reset", exact=True).click()
    until(page, HEAD, TODAY)
    assert page.locator("#wi-reset").is_hidden() and value(page, "move_gpus") == "none"
    assert page.evaluate("location.search") == f"?run={fakes.LONG}"
    page.go_back()
    until(page, HEAD, "Trainer wait would drop from 29% to 16%")
    assert value(page, "move_gpus") == "8 to the generator"


def test_by_mouse_a_value_is_on_the_grid_and_today_needs_not_be(open_page: Open) -> None:
    page = open_page(size=(390, 844))
    page.locator("#wi-max_response_tokens").scroll_into_view_if_needed()
    box = page.locator("#wi-max_response_tokens").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    until(page, "() => new URLSearchParams(location.search).has('max_response_tokens')")
    asked = page.evaluate("Number(new URLSearchParams(location.search).get('max_response_tokens'))")
    assert asked % 64 == 0 and 8192 < asked < 32768
    until(page, "() => document.querySelector('[data-key=response_tokens]') !== null")
    assert "Lengths below the cap are exponential" in page.locator("[data-rows=wi-assumed]").inner_text()


def test_what_is_not_known_has_no_thumb_but_words(open_page: Open) -> None:
    page = open_page(run=POOR)
    assert page.locator("h1:visible").inner_text() == "Current rates are unknown"
    assert page.locator("[data-slider] input:disabled").count() == 8
    assert page.locator("[data-slider=add_engines] .foot").inner_text() == (
        "how many engines there are: add their /metrics as targets"
    )
    assert page.locator(".wi-figures").is_hidden()
    first = page.locator("[data-rows=wi-missing] dt").first.text_content()
    assert first == "how many samples the trainer takes per second"


def test_leaving_forgets_what_was_asked(open_page: Open) -> None:
    page = open_page("&move_gpus=8")
    assert page.locator("[data-nav=overview]").get_attribute("href") == f"/?run={fakes.LONG}"
    until(page, "() => document.querySelector('[data-nav=what-if]').getAttribute('href').includes('move_gpus=8')")
