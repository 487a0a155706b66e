"""A page without any run: what could be watched, each with its command."""

import pytest
from playwright.sync_api import Browser

from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.serving import Serving, application, until

FOUND = [
    ("Everything found on this machine", "rollscope watch http://127.0.0.1:8000 ./outputs/my-run"),
    ("vllm at http://127.0.0.1:8000", "rollscope watch http://127.0.0.1:8000"),
    ("<b>trl</b> at ./outputs/my-run", "rollscope watch ./outputs/my-run"),
]


@pytest.mark.browser
def test_candidates_are_shown_until_there_is_a_run(browser: Browser) -> None:
    reader, found = MemoryReader(1_800_000_000.0), list(FOUND)
    with Serving(lambda: application(reader, candidates=lambda: found)) as serving:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(serving.url)
        page.wait_for_selector("[data-page=error]")
        rows = page.locator("#message-found li")
        assert page.locator("#message").inner_text().startswith("Attach a run")

        def offered() -> list[tuple[str, str]]:
            return [(row.locator("span").inner_text(), row.locator("code").inner_text()) for row in rows.all()]

        told = offered()
        here = f" --push {serving.url.rstrip('/')}"
        # A second server could not open this one's port and store: the commands send to this one.
        assert told[:3] == [(what, command + here) for what, command in FOUND]
        assert told[3:] == [
            (
                "Another run: its engines and its run directory",
                f"rollscope watch http://127.0.0.1:8000 ./outputs/my-run{here}",
            ),
        ]
        tabs = page.get_by_role("tab")
        assert tabs.all_inner_texts() == ["Attach", "Push", "Demo"]
        tabs.nth(1).click()
        # The code names this server, as this browser reaches it.
        assert f'URL = "{serving.url.rstrip("/")}/api/v1/runs/my-run/rollouts"' in offered()[0][1]
        page.keyboard.press("ArrowRight")
        assert tabs.nth(2).evaluate("el => el === document.activeElement && el.ariaSelected") == "true"
        assert offered() == [("A simulated run, as a server of its own", "rollscope demo --port 0")]
        page.keyboard.press("ArrowRight")
        assert offered() == told
        assert page.locator("h1:visible").inner_text() == "No runs yet"
        # Pages about one run would be empty.
        page.locator("#more summary").click()
        assert page.locator("#pages a:visible").all_inner_texts() == ["Runs", "Help"]
        page.keyboard.press("Escape")
        # The command is marked, so that it can be copied also where a page may not write to the clipboard.
        assert rows.nth(3).get_by_role("button").inner_text() == "Copy"
        follow = page.get_by_role("button", name=f"Follow {FOUND[0][0]}")
        follow.click()
        assert page.evaluate("getSelection().toString()") == FOUND[0][1] + here
        assert follow.inner_text() == "Follow"
        until(page, "() => document.querySelector('#message-found [role=status]').textContent !== ''")
        status = rows.nth(0).get_by_role("status").inner_text()
        # Where a page may not write to the clipboard, the selection is what is left.
        assert status.startswith(("The command is copied: run it", "The command is selected: copy it, and run it"))
        assert "in the folder where Rollscope was started" in status
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        # The page looks again now and then: an engine that has gone is no longer offered, and a run that came is shown.
        found.pop(1)
        until(page, "() => document.querySelectorAll('#message-found li').length === 3")
        reader.add_run("my-run")
        page.wait_for_selector("[data-page=ok]")
        assert rows.count() == 0 or not rows.nth(0).is_visible()
        page.close()
