"""The Sandboxes page in a real Chromium: order and numbers, what is drawn, what is live, and no name that is markup."""

from collections.abc import Callable, Iterator

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.pages.sandboxes import data
from dashboard.pages.sandboxes import records as sandboxes_records
from dashboard.shell import layout as shell_layout
from tests.dashboard import fake, fake_alerts
from tests.dashboard import fake_sandboxes as wall
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import LOOKS, new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
EVIL = "<img src=x onerror=\"document.title='owned'\">"
# The oldest pending line as heights from the top of the drawing, in the order of time.
LINE = """() => document.querySelector('.heat .oldest').getAttribute('d').match(/[ML][^ML]+/g)
  .map(point => +point.slice(1).split(' ')[1])"""
# Where in the drawing a column and the sixth row are, by the sizes of `assets/widgets/sandboxes.mjs`.
PLACE = """column => {
  const { wide, width, start, end } = document.querySelector('.heat').look;
  return [52 + wide * ((column + .5) * width + RS.tz - start) / (end - start), 6 + (15 - 6 + .5) * 13];
}"""
SINCE = """since => Array.from(document.querySelectorAll('[data-rows=box-pending] [data-since]')).at(9).textContent
  === RS.format.span(RS.now() - since)"""
CELLS = "() => document.querySelectorAll('.heat .cells rect').length"


@pytest.fixture
def reader() -> MemoryReader:
    return wall.reader()


@pytest.fixture
def serving(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    # A live test waits for a tick or two: shorter ones test the same.
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    monkeypatch.setattr(sandboxes_records, "KEEP_SECONDS", 0.2)
    monkeypatch.setattr(data, "_LEAST_SECONDS", 0.2)
    monkeypatch.setattr(data, "_LOOKS_PER_COLUMN", 1000)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens the page of a run."""
    with new_pages(browser) as new:

        def opened(
            run: str = wall.WALL, theme: str = "light", size: tuple[int, int] = (1440, 900), path: str = "sandboxes"
        ) -> Page:
            page = new(theme, size)
            page.goto(f"{serving.url}{path}?run={run}")
            page.wait_for_selector("[data-page=ok]")
            until(page, "() => RS.chartsReady()")
            if run == wall.WALL and path == "sandboxes":
                until(page, "() => document.querySelector('.heat .oldest') && document.querySelector('.funnel .count')")
            return page

        yield opened


def numbers(page: Page) -> list[str]:
    words = "all => all.map(el => `${el.querySelector('h2').innerText} ${el.querySelector('.big').innerText}`)"
    return [" ".join(text.split()) for text in page.locator(".eight .kpi").evaluate_all(words)]


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_what_is_seen_first(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page(theme=theme, size=size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.locator("h1:visible").inner_text() == "The oldest pending sandbox has waited 62 min"
    assert numbers(page) == [
        "Running 780",
        "Starting 128",
        "Oldest pending 62 min",
        "Spin-up p95 38 s",
        "Commands p95 –",
        "Failures 51",
        "Dangling 5",
        "Credit lasts 6.2 h",
    ]
    heads = page.locator(".boxgrid h2").all_inner_texts()
    assert heads == [
        "Spin-up over time",
        "Funnel",
        "States over time",
        "Infra failures and zero advantage",
        "Creations",
        "Commands and tools",
        "Failures by cause",
        "Quota",
        "Failures, newest first",
        "Oldest pending",
        "Dangling",
    ]
    assert page.locator("#panel-boxes").get_attribute("data-state") == "data"
    assert page.locator("#panel-infra").get_attribute("data-state") == "data"
    assert page.title() == f"Sandboxes · {wall.WALL} · Rollscope"
    # Whose clock it was stands wherever a spin-up does.
    assert "timed by the provider's clock" in page.locator("#panel-spinups .legend").inner_text()
    assert "by the provider's clock" in page.locator("#card-sb_p95 .note").inner_text()
    # Nothing that is drawn is cut off.
    cut = "() => RS.all('.heat svg, .funnel svg').filter(el => el.getBoundingClientRect().right > innerWidth).length"
    assert page.evaluate(cut) == 0


def test_straggler_is_drawn_above_all_that_completed(open_page: Open) -> None:
    page = open_page()
    heights = page.evaluate(LINE)
    # It climbs for an hour (to the top of a screen is less), past every cell but none of its own.
    assert heights == sorted(heights, reverse=True) and heights[0] - heights[-1] > 40
    tops = page.locator(".heat .cells rect").evaluate_all("all => all.map(el => +el.getAttribute('y'))")
    assert heights[-1] < min(tops)
    # 3,720 s lies just above the line of an hour: the second row from the top.
    assert 6 + 13 < heights[-1] < 6 + 2 * 13
    assert page.locator(".heat .tag").text_content() == "oldest pending 62 min"
    label = page.locator(".heat svg").get_attribute("aria-label")
    assert label is not None and label.endswith(
        "sandboxes became ready in this range, p95 now 38 s; the oldest pending has waited 62 min"
    )


def test_cell_under_the_cursor_says_its_number(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    # 20 to 30 s is the sixth row from below; the column of ten minutes ago.
    at = int((wall.NOW - 600) // 60)
    count = dict(page.evaluate("at => RS.view['spin_ups.' + at]", at))["30"]
    place = page.evaluate(PLACE, at)
    page.locator(".heat").hover(position={"x": place[0], "y": place[1]})
    words = page.locator(".tooltip > p").inner_text()
    assert words.endswith(f"20 s to 30 s: {count}")
    page.mouse.move(2, 2)
    assert page.locator(".tooltip").is_hidden()


def test_funnel_has_exact_numbers(open_page: Open) -> None:
    page = open_page()
    assert page.locator(".funnel .count").all_text_contents() == ["2,574", "2,343", "2,343", "1,614", "51"]
    assert page.locator(".funnel svg").get_attribute("aria-label") == (
        "requested 2,574, started 2,343, ready 2,343, first exec no data, ended 1,614, failed 51"
    )
    assert page.locator("#box-funnel .note").first.inner_text() == "First exec: not reported by provider."
    high = page.locator(".funnel rect").evaluate_all("all => all.map(el => +el.getAttribute('height') / 144)")
    assert high == pytest.approx([1, 0.9103, 0.9103, 0, 0.627, 0.0198], abs=0.001)


def test_funnel_has_no_shares_where_ends_came_before_us(open_page: Open, reader: MemoryReader) -> None:
    share = "() => RS.all('.funnel text').filter(el => el.textContent.endsWith('%')).length"
    page = open_page()
    assert page.evaluate(share) == 4
    reader.met_ended = 812
    until(page, f"() => ({share})() === 0")
    assert page.locator(".funnel .count").all_text_contents()[-1] == "51"
    assert page.locator("#box-funnel .row .unit").inner_text() == "since Rollscope started"


def test_bars_and_tables(open_page: Open) -> None:
    page = open_page()
    causes = page.locator("[data-rows=box-causes] li")
    assert causes.locator(".row").all_inner_texts()[0].split() == ["timeout", "21"]
    assert "IMAGE_PULL_FAILED: manifest for swe-bench/sympy:1.9 not found" in causes.nth(1).inner_text()
    quota = page.locator("[data-rows=box-quota] li")
    assert [" ".join(text.split()) for text in quota.all_inner_texts()] == [
        "starting at once 128 of 128 · 100%", "concurrent 960 of 1,000 · 96%", "CPU 1,240 of 2,000 · 62%",
    ]  # fmt: skip
    first = page.locator("[data-rows=box-pending] tr").first
    assert [" ".join(text.split()) for text in first.locator("th, td").all_inner_texts()] == [
        "sbx-00001 trace-000001 · prime",
        "swe-bench/astropy:1.3 image not cached",
        "62 min",
        "starting PENDING",
    ]
    left = page.locator("[data-rows=box-dangling] tr")
    assert left.first.locator("td").all_inner_texts() == ["eval-tuesday", "27 h 43 min", "prime"]
    assert left.count() == 5
    assert "Rollscope deletes nothing" in page.locator("#box-dangling").inner_text()


def test_any_sandbox_is_found_by_its_trace(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    names = "document.querySelectorAll('[data-rows=box-failures] th span:first-child')"
    shown = f"() => Array.from({names}, el => el.textContent)"
    newest = page.evaluate(shown)
    assert newest == ["sbx-02365", "sbx-02318", "sbx-02271", "sbx-02224", "sbx-02177"]
    field = page.get_by_label("Find a sandbox by id, name or trace")
    # Asked for an hour ago and over since: on no list of the page.
    field.fill("TRACE-00000a")
    until(page, f"() => ({shown})().join() === 'sbx-00010'")
    assert page.locator("#box-said").inner_text() == "1 sandbox with “TRACE-00000a” in id or name."
    assert page.locator("#box-found").inner_text() == "Found"
    # News does not take the answer away.
    reader.put_boxes(wall.WALL, wall.box(8100, "failed", 9, cause="oom", ended_at=reader.clock + 1))
    until(page, "() => RS.view['failed_boxes.0'].id === 'sbx-08100'")
    assert page.evaluate(shown) == ["sbx-00010"]
    field.fill("nobody's")
    until(page, "() => document.querySelector('#box-said').textContent.startsWith('No sandboxes with')")
    assert page.locator("#box-failed table").is_hidden()
    field.fill("")
    until(page, f"() => ({shown})()[0] === 'sbx-08100'")
    assert page.locator("#box-said").inner_text() == ""


def test_everything_is_live(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.evaluate("window.same = 1")
    before, total = page.evaluate(LINE)[-1], page.evaluate("RS.view['spin_ups.total']")
    reader.clock += 600
    ended = structs.replace(
        wall.box(1, "failed", 3720), cause="timeout", ended_at=reader.clock, detail="gave up after 72 min"
    )
    reader.put_boxes(wall.WALL, ended, wall.ready(8100, -500, 70))
    for name, unit, value, labels in (
        ("sandboxes", "sandboxes", 700.0, {"state": "running"}),
        ("sandbox_oldest_pending_seconds", "seconds", 6900.0, {}),
        ("sandbox_failures_total", "sandboxes", 22.0, {"cause": "timeout"}),
    ):
        now = wall.signal_of(name, unit, "critical", **labels)
        reader.append(wall.WALL, now, [(reader.clock, value)])
    until(page, "() => document.querySelector('#card-sb_running .num').textContent === '700'")
    until(page, f"before => ({LINE})().at(-1) < before", before)
    until(page, "() => document.querySelector('.funnel .failed.count')?.textContent === '52'")
    # Ten minutes have left the window, one sandbox has come.
    until(page, "total => RS.view['spin_ups.total'] < total", total)
    column = int((wall.NOW + 570) // 60)
    until(page, "at => JSON.stringify(RS.view['spin_ups.' + at]) === '[[\"120\",1]]'", column)
    until(
        page, "() => document.querySelector('[data-rows=box-causes] li').textContent.includes('gave up after 72 min')"
    )
    assert page.locator("[data-rows=box-causes] li").first.inner_text().split()[1] == "22"
    assert page.locator("[data-rows=box-pending] th span").first.inner_text() == "sbx-05000"
    last = "() => RS.plots()[0][1].data.find(t => t.meta === 'boxes.1').y.at(-1)"
    until(page, f"() => ({last})() === 700")
    assert page.locator("h1:visible").inner_text() == "The oldest pending sandbox has waited 115 min"
    assert page.evaluate("window.same") == 1


def test_ages_count_up_without_the_server(open_page: Open) -> None:
    page = open_page()
    page.locator("#live").click()
    first = page.locator("[data-rows=box-pending] [data-since]").nth(9)
    was = float(first.get_attribute("data-since") or 0)
    page.evaluate("RS.boot.now += 600")
    until(page, SINCE, was)


def test_zoom_of_the_chart_is_the_heat_maps_too(open_page: Open) -> None:
    page = open_page(size=(1440, 1700))
    cells = page.evaluate(CELLS)
    area = page.locator("#panel-boxes .nsewdrag").first.bounding_box()
    assert area is not None
    middle = area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + area["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.6, middle, steps=4)
    page.mouse.up()
    until(page, f"cells => RS.zoom && ({CELLS})() < cells / 2", cells)
    page.locator("#unzoom").click()
    until(page, f"cells => !RS.zoom && ({CELLS})() === cells", cells)


def test_range_changes_the_columns(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("link", name="15m").click()
    until(page, "() => RS.boot.end - RS.boot.start === 900 && RS.view['spin_ups.width'] === 15")
    until(page, f"() => ({CELLS})() > 0")
    assert page.locator(".scale").inner_text().endswith("in 15 s")


def test_a_run_that_needs_none(open_page: Open) -> None:
    page = open_page(wall.MATH)
    assert page.locator("h1:visible").inner_text() == "This run uses no sandboxes"
    assert page.locator(".boxes-head .text").inner_text() == "Not applicable: this task uses no sandbox."
    assert page.locator(".needs-none").is_visible()
    assert page.locator(".known, .how-to").evaluate_all("all => all.filter(el => el.offsetParent).length") == 0


def test_without_a_provider_it_says_how_to_add_one(open_page: Open, reader: MemoryReader, serving: Serving) -> None:
    page = open_page(wall.BARE)
    assert page.locator("h1:visible").inner_text() == "No sandbox provider is configured"
    assert page.locator(".way pre").first.inner_text().startswith("[[run.no-provider.target]]")
    link = page.get_by_role("link", name="Report from where you call create()")
    link.click()
    assert page.evaluate("document.querySelector(':target').id") == "recipe"
    code = page.locator("#recipe pre").inner_text()
    # Under the name by which the browser came here.
    assert "\ndef report(box, **more):" in code and f'URL = "{serving.url}api/v1/runs/no-provider/sandboxes"' in code
    # The first provider turns the page into what it is for, without a reload by hand.
    reader.put_boxes(wall.BARE, wall.ready(1, 60, 12))
    for state, value in (("running", 1.0), ("starting", 0.0)):
        now = wall.signal_of("sandboxes", "sandboxes", state=state)
        reader.append(wall.BARE, now, [(reader.clock - 10, value), (reader.clock, value)])
    until(page, "() => document.querySelector('.boxes').dataset.state === 'ok'")
    until(page, "() => document.querySelector('#panel-boxes').dataset.state === 'data'")
    until(page, f"() => ({CELLS})() === 1 && document.querySelector('.funnel .count')?.textContent === '1'")
    until(page, "() => { const g = document.querySelector('#graph-boxes'); return Math.abs("
          "g.querySelector('.js-plotly-plot')._fullLayout.width - g.clientWidth) < 2 }")  # fmt: skip


@pytest.mark.parametrize("wide", [1280, 1440])
def test_where_nothing_is_known_nothing_sticks_out_and_no_table_is_a_head(
    open_page: Open, reader: MemoryReader, wide: int
) -> None:
    """A provider that has not answered yet: each card says "Unknown"."""
    dead = structs.replace(fake.target("prime_sandboxes", "sandbox", "prime_sandboxes", up=False, error="ConnectError"),
                   age_seconds=None)  # fmt: skip
    reader.set_targets(wall.BARE, dead)
    page = open_page(wall.BARE, size=(wide, 900))
    assert page.locator("h1:visible").inner_text() == "prime_sandboxes has not answered yet"
    assert page.locator(".eight .pill").all_inner_texts() == ["Unknown"] * 8
    out = """() => RS.all('.eight .kpi').filter(el => { const right = el.getBoundingClientRect().right;
      return RS.all('h2, .pill, .note', el).some(part => part.scrollWidth > part.clientWidth + 1
        || part.getBoundingClientRect().right > right - 8); }).length"""
    assert page.evaluate(out) == 0
    assert page.locator(".known table:visible").count() == 0
    assert page.locator(".known table").count() == 3


def test_names_of_five_hundred_letters_are_cut_and_told_whole(open_page: Open, reader: MemoryReader) -> None:
    long = "A" * 500
    reader.put_boxes(wall.WALL, wall.box(8100, "starting", 9000, id=long, name=long, image=long, provider_state=long))
    page = open_page()
    first = page.locator("[data-rows=box-pending] tr").first
    assert first.locator("th span").first.get_attribute("title") == long
    area, usual = first.bounding_box(), page.locator("[data-rows=box-pending] tr").nth(1).bounding_box()
    assert area is not None and usual is not None and area["height"] < 3 * usual["height"]


def test_run_switch_leaves_nothing_behind(open_page: Open) -> None:
    page = open_page()
    page.locator("#run-menu summary").click()
    page.locator("#runs a", has_text=wall.MATH).click()
    until(page, "name => RS.boot.run === name && document.querySelector('.boxes').dataset.state === 'na'", wall.MATH)
    assert (
        page.evaluate(
            "Object.keys(RS.view).filter(key => key.startsWith('spin_ups.') || key.startsWith('pending.')).length"
        )
        == 0
    )
    page.go_back()
    until(page, f"name => RS.boot.run === name && ({CELLS})() > 100", wall.WALL)
    until(page, "() => document.querySelectorAll('[data-rows=box-pending] tr').length === 10")


def test_alert_leads_to_the_sandboxes_of_its_moment(open_page: Open, reader: MemoryReader) -> None:
    reader.rule_rows = [fake_alerts.rule("SandboxPendingLong")]
    late = fake_alerts.alert("SandboxPendingLong", 3720.0, "seconds", 1800, run=wall.WALL)
    reader.set_alerts(structs.replace(late, signal="sandbox_oldest_pending_seconds"))
    page = open_page(path="alerts")
    page.get_by_role("link", name="View charts at").click()
    until(page, "() => RS.boot.key === 'sandboxes' && RS.chartsReady()")
    began = round(late.active_at)
    assert page.evaluate("[RS.boot.run, RS.boot.start, RS.boot.end]") == [wall.WALL, began - 1800, began + 900]
    assert page.url.endswith("#panel-spinups")


def test_markup_in_names_stays_text(open_page: Open, reader: MemoryReader) -> None:
    evil = wall.box(1, "starting", 9000, name=EVIL, image=EVIL, provider_state=EVIL, provider=EVIL)
    left = wall.box(2, "running", 9000, own=False, dangling=True, run_key=EVIL, provider=EVIL)
    failed = wall.box(3, "failed", 20, cause=EVIL, detail=EVIL, ended_at=reader.clock)
    clock = wall.ready(4, 10, 5, latency_source=EVIL)
    reader.put_boxes(
        wall.WALL, *(structs.replace(box, id=f"{i}{EVIL}") for i, box in enumerate((evil, left, failed))), clock
    )
    counted = wall.signal_of("sandbox_failures_total", "sandboxes", cause=EVIL)
    reader.append(wall.WALL, counted, [(reader.clock, 99.0)])
    for which, value in (("used", 3.0), ("limit", 1.0)):
        reader.append(wall.WALL, wall.of_quota(which, EVIL, EVIL), [(reader.clock, value)])
    reader.set_targets(wall.WALL, fake.target(EVIL, "sandbox", EVIL, up=False, error=EVIL))
    page = open_page()
    row = page.locator("[data-rows=box-pending] tr").first
    assert row.locator("th span").first.inner_text() == "0" + EVIL
    assert page.locator("[data-rows=box-causes] li .row span").first.inner_text() == EVIL
    assert page.locator("[data-rows=box-quota] li .row").first.inner_text().startswith(EVIL)
    assert page.locator("[data-rows=box-sources] .error").inner_text() == EVIL
    assert page.locator("[data-rows=box-failures] tr th span").first.inner_text() == "2" + EVIL
    page.get_by_label("Find a sandbox by id, name or trace").fill("onerror")
    until(page, "() => document.querySelector('#box-found').textContent === 'Found'")
    assert page.locator("#box-said").inner_text() == "3 sandboxes with “onerror” in id or name."
    assert page.locator("main img, main script").count() == 0
    assert page.title() == f"Sandboxes · {wall.WALL} · Rollscope"
    assert page.evaluate("document.documentElement.scrollWidth") == 1440
