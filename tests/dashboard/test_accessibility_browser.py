"""Every page by axe-core in both themes, in one browser context: what a page lacks shows wherever it is."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from dashboard.pages import PAGES
from tests import browser_support
from tests.dashboard import everything, fake_fleet, fake_preflight, fake_what_if
from tests.dashboard.fake import POOR, RICH
from tests.dashboard.fake_actors import RUN as ACTORS
from tests.dashboard.fake_rollouts import ASYNC, OPEN
from tests.dashboard.fake_rollouts import BARE as NO_RECORDS
from tests.dashboard.fake_sandboxes import MATH, WALL
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytestmark = pytest.mark.browser

COMPARED = f"&compare={fake_fleet.STAR},{fake_fleet.DONE},{fake_fleet.SYNC}"
# (page, run, what more is asked, what is then there)
STATES: tuple[tuple[str, str, str, str], ...] = (
    ("overview", RICH, "&over=1h", "document.querySelector('.scatterlayer .trace')"),
    ("overview", POOR, "", "true"),
    ("rollouts", ASYNC, "&rollout=" + OPEN, "document.querySelector('.timeline .span')"),
    ("rollouts", NO_RECORDS, "", "true"),
    ("generator", ACTORS, "", "document.querySelector('.heat.fleet path.cell[d^=M]')"),
    ("trainer", ACTORS, "", "document.querySelector('.bars-of-steps rect')"),
    ("sandboxes", WALL, "", "document.querySelector('.heat .oldest') && document.querySelector('.funnel .count')"),
    ("sandboxes", MATH, "", "true"),
    ("alerts", RICH, "", "document.querySelector('[data-alerts] h3')"),
    ("runs", RICH, COMPARED, "document.querySelectorAll('.run-line').length === 2"),
    (
        "explore",
        RICH,
        "&signal=trainer_wait_ratio,kv_cache_usage_ratio&metric=up&split=phase&log=1",
        "document.querySelector('#ex-charts .scatterlayer .trace') && document.querySelector('.catalogue-row')",
    ),
    ("sources", RICH, "", "document.querySelector('[data-rows=targets] tr')"),
    ("what-if", fake_what_if.LONG, "&move_gpus=16&oversampling=2", "document.querySelector('[data-slider] input')"),
    ("what-if", POOR, "", "document.querySelector('[data-slider] input')"),
    ("sources", WALL, "&tab=setup", "document.querySelector('[data-checks=fail] h3')"),
    ("sources", fake_preflight.NEW, "&tab=setup", "true"),
    ("help", RICH, "", "document.querySelector('#trainer_wait_ratio summary')"),
)


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(lambda: application(everything.reader(), ("oncall", "team"))) as running:
        yield running


def test_no_page_is_left_out() -> None:
    assert {key for key, *_ in STATES} == {page.key for page in PAGES}


def load(page: Page, url: str, key: str, run: str, more: str, there: str) -> None:
    """A document of its own: axe looks at every element, and pages that were left stay in the document."""
    path = next(one.path for one in PAGES if one.key == key)
    page.goto(f"{url}{path}?run={run}{more}")
    page.wait_for_selector("[data-page=ok]")
    until(page, f"() => RS.chartsReady() && ({there})")
    page.evaluate("RS.drawAll()")
    page.evaluate(browser_support.AXE.read_text(encoding="utf-8"))


def opened(page: Page, key: str, run: str) -> None:
    """What hides until it is asked for."""
    if (key, run) == ("overview", RICH):
        page.locator("#panel-queue .tools").click()
        page.locator("#panel-reward h2").hover()
        page.evaluate("document.getElementById('run-menu').open = true")
    elif key == "alerts":
        page.get_by_role("button", name="Silence").first.click()
    elif key == "help":
        page.locator("#trainer_wait_ratio summary").click()


def faults(page: Page) -> list[tuple[str, str, list[str]]]:
    """What is serious in the light theme, and then which colours are in the dark one: nothing else differs."""
    found = _serious(page, {})
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    dark = _serious(page, {"runOnly": ["color-contrast"]})
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    return found + [(f"{name}, dark", *rest) for name, *rest in dark]


def _serious(page: Page, options: dict[str, Any]) -> list[Any]:
    found: Any = page.evaluate("asked => axe.run(document, {resultTypes: ['violations'], ...asked})", options)
    return [
        (issue["id"], issue["impact"], [node["html"][:200] for node in issue["nodes"]])
        for issue in found["violations"]
        if issue["impact"] in ("serious", "critical")
    ]


def dialogs(page: Page) -> dict[str, Any]:
    """The drawers, then a data table over a chart that fills the screen."""
    found: dict[str, Any] = {}
    for name, there in (("help", "#trainer_wait_ratio"), ("what-if", "[data-slider] input")):
        page.locator("#" + name).click()
        until(page, f"() => document.querySelector('.drawer:modal {there}')")
        found[name] = _serious(page, {})
        page.keyboard.press("Escape")
        until(page, "() => RS.boot.key === 'overview' && RS.chartsReady()")
    page.locator("#panel-queue .tools").click()
    page.get_by_role("menuitem", name="Full screen").click()
    page.locator("#panel-queue .tools").click()
    page.get_by_role("menuitem", name="Data table").click()
    return found | {"data table": _serious(page, {})}


def test_no_serious_issue_on_any_page_in_either_theme(browser: Browser, serving: Serving) -> None:
    found: dict[str, Any] = {}
    with new_pages(browser) as new:
        page = new("light")
        page.emulate_media(reduced_motion="reduce")
        for key, run, more, there in STATES:
            load(page, serving.url, key, run, more, there)
            opened(page, key, run)
            found[f"{key} {run}"] = faults(page)
            if (key, run) == ("overview", RICH):
                page.keyboard.press("Escape")
                page.keyboard.press("Escape")
                found |= dialogs(page)
            assert page.evaluate("document.documentElement.scrollWidth") == 1440, key
    assert {where: bad for where, bad in found.items() if bad} == {}
