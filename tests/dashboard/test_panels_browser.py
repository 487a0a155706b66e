"""What every chart can do, in a real Chromium: tools, source, marks, steps, another time behind it, zoom, keys."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.charts.panels import PANELS
from dashboard.shell import layout as shell_layout
from dashboard.shell.shortcuts import SHORTCUTS
from server.query.types import EventInfo, RuleInfo, StepAt
from tests.dashboard import fake, fake_alerts, fake_verdicts
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until
from tests.dashboard.test_browser import DRAWN, RANGES, drag

pytestmark = pytest.mark.browser

NOW, STEP = fake.NOW, 40.0
EVIL = '<img src=x onerror="window.hacked=1">'
X = "key => RS.plots().find(([el]) => el.dataset.panel === key)[1]._fullLayout.xaxis.range"
LAST = "slot => RS.plots().flatMap(([, gd]) => gd.data).find(t => t.meta === slot).x.at(-1)"

Open = Callable[..., Page]


@pytest.fixture
def reader() -> MemoryReader:
    """A run of two hours whose steps take 40 s, with a restart, two alerts and two rules on the queue."""
    made = fake_verdicts.judged(fake.reader(7200))
    infos = [
        structs.replace(info, cadence="step") if info.name == "trainer_wait_ratio" else info for info in fake.INFOS
    ]
    made._infos = {info.name: info for info in infos}
    records = made.records(fake.RICH)
    records.steps = [StepAt(NOW - STEP * (180 - i), 1000 + i, 0) for i in range(181)]
    records.events = [EventInfo(NOW - 600 * i, "weights_published", str(i), "", 412 - i) for i in range(6)] + [
        EventInfo(NOW - 2000, "restart", "r", EVIL)
    ]
    made.rule_rows = [
        RuleInfo("QueueLow", "warning", "tuning", "", "", True, "", "queue_samples", 20.0),
        RuleInfo("QueueFull", "warning", "tuning", "", "", True, "", "queue_samples", 4096.0),
    ]
    alerts = [fake_alerts.alert(name, 1.0, "", 0, run=fake.RICH) for name in ("TrainerStarved", "KVCacheExhausted")]
    made.set_alerts(*(structs.replace(one, fired_at=NOW - 1000 - i) for i, one in enumerate(alerts)))
    return made


@pytest.fixture
def open_page(browser: Browser, reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    with Serving(lambda: application(reader)) as serving, new_pages(browser) as new:

        def opened(search: str = "", theme: str = "light", size: tuple[int, int] = (1440, 1700)) -> Page:
            page = new(theme, size)
            page.goto(search if search.startswith("http") else serving.url + search)
            page.wait_for_selector("[data-page=ok]")
            until(page, DRAWN)
            until(page, "() => document.querySelector('#sum-reward')?.textContent")
            return page

        yield opened


def choose(page: Page, panel: str, words: str) -> None:
    page.locator(f"#panel-{panel} .tools").click()
    page.get_by_role("menuitem", name=words).click()


def test_numbers_leave_the_browser(open_page: Open, tmp_path: Path) -> None:
    page = open_page(f"?run={fake.RICH}&range=15m")
    tools = page.locator("#panel-queue .tools")
    tools.focus()
    page.keyboard.press("Enter")
    assert page.locator("[role=menu]").get_attribute("aria-label") == "Queue depth: tools"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "Data table"
    page.keyboard.press("Enter")
    sheet = page.get_by_role("dialog")
    assert sheet.locator("thead th").all_text_contents() == ["Time", "now", "5 min mean"]
    # 15 min of points every 5 s, both ends.
    assert sheet.locator("caption").inner_text() == "181 points, newest first"
    assert sheet.locator("tbody tr").count() == 181
    newest = sheet.locator("tbody tr").first.locator("td").all_text_contents()
    assert newest == page.locator("#panel-queue .item b").all_text_contents()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0 and page.locator("[role=menu]").count() == 0
    with page.expect_download() as csv:
        choose(page, "queue", "Save CSV")
    assert csv.value.suggested_filename == f"{fake.RICH}-queue-20260921T1413.csv"
    lines = Path(csv.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == 'time,"now (samples)","5 min mean (samples)"' and len(lines) == 182
    assert lines[-1].startswith("2026-09-21T14:13:20.000Z,19.")
    with page.expect_download() as png:
        choose(page, "kv", "Save PNG")
    made = Path(png.value.path()).read_bytes()
    assert made[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(made[16:20], "big") == 2400
    # What is drawn is the page's: the ground of a card in the upper left.
    assert page.evaluate(
        "async url => { const i = new Image(); i.src = url; await i.decode();"
        " const x = document.createElement('canvas').getContext('2d'); x.drawImage(i, 0, 0);"
        " return Array.from(x.getImageData(2, 2, 1, 1).data); }",
        "data:image/png;base64," + base64.b64encode(made).decode(),
    ) == [255, 255, 255, 255]


def test_full_screen_and_the_link_to_it(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}")
    page.locator("#panel-kv .plot").focus()
    page.keyboard.press("f")
    until(page, "() => document.querySelector('#graph-kv .js-plotly-plot')._fullLayout.height > 1400")
    assert "panel=kv" in page.url and page.locator("#panel-kv").get_attribute("aria-modal") == "true"
    # Nothing else can be reached meanwhile, and the line at the cursor goes on as far as the chart does.
    assert page.evaluate("document.querySelector('header').inert && document.querySelector('#panel-queue').inert")
    assert page.evaluate("document.querySelector('#panel-kv .cross').offsetHeight") > 1300
    link = page.evaluate("RS.linkOf(document.querySelector('#panel-kv'))")
    page.keyboard.press("Escape")
    until(page, "() => document.querySelector('#graph-kv .js-plotly-plot')._fullLayout.height < 200")
    assert "panel=" not in page.url and page.evaluate("!document.querySelector('header').inert")
    assert page.evaluate("document.activeElement.className") == "plot"
    asked = parse_qs(link.partition("?")[2])
    assert (asked["start"], asked["end"], asked["panel"]) == ([f"{NOW - 3600:.0f}"], [f"{NOW:.0f}"], ["kv"])
    shared = open_page(link)
    until(shared, "() => RS.filling() === 'kv'")
    assert shared.evaluate("[RS.boot.start, RS.boot.end, RS.boot.follow]") == [NOW - 3600, NOW, False]


def test_zoom_is_in_the_address_and_back_undoes_it(open_page: Open, reader: MemoryReader) -> None:
    # High enough for all charts: one that is not seen keeps its range until it is.
    page = open_page(f"?run={fake.RICH}", size=(1440, 2600))
    before = page.url
    drag(page, "queue")
    until(page, "() => location.search.includes('start=')")
    start, end = page.evaluate("RS.range().map(ms => Math.round((ms - RS.tz) / 1000))")
    assert f"start={start}&end={end}" in page.url
    loaded, view = page.evaluate("RS.boot.page"), page.url
    # It is the browser's own: the charts go on behind it, also when history is read anew.
    reader.rewrite(fake.RICH)
    until(page, "loaded => RS.boot.page > loaded && RS.chartsReady()", loaded)
    assert page.evaluate("RS.boot.follow") and page.evaluate(
        "RS.range().map(ms => Math.round((ms - RS.tz) / 1000))"
    ) == [start, end]
    shared = open_page(view)
    assert shared.evaluate("[RS.boot.start, RS.boot.end]") == [start, end]
    page.go_back()
    until(page, f"() => !RS.zoom && ({RANGES})().every(r => r[1] - r[0] > 3.5e6)")
    assert page.url == before
    drag(page, "queue")
    until(page, "() => location.search.includes('start=')")
    page.locator("#unzoom").click()
    until(page, "before => !RS.zoom && location.href === before", before)


SPAN = "[RS.boot.start, RS.boot.end, RS.boot.follow]"


def test_a_past_range_is_a_mode_with_a_sign_and_a_way_back(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}&start={NOW - 1800}&end={NOW - 1200}")
    assert page.locator("#past").inner_text().split("\n") == ["−", "13:43 to 13:53", "Back to live"]
    assert page.locator("#ranges").is_hidden() and page.locator("#live-word").inner_text() == "Past range"
    # Twice the time around its middle; the present is its end.
    page.locator("#zoom-out").click()
    until(page, f"() => String({SPAN}) === '{NOW - 2100:.0f},{NOW - 900:.0f},false'")
    for start, end in ((2700, 300), (4800, 0)):
        page.locator("#zoom-out").click()
        # The browser's clock goes on, the fake server's stands still.
        until(page, f"() => Math.abs({SPAN}[0] - {NOW - start}) < 20 && {SPAN}[1] === {NOW - end:.0f}")
    page.locator("#unzoom").click()
    until(page, "() => RS.boot.follow && RS.chartsReady()")
    assert "start=" not in page.url and page.locator("#past").is_hidden() and page.locator("#ranges").is_visible()


def test_a_zoom_is_left_by_steps(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}")
    drag(page, "queue")
    until(page, "() => RS.zoom && document.getElementById('past').offsetParent")
    width = page.evaluate("RS.zoom[1] - RS.zoom[0]")
    page.locator("#zoom-out").click()
    assert page.evaluate("RS.zoom[1] - RS.zoom[0]") == pytest.approx(2 * width)
    page.locator("#zoom-out").click()
    until(page, "() => !RS.zoom && !location.search.includes('start=')")
    assert page.locator("#past").is_hidden()


def test_start_and_end_by_the_keyboard(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}")
    page.locator("#pick").focus()
    page.keyboard.press("Enter")
    sheet = page.get_by_role("dialog", name="Time range")
    assert sheet.locator(".note").inner_text() == "Local time: UTC"
    start, end = sheet.get_by_label("Start"), sheet.get_by_label("End")
    assert (start.input_value(), end.input_value()) == ("2026-09-21T13:13:20", "2026-09-21T14:13:20")
    end.fill("2026-09-21T13:00:00")
    end.press("Enter")
    assert sheet.get_by_role("alert").inner_text() == "The end must be after the start."
    start.fill("2026-09-21T13:40:00")
    end.fill("2026-09-21T13:50:30")
    end.press("Enter")
    until(page, f"() => {SPAN}[0] === {NOW - 2000:.0f} && {SPAN}[1] === {NOW - 1370:.0f}")
    assert page.locator("#past-range").inner_text() == "13:40 to 13:50" and sheet.count() == 0


def test_modes_are_chips_that_can_be_removed(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}&over=1h&axis=step")
    assert page.locator("#modes button").all_text_contents() == ["vs an hour ago×", "By step×"]
    page.get_by_role("button", name="Remove: By step").click()
    until(page, "() => !RS.byStep() && RS.chartsReady() && document.querySelectorAll('#modes button').length === 1")
    assert "axis=" not in page.url and "over=1h" in page.url
    page.get_by_role("button", name="Remove: vs an hour ago").click()
    until(page, "() => !RS.boot.behind && document.querySelectorAll('#modes button').length === 0")


def test_charts_over_steps(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.RICH}&axis=step&range=1h")
    # 90 steps an hour, the newest is 1180.
    assert page.evaluate(X, "queue") == pytest.approx([1090, 1180])
    reads = "slot => RS.plots().flatMap(([, gd]) => gd.data).find(t => t.meta === slot).x"
    ticks = page.evaluate(reads, "queue.0")
    assert len(ticks) == 721 and ticks[4] == pytest.approx(1090.5)
    reader.clock += STEP
    records = reader.records(fake.RICH)
    records.steps = [*records.steps, StepAt(reader.clock, 1181, 0)]
    reader.append(fake.RICH, fake.TICKS[0][0], [(reader.clock - 5, 7.0), (reader.clock, 8.0)])
    until(page, f"slot => ({LAST})(slot) > 1180.8", "queue.0")
    page.locator("#panel-queue .plot").hover(position={"x": 200, "y": 60})
    assert page.locator(".tooltip > p").first.inner_text().startswith("step 1,1")
    drag(page, "queue")
    until(page, "() => RS.zoom && location.search.includes('start=')")
    low, high = page.evaluate(X, "kv")
    assert 1110 < low < 1125 and 1135 < high < 1155
    # A restart does steps once more: everything has other places.
    records.steps = [*records.steps, *(StepAt(reader.clock + 10.0 * (i + 1), 1171 + i, 1) for i in range(3))]
    reader.clock += 30
    page.locator("#unzoom").click()
    until(page, f"() => Math.round(({X})('queue')[1]) === 1173")
    choose(page, "queue", "Show by time")
    until(page, "() => !RS.byStep() && RS.chartsReady() && RS.plots()[0][1]._fullLayout.xaxis.type === 'date'")
    assert "axis=" not in page.url


def test_an_hour_ago_behind_thresholds_and_marks(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"?run={fake.RICH}")
    limits = page.locator("#panel-queue .limit:visible").all_text_contents()
    assert limits == ["one batch 64", "alert at 20", "alert at 4,096 ↑"]
    choose(page, "queue", "Compare with an hour ago")
    until(page, "() => RS.boot.behind?.[0] === 'an hour ago' && document.querySelector('#panel-queue .behind')")
    assert "over=1h" in page.url
    reason = "stacked charts are not compared"
    assert reason in page.locator("#panel-steps .legend").inner_text()
    assert reason not in page.locator("#panel-queue .legend").inner_text()
    page.locator("#panel-queue .plot").hover(position={"x": 200, "y": 60})
    value = "document.querySelector('#panel-queue [data-slot=\"over:queue.1\"]').textContent"
    until(page, f"() => {value} !== ''")
    choose(page, "queue", "Compare with another run")
    assert page.get_by_role("dialog").locator("b").all_text_contents() == [fake.DONE, fake.POOR]
    page.get_by_role("dialog").locator("li", has_text=fake.DONE).get_by_role("button", name="align ends").click()
    until(page, "name => RS.boot.behind?.[0] === name + ', aligned at the end'", fake.DONE)
    choose(page, "queue", "Stop comparing")
    until(page, "() => !RS.boot.behind && RS.chartsReady() && !document.querySelector('.behind')")
    assert reason not in page.locator("#panel-steps .legend").inner_text()


def test_events_are_in_one_lane_and_a_chart_has_its_own_alerts(open_page: Open, reader: MemoryReader) -> None:
    records = reader.records(fake.RICH)
    records.events += [
        EventInfo(NOW - 2800, "checkpoint", "c", "step 1110"),
        EventInfo(NOW - 1500, "config_change", "d", "max_num_seqs 256 to 384"),
        EventInfo(NOW - 600, "drift", "drift:response_length::40", "response length x1.2 from step 40 on"),
    ]
    alerts = [structs.replace(one, signal="kv_cache_usage_ratio") for one in reader.alerts.active(fake.RICH)]
    reader.set_alerts(*alerts)
    page = open_page(f"?run={fake.RICH}")
    assert page.locator(".keys .item").all_text_contents() == [
        "checkpoint or evaluation", "change of configuration or behaviour", "restart, fault or GPU error", "alert",
        "critical alert", "6 weight updates, v407 to v412",
    ]  # fmt: skip
    pins = page.locator(".pins a")
    assert [pin.get_attribute("class") for pin in pins.all()] == ["saved", "restarted", "changed", "fired", "changed"]
    assert pins.nth(3).get_attribute("aria-label") == "KVCacheExhausted fired, TrainerStarved fired"
    # Each at its time, on the whole width of the lane.
    wide = page.locator(".lane-rows").evaluate("el => el.clientWidth")
    lefts = page.evaluate("RS.all('.pins li').map((li) => parseFloat(li.style.left))")
    assert lefts == pytest.approx([wide * (1 - ago / 3600) for ago in (2800, 2000, 1500, 1001, 600)], abs=2)
    # Under the cursor: its text, and a line at its time on every chart.
    pins.nth(1).hover()
    assert f"Restart: {EVIL}" in page.locator(".tooltip").inner_text() and page.evaluate("window.hacked") is None
    assert page.locator(".panel .cross[data-on='1']").count() == len(PANELS)
    off = page.evaluate(
        """at => RS.plots().map(([el, gd]) => { const axis = gd._fullLayout.xaxis, [a, b] = RS.range();
        const x = new DOMMatrix(getComputedStyle(el.querySelector('.cross')).transform).m41;
        return Math.abs(x - axis._offset - axis._length * (1000 * at + RS.tz - a) / (b - a)); })""",
        NOW - 2000,
    )
    assert max(off) <= 1
    page.keyboard.press("Tab")
    pins.nth(2).focus()
    assert "Configuration: max_num_seqs 256 to 384" in page.locator(".tooltip").inner_text()
    assert page.evaluate("RS.all('.events-fired, .events-warned').map((el) => el.closest('.panel').id)") == [
        "panel-kv", "panel-kv"
    ]  # fmt: skip
    # A change of behaviour is marked on its own chart, at its time, below the sentence that states it.
    assert page.evaluate("RS.all('.events-changed').map((el) => el.closest('.panel').id)") == ["panel-length"]
    assert page.locator("#panel-length .drift").inner_text() == "2,400 → 4,080 (median step), x1.7 since step 40"
    mark = page.locator("#panel-length .events-changed path").get_attribute("d") or ""
    at = page.evaluate(
        """at => { const [el, gd] = RS.plots().find(([el]) => el.dataset.panel === "length"), [a, b] = RS.range();
        const axis = gd._fullLayout.xaxis; return axis._offset + axis._length * (1000 * at + RS.tz - a) / (b - a); }""",
        NOW - 600,
    )
    assert float(mark[1:].split()[0]) == pytest.approx(at, abs=1)
    pins.nth(3).click()
    until(page, "() => RS.boot.key === 'alerts'")
    page.go_back()
    until(page, "() => RS.boot.key === 'overview' && RS.chartsReady()")
    pins.nth(1).click()
    until(page, f"() => RS.boot.start === {NOW - 2300} && RS.boot.end === {NOW - 1700}")


def test_source_age_and_summary(open_page: Open, reader: MemoryReader) -> None:
    evil = structs.replace(fake.signal("queue_samples", 5.0, "samples"), source=EVIL)
    reader.append(fake.RICH, evil, [(NOW, 5.0)])
    page = open_page(f"?run={fake.RICH}&range=15m")
    page.locator("#panel-queue h2").focus()
    tip = page.locator("#panel-queue .tip")
    assert tip.is_visible()
    rows = tip.locator("li")
    assert rows.nth(0).locator("span").inner_text().startswith("queue_samples_now · from trainer-log · ")
    assert rows.nth(1).locator("span").inner_text().startswith(f"queue_samples · from {EVIL} · ")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')").endswith("help#queue_samples_now")
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    plot = page.locator("#panel-reward .plot")
    assert plot.get_attribute("aria-describedby") == "sum-reward"
    # 15 min of 42 s steps: 0.41 and 0.2 an hour, with 0.02 of noise.
    words = page.locator("#sum-reward").inner_text()
    low, high = min(values := reward()), max(values)
    assert words == f"Reward: now {values[-1]:.2f}, between {low:.2f} and {high:.2f} over the last 15 minutes, steady"
    plot.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    said = page.locator("#said-reward").inner_text()
    assert said.endswith(f"mean {values[-2]:.2f}") and page.locator(".panel .cross[data-on='1']").count() == len(PANELS)
    page.keyboard.press("Home")
    assert page.locator("#said-reward").inner_text().endswith(f"mean {values[0]:.2f}")


def reward() -> list[float]:
    curve = next(curve for now, curve in fake.STEPS if now.signal == "reward")
    return [value for i in range(22) if (value := curve(NOW - 42 * (21 - i))) is not None]


def test_keys_go_everywhere_but_not_while_typing(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}")
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog")
    until(page, "() => document.querySelector('.drawer:modal .keys')")
    assert sheet.locator(".keys dd").all_text_contents() == [words for _, words in SHORTCUTS]
    page.keyboard.press("Escape")
    until(page, "() => RS.boot.key === 'overview'")
    page.keyboard.press("1")
    until(page, "() => RS.boot.end - RS.boot.start === 900")
    page.keyboard.press("l")
    assert page.locator("#live-word").inner_text() == "Paused"
    page.keyboard.press("l")
    page.keyboard.press("t")
    assert page.locator("#theme-word").inner_text() == "Light"
    page.keyboard.press("g")
    page.keyboard.press("r")
    until(page, "() => RS.boot.key === 'rollouts'")
    assert "range=15m" in page.url
    field = page.locator("main input:visible").first
    if field.count():
        field.press("g")
        field.press("o")
        assert page.evaluate("RS.boot.key") == "rollouts"
        page.evaluate("document.activeElement.blur()")
    page.keyboard.press("g")
    page.keyboard.press("o")
    until(page, "() => RS.boot.key === 'overview'")


def test_print_has_every_chart(open_page: Open) -> None:
    page = open_page(size=(390, 844))
    until(page, "() => window.Plotly")
    assert page.evaluate("RS.plots().length < RS.charts().length")
    page.evaluate("() => { window.dispatchEvent(new Event('beforeprint')); }")
    assert page.evaluate("RS.plots().length === RS.charts().length")
