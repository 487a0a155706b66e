"""Names that want to be something else, on every page: as run, target, engine, environment and alert rule they are
text, wherever they stand (table, title, hover, alert), and the page keeps its width."""

from collections.abc import Iterator

import pytest
from msgspec import structs
from playwright.sync_api import Browser, Page

from dashboard.pages import PAGES
from server.query.types import AlertInfo, EngineInfo, EventInfo, TargetTrust
from tests.dashboard import everything, fake, fake_actors, fake_alerts, fake_rollouts, fake_sandboxes
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

HACK = "window.hacked=1"
NAMES: dict[str, str] = {
    "script": f"<script>{HACK}</script>",
    "image": f'"><img src=x onerror="{HACK}">',
    "link": f"javascript:{HACK}",
    "long": "n" * 500,
    "hebrew": "\u202eריצה\u202c-אימון",
    "emoji": "🔥👩‍🚀 run 🏁",
}
NOW = fake.NOW
DONORS = (fake.RICH, fake_actors.RUN, fake_rollouts.ASYNC, fake_sandboxes.WALL)
# Everything that could run, and every address that is no address.
LIVE = "() => RS.all('main img, main script, main iframe, header img, [href^=\"javascript:\" i]').length"
# Where a page shows names besides the run's own: all six of them.
PLACES: dict[str, tuple[str, ...]] = {
    "overview": (),
    "rollouts": ("[data-rows=rollouts]", "[data-filter=environment]"),
    "generator": ("[data-rows=engines]",),
    "trainer": (),
    "sandboxes": (),
    "alerts": ("[data-alerts=firing]",),
    "runs": ("[data-rows=runs]",),
    "explore": (),
    "sources": ("[data-rows=targets]",),
    "what-if": (),
    "help": (),
}
# Seen on a wide screen too; the others' own tests do that, and their charts take long to be drawn anew.
WIDE = ("alerts", "runs", "sources")
# A name may be shortened where a tip or a table has all of it.
LACKING = """([place, names]) => { const el = document.querySelector(place), heard = el.textContent + ' ' +
  RS.all('[title], [aria-label]', el).map(one => one.title + ' ' + one.getAttribute('aria-label')).join(' ');
  return names.filter(name => !heard.includes(name.slice(0, 20))) }"""


@pytest.fixture
def reader() -> MemoryReader:
    """One run per name with all that the fakes know, in which six of everything are called by the six names."""
    made = everything.reader()
    for run in NAMES.values():
        everything.inherit(made, run, DONORS)
        made.set_targets(run, *_targets(run))
        made.put_engines(run, *(_engine(i, name) for i, name in enumerate(NAMES.values())))
        for i, name in enumerate(NAMES.values()):
            made.put_history(run, _key(name), "kv", [(NOW - 30.0 * j, 0.5) for j in range(100)][::-1])
            made.put_rollouts(
                run, fake_rollouts.made(f"{i}{name}", "trained", 9 + i, environment=name, seconds=90_000.0)
            )
            made.put_events(run, EventInfo(NOW - 300 - i, "restart", str(i), name))
    made.set_alerts(*(_alert(i, run, name) for run in NAMES.values() for i, name in enumerate(NAMES.values())))
    return made


def _targets(run: str) -> Iterator[TargetTrust]:
    for i, name in enumerate(NAMES.values()):
        actor = ("trainer", "generator", "generator", "generator", "sandbox", "sandbox")[i]
        made = fake.target(name, actor, "vllm" if actor == "generator" else name, up=bool(i % 2), error=name)
        yield structs.replace(made, run=run, unmapped={name: 3})


def _key(name: str) -> str:
    return f'{name}{{engine="0"}}'


def _engine(number: int, name: str) -> EngineInfo:
    return fake_actors.engine(number % 3, key=_key(name), target=name)


def _alert(number: int, run: str, name: str) -> AlertInfo:
    made = fake_alerts.alert("TrainerStarved", 0.7, "ratio", 600 + number, run=run)
    labels = {**made.labels, "alertname": name, "target": name}
    return structs.replace(
        made, name=name, labels=labels, annotations={"summary": name}, fingerprint=f"{number}{hash(run):x}"
    )


@pytest.fixture
def page(browser: Browser, reader: MemoryReader) -> Iterator[Page]:
    with Serving(lambda: application(reader)) as serving, new_pages(browser) as new:
        made = new("light", (390, 844))
        made.goto(serving.url + "help")
        made.wait_for_selector("[data-page=ok]")
        yield made


def test_names_are_text_on_every_page(page: Page) -> None:
    assert set(PLACES) == {one.key for one in PAGES}
    for i, (key, places) in enumerate(PLACES.items()):
        run = list(NAMES.values())[i % len(NAMES)]
        _open(page, key, run)
        for place in places:
            until(
                page,
                f"asked => document.querySelector(asked[0]) && ({LACKING})(asked).length === 0",
                [place, list(NAMES.values())],
            )
        _hover(page, key)
        assert page.evaluate(LIVE) == 0 and page.evaluate("window.hacked") is None, key
        assert page.locator("#run-name").text_content() == run
        assert run in page.title() or key in ("runs", "help"), key
        until(page, "() => document.documentElement.scrollWidth === 390")
        if key in WIDE:
            page.set_viewport_size({"width": 1440, "height": 900})
            until(page, "() => document.documentElement.scrollWidth === 1440")
            page.set_viewport_size({"width": 390, "height": 844})


def _open(page: Page, key: str, run: str) -> None:
    page.evaluate("([key, run]) => RS.go(RS.path(key) + '?run=' + encodeURIComponent(run))", [key, run])
    shown = f"RS.boot.key === '{key}' && document.getElementById('app').dataset.page === 'ok'"
    until(page, f"run => {shown} && RS.chartsReady() && RS.by('run-name').textContent === run", run, 30.0)


def _hover(page: Page, key: str) -> None:
    """What is said under the cursor: a chart's source, an engine of the map, a part of the ribbon."""
    for place in (".panel h2", ".heat.fleet", ".ribbon a"):
        found = page.locator(f"#page-{key} {place}:visible").first
        if found.count():
            found.hover()
    assert page.locator("#runs img, #runs script").count() == 0
    if page.locator(".drawer:modal").count():
        return
    page.locator("#run-menu summary").click()
    page.keyboard.press("Escape")
