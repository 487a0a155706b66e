"""Sandboxes and Preflight as a user has them: the program's own process, a provider over HTTP, a real browser."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.browser_support import AXE, exposed
from tests.dashboard.serving import until
from tests.e2e.program import Program
from tests.preflight.support import KEY, World, prime_row, serving

pytestmark = pytest.mark.browser

CONFIG = """
[store]
url = "sqlite:///{home}/rollscope.db"
[run.math.preflight]
concurrency = 960
[[run.math.target]]
url = "{url}"
name = "prime"
collector = "prime_sandboxes"
key_env = "PRIME_KEY"
interval = 5
"""


def row(number: int, asked: float, took: float, **more: object) -> dict[str, object]:
    at = time.time() - asked
    return prime_row(
        number, createdAt=_iso(at), startedAt=_iso(at + took), updatedAt=_iso(at + took), **{"labels": ["math"], **more}
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Two hundred sandboxes of the run, and twelve of one that is gone."""
    home = tmp_path_factory.mktemp("pages")
    live = [row(n, 3000, 20 + n % 30) for n in range(200)]
    gone = [row(900 + n, 90_000, 40, labels=["gone"], timeoutMinutes=9000) for n in range(12)]
    with serving(World(live + gone), time.time()) as url:
        (home / "rollscope.toml").write_text(CONFIG.format(home=home, url=url))
        with Program(home, "up", "-c", "rollscope.toml", PRIME_KEY=KEY) as running:
            running.until("/api/v1/runs/math/sandboxes", lambda found: found["funnel"]["requested"] == 200)
            yield running


@pytest.fixture
def page(browser: Browser, program: Program) -> Iterator[Page]:
    opened = exposed(browser.new_page(viewport={"width": 1440, "height": 900}))
    messages: list[str] = []
    opened.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: messages.append(str(error)))
    yield opened
    opened.close()
    assert messages == []


def opened(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("[data-page=ok]")
    until(page, "RS.chartsReady()")


def sound(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.evaluate(Path(AXE).read_text("utf-8"))
    found = page.evaluate("axe.run().then(r => r.violations.filter(v => ['serious','critical'].includes(v.impact)))")
    assert [(issue["id"], len(issue["nodes"])) for issue in found] == []


def test_the_funnel_the_quota_and_the_search(page: Page, program: Program) -> None:
    opened(page, program.url + "/sandboxes?run=math")
    until(page, "document.querySelectorAll('.funnel .count').length > 0")
    assert page.locator(".funnel svg").get_attribute("aria-label") == (
        "requested 200, started 200, ready 200, first exec no data, ended 0, failed 0"
    )
    until(page, "document.querySelector('[data-rows=box-quota]').textContent.includes('212 of 1,000 · 21%')")
    assert "no source times commands in sandboxes" in page.locator("#card-sb_exec").inner_text()
    page.get_by_label("Find a sandbox by id, name or trace").fill("TRACE-77")
    until(page, "document.querySelector('#box-said').textContent.startsWith('1 sandbox with')")
    assert page.locator("[data-rows=box-failures] th span").first.inner_text() == "sb-077"
    sound(page)


def test_a_preflight_by_the_button(page: Page, program: Program) -> None:
    opened(page, program.url + "/sandboxes?run=math")
    assert page.context.request.post(program.url + "/api/v1/runs/math/preflight").status == 401
    opened(page, f"{program.url}/sandboxes?run=math&token={program.admin()}")
    assert page.url == program.url + "/sandboxes?run=math"
    page.get_by_role("link", name="Setup", exact=True).first.click()
    until(page, "RS.boot.key === 'sources' && document.querySelector('#pf-run')?.textContent === 'Run preflight'")
    page.locator("#pf-run").click()
    until(page, "document.querySelector('#pf-said').textContent.startsWith('Done: The plan does not fit')")
    left = page.locator("[data-check=dangling]")
    assert left.locator("h3").inner_text() == "Leftover sandboxes"
    assert left.locator(".commands code").inner_text().splitlines()[0] == "prime sandbox delete sb-900"
    assert left.locator(".commands code").inner_text().count("prime sandbox delete") >= 12
    quota = " ".join(page.locator("[data-check=quota] .figure").inner_text().split())
    told = program.get("/api/v1/runs/math/preflight").json()
    (check,) = [check for check in told["checks"] if check["name"] == "quota"]
    assert quota == f"960 sandboxes limit {check['limit']:.0f}"
    # Once more at once: it is refused in words, and the provider is left alone.
    admin = {"authorization": f"Bearer {program.admin()}"}
    refused = httpx.post(program.url + "/api/v1/runs/math/preflight", headers=admin, timeout=30, trust_env=False)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) <= 30
    sound(page)
