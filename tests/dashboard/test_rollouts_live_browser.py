"""The Rollouts page in a real Chromium: what is live, weight updates on every chart, what is missing, hostile names."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec import structs
from playwright.sync_api import Browser

from dashboard.charts.panels import PANELS
from server.query.types import EventInfo
from tests.dashboard import fake
from tests.dashboard import fake_rollouts as made
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.rollout_pages import IDS, Open, asked, hurry, opening
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror=\"document.title='owned'\">"


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


# ---- live


def test_everything_is_live(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.evaluate("window.same = 1")
    was = page.evaluate(
        "[RS.view['exits.0'].rollouts, RS.view['staleness_heat.total'], RS.view['rollout_rows.order'].length]"
    )
    name = made.of("staleness_versions", "versions", level="trajectory", stat="mean")
    reader.append(made.ASYNC, name, [(reader.clock, 3.5)])
    row = made.made("fresh", "trained", 0, seconds=90_000.0, response_tokens=700, staleness=3, consumed=570)
    reader.put_rollouts(made.ASYNC, row, made.made("boots", "booting", 3))
    until(page, "() => document.querySelector('#card-ro_policy .num').textContent === '3.5'")
    # Out of sight no row is drawn anew; the news are there when it is looked at.
    until(page, "() => RS.view['rollout_rows.r.' + RS.view['rollout_rows.order'][0]].rollout_id === 'fresh'")
    assert page.evaluate(IDS)[0] != "fresh"
    page.locator("#ro-table").scroll_into_view_if_needed()
    until(page, f"() => ({IDS})()[0] === 'fresh' && ({IDS})().length === 50")
    until(page, "n => document.querySelector('.exits .count').textContent === n", f"{was[0] + 1:,}")
    until(page, "n => RS.view['staleness_heat.total'] === n", was[1] + 1)
    until(page, "() => RS.all('[data-rows=ro-census] b')[1].textContent === '1'")
    # A row that changes keeps its place and the focus in it.
    page.locator("[data-rows=rollouts] th button.long").first.focus()
    reader.put_rollouts(made.ASYNC, structs.replace(row, error="late word"))
    until(page, "() => document.querySelector('[data-rows=rollouts] tr').innerText.includes('late word')")
    assert page.evaluate("document.activeElement.textContent") == "fresh"
    assert page.evaluate("window.same") == 1


def test_open_rollout_goes_on(open_page: Open, reader: MemoryReader) -> None:
    begun = {"dispatched_at": made.NOW - 30, "started_at": made.NOW - 20}
    row = made.made("now", "generating", 20, **begun, version_start=571)
    reader.put_rollouts(made.ASYNC, row)
    page = open_page(more="&rollout=now")
    until(page, "() => document.querySelector('.timeline .generate.lasts')")
    assert page.locator("#ro-open").inner_text().count("No spans reported") == 1
    ended = {**begun, "finished_at": made.NOW - 1}
    reader.put_rollouts(made.ASYNC, structs.replace(row, state="scoring", **ended, seconds=29.0, version_finish=571))
    until(
        page,
        "() => document.querySelector('.timeline .generate') && !document.querySelector('.timeline .generate.lasts')",
    )
    assert "scoring" in page.locator("#ro-open .pill").first.inner_text()


def test_hidden_tab_asks_nothing(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    until(page, "() => { const n = RS.ticks(); return (window.seen ??= n) + 1 < n; }")
    calls, ticks = len(reader.calls), page.evaluate("RS.ticks()")
    until(page, "ticks => RS.ticks() > ticks + 2", ticks)
    assert len(reader.calls) == calls
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    until(page, "ticks => RS.ticks() > ticks + 2", page.evaluate("RS.ticks()"))
    assert len(reader.calls) > calls


def test_time_keeps_the_filters_and_other_pages_do_not(open_page: Open) -> None:
    page = open_page(more="&state=trained&sort=staleness")
    until(page, f"() => ({IDS})().length === 50")
    page.get_by_role("link", name="15m").click()
    until(page, "() => RS.boot.end - RS.boot.start === 900")
    assert asked(page) == {"state": "trained", "sort": "staleness"}
    assert parse_qs(urlsplit(page.url).query)["range"] == ["15m"]
    assert page.locator("[data-filter=state]").input_value() == "trained"
    page.get_by_role("link", name="Overview").click()
    until(page, "() => RS.boot.key === 'overview'")
    assert asked(page) == {} and "range=15m" in page.url


def test_weight_updates_are_a_density_and_the_cursor_has_the_version(open_page: Open, reader: MemoryReader) -> None:
    for now, curve, step in fake.curves():
        reader.append(made.ASYNC, now, fake.history(curve, step, 3600))
    page = open_page(path="", size=(1440, 1800))
    until(page, f"() => RS.plots().length === {len(PANELS)}")
    assert page.locator(".keys .update").locator("..").inner_text() == "86 weight updates, v486 to v571"
    assert page.locator("#panel-steps svg[class^=events]").count() == 0
    bars = page.locator(".density path").get_attribute("d")
    assert bars is not None and bars.count("M") == 86
    reader.put_events(made.ASYNC, EventInfo(made.NOW + 4, "weights_published", "v572", "", 572))
    reader.clock += 5
    until(page, "() => RS.updateAt(1000 * RS.now() + RS.tz) === 572")
    # Updates are 42 s apart, so 571 was published at the time of the newest data.
    at = 1000 * made.NOW
    assert page.evaluate("at => [at - 100 * 42000, at].map((ms) => RS.updateAt(ms + RS.tz))", at) == [None, 571]


def test_seconds_are_not_minutes_on_an_axis(open_page: Open, reader: MemoryReader) -> None:
    for now, curve, step in fake.curves():
        reader.append(made.ASYNC, now, fake.history(curve, step, 3600))
    page = open_page(path="", size=(1440, 1800))
    until(page, f"() => RS.plots().length === {len(PANELS)}")
    ticks = "() => RS.all('#graph-{} .ytick text').map(el => el.textContent)"
    assert page.evaluate(ticks.format("ttft")) == ["0 s", "10 s", "20 s", "30 s"]
    page = open_page(path="generator", size=(1440, 1800))
    until(page, "() => RS.plots().some(([el]) => el.dataset.panel === 'gitl')")
    assert page.evaluate(ticks.format("gitl")) == ["0 s", "0.01 s", "0.02 s", "0.03 s"]


# ---- what is missing, and names that lie in wait


def test_synchronous_run(open_page: Open) -> None:
    page = open_page(made.SYNC)
    assert page.locator("h1:visible").inner_text() == "Every rollout is fresh"
    assert page.locator("#ro-staleness_heat .note").inner_text() == "Synchronous: staleness is 0 by definition."
    assert (
        page.locator("#ro-staleness_heat .heat").is_hidden() and page.locator("#ro-staleness_heat .legend").is_hidden()
    )


def test_without_records_it_says_how_to_tell(open_page: Open, reader: MemoryReader, serving: Serving) -> None:
    page = open_page(made.BARE)
    assert page.locator("h1:visible").inner_text() == "No rollout records"
    assert page.locator("#card-ro_policy .note").inner_text() == made.TOLD
    assert page.locator(".how-to:visible h2").all_inner_texts() == [
        "Read what the framework writes",
        "Or push them from anywhere",
    ]
    code = page.locator("[data-code=push]").inner_text()
    assert f'URL = "{serving.url}api/v1/runs/no-records/rollouts"' in code
    assert page.locator(".known:visible").count() == 0
    # The first record turns the page into what it is for, without a reload by hand.
    reader.put_rollouts(made.BARE, made.made("first", "trained", 2, seconds=3.0, response_tokens=9))
    until(page, f"() => ({IDS})().join() === 'first'")
    until(page, "() => document.querySelector('.exits .count')?.textContent === '1'")
    until(page, "() => document.querySelector('[data-draw=length_heat] .cells rect')")


def test_run_switch_leaves_nothing_behind(open_page: Open) -> None:
    page = open_page(more="&rollout=" + made.OPEN)
    until(page, "() => document.querySelector('.timeline .span')")
    page.keyboard.press("Escape")
    page.locator("#run-menu summary").click()
    page.locator("#runs a", has_text=made.SYNC).click()
    until(page, f"name => RS.boot.run === name && ({IDS})().join() === 'only'", made.SYNC)
    assert asked(page) == {} and page.locator("#ro-open").is_hidden()


def test_markup_in_names_stays_text(open_page: Open, reader: MemoryReader) -> None:
    names = [EVIL, "<script>document.title='owned'</script>", "\u202egnp.elor", "🦊" * 50, "x" * 200, "__proto__"]
    rows = [made.made(name, "infra_error", 1, seconds=90_000.0 - i, error=name, environment=name, engine=name,
                      agent=name, group_id=name, unknown=name) for i, name in enumerate(names)]  # fmt: skip
    reader.put_rollouts(made.ASYNC, *rows)
    reader.put_groups(
        made.ASYNC, structs.replace(made.group(1)[1], group_id=EVIL, environment=EVIL, moved_at=made.NOW + 9)
    )
    page = open_page()
    assert page.locator("[data-rows=rollouts] th button.long").all_text_contents()[: len(names)] == names
    assert page.locator("[data-rows=groups] th button.long").first.inner_text() == EVIL
    for i, name in enumerate(names):
        page.locator("[data-rows=rollouts] th button.long").nth(i).click()
        until(page, "name => document.querySelector('#ro-open h2').textContent === name", name)
        until(page, "() => document.querySelector('#ro-open dl')")
        page.keyboard.press("Escape")
    page.locator("[data-filter=environment]").select_option(EVIL)
    until(page, f"() => ({IDS})().length === 1")
    assert page.locator("main img, main script").count() == 0
    assert page.title() == f"Rollouts · {made.ASYNC} · Rollscope"
    assert page.evaluate("document.documentElement.scrollWidth") == 1440


def test_phone_has_cards_and_no_sideways_scroll(open_page: Open, reader: MemoryReader) -> None:
    reader.put_rollouts(made.ASYNC, made.made("y" * 200, "infra_error", 1, seconds=90_000.0, error="z" * 200))
    page = open_page(size=(390, 844))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = "() => RS.all('.frame').filter(el => el.scrollWidth > el.clientWidth + 1).length"
    assert page.evaluate(wide) == 0
    page.locator("[data-rows=rollouts] th button.long").first.click()
    until(page, "() => document.querySelector('.timeline .span') || document.querySelector('#ro-open dl')")
    panel = page.locator("#ro-open").bounding_box()
    assert panel is not None and panel["x"] == 0 and panel["width"] == 390
    page.keyboard.press("Escape")
    page.locator("#ro-table thead").get_by_role("button", name="Tokens").click()
    until(page, "() => document.querySelector('#ro-table [aria-sort]').innerText === 'Tokens'")
