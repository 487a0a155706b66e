"""A listing of many pages, walked within one poll's time and gone on with in the next when that was too short.

What one poll saw is handed out at once; that *everything* was seen is said once the last page was, together with
every row of the walk. Bounded in rows; a page that fails ends the poll. The walk begins anew then, unless the failure
was one of time: a slow provider would never be read to the end otherwise.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from collectors.model import Limits, ScrapeError, State
from collectors.sandbox_providers.listing import Extent, ended, under_way

Row = TypeVar("Row")

MAX_ROWS = 20_000
MAX_PAGES = 1_000
# No new page is begun after this share of the poll's time: the last one needs some too.
SHARE = 0.6
# A walk that got no page for so long would go on in another world.
IDLE_SECONDS = 600.0
# Pages that bring nothing new, in succession: the next would not either.
STALE_PAGES = 2


@dataclass(slots=True)
class WalkPage(Generic[Row]):
    """One page's rows by id, what leads to the next page ("" after the last), how many rows could not be read."""

    rows: dict[str, Row]
    next: str = ""
    unread: int = 0


@dataclass(slots=True)
class Walk(Generic[Row]):
    """Where a walk is. ``rows`` holds every row since its first page, ``fresh`` those of this poll.

    Attributes:
        cut: it was ended at the most that is read; ``done`` is at its own end.
        since, touched: its begin and its last page, time of the running loop.
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
        """How much of the listing this poll brought."""
        if self.done or self.cut:
            return ended(len(self.rows), self.unread, cut=self.cut)
        return under_way(len(self.rows), self.touched - self.since)


class Budget:
    """How much of a poll's time is left for beginning new pages. Monotonic time of the running loop."""

    def __init__(self, limits: Limits) -> None:
        self._end = asyncio.get_running_loop().time() + SHARE * limits.timeout_seconds

    def spent(self) -> bool:
        """Is it too late to begin another request?"""
        return asyncio.get_running_loop().time() > self._end


async def walk(state: State, name: str, fetch: Callable[[str], Awaitable[WalkPage[Row]]], budget: Budget) -> Walk[Row]:
    """Go on with the walk of this name. The caller calls `finish` once it has used a walk that is done.

    Raises:
        ScrapeError: as ``fetch``; ``garbage`` for a listing that runs in circles and for a page of which no row can
            be read.
    """
    key = f"walk {name}"
    held: Walk[Row] = _held(state, key)
    held.fresh = {}
    first = True
    while not held.done and (first or not budget.spent()):
        first = False
        page = await _page(state, key, fetch, held)
        if nonsense := _take(held, page):
            state.pop(key)
            raise ScrapeError("garbage", nonsense)
        held.done = not page.next
        if not held.done and (len(held.rows) >= MAX_ROWS or held.pages >= MAX_PAGES):
            held.cut = True
            state.pop(key)
            return held
        held.token = page.next
    return held


def _held(state: State, key: str) -> Walk[Row]:
    now = asyncio.get_running_loop().time()
    held: Walk[Row] | None = state.get(key)
    if held is None or now - held.touched > IDLE_SECONDS:
        held = state[key] = Walk(since=now, touched=now)
    return held


def _take(held: Walk[Row], page: WalkPage[Row]) -> str:
    """Add a page to the walk; returns why it makes no sense, "" when it does."""
    if page.unread and not page.rows:
        return f"none of the {page.unread} rows of a page could be read"
    # An empty page is honest: Kubernetes filters after it has cut pages.
    known = bool(page.rows) and page.rows.keys() <= held.rows.keys()
    held.stale = held.stale + 1 if known else 0
    held.rows.update(page.rows)
    held.fresh.update(page.rows)
    held.pages, held.unread = held.pages + 1, held.unread + page.unread
    held.touched = asyncio.get_running_loop().time()
    if page.next and page.next == held.token:
        return "the listing runs in circles: a page names itself as the next"
    if page.next and held.stale >= STALE_PAGES:
        return "the listing runs in circles: its pages bring nothing new"
    return ""


async def _page(
    state: State, key: str, fetch: Callable[[str], Awaitable[WalkPage[Row]]], held: Walk[Row]
) -> WalkPage[Row]:
    try:
        return await fetch(held.token)
    except ScrapeError as error:
        if error.kind not in ("timeout", "throttled"):
            state.pop(key, None)
        raise


def finish(state: State, *names: str) -> None:
    """The walks of these names are used up: the next poll begins at the first page."""
    for name in names:
        state.pop(f"walk {name}", None)
