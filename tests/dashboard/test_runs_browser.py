"""Runs, compare, Targets, Help and the navigation in a real Chromium, with many runs in memory."""

from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page, Route

from dashboard.pages.runs import data as runs_data
from dashboard.pages.sources import data as targets_data
from dashboard.shell import layout as shell_layout
from tests.dashboard import fake_fleet as fleet
from tests.dashboard.fake import NOW
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
NAMES = "() => RS.all('[data-rows=runs] tr').map(tr => tr.querySelector('th a').textContent)"
DRAWN = "count => document.querySelectorAll('.run-line').length === count && !document.querySelector('#compare').hidden"
BEGINS = "() => RS.all('.run-line').map(el => el.getAttribute('d').match(/^M([\\d.]+)/)[1])"
# A minute later by the page's clock: what lives is read again.
LATER = "() => { const now = performance.now.bind(performance); performance.now = () => now() + 60000; }"
NARROWER = "() => { const el = document.querySelector('.lines'); el.style.width = el.clientWidth - 9 + 'px'; }"
DOUBLE = "() => RS.all('[id]').map(el => el.id).filter((id, i, all) => all.indexOf(id) !== i)"


@pytest.fixture
def reader() -> MemoryReader:
    return fleet.reader(12)


@pytest.fixture
def serving(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 400)
    for module in (runs_data, targets_data):
        monkeypatch.setattr(module, "KEEP_SECONDS", 0.1)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens an address."""
    with new_pages(browser) as new:

        def opened(path: str, theme: str = "light", size: tuple[int, int] = (1440, 900)) -> Page:
            page = new(theme, size)
            page.goto(serving.url + path)
            page.wait_for_selector("[data-page=ok]")
            return page

        yield opened


def query(page: Page) -> dict[str, str]:
    return {key: values[-1] for key, values in parse_qs(urlsplit(page.url).query).items()}


def table(page: Page, at: int) -> list[list[str]]:
    rows = page.locator(".compared-one").nth(at).locator("tbody tr")
    cells = "all => all.map(tr => Array.from(tr.children).map(el => el.lastElementChild.textContent))"
    found: list[list[str]] = rows.evaluate_all(cells)
    return found


def test_list_is_sorted_filtered_and_stays_live(open_page: Open, reader: MemoryReader) -> None:
    page = open_page("runs")
    names = page.evaluate(NAMES)
    # What lives goes before what is over, the gravest alert first.
    assert names[:4] == [fleet.STAR, fleet.SLOW, fleet.EVIL, fleet.SYNC] and len(names) == 18
    assert names.index(fleet.DEAD) < names.index(fleet.DONE)
    first = " ".join(page.locator("[data-rows=runs] tr").first.inner_text().split())
    assert "Generator-bound KV capacity · high confidence · for 12 min 180 63% 2.21 4.48 1 firing 0 s ago" in first
    # Nobody told of it: no zero; and a name is a name.
    assert page.title() == "(2) Runs · all runs · Rollscope"
    evil = page.locator("[data-rows=runs] tr", has_text="onerror")
    assert evil.locator("td").nth(3).text_content() == "–"
    assert page.locator("[data-rows=runs] img").count() == 0
    page.get_by_role("button", name="Wait").click()
    assert page.evaluate(NAMES)[:2] == [fleet.STAR, fleet.SLOW] and query(page)["sort"] == "-wait"
    assert page.evaluate(NAMES)[-2:] == [fleet.EVIL, fleet.SYNC]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Wait")
    page.get_by_role("button", name="Wait").click()
    # 1% of a sweep is the least; what is not known is still last.
    assert page.evaluate(NAMES)[0] == "sweep-000" and page.evaluate(NAMES)[-1] == fleet.SYNC
    page.locator("#rn-find input").fill("slime crashed")
    until(page, "() => document.querySelectorAll('[data-rows=runs] tr').length === 1")
    assert page.evaluate(NAMES) == [fleet.DEAD] and query(page)["find"] == "slime crashed"
    assert page.locator("#rn-said").inner_text() == "1 of 18 runs."
    page.locator("#rn-find input").fill("")
    box = page.get_by_role("checkbox", name=f"Compare {fleet.STAR}")
    until(page, "() => document.querySelectorAll('[data-rows=runs] tr').length === 18")
    box.focus()
    reader.append(fleet.STAR, fleet.number(0, "trainer_wait_ratio", "ratio", "critical"), [(NOW, 0.41)])
    until(page, "name => RS.runRow(name).wait.text === '41%'", fleet.STAR)
    # The row is drawn anew around the box that has the focus.
    assert page.evaluate("document.activeElement.type") == "checkbox"
    row = page.locator("[data-rows=runs] tr", has_text=fleet.STAR)
    assert row.locator("td").nth(3).text_content() == "41%"


def test_chosen_runs_are_drawn_beside_each_other(open_page: Open, reader: MemoryReader) -> None:
    page = open_page("runs")
    page.get_by_role("checkbox", name=f"Compare {fleet.DONE}").check()
    assert "Choose one more" in page.locator("#rn-chosen").inner_text() and page.locator("#compare").is_hidden()
    page.get_by_role("checkbox", name=f"Compare {fleet.STAR}").check()
    page.get_by_role("checkbox", name=f"Compare {fleet.SYNC}").check()
    # The third has no line: its row says why.
    until(page, "() => document.querySelectorAll('.compared-one tbody tr').length === 3")
    until(page, DRAWN, 2)
    assert query(page)["compare"] == f"{fleet.DONE},{fleet.STAR},{fleet.SYNC}"
    assert table(page, 0)[2][1] == "a synchronous trainer does not wait"
    assert page.locator(".compared-one .letter").all_inner_texts() == ["A", "B", "C"]
    until(page, "() => document.querySelector('#cm-head select').options.length > 1")
    assert page.locator("#cm-head optgroup").evaluate_all("all => all.map(el => el.label)") == ["queue", "trainer"]
    page.locator("#cm-head select").select_option(label="Reward: mean")
    until(page, DRAWN, 4)
    assert query(page)["signal"] == 'trainer_wait_ratio,reward{stat="mean"}'
    page.get_by_role("button", name="Remove " + fleet.SYNC).click()
    until(page, "() => document.querySelectorAll('.compared-one tbody tr').length === 4")
    page.get_by_role("button", name="Remove Trainer wait").click()
    until(page, DRAWN, 2)
    assert page.locator(".compared-one h3").all_inner_texts() == ["Reward"]
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#compare").is_hidden() and "compare" not in query(page)


def test_a_shared_link_shows_the_same_figures(open_page: Open, reader: MemoryReader) -> None:
    for name, values, start in (("up", (1.0, 2.0, 3.0, 4.0, 5.0), 1000.0), ("late", (10.0, 20.0, 30.0), 300.0)):
        reader.add_run(name, "finished" if name == "late" else "running")
        begin = NOW - start
        made = fleet.number(0, "staleness_versions", "versions", level="token", stat="mean")
        reader.append(name, made, [(begin + 100 * i, value) for i, value in enumerate(values)])
        reader.set_steps(name, *((begin + 100 * i, 7 + i) for i in range(len(values))))
    ask = "runs?compare=up,late,nobody&signal=" + quote('staleness_versions{level="token",stat="mean"}')
    page = open_page(ask)
    until(page, DRAWN, 2)
    # Of 1 to 5 the median is 3 and the 95th percentile 4.8; of 10, 20, 30 they are 20 and 29.
    assert table(page, 0)[:2] == [
        ["up", "5", "3", "4.8"],
        ["late", "30", "20", "29"],
    ]
    assert page.locator("#cm-said").inner_text() == "nobody: no such run."
    # Aligned at their start: both lines begin at the left edge.
    assert page.evaluate(BEGINS) == ["52.0", "52.0"]
    page.locator("[data-way=step]").click()
    until(page, "() => document.querySelector('.lines .axes').textContent.includes('10')")
    until(page, DRAWN, 2)
    assert query(page)["by"] == "step" and page.evaluate("() => RS.wanted('by')") == "step"
    chart = page.locator(".lines").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".compared-one .at").inner_text() == "step 7"
    assert table(page, 0)[0][1] == "1" and table(page, 0)[1][1] == "10"
    # Drawn anew, by newer data or for another width: the figures under the cursor stay.
    for anew in (LATER, NARROWER):
        page.evaluate("() => { document.querySelector('.lines svg').id = 'old'; }")
        page.evaluate(anew)
        until(page, "() => !document.querySelector('#old')")
        assert page.locator(".compared-one .at").inner_text() == "step 7"
        assert table(page, 0)[0][1] == "1" and table(page, 0)[1][1] == "10"
    page.keyboard.press("Tab")
    assert table(page, 0)[0][1] == "5"
    page.locator("[data-way=clock]").click()
    until(
        page,
        f"() => {{ const [up, late] = ({BEGINS})(); return up === '52.0' && late > 400; }}",
    )
    # A run that lives draws on.
    reader.append("up", fleet.number(0, "staleness_versions", "versions", level="token", stat="mean"), [(NOW, 9.0)])
    page.evaluate("() => RS.want({by: null})")
    until(page, "() => document.querySelector('.compared-one tbody .num').textContent === '9'")


def test_targets_are_filtered_and_their_keys_told_on_demand(open_page: Open, reader: MemoryReader) -> None:
    page = open_page(f"sources?all=1&run={fleet.STAR}")
    rows = page.locator("[data-rows=targets] tr:not(.keys-of)")
    until(page, "() => document.querySelectorAll('[data-rows=targets] tr').length === 6")
    assert page.locator("h1:visible").inner_text() == "4 of 6 targets up"
    assert " ".join(rows.first.inner_text().split()).startswith(
        "vllm-1 generator · vllm qwen3-8b-swe-v41 Down connection refused 6 min ago 0.02 s 181"
    )
    assert [word.split()[0] for word in page.locator("[data-rows=targets] td:nth-child(3)").all_inner_texts()] == [
        "Down",
        "Waiting",
        "Up",
        "Up",
        "Up",
        "Up",
    ]
    page.get_by_role("button", name="2 keys").click()
    until(page, "() => document.querySelectorAll('.keys-of li').length === 2")
    assert page.locator(".keys-of li").all_inner_texts() == ["perf/new_key × 12", "rollout/<b>x</b> × 3"]
    assert page.locator(".keys-of b").count() == 0
    assert page.get_by_role("button", name="2 keys").get_attribute("aria-expanded") == "true"
    page.get_by_role("button", name="2 keys").click()
    until(page, "() => document.querySelectorAll('.keys-of').length === 0")
    page.get_by_role("button", name="Only unhealthy").click()
    until(page, "() => document.querySelectorAll('[data-rows=targets] tr').length === 3")
    assert query(page)["unhealthy"] == "1"
    page.locator("#tg-find input").fill("refused")
    until(page, "() => document.querySelectorAll('[data-rows=targets] tr').length === 1")
    # It comes back: nothing is left to show, and the page says so.
    reader.set_targets(fleet.STAR, fleet.target(fleet.STAR, "vllm-1"))
    until(page, "() => RS.view['targets.none'] === 'No target matches.'")
    assert page.locator("[data-rows=coverage-lack] li").all_inner_texts() == ["Generation\ngenerator\nadd engines"]
    page.get_by_role("link", name="Generation").click()
    until(page, "() => document.querySelector('details.hit')?.open")
    assert urlsplit(page.url).fragment == "generator_tokens_per_second" and urlsplit(page.url).path == "/help"
    # What was asked of that page is not asked of this one.
    assert set(query(page)) <= {"run"}


def test_help_is_found_by_address_and_by_word(open_page: Open) -> None:
    page = open_page("help#staleness_versions")
    until(page, "() => document.querySelector('details.hit')")
    shown = page.locator("details.hit").inner_text()
    assert page.locator("details.hit").get_attribute("id") == "staleness_versions"
    assert "How far behind." in shown and "verl reported directly" in " ".join(shown.split())
    place = page.locator("details.hit").bounding_box()
    assert place is not None and 84 <= place["y"] < 900
    page.locator("#hp-find input").fill("million tokens")
    until(page, "() => document.querySelectorAll('.helplist details:not([hidden])').length === 1")
    assert page.locator("#cost_usd_per_million_tokens dd").first.inner_text() == "What a million tokens cost."
    assert page.locator("#hp-said").inner_text() == "1 signal of 6."
    assert page.locator("#shortcuts kbd").first.inner_text() == "?"
    # Keys beside what they do, inside their card.
    assert page.evaluate("""() => { const end = document.getElementById('shortcuts').getBoundingClientRect().right;
      return RS.all('#shortcuts dd').every(el => el.getBoundingClientRect().right <= end && el.offsetHeight < 60) }""")
    assert "Zero-advantage group" in page.locator("#words").inner_text()
    # Anchors are of one element each, or they would jump elsewhere.
    assert page.evaluate(DOUBLE) == []


def test_all_pages_are_reached_by_thumb(open_page: Open, reader: MemoryReader) -> None:
    """Three pages are in the bar at the bottom, the others behind More; the header stays in view."""
    page = open_page(f"help?run={fleet.STAR}", size=(390, 844))
    left = "(one, other) => one.getBoundingClientRect().x - other.getBoundingClientRect().x"
    bar = page.locator("#pages > :visible").evaluate_all(
        f"all => all.sort({left}).map(el => el.firstChild.textContent)"
    )
    assert bar == ["Overview", "Alerts", "Rollouts", "More"]
    for name in ("overview", "alerts", "rollouts"):
        page.locator(f"[data-nav={name}]").click()
        until(page, "name => RS.boot.key === name && document.querySelector(`[data-nav=${name}][aria-current]`)", name)
        place = page.locator("[data-nav][aria-current]").bounding_box()
        assert place is not None and place["height"] >= 44 and 780 <= place["y"] <= 844 - place["height"]
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    rest = ["sandboxes", "generator", "trainer", "explore", "sources", "what-if", "help", "runs"]
    assert sorted(page.locator(".rest a").evaluate_all("all => all.map(el => el.dataset.nav)")) == sorted(rest)
    for name in rest:
        page.locator("#more > summary").click()
        page.locator(f".rest [data-nav={name}]").click()
        until(page, "name => RS.boot.key === name && !document.querySelector('#more').open", name)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.mouse.wheel(0, 600)
        if name in ("what-if", "help"):
            box = page.locator(".drawer:modal").bounding_box()
            assert box == {"x": 0, "y": 0, "width": 390, "height": 844}
            page.get_by_role("button", name="Close").click()
            until(page, "() => RS.boot.key === 'sources'")
        else:
            assert page.locator("header").bounding_box()["y"] == 0  # type: ignore[index]
            assert page.locator("#run-name").is_visible()
    page.get_by_role("checkbox", name=f"Compare {fleet.STAR}").check()
    page.get_by_role("checkbox", name=f"Compare {fleet.SLOW}").check()
    until(page, DRAWN, 2)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    reader.set_alerts(*(structs.replace(fleet.alert(fleet.STAR), fingerprint=f"f{i}") for i in range(120)))
    until(page, "() => document.title.startsWith('(120)')")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_run_is_deleted_after_a_confirmation_and_a_collected_one_cannot_be(open_page: Open) -> None:
    page = open_page("/runs")
    page.forgiven = True  # type: ignore[attr-defined]
    sent: list[tuple[str, str]] = []

    def answer(route: Route) -> None:
        sent.append((route.request.method, route.request.url.partition("/api")[2]))
        body = '{"deleted": "x"}' if len(sent) > 1 else '{"detail": "run x is being collected"}'
        route.fulfill(status=200 if len(sent) > 1 else 409, content_type="application/json", body=body)

    page.route("**/api/v1/runs/**", answer)
    # [state, is its button enabled?] of every row: only a run that nothing collects can be deleted.
    states = page.evaluate("() => Object.fromEntries(RS.list('runs.').map(row => [row.name, row.state.name]))")
    buttons = page.evaluate(
        "() => RS.all('.fleet .delete').map(el => [el.closest('tr').querySelector('th a').textContent, !el.disabled])"
    )
    rows = [(name, states[name], enabled) for name, enabled in buttons]
    assert {state for _, state, enabled in rows if not enabled} <= {"live", "catching_up", "stale"}
    name = next(name for name, _, enabled in rows if enabled)
    button = page.locator(f'[aria-label="Delete {name}"]')
    button.click()
    page.locator(".sheet >> text=Close").click()
    assert sent == []
    button.click()
    page.locator(".sheet button.strong").click()
    page.wait_for_function("() => document.querySelector('.sheet .error').textContent")
    assert page.locator(".sheet .error").text_content() == "Not deleted: run x is being collected"
    page.locator(".sheet button.strong").click()
    page.wait_for_selector(".sheet", state="detached")
    path = f"/v1/runs/{quote(name)}?confirm={quote(name)}"
    assert sent == [("DELETE", path), ("DELETE", path)]
