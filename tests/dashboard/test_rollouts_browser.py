"""The Rollouts page in a real Chromium: numbers and order, filters, pages, the timeline."""

from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser

from server.query.types import RolloutDetail
from tests.dashboard import fake_rollouts as made
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import LOOKS
from tests.dashboard.rollout_pages import IDS, Open, asked, hurry, opening
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser


@pytest.fixture
def reader() -> MemoryReader:
    return made.reader()


@pytest.fixture
def serving(reader: MemoryReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    hurry(monkeypatch)
    with Serving(lambda: application(reader)) as running:
        yield running


@pytest.fixture
def open_page(browser: Browser, serving: Serving) -> Iterator[Open]:
    yield from opening(browser, serving)


def slowest(reader: MemoryReader, **only: object) -> list[str]:
    rows = [row for row in reader.records(made.ASYNC).rows.values()
            if all(getattr(row, name) == value for name, value in only.items())]  # fmt: skip
    known = [row for row in rows if row.seconds is not None and row.moved_at >= made.NOW - 3600]
    return [row.rollout_id for row in sorted(known, key=lambda row: -(row.seconds or 0))]


# ---- what is seen


@pytest.mark.parametrize(("theme", "size"), LOOKS)
def test_what_is_seen_first(open_page: Open, theme: str, size: tuple[int, int]) -> None:
    page = open_page(theme=theme, size=size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.locator("h1:visible").inner_text() == "Trained rollouts are 2.4 versions behind"
    words = "all => all.map(el => `${el.querySelector('h2').innerText} ${el.querySelector('.big').innerText}`)"
    assert [" ".join(text.split()) for text in page.locator(".kpi:visible").evaluate_all(words)] == [
        "Staleness 2.4 versions",
        "Token staleness 1.9 versions",
        "Environment state 0.8 versions",
        "Mixed versions 31 %",
        "Zero advantage 48 %",
        "Tail index 6.2 ×",
        "Oldest sample 21 min",
        "Infra failures 1.1 %",
    ]
    assert page.locator(".known h2").all_inner_texts() == [
        "Where rollouts went",
        "In flight now",
        "Staleness over time",
        "Response length over time",
        "Groups, newest first",
        "Solve rates",
        "Zero advantage",
        "Discarded",
        "Rollouts",
    ]
    assert page.title() == f"Rollouts · {made.ASYNC} · Rollscope"
    assert page.locator("#ro-funnel .note", has_text="biased by length").inner_text() == (
        "Discarded rollouts are at least 1.3 times as long as trained ones (3,406 against 2,617 tokens on average; "
        "20 of 1,112 were cut short): the discard is biased by length."
    )
    assert page.locator("[data-rows=ro-discarded] .bar").count() == 3
    # Nothing that is drawn is cut off, and no word lies on another.
    cut = "() => RS.all('.known svg').filter(el => el.getBoundingClientRect().right > innerWidth).length"
    assert page.evaluate(cut) == 0
    clash = """() => { const all = RS.all('.exits text').map(el => el.getBoundingClientRect()).filter(r => r.width);
      return all.filter((a, i) => all.some((b, j) => j > i && a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 4 && b.top < a.bottom - 4)).length; }"""
    assert page.evaluate(clash) == 0


def test_where_rollouts_went_in_exact_numbers(open_page: Open) -> None:
    page = open_page()
    label = page.locator(".exits svg").get_attribute("aria-label")
    bars = [page.evaluate(f"RS.view['exits.{i}']") for i in range(2)]
    (trained, tokens), (zero, zero_tokens) = ((bar["rollouts"], bar["response_tokens"]) for bar in bars)
    assert label == (
        f"trained: {trained:,} rollouts, {tokens:,} tokens · 212,401 GPU-seconds · $118.00; "
        f"zero advantage: {zero:,} rollouts, {zero_tokens:,} tokens · 160,112 GPU-seconds · $88.95; "
        f"too stale: 64 rollouts, 458,650 tokens; infra error: 20 rollouts, 123,063 tokens; "
        "not recorded (estimated): 1,204,000 tokens · 31,000 GPU-seconds · $17.22; in flight: 127 rollouts"
    )
    shown = page.locator(".exits .count").all_text_contents()
    assert shown[0] == f"{trained:,}" and "127" in shown and "1,204,000" in shown
    width = page.locator(".exits rect.trained").first.evaluate("el => +el.getAttribute('width')")
    whole = page.locator(".exits rect.zero_advantage").first.evaluate("el => +el.getAttribute('width')")
    assert width / whole == pytest.approx(trained / zero, abs=0.01)
    # What is worked out, not counted, looks like it.
    assert page.locator(".exits rect.derived").count() == 3
    assert page.locator(".exits tspan").text_content() == "estimated"


def test_heat_map_says_its_number_under_the_cursor(open_page: Open) -> None:
    page = open_page(size=(1440, 1700))
    at = int((made.NOW - 600) // 60)
    cell = dict(page.evaluate("at => RS.view['staleness_heat.' + at]", at))
    value = max(cell, key=lambda v: cell[v])
    place = page.evaluate(
        """([at, value]) => { const m = document.querySelector('[data-draw=staleness_heat]').look;
        return [m.x((at + .5) * 60000 + RS.tz), m.y(value + .5)]; }""",
        [at, value],
    )
    page.locator("[data-draw=staleness_heat]").hover(position={"x": place[0], "y": place[1]})
    assert page.locator(".tooltip > p").inner_text() == f"{value} versions: {cell[value]}"
    page.mouse.move(2, 2)
    assert page.locator(".tooltip").is_hidden()


def test_lines_lie_where_the_rollouts_do(open_page: Open, reader: MemoryReader) -> None:
    """Of ten rollouts of 2 and one of 5 versions the middle is 2, the 95th percentile 5."""
    kept = reader.records(made.ASYNC)
    kept.rows.clear()
    told = {"consumed": 500, "response_tokens": 1024, "seconds": 1.0}
    rows = [made.made(f"a{i}", "trained", 1800, staleness=2 if i else 5, **told) for i in range(11)]
    reader.put_rollouts(made.ASYNC, *rows)
    page = open_page()
    middle, high = (
        page.evaluate(
            """name => { const m = document.querySelector('[data-draw=staleness_heat]').look;
            const path = document.querySelector('[data-draw=staleness_heat] path.' + name).getAttribute('d');
            const y = +path.match(/ ([\\d.]+)/)[1];
            return (m.bottom - y) / m.tall; }""",
            name,
        )
        for name in ("dashed", "solid")
    )
    assert (middle, high) == (pytest.approx(2.5, abs=0.01), pytest.approx(5.5, abs=0.01))
    # 1,024 tokens begin a row: their line is in it, which goes up to 1,448.
    assert "1,448" in page.locator("[data-draw=length_heat] .axes text").all_text_contents() or page.evaluate(
        "document.querySelector('[data-draw=length_heat]').look.row(0)"
    ).startswith("1,024 to 1,448")


def test_groups_are_read_at_a_glance(open_page: Open) -> None:
    page = open_page()
    row = page.locator("[data-rows=groups] tr").filter(has_text="mixed").first
    cells = [" ".join(text.split()) for text in row.locator("th, td").all_inner_texts()]
    assert cells[0] == "g-0241 terminal · v568" and cells[1] == "0 to 1, mean 0.38"
    assert cells[2] == "38% 8 of 8 done" and cells[3] == "mixed"
    page.locator("[data-filter=outcome]").select_option("all_solved")
    until(page, "() => RS.all('[data-rows=groups] .pill').every(el => el.textContent === 'all solved')")
    assert asked(page) == {"outcome": "all_solved"}
    assert page.locator("[data-rows=groups] tr").count() == 12
    page.locator("#more-groups").click()
    until(page, "() => RS.all('[data-rows=groups] tr').length === 24")
    shown = page.locator("[data-rows=groups] tr th button.long").all_inner_texts()
    assert len(set(shown)) == 24
    # A group leads to its rollouts.
    page.locator("[data-rows=groups] th button.long").first.click()
    until(page, f"group => ({IDS})().length === 8 && ({IDS})().every(id => id.startsWith(group))", "r" + shown[0][1:])
    assert page.locator("#ro-group").inner_text() == f"group {shown[0]} ×"
    page.locator("#ro-group").click()
    until(page, f"() => ({IDS})().length === 50")


# ---- the table


def test_stragglers_first_then_by_any_listed_column(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    assert page.evaluate(IDS) == slowest(reader)[:50]
    sorted_by = "() => RS.all('#ro-table [aria-sort]').map(th => [th.innerText, th.getAttribute('aria-sort')])"
    assert page.evaluate(sorted_by) == [["Took", "descending"]]
    page.locator("#ro-table thead").get_by_role("button", name="Tokens").click()
    rows = [row for row in reader.records(made.ASYNC).rows.values() if row.response_tokens is not None]
    most = max(rows, key=lambda row: row.response_tokens or 0)
    until(page, f"id => ({IDS})()[0] === id", most.rollout_id)
    assert page.evaluate(sorted_by) == [["Tokens", "descending"]] and asked(page) == {"sort": "response_tokens"}
    page.locator("#ro-table thead").get_by_role("button", name="Tokens").press("Enter")
    least = min(rows, key=lambda row: row.response_tokens or 0)
    until(page, f"id => ({IDS})()[0] === id", least.rollout_id)
    assert page.evaluate(sorted_by) == [["Tokens", "ascending"]]
    page.reload()
    until(page, f"id => RS.boot && ({IDS})()[0] === id", least.rollout_id)
    assert page.evaluate(sorted_by) == [["Tokens", "ascending"]]


def test_filters_are_asked_of_the_server(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.locator("[data-filter=state]").select_option("infra_error")
    errors = slowest(reader, state="infra_error")
    until(page, f"n => ({IDS})().length === n", len(errors))
    assert page.evaluate(IDS) == errors
    page.locator("[data-filter=environment]").select_option("math")
    few = slowest(reader, state="infra_error", environment="math")
    until(page, f"n => ({IDS})().length === n", len(few))
    assert page.evaluate(IDS) == few and 0 < len(few) < len(errors)
    assert asked(page) == {"state": "infra_error", "environment": "math"}
    link = page.locator("#ro-csv").get_attribute("href")
    assert link is not None and "format=csv&state=infra_error&environment=math&sort=seconds&order=desc&start=" in link
    page.locator("#ro-clear").click()
    until(page, f"() => ({IDS})().length === 50")
    assert asked(page) == {} and page.locator("#ro-clear").is_hidden()
    page.locator("[data-filter=mixed]").select_option("0")
    until(page, f"id => ({IDS})()[0] === id", slowest(reader, mixed=False)[0])
    page.locator("#ro-clear").click()
    page.get_by_label("Find rollouts or groups").fill("r-0147")
    until(page, f"() => ({IDS})().length === 8")
    assert page.evaluate(IDS)[0].startswith("r-0147-") and asked(page) == {"find": "r-0147"}
    page.get_by_label("Find rollouts or groups").fill("nobody's")
    until(page, "() => document.querySelector('#said-rollouts').innerText === 'No matching rollouts.'")
    page.get_by_label("Find rollouts or groups").fill("")
    until(page, f"() => ({IDS})().length === 50")


def test_pages_follow_by_key_and_stand_still(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    whole = slowest(reader)
    page.locator("#more-rollouts").click()
    until(page, f"() => ({IDS})().length === 100")
    page.locator("#more-rollouts").click()
    until(page, f"() => ({IDS})().length === 150")
    assert page.evaluate(IDS) == whole[:150]
    assert any(call.startswith("rollouts") and call.endswith("1:" + whole[49]) for call in reader.calls)
    # News does not shift rows that are being read; the first page comes back on demand, with the news.
    reader.put_rollouts(made.ASYNC, made.made("newest", "trained", 0, seconds=90_000.0))
    until(page, "() => RS.view['rollout_rows.r.' + RS.view['rollout_rows.order'][0]].rollout_id === 'newest'")
    assert page.evaluate(IDS) == whole[:150]
    assert page.locator("#said-rollouts").inner_text().startswith("150 rows, not live.")
    page.get_by_role("button", name="Back to the live list").click()
    until(page, f"() => ({IDS})().join() === {['newest', *whole[:49]]}.join()")


def test_census_leads_to_the_rollouts_in_that_state(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    rows = page.locator("[data-rows=ro-census] li")
    assert [" ".join(text.split()) for text in rows.all_inner_texts()][:3] == [
        "waiting for a slot 0", "sandbox booting 0", "generating 25 min 26",
    ]  # fmt: skip
    assert rows.nth(0).locator("button").is_disabled()
    rows.nth(2).locator("button").click()
    live = [row for row in reader.records(made.ASYNC).rows.values() if row.state == "generating"]
    live.sort(key=lambda row: (row.moved_at, row.rollout_id))
    until(page, f"n => ({IDS})().length === n", len(live))
    # The longest there first, whatever the time shown.
    assert page.evaluate(IDS)[0] == live[0].rollout_id
    assert page.locator("#ro-table .unit").first.inner_text() == "in flight, any time"
    assert asked(page) == {"state": "generating", "sort": "moved", "order": "asc"}
    first = page.locator("[data-rows=rollouts] tr").first.locator("td").nth(1)
    assert "so far" in first.inner_text() and "min" in first.inner_text()


# ---- one rollout


def test_row_opens_a_timeline_that_can_be_shared(open_page: Open, browser: Browser) -> None:
    page = open_page(more="&find=" + made.OPEN)
    until(page, f"() => ({IDS})().length === 1")
    page.locator("[data-rows=rollouts] th button.long").click()
    until(page, "() => document.querySelector('.timeline .span')")
    assert asked(page) == {"find": made.OPEN, "rollout": made.OPEN, "life": "1"}
    panel = page.locator("#ro-open")
    assert panel.get_attribute("role") == "dialog" and page.evaluate("document.activeElement.textContent") == "Close"
    kinds = page.locator(".timeline .span").evaluate_all("all => all.map(el => el.getAttribute('class').split(' ')[1])")
    assert kinds == ["queued", "boot", "prefill", "decode", "tool", "decode", "suspended", "decode", "scoring",
                     "waiting_group", "in_queue"]  # fmt: skip
    first = page.evaluate("RS.view.rollout_detail.versions[0][0]")
    shades = page.locator(".timeline .decode.span").evaluate_all(
        "all => all.map(el => +el.getAttribute('fill-opacity'))"
    )
    assert shades == sorted(set(shades)) and shades[-1] == 1
    titles = page.locator(".timeline .decode.span title").all_text_contents()
    assert titles == [f"decode · v{first} · 20 s", f"decode · v{first + 1} · 16 s", f"decode · v{first + 2} · 25 s"]
    # Twice as long, twice as wide: the tool took 14 s, the boot 9.
    wide = {name: page.locator(f".timeline .{name}.span").evaluate("el => +el.getAttribute('width')")
            for name in ("tool", "boot")}  # fmt: skip
    assert wide["tool"] / wide["boot"] == pytest.approx(14 / 9, rel=0.02)
    assert page.locator(".timeline .mark").all_text_contents() == [f"v{first + i}" for i in (1, 2, 3, 4)]
    assert page.locator(".timeline .sibling").count() == 7
    facts = dict(zip(page.locator("#ro-open dt").all_inner_texts(), page.locator("#ro-open dd").all_inner_texts(),
                     strict=True))  # fmt: skip
    assert facts["Staleness"] == "4 versions = 2 in flight + 1 in group + 1 in queue"
    assert facts["Environment staleness"] == "1 version, mean (upper bound)"
    assert facts["Versions"] == f"v{first} to v{first + 2}, consumed at v{first + 4}"
    turns = [" ".join(text.split()) for text in page.locator("#ro-open tbody tr").all_inner_texts()]
    assert turns == [f"1 v{first} 1 changed it –", f"2 v{first + 1} 1 changed nothing 1 version",
                     f"3 v{first + 2} 1 may have changed it 2 versions",
                     f"4 v{first + 2} 0 reset before –"]  # fmt: skip
    drawn = page.locator(".timeline").inner_html()
    # The address alone shows the same.
    other = open_page(more="&" + urlsplit(page.url).query.split("&", 1)[1])
    until(other, "() => document.querySelector('.timeline .span')")
    assert other.locator(".timeline").inner_html() == drawn


def test_escape_closes_and_the_row_has_the_focus(open_page: Open) -> None:
    page = open_page()
    page.locator("[data-rows=rollouts] th button.long").nth(2).click()
    until(page, "() => document.querySelector('.timeline .span')")
    name = page.evaluate(IDS)[2]
    page.keyboard.press("Escape")
    until(page, "() => document.querySelector('#ro-open').hidden")
    assert page.evaluate("document.activeElement.textContent") == name and asked(page) == {}
    # The browser's own "back" and "forward" do the same.
    page.go_back()
    until(page, "() => !document.querySelector('#ro-open').hidden && document.querySelector('.timeline .span')")
    page.go_forward()
    until(page, "() => document.querySelector('#ro-open').hidden")
    # Anywhere in the row is a target, too.
    page.locator("[data-rows=rollouts] tr").nth(1).locator("td").nth(2).click()
    until(page, "() => document.querySelector('.timeline .span')")
    assert page.locator("#ro-open h2").inner_text() == page.evaluate(IDS)[1]
    # A sibling is one step away.
    sibling = page.locator(".timeline a").first
    label = str(sibling.get_attribute("aria-label"))
    sibling.press("Enter")
    until(page, "label => label.startsWith(document.querySelector('#ro-open h2').innerText)", label)


def test_exports_lead_to_the_api(open_page: Open, reader: MemoryReader) -> None:
    odd = "a/b?c#d é"
    reader.put_rollouts(made.ASYNC, made.made(odd, "trained", 5, seconds=90_000.0))
    page = open_page(more="&rollout=" + quote(odd, safe=""))
    until(page, "() => document.querySelector('#ro-open dl')")
    trace = page.get_by_role("dialog").get_by_role("link", name="Perfetto").get_attribute("href")
    assert trace == f"/api/v1/runs/{made.ASYNC}/rollouts/{quote(odd, safe='')}/trace"
    whole = page.locator("#ro-trace").get_attribute("href")
    assert whole is not None and whole.startswith(f"/api/v1/runs/{made.ASYNC}/rollouts/trace?start=")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "No times reported: push dispatched_at, started_at, finished_at."),
        ({"dispatched_at": 90.0, "finished_at": 10.0}, "The reported times give no bar: push started_at."),
        ({"scored_at": 5.0}, "The reported times give no bar: push dispatched_at, started_at, finished_at."),
    ],
)
def test_a_timeline_without_a_bar_names_the_times_that_are_missing(
    open_page: Open, reader: MemoryReader, told: dict[str, float], words: str
) -> None:
    row = made.made("bare", "trained", 5, seconds=80.0, **{name: made.NOW - ago for name, ago in told.items()})
    reader.put_detail(made.ASYNC, RolloutDetail(row, (), False, ()))
    page = open_page(more="&rollout=bare")
    until(page, "() => document.querySelector('#ro-open dl')")
    assert words in page.locator("#ro-open .note").all_inner_texts()


def test_unknown_rollout_is_said(open_page: Open) -> None:
    page = open_page(more="&rollout=nobody")
    until(page, "() => document.querySelector('#ro-open-body').innerText.startsWith('No rollout with this ID')")
