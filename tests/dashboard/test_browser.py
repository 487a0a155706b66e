"""The dashboard in a real Chromium, against a real server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.charts.panels import PANELS
from dashboard.shell import layout as shell_layout
from dashboard.widgets import format as fmt
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import LOOKS, new_pages
from tests.dashboard.serving import Serving, application, until, wait

pytestmark = pytest.mark.browser

DRAWN = "() => RS.boot && !RS.boot.error && RS.chartsReady() && RS.charts().length > 0"
LAST = "slot => { const t = gdOf(slot).data.find(t => t.meta === slot); return [t.x.at(-1) - RS.tz, t.y.at(-1)]; }"
GD = "window.gdOf = slot => document.querySelector(`#graph-${slot.split('.')[0]} .chart`)"
MS = "x => typeof x === 'number' ? Math.floor(x) : Date.parse(x.replace(' ', 'T') + 'Z')"
RANGES = f"() => RS.plots().map(([, gd]) => gd._fullLayout.xaxis.range.map({MS}))"
FAR = (
    "key => { const gd = document.querySelector(`#graph-${key} .chart`); return Boolean(gd.data && !gd._fullLayout); }"
)
SHOWN = "key => document.querySelectorAll(`#graph-${key} .scatterlayer .trace`).length > 0"

Open = Callable[..., Page]


@pytest.fixture
def reader() -> MemoryReader:
    return fake.reader()


@pytest.fixture
def serving(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    # Every live test waits for a tick or two: a shorter one tests the same and takes a minute less.
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    with new_pages(browser) as new:

        def opened(
            search: str = "", theme: str = "light", size: tuple[int, int] = (1440, 900), drawn: bool = True
        ) -> Page:
            page = new(theme, size)
            page.add_init_script(GD)
            page.goto(serving.url + search)
            if drawn:
                page.wait_for_selector("[data-page=ok]")
                until(page, DRAWN)
            return page

        yield opened


def tell(reader: MemoryReader, index: int, value: float | None, seconds: float = 30.0) -> float:
    """A new point of the tick signal ``index``; returns its time."""
    reader.clock += seconds
    reader.append(fake.RICH, fake.TICKS[index][0], [(reader.clock, value)])
    return reader.clock


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_page_is_clean(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page(theme=theme, size=size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.title() == f"{fake.RICH} · Rollscope"
    assert page.locator(".banner h1").inner_text() == "The trainer waits 74% of each step for rollouts"
    assert page.locator("[data-panel][data-state=data]").count() == len(PANELS)
    if size == (1440, 900):
        lane, first = (page.locator(name).first.bounding_box() for name in (".lane", "#panel-steps .plot"))
        assert lane is not None and first is not None and lane["y"] + lane["height"] < first["y"] <= 845


def test_new_point_is_drawn_without_reload(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.evaluate("window.same = 1")
    at = tell(reader, 0, 33.0)
    until(
        page,
        f"slot => {{ const last = ({LAST})(slot); return last[0] === {round(at * 1000)} && last[1] === 33; }}",
        "queue.0",
    )
    assert page.locator("#panel-queue [data-slot='queue.0']").inner_text() == "33"
    assert page.locator("#card-queue .num").inner_text() == "33"
    assert page.evaluate("window.same") == 1
    newest = page.evaluate("() => RS.plots().map(([, gd]) => gd._fullLayout.xaxis.range[1])")
    assert newest[0] == newest[1]


def test_gap_breaks_the_line(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    tell(reader, 3, None)
    until(page, f"() => ({LAST})('kv.0')[1] === null")
    # The area under the line is empty there, too.
    assert page.evaluate("gdOf('kv.0').data.find(t => t.meta === 'kv.0:fill').y.at(-1)") == 0
    until(page, "() => document.querySelector('#panel-kv').dataset.state === 'stale'")


def drag(page: Page, panel: str) -> None:
    page.locator(f"#panel-{panel}").scroll_into_view_if_needed()
    box = page.locator(f"#panel-{panel} .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.mouse.up()


def test_zoom_is_shared_and_survives(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(size=(1440, 2000))
    whole = page.evaluate(RANGES)[0]
    drag(page, "queue")
    until(page, f"() => RS.zoom && new Set(({RANGES})().map(String)).size === 1")
    zoomed = page.evaluate(RANGES)[0]
    assert 0.25 < (zoomed[1] - zoomed[0]) / (whole[1] - whole[0]) < 0.35
    at = tell(reader, 0, 21.0)
    until(page, f"() => ({LAST})('queue.0')[0] === {round(at * 1000)}")
    assert page.evaluate(RANGES) == [zoomed] * len(PANELS)
    page.locator("#panel-kv .nsewdrag").first.dblclick()
    until(page, f"() => !RS.zoom && ({RANGES})().every(r => r[1] - r[0] > 3.5e6)")


def test_zoom_says_so_and_can_be_undone_by_keyboard(open_page: Open) -> None:
    page = open_page()
    assert page.locator("#unzoom").is_hidden()
    drag(page, "queue")
    page.locator("#unzoom").focus()
    page.keyboard.press("Enter")
    until(page, f"() => !RS.zoom && ({RANGES})().every(r => r[1] - r[0] > 3.5e6)")
    assert page.locator("#unzoom").is_hidden()


def test_an_absolute_time_stands_still(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.RICH}&start={fake.NOW - 1800}&end={fake.NOW - 900}")
    small = "() => document.querySelector('[data-spark=\"card.queue\"] path').getAttribute('d')"
    card = "() => RS.view['card.queue.figure']"
    before = (page.evaluate(small), page.evaluate(RANGES)[0], page.evaluate(card))
    tell(reader, 0, 55.0)
    until(page, f"() => document.getElementById('app').dataset.seq === '{reader.cursor(fake.RICH)}'")
    # The card has the value at the end of the range, not the new one.
    assert (page.evaluate(small), page.evaluate(RANGES)[0], page.evaluate(card)) == before


def test_hover_shows_values_in_every_header(open_page: Open) -> None:
    page = open_page(size=(1440, 1500))
    before = page.locator("[data-slot='reward.0']").inner_text()
    page.locator("#panel-queue .plot").hover(position={"x": 120, "y": 60})
    until(page, "before => document.querySelector('[data-slot=\"reward.0\"]').textContent !== before", before)
    assert page.locator(".panel .cross[data-on='1']").count() == len(PANELS)
    shares = page.locator("#panel-steps [data-slot]").all_inner_texts()
    assert sum(float(share.removesuffix("%")) for share in shares) == pytest.approx(100, abs=1)
    page.mouse.move(5, 5)
    until(page, "before => document.querySelector('[data-slot=\"reward.0\"]').textContent === before", before)


def test_panel_without_data_says_why(open_page: Open) -> None:
    page = open_page(f"?run={fake.POOR}", drawn=False)
    page.wait_for_selector("[data-page=ok]")
    # Text of a target or a signal is text, never markup.
    assert page.locator("#panel-reward .why p").inner_text() == "log reward/mean <b>each</b> step"
    assert page.locator("#panel-reward .plot").is_visible() is False
    assert page.locator("#panel-queue").get_attribute("data-state") in ("unknown", "not_applicable")
    assert page.locator("#card-wait .pill").inner_text() == "Unknown"
    assert page.locator("#card-wait .note").inner_text() == "log time/wait_for_batch"
    assert page.locator(".banner h1").inner_text() == "Not enough data yet"


def test_run_switch_by_link(open_page: Open) -> None:
    page = open_page()
    page.locator("#run-menu summary").click()
    page.locator("#runs a", has_text=fake.POOR).click()
    until(page, "name => document.querySelector('#run-name').textContent === name", fake.POOR)
    assert f"run={fake.POOR}" in page.url
    assert page.locator("#runs").is_visible() is False
    page.go_back()
    until(page, "name => document.querySelector('#run-name').textContent === name", fake.RICH)
    page.get_by_role("link", name="15m").click()
    until(page, "() => RS.boot.end - RS.boot.start === 900")
    until(page, "() => document.querySelector('#ranges [aria-current]').textContent === '15m'")


def test_unknown_run(open_page: Open) -> None:
    page = open_page("?run=%3Cb%3Emissing", drawn=False)
    page.wait_for_selector("[data-page=error]")
    assert page.locator("#message").inner_text() == "No run is named “<b>missing”."
    page.locator("#message-back").click()
    page.wait_for_selector("[data-page=ok]")
    assert page.locator("#run-name").inner_text() == fake.RICH


def test_theme_toggles_and_stays(open_page: Open) -> None:
    page = open_page(theme="light")
    assert page.locator("#theme-word").inner_text() == "Auto"
    traces = page.evaluate("document.querySelector('#graph-queue path.js-line').style.stroke")
    for word, theme in (("Light", "light"), ("Dark", "dark")):
        page.locator("#theme").click()
        assert page.locator("#theme-word").inner_text() == word
        assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.evaluate("document.querySelector('#graph-queue path.js-line').style.stroke") == traces
    page.reload()
    # Before anything is loaded: no flash.
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_server_gone_and_back(open_page: Open, serving: Serving, reader: MemoryReader) -> None:
    page = open_page()
    page.forgiven = True  # type: ignore[attr-defined]  # a refused connection is logged by the browser itself
    serving.stop()
    times = [tell(reader, 0, float(value), 10.0) for value in (41, 42, 43)]
    until(page, "() => document.querySelector('#live').dataset.live === 'lost'", seconds=20)
    serving.start()
    until(page, f"() => ({LAST})('queue.0')[1] === 43", seconds=30)
    xs = page.evaluate("gdOf('queue.0').data.find(t => t.meta === 'queue.0').x.slice(-3).map(x => x - RS.tz)")
    assert xs == [round(at * 1000) for at in times]
    assert page.locator("#live").get_attribute("data-live") == "live"


def test_rewritten_history_is_loaded_again(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    loaded = page.evaluate("RS.boot.page")
    reader.rewrite(fake.RICH)
    until(page, "loaded => RS.boot.page > loaded", loaded)


def test_first_data_turns_an_empty_panel_into_a_chart(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.POOR}", drawn=False)
    page.wait_for_selector("[data-page=ok]")
    reader.append(fake.POOR, fake.TICKS[0][0], [(reader.clock - 20, 7.0), (reader.clock - 10, 8.0)])
    until(page, "() => document.querySelector('#panel-queue').dataset.state === 'data'")
    until(page, f"() => ({LAST})('queue.0')[1] === 8")


def test_page_that_is_too_early_finds_its_run(open_page: Open, reader: MemoryReader) -> None:
    """`rollscope up` first, the trainer afterwards: nobody should have to press reload."""
    page = open_page("?run=late", drawn=False)
    page.wait_for_selector("[data-page=error]")
    assert page.locator("#ranges").is_hidden()
    reader.add_run("late")
    reader.append("late", fake.TICKS[0][0], [(reader.clock - 20, 7.0), (reader.clock - 10, 8.0)])
    page.wait_for_selector("[data-page=ok]")
    until(page, DRAWN)
    until(page, f"() => ({LAST})('queue.0')[1] === 8")
    # Drawn while it was hidden, a chart could keep the size of nothing.
    until(page, "() => { const g = document.querySelector('#graph-queue'); return Math.abs("
          "g.querySelector('.js-plotly-plot')._fullLayout.width - g.clientWidth) < 2 }")  # fmt: skip


def test_menu_knows_new_runs_when_opened(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    reader.add_run("brand-new")
    page.locator("#run-menu summary").click()
    page.get_by_role("link", name="brand-new").wait_for()
    assert page.locator("#run-menu").get_attribute("open") is not None


def test_a_line_without_a_value_keeps_its_legend(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    tell(reader, 3, None)
    until(page, "() => document.querySelector('#panel-kv').dataset.state === 'stale'")
    assert page.locator("#panel-kv .item").first.is_visible()


def test_extremes_close_in_a_live_gap(open_page: Open, reader: MemoryReader) -> None:
    reader.append(fake.RICH, fake.TICKS[0][0], [(reader.clock - 6 * 3600, 100.0)])  # else 6 h are cut to its age
    page = open_page("?range=6h")
    edges = (
        "() => RS.charts().find(([el]) => el.dataset.panel === 'queue')[1].data.filter((t) => /:(lo|hi)$/.test(t.meta))"
    )
    assert page.evaluate(f"({edges})().length") == 2
    at = 1000 * tell(reader, 0, None)
    until(page, f"at => ({edges})().every((t) => t.x.at(-1) === at + RS.tz)", at)
    low, high = page.evaluate(f"({edges})().map((t) => t.y.at(-1))")
    assert low == high is not None


@pytest.mark.parametrize("size", [(1440, 900), (768, 1024), (390, 844)])
def test_no_label_of_the_step_is_cut(open_page: Open, size: tuple[int, int]) -> None:
    page = open_page(size=size)
    # Whole in its slice, or below its edge and so not to be seen.
    cut = """() => RS.all('.slice').filter((slice) => {
      const box = slice.getBoundingClientRect(), label = slice.firstElementChild.getBoundingClientRect();
      return label.top < box.bottom && label.right > box.right + 0.5;
    }).length"""
    assert page.evaluate(cut) == 0
    assert page.locator(".slice.wait span").inner_text() == "Wait 74%"


def test_pause_holds_and_fills_up(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.locator("#live").click()
    assert page.locator("#live-word").inner_text() == "Paused"
    ticks = page.evaluate("RS.ticks()")
    until(page, "ticks => RS.ticks() > ticks + 1", ticks)  # what was requested before the pause has been answered
    calls, ticks = len(reader.calls), page.evaluate("RS.ticks()")
    tell(reader, 0, 55.0)
    until(page, "ticks => RS.ticks() > ticks + 1", ticks)
    assert len(reader.calls) == calls
    page.locator("#live").click()
    until(page, f"() => ({LAST})('queue.0')[1] === 55")


def test_finished_run_is_left_alone(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.DONE}")
    assert page.locator(".chip").inner_text() == "Finished"
    assert "ended 3 h ago" in page.locator("header").first.inner_text()
    ticks = page.evaluate("RS.ticks()")
    until(page, "ticks => RS.ticks() > ticks + 1", ticks)
    assert f"since {fake.DONE}" not in reader.calls
    # Nothing is asked of a run that is over, however long the page is open; somebody who is there asks once a minute.
    asks = """() => Array.from({length: 200}, () => dash_clientside.rollscope.pull())
      .filter((one) => one !== dash_clientside.no_update).length"""
    assert page.evaluate(asks) == 0
    page.mouse.move(200, 200)
    assert page.evaluate(asks) == 1


def test_slow_server_sees_no_storm(open_page: Open, reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> None:
    page = open_page()
    answer, asked = reader.since, []

    def slow(run: str, cursor: str) -> Any:
        asked.append(cursor)
        wait(lambda: release)
        return answer(run, cursor)

    release: list[bool] = []
    monkeypatch.setattr(reader, "since", slow)
    wait_in(page, lambda: asked)
    ticks = page.evaluate("RS.ticks()")
    until(page, "ticks => RS.ticks() > ticks + 1", ticks)
    assert len(asked) == 1
    release.append(True)


def wait_in(page: Page, condition: Callable[[], object]) -> None:
    """Until something happens on the server, while the browser's events go on."""
    for _ in range(300):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("never happened")


def test_both_formatters_agree(open_page: Open) -> None:
    page = open_page()
    values = [0, 0.00012, 0.02, 0.347, 1, 1.954, 9.996, 34.26, 99.97, 412.6, 999.6, 1204, 10400, 2.5e6, 7e9, 4e12, -3.2]
    # Ties: JavaScript rounds them up, Python to the even digit.
    values += [0.125, -0.125, 0.0625, 1204.5]
    cases = [[value, unit] for unit in ("ratio", "seconds", "usd", "usd/h", "") for value in values]
    shown = page.evaluate("cases => cases.map(([v, u]) => RS.format.text(v, u))", cases)
    assert shown == [fmt.text(value, unit) for value, unit in cases]  # type: ignore[arg-type]


def test_markup_in_names_stays_text(browser: Browser) -> None:
    reader, name = fake.reader(), "<img src=x onerror=alert(1)>"
    reader.add_run(name)
    evil = structs.replace(fake.signal("response_tokens", unit="tokens", stat="p90"), name="evil")
    reader.append(name, structs.replace(evil, labels={"stat": "p90", "env": "<b>x</b>"}), [(reader.clock, 1.0)])
    reader.set_targets(name, fake.target(name, "trainer", "<i>kind</i>", error="<script>1</script>"))
    with Serving(lambda: application(reader)) as serving:
        page = browser.new_page()
        page.goto(serving.url + "?run=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        page.wait_for_selector("[data-page=ok]")
        assert page.locator("#run-name").inner_text() == name
        page.goto(serving.url + "sources?run=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
        page.wait_for_selector("[data-page=ok]")
        assert name in page.locator("[data-rows=targets]").inner_text()
        assert page.locator("main img, main script, [data-rows=targets] i").count() == 0
        page.close()


def test_a_chart_is_drawn_when_it_comes_near_the_screen(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(size=(1440, 600))
    assert page.evaluate(FAR, "reward") and page.evaluate(SHOWN, "queue")
    # What comes meanwhile is drawn with the rest, in the window as it is then.
    at = tell(reader, 0, 55.0)
    until(page, f"at => Math.abs(({LAST})('queue.0')[0] - at) < 1", 1000 * at)
    assert page.evaluate("document.querySelector('#sum-reward').textContent").startswith("Reward: now ")
    page.locator("#panel-reward").scroll_into_view_if_needed()
    until(page, SHOWN, "reward")
    assert page.evaluate(f"({MS})(gdOf('reward')._fullLayout.xaxis.range[1]) - RS.tz") >= 1000 * at
