"""One script and one style sheet if they were made from the present sources, else the sources."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser

from dashboard import bundle, static
from dashboard.app import attach
from tests.dashboard import fake
from tests.dashboard.new_pages import new_pages
from tests.dashboard.serving import Serving, application, until

pytest_plugins = ["tests.browser_support"]

# Of the first page load: document, style sheet, font, three scripts, layout, callbacks, two answers, and two to spare.
MOST_REQUESTS = 12


def vendor(folder: Path, digest: str) -> Path:
    for name in bundle.BUNDLED.values():
        (folder / name).write_text(f"/* sources: {digest} */\n/* {name} */")
    return folder


def loaded(prefix: str = "/") -> dict[str, httpx.Response]:
    """What the document of a new app names of ours, by address."""
    api = FastAPI()
    attach(api, fake.reader(60), version="1")

    async def get() -> dict[str, httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client:
            page = (await client.get(prefix)).text
            found = re.findall(r'(?:src|href)="([^"]*/(?:assets|_dash-component-suites)/[^"]+)"', page)
            return {address: await client.get(address) for address in dict.fromkeys(found)}

    return asyncio.run(get())


def test_the_fingerprint_has_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    digests = []
    for name, text in (("a.mjs", "1"), ("a.mjs", "2"), ("core/a.mjs", "2"), ("b.css", ""), ("c.txt", "not one")):
        (tmp_path / name).write_text(text)
        digests.append(bundle.fingerprint(tmp_path))
    assert len(set(digests)) == 4 and digests[3] == digests[4]


@pytest.mark.parametrize("prefix", ["/", "/rl/"])
def test_a_bundle_of_these_sources_is_served(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "VENDOR", vendor(tmp_path, bundle.fingerprint()))
    monkeypatch.setenv("DASH_URL_BASE_PATHNAME", prefix)
    answers = loaded(prefix)
    for name, kind in (("rollscope.min.mjs", "text/javascript"), ("rollscope.min.css", "text/css")):
        ((address, answer),) = [found for found in answers.items() if name in found[0]]
        assert address.startswith(f"{prefix}assets/{name}?m=")
        assert answer.headers["cache-control"] == static._FOREVER
        assert answer.headers["content-type"].startswith(kind)
        assert f"/* {name} */" in answer.text
    assert {answer.status_code for answer in answers.values()} == {200}
    assert len(answers) == 4  # and Dash's own scripts as one, and the font


@pytest.mark.parametrize("found", ["none", "old", "half"])
def test_the_sources_are_served_without_a_bundle_of_them(
    found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found != "none":
        vendor(tmp_path, "0" * 64 if found == "old" else bundle.fingerprint())
    if found == "half":
        (tmp_path / bundle.BUNDLED[bundle.STYLE]).unlink()
    monkeypatch.setattr(bundle, "VENDOR", tmp_path)
    answers = loaded()
    names = [re.sub(r"\?m=[0-9a-f]{16}$", "?m=", address) for address in answers]
    assert "/assets/main.css?m=" in names and "/assets/main.mjs?m=" in names
    assert {answer.status_code for answer in answers.values()} == {200}


@pytest.mark.browser
def test_the_page_runs_from_its_sources(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "VENDOR", tmp_path)
    with Serving(lambda: application(fake.reader(3600))) as serving, new_pages(browser) as new:
        page = new()
        page.goto(serving.url)
        page.wait_for_selector("[data-page=ok]")
        until(page, "() => RS.chartsReady() && RS.plots().length > 0")
        assert page.evaluate("getComputedStyle(document.body).fontFamily").startswith("Inter")


@pytest.mark.browser
def test_the_first_screen_takes_few_requests(browser: Browser) -> None:
    """Counted from the bundle that `make test` makes, with all that the page loads until its charts are drawn."""
    assert bundle.entries().files, "make the bundle: `make dashboard/vendor/rollscope.min.mjs`"
    with Serving(lambda: application(fake.reader(3600))) as serving, new_pages(browser) as new:
        page, seen = new(), []
        page.on("request", lambda request: seen.append(request.url))
        page.goto(serving.url)
        page.wait_for_selector("[data-page=ok]")
        until(page, "() => RS.chartsReady() && RS.plots().length > 0")
        first = [url for url in seen if "_dash-update-component" not in url]
        assert len(first) <= MOST_REQUESTS - 2, first
        assert page.evaluate("document.fonts.check('16px Inter')")
