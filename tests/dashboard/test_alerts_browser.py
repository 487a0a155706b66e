"""The Alerts page in a real Chromium: what is seen, what a click does, and that no label becomes markup."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from fastapi import FastAPI
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.pages.alerts import data as alerts_data
from dashboard.shell import layout as shell_layout
from tests.dashboard import fake, fake_alerts
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

Open = Callable[..., Page]
FOCUSED = "() => document.activeElement.id || document.activeElement.textContent"
TITLES = "list => Array.from(document.querySelectorAll(`[data-alerts=${list}] h3`)).map(h => h.textContent)"
EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def reader() -> MemoryReader:
    return fake_alerts.fill(fake.reader(600))


@pytest.fixture
def api(reader: MemoryReader) -> FastAPI:
    return application(reader, ("oncall", "team", "grafana", "archive"))


@pytest.fixture
def serving(api: FastAPI, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    with Serving(lambda: api) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before the app is built: it holds the interval.
    monkeypatch.setattr(shell_layout, "INTERVAL_MS", 500)


@pytest.fixture
def open_page(quick: None, browser: Browser, serving: Serving) -> Iterator[Open]:
    """Opens the Alerts page."""
    with new_pages(browser) as new:

        def opened(path: str = "alerts", theme: str = "light", size: tuple[int, int] = (1440, 900)) -> Page:
            page = new(theme, size)
            page.goto(serving.url + path)
            page.wait_for_selector("[data-page=ok]")
            return page

        yield opened


def change(reader: MemoryReader, old: Any, **changes: Any) -> None:
    """An alert of the reader, changed."""
    reader.set_alerts(*(structs.replace(a, **changes) if a == old else a for a in reader.alert_rows))


def card(page: Page, alert: Any) -> Any:
    return page.locator(f"[id='alert-{alerts_data.key(alert)}']")


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_what_is_seen_first(open_page: Open, size: tuple[int, int]) -> None:
    page = open_page(size=size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert page.locator("h1:visible").inner_text() == "2 alerts firing"
    assert page.evaluate(TITLES, "firing") == ["Trainer starved", "KV cache exhausted"]
    assert page.evaluate(TITLES, "pending") == ["Zero advantage high"]
    assert page.evaluate(TITLES, "muted") == ["Staleness high", "Target down"]
    first = card(page, fake_alerts.STARVED)
    assert first.locator(".num").inner_text() == "74%"
    assert first.locator(".figure .note").inner_text() == "limit > 40%"
    assert first.locator(".says").inner_text() == fake_alerts.SUMMARIES["TrainerStarved"]
    assert first.locator(".age-of").inner_text() == "for 12 min"
    assert first.locator(".pill").all_inner_texts() == ["Critical", "retry 3", "sent", "sent"]
    assert first.locator(".chips li").all_inner_texts() == ["alertname=TrainerStarved", "class=tuning"]
    assert page.locator("[data-rows=history] tr").count() == 5
    assert page.locator("[data-rows=rules] tr").count() == 25
    assert page.locator("[data-rows=deliveries] > li").count() == 6
    assert page.locator(".how").is_hidden()


def test_silence_takes_two_clicks(open_page: Open, api: FastAPI, reader: MemoryReader) -> None:
    page = open_page()
    first = card(page, fake_alerts.STARVED)
    first.get_by_role("button", name="Silence").click()
    first.get_by_role("button", name="Silence for 1 h").click()
    until(page, f"list => ({TITLES})(list).includes('Trainer starved')", "muted")
    assert page.evaluate(TITLES, "firing") == ["KV cache exhausted"]
    (asked,) = api.state.asked
    labels = {"alertname": "TrainerStarved", "class": "tuning", "run": fake.RICH, "severity": "critical"}
    assert asked["matchers"] == [{"name": k, "value": v, "isRegex": False, "isEqual": True} for k, v in labels.items()]
    assert (asked["createdBy"], asked["comment"]) == ("dashboard", "")
    starts, ends = (datetime.fromisoformat(asked[key]).timestamp() for key in ("startsAt", "endsAt"))
    assert ends - starts == pytest.approx(3600, abs=1)
    # By the server's clock, which a demo runs apart from the browser's.
    assert abs(starts - reader.clock) < 60
    assert page.locator("#alerts-said").inner_text() == "Trainer starved: silenced for 1 h."
    # The row has taken its button along: whoever goes by keyboard is at the words, not at the page's beginning.
    assert page.evaluate(FOCUSED) == "alerts-said"
    assert page.title().startswith("(1) ")


def test_silence_can_be_wide_and_named(open_page: Open, api: FastAPI) -> None:
    page = open_page()
    card(page, fake_alerts.STARVED).get_by_role("button", name="Silence").click()
    form = page.locator("form.silence")
    assert form.locator(".note").inner_text() == "Silences 1 alert now and every later alert with these labels."
    for name in ("alertname=TrainerStarved", "severity=critical"):
        form.get_by_label(name).uncheck()
    assert form.locator(".note").inner_text().startswith("Silences 3 alerts now")
    form.get_by_label("24 h").check()
    form.get_by_label("Your name").fill("alice")
    form.get_by_label("Reason").fill("new driver")
    form.get_by_role("button", name="Silence for 24 h").click()
    until(page, f"list => !({TITLES})(list).includes('Trainer starved')", "firing")
    asked = api.state.asked[-1]
    assert [one["name"] for one in asked["matchers"]] == ["class", "run"]
    assert (asked["createdBy"], asked["comment"]) == ("alice", "new driver")
    # The name is remembered, also after a reload.
    page.reload()
    page.wait_for_selector("[data-page=ok]")
    card(page, fake_alerts.FULL).get_by_role("button", name="Silence").click()
    assert page.get_by_label("Your name").input_value() == "alice"


def test_silence_until_a_time(open_page: Open, api: FastAPI) -> None:
    page = open_page()
    card(page, fake_alerts.FULL).get_by_role("button", name="Silence").click()
    form = page.locator("form.silence")
    form.get_by_role("radio", name="until").check()
    later = page.evaluate("new Date(1000 * (RS.now() + 7200) + RS.tz).toISOString().slice(0, 16)")
    form.get_by_label("Until", exact=True).fill(later)
    form.get_by_role("button", name="Silence until").click()
    wait_in(page, lambda: api.state.asked)
    ends = page.evaluate("text => Date.parse(text)", later) / 1000
    assert datetime.fromisoformat(api.state.asked[0]["endsAt"]).timestamp() == ends
    assert page.locator("form.silence").count() == 0


def wait_in(page: Page, condition: Callable[[], object]) -> None:
    """Until something happened on the server and the page has drawn it."""
    for _ in range(300):
        if condition():
            return page.wait_for_timeout(100)
        page.wait_for_timeout(50)
    raise AssertionError("never happened")


def test_no_label_no_silence(open_page: Open) -> None:
    page = open_page()
    card(page, fake_alerts.FULL).get_by_role("button", name="Silence").click()
    form = page.locator("form.silence")
    for box in form.get_by_role("checkbox").all():
        box.uncheck()
    assert form.get_by_role("button", name="Silence for").is_disabled()
    assert form.locator(".note").inner_text() == "Keep at least one label."


def test_refusal_is_told_in_words(open_page: Open) -> None:
    page = open_page()
    page.forgiven = True  # type: ignore[attr-defined]  # the browser itself logs an answer of 400
    card(page, fake_alerts.FULL).get_by_role("button", name="Silence").click()
    form = page.locator("form.silence")
    form.get_by_label("Reason").fill("refuse <b>me</b>")
    form.get_by_role("button", name="Silence for 1 h").click()
    until(page, "() => document.querySelector('form.silence .error').textContent")
    assert form.locator(".error").inner_text() == "Not silenced: <i>no</i> silences today"
    assert page.evaluate(FOCUSED) == "Silence for 1 h"
    # The form stays as it was filled in, also over the ticks.
    ticks = page.evaluate("RS.ticks()")
    until(page, "ticks => RS.ticks() > ticks + 1", ticks)
    assert form.get_by_label("Reason").input_value() == "refuse <b>me</b>"


def test_an_open_form_outlives_news(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    card(page, fake_alerts.STARVED).get_by_role("button", name="Silence").click()
    page.locator("form.silence").get_by_label("Reason").fill("half a sent")
    change(reader, fake_alerts.STARVED, value=0.81)
    until(page, "() => document.querySelector('[data-alerts=firing] .num').textContent === '81%'")
    graver = fake_alerts.alert("RunStalled", 1800.0, "seconds", 600)
    reader.set_alerts(*reader.alert_rows, graver)
    until(page, f"list => ({TITLES})(list).length === 3", "firing")
    page.keyboard.type("ence")
    assert page.get_by_label("Reason").input_value() == "half a sentence"


def test_end_of_a_silence(open_page: Open, reader: MemoryReader) -> None:
    page = open_page()
    down = card(page, fake_alerts.DOWN)
    assert "Silenced by alice for another 55 min" in down.locator(".facts > .note").inner_text()
    # Another alert holds this one back: there is nothing to end here.
    assert card(page, fake_alerts.STALE).get_by_role("button", name="End silence").count() == 0
    down.get_by_role("button", name="End silence").click()
    until(page, f"list => ({TITLES})(list).includes('Target down')", "firing")
    assert page.evaluate(FOCUSED) == "alerts-said"
    assert reader.silences() == []
    assert page.locator("#silences").inner_text().split() == ["Silences", "No", "silences."]
    assert page.title().startswith("(3) ")


@pytest.mark.parametrize("path", ["", "alerts"])
def test_count_in_the_title_is_live(open_page: Open, reader: MemoryReader, path: str) -> None:
    page = open_page(path)
    until(page, "() => document.title.startsWith('(2) ')")
    assert page.locator("#pages .count b").inner_text() == "2"
    change(reader, fake_alerts.FULL, state="resolved", resolved_at=reader.clock)
    until(page, "() => document.title.startsWith('(1) ')")
    reader.set_alerts()
    until(page, "() => !document.title.startsWith('(')")
    assert page.locator("#pages .count").is_hidden()


def test_pages_keep_run_and_range(open_page: Open) -> None:
    page = open_page(f"?run={fake.RICH}&range=6h")
    until(page, "() => RS.chartsReady()")
    page.evaluate("window.same = 1")
    page.locator("#pages").get_by_role("link", name="Alerts").click()
    until(page, "() => RS.boot.key === 'alerts'")
    assert page.locator("#pages [aria-current=page]").get_attribute("data-nav") == "alerts"
    assert page.url.endswith(f"/alerts?run={fake.RICH}&range=6h")
    assert page.locator("#charts").is_hidden() and page.locator("#history").is_visible()
    assert page.title() == f"(2) Alerts · {fake.RICH} · Rollscope"
    page.go_back()
    until(page, "() => RS.boot.key === 'overview' && location.search.includes('range=6h') && RS.chartsReady()")
    assert page.locator("#charts").is_visible()
    # The charts are the size of their boxes again, and not of a hidden one.
    until(page, "() => RS.plots().every(([, gd]) => Math.abs(gd._fullLayout.width - gd.parentNode.clientWidth) < 2)")
    assert page.evaluate("window.same") == 1


def test_charts_at_its_moment(open_page: Open) -> None:
    page = open_page()
    card(page, fake_alerts.FULL).get_by_role("link", name="View charts at").click()
    until(page, "() => RS.boot.key === 'overview' && RS.chartsReady()")
    began = round(fake_alerts.FULL.active_at)
    assert page.evaluate("[RS.boot.run, RS.boot.start, RS.boot.end]") == [fake.RICH, began - 1800, began + 900]
    assert page.url.endswith("#panel-kv")
    box = "document.querySelector('#panel-kv').getBoundingClientRect()"
    until(page, f"() => {box}.top > 0 && {box}.bottom < innerHeight")


def test_all_runs(open_page: Open, reader: MemoryReader) -> None:
    stalled = fake_alerts.alert("RunStalled", 1200.0, "seconds", 1900, run=fake.POOR)
    reader.set_alerts(*reader.alert_rows, stalled)
    page = open_page(f"alerts?run={fake.RICH}")
    assert page.locator("h1:visible").inner_text() == "2 alerts firing"
    page.get_by_role("button", name="All runs").click()
    until(page, "() => document.querySelector('h1 [data-t=\"alerts.head\"]').textContent === '3 alerts firing'")
    assert page.title() == "(3) Alerts · all runs · Rollscope"
    assert card(page, stalled).locator(".chips li").last.inner_text() == f"run={fake.POOR}"
    assert page.get_by_role("button", name="All runs").get_attribute("aria-pressed") == "true"
    # It belongs to this page: the others show one run.
    assert page.locator("#pages").get_by_role("link", name="Overview").get_attribute("href") == f"/?run={fake.RICH}"
    page.get_by_role("button", name="All runs").click()
    until(page, "() => !RS.boot.all")


def test_overview_lists_what_fires(open_page: Open) -> None:
    page = open_page("")
    rows = page.locator("[data-rows=brief-alerts] li")
    assert rows.locator("b").all_inner_texts()[:3] == ["Trainer starved", "KV cache exhausted", "Zero advantage high"]
    assert rows.locator(".state").all_inner_texts() == ["firing", "firing", "pending", "resolved", "resolved"]
    rows.nth(1).get_by_role("link").click()
    until(page, "() => RS.boot.key === 'alerts'")
    assert page.url.endswith("#alert-" + alerts_data.key(fake_alerts.FULL))


def test_markup_in_labels_stays_text(open_page: Open, reader: MemoryReader) -> None:
    evil = fake_alerts.alert("RunStalled", 1.0, EVIL, 60, pod=EVIL)
    notes = {"summary": EVIL, "description": EVIL, "title": EVIL, "runbook_url": "javascript:alert(1)"}
    over = structs.replace(evil, state="resolved", resolved_at=fake.NOW, reason=EVIL, fingerprint="f0")
    reader.set_alerts(structs.replace(evil, annotations=notes, muted=""), over)
    reader.rule_rows = [
        structs.replace(fake_alerts.rule("RunStalled"), expression=EVIL, summary=EVIL, why=EVIL, class_=EVIL)
    ]
    reader.delivery_rows = [fake_alerts.sent(EVIL, EVIL, ("RunStalled firing", EVIL), 5, "failed", answer=EVIL)]
    reader.put_silence({"pod": "other" + EVIL}, fake.NOW, fake.NOW + 60, EVIL, EVIL)
    page = open_page()
    assert page.locator("[data-alerts=firing] h3").inner_text() == EVIL
    assert page.locator("[data-alerts=firing] .says").inner_text() == EVIL
    page.locator("[data-alerts=firing]").get_by_role("button", name="Silence").click()
    assert page.locator("form.silence").get_by_label(f"pod={EVIL}").count() == 1
    page.locator("#pages").get_by_role("link", name="Overview").click()
    until(page, "() => RS.boot.key === 'overview' && RS.chartsReady()")
    assert page.locator("main img, main script, [href^=javascript]").count() == 0
    assert page.title() == f"(1) {fake.RICH} · Rollscope"


def test_nothing_fires(open_page: Open, reader: MemoryReader, api: FastAPI) -> None:
    reader.set_alerts()
    reader.silence_rows = []
    page = open_page()
    assert page.locator("h1:visible").inner_text() == "No active alerts"
    assert page.locator(".quiet").inner_text().startswith("17 rules active. 8 lack data")
    assert (
        page.locator("#history, .pending, .muted").evaluate_all("found => found.filter(el => !el.hidden).length") == 0
    )
    assert page.locator("[data-rows=rules] td", has_text="no source yet: quota_remaining_ratio").count() == 1


def test_nobody_is_told(browser: Browser, reader: MemoryReader) -> None:
    reader.delivery_rows = []
    with Serving(lambda: application(reader, ())) as serving:
        page = browser.new_page()
        page.goto(serving.url + "alerts")
        page.wait_for_selector("[data-page=ok]")
        assert page.locator("#deliveries").get_by_text("No receivers: alerts appear only here.").is_visible()
        assert "[[alerts.receiver]]" in page.locator(".how pre").inner_text()
        assert card(page, fake_alerts.STARVED).locator(".told").inner_text() == "Not sent to any receiver."
        page.close()


def test_keyboard_alone(open_page: Open, api: FastAPI) -> None:
    page = open_page()
    card(page, fake_alerts.STARVED).get_by_role("button", name="Silence").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Silence for 1 h"
    page.keyboard.press("Escape")
    assert page.locator("form.silence").count() == 0
    assert page.evaluate("document.activeElement.textContent") == "Silence"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    wait_in(page, lambda: api.state.asked)
    until(page, f"list => ({TITLES})(list).includes('Trainer starved')", "muted")
    assert page.evaluate(FOCUSED) == "alerts-said"
