"""The run's state on the screen, and charts that show what is there: no wedge over a gap, no cut label, no jump."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.shell import layout as shell_layout
from server.query.run_state import RunState
from server.query.types import RunSummary
from tests.dashboard import everything, fake, fake_actors, fake_alerts
from tests.dashboard.fake_sandboxes import WALL
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

DRAWN = "() => RS.boot && !RS.boot.error && RS.chartsReady() && RS.charts().length > 0"
Open = Callable[..., Page]


@pytest.fixture
def reader() -> MemoryReader:
    return fake.reader()


@pytest.fixture
def open_page(browser: Browser, reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)
    with Serving(lambda: application(reader)) as serving, new_pages(browser) as new:

        def opened(search: str = "", theme: str = "light", size: tuple[int, int] = (1440, 900), **more: Any) -> Page:
            page = new(theme, size, **more)
            page.goto(serving.url + search)
            page.wait_for_selector("[data-page=ok]")
            return page

        yield opened


def test_one_state_in_header_banner_and_runs(open_page: Open, reader: MemoryReader) -> None:
    """One open page follows the run: live, its collector dies, it is collected again from where it was, and ends."""
    run, at = fake.RICH, fake.NOW - 1080
    page = open_page(f"?run={run}")
    chip, title = page.locator(".banner .chip"), page.locator(".banner h1")

    def header() -> tuple[str, str]:
        return page.locator("#live-word").inner_text(), page.locator("#live-age").inner_text()

    until(page, "() => document.getElementById('live').dataset.live === 'live'")
    assert header()[0] == "Live" and header()[1].startswith("updated ")

    reader.set_state(run, RunState("not_collected", at, at))
    until(page, "() => document.getElementById('live').dataset.live === 'not_collected'")
    assert header() == ("Not collected", "for 18 min")
    assert (chip.inner_text(), title.inner_text()[:20]) == ("Not collected", "Not collected since ")
    assert page.locator("#sources").get_attribute("data-state") == "unknown"

    reader.set_state(run, RunState("catching_up", at - 1200, at, 0.41, 38.0, fake.NOW))
    until(page, "() => document.getElementById('live').dataset.live === 'catching_up'")
    assert header() == ("Catching up", "41% · 38 s left")
    assert (chip.inner_text(), title.inner_text()) == ("Catching up", "Reading history: 41%; 38 s left")
    # Charts end where the numbers do.
    until(page, f"() => Math.abs((RS.range()[1] - RS.tz) / 1000 - {at}) < 60")

    reader.set_state(run, RunState("stale", at, at))
    until(page, "() => document.getElementById('live').dataset.live === 'stale'")
    assert header() == ("Stale", "no new data for 18 min")

    reader.change(run, lifecycle="finished")
    reader.set_state(run, RunState("finished", at, at), RunSummary(9090.0, 212, 41.5, None, {}, 0.5312))
    until(page, "() => document.getElementById('live').dataset.live === 'over'")
    until(
        page, "() => document.querySelector('.banner h1').innerText === 'Last step 212 after 2.52 h, final reward 0.53'"
    )
    assert header() == ("Finished", "ended 18 min ago")


def test_the_list_of_runs_shows_the_same(open_page: Open, reader: MemoryReader) -> None:
    reader.set_state(fake.RICH, RunState("not_collected", fake.NOW - 60, fake.NOW - 60))
    reader.set_state(fake.POOR, RunState("catching_up", fake.NOW - 60, fake.NOW - 30, 0.5, 9.0, fake.NOW))
    page = open_page("runs")
    until(page, "() => document.querySelectorAll('[data-rows=runs] tr').length === 3")
    pills = {
        row.locator("th a").inner_text(): row.locator("th .pill").inner_text()
        for row in page.locator("[data-rows=runs] tr").all()
    }
    assert pills == {fake.RICH: "Not collected", fake.POOR: "Catching up", fake.DONE: "Finished"}
    assert page.locator("h1:visible").inner_text() == "0 live runs"
    assert page.locator("#live-word").inner_text() == "No live run"


def test_a_sandbox_that_does_not_apply_is_no_limit(open_page: Open, reader: MemoryReader) -> None:
    for state, marked in (("not_applicable", False), ("critical", True)):
        reader.silence(fake.RICH, fake.signal("sandboxes", state=state, why="no sandbox"))  # type: ignore[arg-type]
        verdict = {
            "outcome": "sandbox_bound",
            "cause": "spin_up",
            "confidence": 0.9,
            "since": fake.NOW - 60,
            "summary": "s",
        }
        reader.set_verdict(fake.RICH, verdict)
        page = open_page(f"?run={fake.RICH}")
        mark = page.evaluate("getComputedStyle(document.querySelector('.flow .sandbox h2'), '::after').content")
        assert (mark == '"the limit"') == marked
        if not marked:
            reader.append(
                fake.RICH, structs.replace(fake.signal("sandboxes", unit="sandboxes"), state="ok"), [(fake.NOW, 3.0)]
            )


def test_a_band_has_a_hole_where_a_line_has_one(open_page: Open, reader: MemoryReader) -> None:
    """Plotly fills across gaps: the band of p90 was a wedge over the time without p90."""
    p90 = next(s for s, _ in fake.STEPS if s.labels.get("stat") == "p90")
    times = [at for at, value in reader._runs[fake.RICH].points[p90.name] if value is not None]
    first, last = times[20], times[40]
    points = reader._runs[fake.RICH].points
    # No p90 for its first ten points, and a gap between the 21st and the 41st.
    points[p90.name] = [
        (at, None if first <= at <= last else value) for at, value in points[p90.name] if at >= times[10]
    ]
    page = open_page(f"?run={fake.RICH}")
    until(page, DRAWN)
    band = "document.querySelector('#graph-length .chart').data.find((t) => t.meta === 'length.1:band')"
    xs, ys = page.evaluate(f"(() => {{ const b = {band}; return [b.x.map((x) => x && x - RS.tz), b.y]; }})()")
    shapes = "".join("x" if x is None else "." for x in xs).strip("x").split("x")
    assert len(shapes) == 2
    inside = [x / 1000 for x in xs if x is not None]
    assert min(inside) == times[10]
    assert not [x for x in inside if first < x < last + 1]
    assert min(y for y in ys if y is not None) > 1000, "the lower edge is p50, never zero"
    # A new point of both lines moves the edge on.
    reader.clock += 42
    p50 = next(s for s, _ in fake.STEPS if s.signal == "response_tokens" and s.labels.get("stat") == "mean")
    for signal, value in ((p50, 4000.0), (p90, 9000.0)):
        reader.append(fake.RICH, signal, [(reader.clock, value)])
    until(page, f"at => {band}.x.includes(at + RS.tz)", 1000 * reader.clock)


def test_a_band_ends_where_both_lines_end(open_page: Open) -> None:
    """Both ended at one time, and the band went on to nothing: it was drawn as a wedge."""
    page = open_page(f"?run={fake.RICH}")
    until(page, DRAWN)
    band = page.evaluate("""() => {
      const line = (meta, y) => ({ meta, x: [1, 2, 3], y });
      const band = { meta: "a:band", customdata: ["b"] };
      RS.bands([line("b", [1, 1, null]), line("a", [5, 6, null]), band]);
      return [band.x, band.y]; }""")
    assert band == [[1, 2, 2, 2, 3, 3, 2, 2, 2, 1, 1, None], [5, 5, 5, 6, 6, 1, 1, 1, 1, 1, 5, None]]


def test_a_tap_reads_the_time_until_the_next_tap(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}", "light", (390, 844), has_touch=True)
    until(page, DRAWN)
    # A chart is drawn once it is near the screen; `tap` waits until it stands still.
    page.locator("#panel-queue .plot").scroll_into_view_if_needed()
    until(page, "() => RS.charts().some(([el, gd]) => el.id === 'panel-queue' && gd.bound && gd._fullLayout)")
    page.locator("#panel-queue .plot").tap(position={"x": 170, "y": 60})
    tooltip = page.locator(".tooltip")
    assert re.match(r"\d\d:\d\d:\d\d", tooltip.inner_text()) and tooltip.is_visible()
    box = tooltip.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert page.locator("#panel-queue .cross").get_attribute("data-on") == "1"
    page.locator("#panel-queue h2").tap()
    assert tooltip.is_hidden() and page.locator(".cross[data-on='1']").count() == 0


SHIFTS = """window.moved = 0; new PerformanceObserver((list) => list.getEntries().forEach((entry) => {
  if (!entry.hadRecentInput) window.moved += entry.value; })).observe({ type: "layout-shift", buffered: true })"""


def test_nothing_moves_while_a_page_loads_and_cards_keep_their_lines(browser: Browser) -> None:
    """Charts fell by 206 px when the banner got its text: a shift of 0.29, on a phone of 0.51 (below 0.1 is good)."""
    pages = (("", fake.RICH), ("generator", fake_actors.RUN), ("trainer", fake_actors.RUN), ("sandboxes", WALL))
    with Serving(lambda: application(everything.reader())) as serving, new_pages(browser) as new:
        for size in ((1440, 900), (1280, 800), (390, 844)):
            for key, run in pages:
                page = new("light", size)
                page.add_init_script(SHIFTS)
                page.goto(f"{serving.url}{key}?run={run}")
                page.wait_for_selector("[data-page=ok]")
                until(page, "() => RS.boot && RS.chartsReady() && RS.ticks() >= 1")
                assert page.evaluate("window.moved") < 0.05, (key, size)
                # Titles are on one line, except on a phone, and every unit is beside its number.
                wrapped = page.evaluate(
                    """most => RS.all('.kpi').filter((card) => card.offsetParent).filter((card) => {
                      const [title, number, unit] = ['h2', '.num', '.unit'].map((name) => card.querySelector(name));
                      const [n, u] = [number, unit].map((el) => el.getBoundingClientRect());
                      return title.offsetHeight > most || title.scrollWidth > title.clientWidth
                        || (unit.textContent && u.width && u.top > n.bottom - 4);
                    }).map((card) => card.innerText)""",
                    46 if size[0] == 390 else 26,
                )
                assert wrapped == [], (key, size)
                page.close()


def test_the_cursor_reads_and_moves_nothing(open_page: Open) -> None:
    """One tooltip with time, step, version and all values. The page does not move: legends keep their height."""
    for size in ((1440, 900), (1280, 800)):
        page = open_page(f"?run={fake.RICH}", size=size)
        until(page, DRAWN)
        plot = page.locator("#panel-queue .plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        page.wait_for_timeout(300)
        page.evaluate(SHIFTS.replace("buffered: true", "buffered: false"))
        for part in (0.2, 0.35, 0.5, 0.65, 0.8, 0.95):
            page.mouse.move(box["x"] + 40 + part * (box["width"] - 50), box["y"] + 60)
            until(page, "() => document.querySelector('.tooltip').dataset.on")
            page.wait_for_timeout(50)
            # As fast as the legend has it, with name and unit, inside the window.
            head, *rows = page.locator(".tooltip > *").all_inner_texts()
            assert re.fullmatch(r"\d\d:\d\d:\d\d", head)
            legend = page.locator("#panel-queue [data-slot]").all_inner_texts()
            assert [row.split("\n") for row in rows[-2:]] == [
                ["now", f"{legend[0]} samples"], ["5 min mean", f"{legend[1]} samples"]
            ]  # fmt: skip
            place = page.locator(".tooltip").bounding_box()
            assert place is not None and place["x"] + place["width"] <= size[0]
        assert page.evaluate("window.moved") == 0


def test_a_time_of_another_day_has_its_date(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, DRAWN)
    assert page.evaluate("at => [at, at - 86400].map((ts) => RS.clockOf(ts, 19))", fake.NOW) == [
        "14:13:20", "09-20 14:13:20"
    ]  # fmt: skip


def test_the_text_of_charts_is_in_the_font_of_the_page(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, DRAWN)
    fonts = "RS.all('.plotly text').map((el) => getComputedStyle(el).fontFamily.split(',')[0])"
    assert set(page.evaluate(fonts)) == {"Inter"}


def test_a_zoom_says_its_time_and_shows_no_toast(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}")
    until(page, DRAWN)
    page.locator("#panel-queue").scroll_into_view_if_needed()
    box = page.locator("#graph-queue .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 40, steps=5)
    page.mouse.up()
    until(page, "() => RS.zoom && document.getElementById('app').dataset.zoom === 'on'")
    clock = page.evaluate("RS.range().map((x) => RS.format.clock(x).slice(0, 5))")
    assert page.locator("#past").inner_text().split("\n") == ["−", f"{clock[0]} to {clock[1]}", "Back to live"]
    assert page.locator(".plotly-notifier .notifier-note").count() == 0


def test_alerts_that_do_not_fit_are_counted(open_page: Open, reader: MemoryReader) -> None:
    names = [row[0] for row in fake_alerts.RULES[:9]]
    reader.set_alerts(*(fake_alerts.alert(name, 0.0, "", 600 + i) for i, name in enumerate(names)))
    page = open_page(f"?run={fake.RICH}")
    until(page, DRAWN)
    until(page, "() => / more/.test(document.getElementById('more-alerts').textContent)")
    seen = page.evaluate(
        """() => { const card = document.getElementById('alerts'), end = card.getBoundingClientRect().bottom;
        const rows = Array.from(card.querySelectorAll('li')).filter((row) => !row.hidden);
        return [rows.length, rows.every((row) => row.getBoundingClientRect().bottom <= end),
          document.getElementById('more-alerts').getBoundingClientRect().bottom <= end]; }"""
    )
    shown, fits, linked = seen
    assert (fits, linked) == (True, True)
    assert page.locator("#more-alerts").inner_text() == f"{9 - shown} more"


def test_no_label_of_a_chart_is_cut(open_page: Open, reader: MemoryReader) -> None:
    """The left margin is as wide as the widest label."""
    reward = next(now for now, _ in fake.STEPS if now.signal == "reward")
    points = reader._runs[fake.RICH].points
    points[reward.name] = [(at, value and 1234567.5 + value / 10) for at, value in points[reward.name]]
    page = open_page(f"?run={fake.RICH}", size=(1440, 2600))
    until(page, DRAWN)
    labels = page.evaluate(
        """() => RS.plots().flatMap(([el, gd]) => RS.all('.ytick text', el).map((text) =>
          [text.textContent, text.getBoundingClientRect().left - gd.getBoundingClientRect().left]))"""
    )
    assert len(max((words for words, _ in labels), key=len)) >= 8, "no long label to cut"
    assert [words for words, left in labels if left < 0] == []


def test_scrolling_draws_no_chart_that_is_not_seen(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}", size=(1440, 700))
    until(page, DRAWN)
    page.evaluate("RS.drawAll()")
    page.locator("#live").click()
    page.wait_for_timeout(600)
    page.evaluate(
        """() => { window.drawn = []; for (const [el, gd] of RS.plots()) gd.on('plotly_afterplot', () => {
          const box = gd.getBoundingClientRect();
          window.drawn.push([el.dataset.panel, box.bottom > 0 && box.top < innerHeight]); }); }"""
    )
    page.mouse.move(700, 400)
    for _ in range(8):
        page.mouse.wheel(0, 150)
        page.wait_for_timeout(60)
    page.wait_for_timeout(300)
    assert page.evaluate("window.scrollY") > 800
    assert [panel for panel, seen in page.evaluate("window.drawn") if not seen] == []


def test_the_axis_of_the_steps_is_not_cut(open_page: Open, reader: MemoryReader, browser: Browser) -> None:
    """At 400 s the middle label is "3.33 min"; cut at its first digit it read "33 min"."""
    del open_page
    made = fake_actors.reader()
    slow = {"trainer_wait_seconds": 250.0, "trainer_step_seconds": 400.0}
    made.put_steps(fake_actors.RUN, *(fake_actors.step(number, **slow) for number in range(100, 120)))
    with Serving(lambda: application(made)) as serving, new_pages(browser) as new:
        page = new("light", (1440, 900))
        page.goto(serving.url + f"trainer?run={fake_actors.RUN}")
        until(page, "() => document.querySelector('.bars-of-steps .axes text')")
        cut = page.evaluate(
            """() => { const svg = document.querySelector('.bars-of-steps svg').getBoundingClientRect();
            return Array.from(document.querySelectorAll('.bars-of-steps .axes text'))
              .map((el) => [el.textContent, el.getBoundingClientRect().left >= svg.left]); }"""
        )
        assert any("." in words and words.endswith("min") for words, _ in cut), cut
        assert all(whole for _, whole in cut), cut
