"""Walks through the pages of a listing within the time of a poll, and continues in the next poll.

The rows of a poll are returned at once. After the last page all rows of the walk are returned as the complete listing.
The number of rows is bounded. A failed page ends the poll, and the walk starts again. After a timeout or throttling it
continues instead, because a slow provider would otherwise never be read to the end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from collectors.model import Limits, ScrapeError, State
from collectors.sandbox_providers.listing import Extent, ended, under_way

Row = TypeVar("Row")

# Bounds of one walk.
MAX_ROWS = 20_000
MAX_PAGES = 1_000
# No page is requested after this share of the poll's time, so that a slow last page still fits.
SHARE = 0.6
# A walk without a page for this time starts again, because the listing has changed too much.
IDLE_SECONDS = 600.0
# Pages in a row without a new row that mean an endless listing.
STALE_PAGES = 2


@dataclass(slots=True)
class WalkPage(Generic[Row]):
    """Rows of a page by id, token of the next page ("" after the last), number of rows that could not be parsed."""

    rows: dict[str, Row]
    next: str = ""
    unread: int = 0


@dataclass(slots=True)
class Walk(Generic[Row]):
    """State of a walk.

    Attributes:
        rows: all rows since the first page.
        fresh: rows of this poll.
        done: the last page was read.
        cut: the walk was stopped at the bound.
        since: start, in time of the running loop.
        touched: time of the last page.
    """

    token: str = ""
    begun: bool = False
    done: bool = False
    pages: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    fresh: dict[str, Row] = field(default_factory=dict)
    cut: bool = False
    unread: int = 0
    stale: int = 0
    since: float = 0.0
    touched: float = 0.0

    def extent(self) -> Extent:
        """How much of the listing this poll returned."""
        if self.done or self.cut:
            return ended(len(self.rows), self.unread, cut=self.cut)
        return under_way(len(self.rows), self.touched - self.since)


class Budget:
    """Time of a poll in which new requests may start. Monotonic time of the running loop."""

    def __init__(self, limits: Limits) -> None:
        self._end = asyncio.get_running_loop().time() + SHARE * limits.timeout_seconds

    def spent(self) -> bool:
        """Is it too late for another request?"""
        return asyncio.get_running_loop().time() > self._end


async def walk(state: State, name: str, fetch: Callable[[str], Awaitable[WalkPage[Row]]], budget: Budget) -> Walk[Row]:
    """Continues the walk of this name. The caller calls `finish` after it has used a complete walk.

    Raises:
        ScrapeError: as ``fetch``; ``garbage`` for a listing with a loop, and for a page without a valid row.
    """
    key = f"walk {name}"
    current: Walk[Row] = _current(state, key)
    current.fresh = {}
    first = True
    while not current.done and (first or not budget.spent()):
        first = False
        page = await _page(state, key, fetch, current)
        if error := _add(current, page):
            state.pop(key)
            raise ScrapeError("garbage", error)
        current.done = not page.next
        if not current.done and (len(current.rows) >= MAX_ROWS or current.pages >= MAX_PAGES):
            current.cut = True
            state.pop(key)
            return current
        current.token = page.next
    return current


def _current(state: State, key: str) -> Walk[Row]:
    now = asyncio.get_running_loop().time()
    current: Walk[Row] | None = state.get(key)
    if current is None or now - current.touched > IDLE_SECONDS:
        current = state[key] = Walk(since=now, touched=now)
    return current


def _add(current: Walk[Row], page: WalkPage[Row]) -> str:
    """Adds a page to the walk. Returns an error if the page is invalid, else ""."""
    if page.unread and not page.rows:
        return f"none of the {page.unread} rows of a page could be read"
    # An empty page is valid: Kubernetes filters after it has divided the list into pages.
    repeated = bool(page.rows) and page.rows.keys() <= current.rows.keys()
    current.stale = current.stale + 1 if repeated else 0
    current.rows.update(page.rows)
    current.fresh.update(page.rows)
    current.pages, current.unread = current.pages + 1, current.unread + page.unread
    current.touched = asyncio.get_running_loop().time()
    if page.next and page.next == current.token:
        return "the listing has a loop: a page names itself as the next"
    if page.next and current.stale >= STALE_PAGES:
        return "the listing has a loop: its pages contain no new rows"
    return ""


async def _page(
    state: State, key: str, fetch: Callable[[str], Awaitable[WalkPage[Row]]], current: Walk[Row]
) -> WalkPage[Row]:
    try:
        return await fetch(current.token)
    except ScrapeError as error:
        if error.kind not in ("timeout", "throttled"):
            state.pop(key, None)
        raise


def finish(state: State, *names: str) -> None:
    """Ends the walks of these names: the next poll starts at the first page."""
    for name in names:
        state.pop(f"walk {name}", None)
