"""Pages of a browser test, and what they log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.browser_support import exposed

# Of two themes and two sizes the pair that has each once; the other pair is `make test-long`.
LOOKS = (
    ("light", (1440, 900)),
    ("dark", (390, 844)),
    pytest.param("dark", (1440, 900), marks=pytest.mark.long),
    pytest.param("light", (390, 844), marks=pytest.mark.long),
)
New = Callable[..., Page]
"""(theme, (width, height), settings of its context) -> a blank page."""


@contextmanager
def new_pages(browser: Browser, *expected: str) -> Iterator[New]:
    """Makes pages, and closes them. What one logs as an error fails the test.

    Args:
        expected: words of errors that do not count. A page with an attribute ``forgiven`` may log what it likes.
    """
    pages: list[Page] = []
    logged: list[tuple[Page, str]] = []

    def made(theme: str = "light", size: tuple[int, int] = (1440, 900), **settings: Any) -> Page:
        viewport: Any = {"width": size[0], "height": size[1]}
        page = exposed(browser.new_page(viewport=viewport, color_scheme=theme, **settings))  # type: ignore[arg-type]
        pages.append(page)

        def note(message: ConsoleMessage) -> None:
            if message.type == "error":
                logged.append((page, message.text))

        page.on("console", note)
        page.on("pageerror", lambda error: logged.append((page, str(error))))
        return page

    yield made
    for page in pages:
        page.close()
    counted = [text for page, text in logged if not getattr(page, "forgiven", False)]
    assert [text for text in counted if not any(words in text for words in expected)] == []
