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

Row = TypeVar("Row")

MAX_ROWS = 20_000
MAX_PAGES = 1_000
# No new page is begun after this share of the poll's time: the last one needs some too.
SHARE = 0.6


@dataclass(slots=True)
class Page(Generic[Row]):
    """One page's rows by id, and what leads to the next page ("" after the last)."""

    rows: dict[str, Row]
    next: str = ""


@dataclass(slots=True)
class Walk(Generic[Row]):
    """Where a walk is. ``rows`` holds every row since its first page, ``fresh`` those of this poll."""

    token: str = ""
    begun: bool = False
    done: bool = False
    pages: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    fresh: dict[str, Row] = field(default_factory=dict)


class Budget:
    """How much of a poll's time is left for beginning new pages. Monotonic time of the running loop."""

    def __init__(self, limits: Limits) -> None:
        self._end = asyncio.get_running_loop().time() + SHARE * limits.timeout_seconds

    def spent(self) -> bool:
        """Is it too late to begin another request?"""
        return asyncio.get_running_loop().time() > self._end


async def walk(state: State, name: str, fetch: Callable[[str], Awaitable[Page[Row]]], budget: Budget) -> Walk[Row]:
    """Go on with the walk of this name. The caller calls `finish` once it has used a walk that is done.

    Raises:
        ScrapeError: as ``fetch``.
    """
    key = f"walk {name}"
    held: Walk[Row] = state.setdefault(key, Walk())
    held.fresh = {}
    first = True
    while not held.done and (first or not budget.spent()):
        first = False
        page = await _page(state, key, fetch, held)
        held.rows.update(page.rows)
        held.fresh.update(page.rows)
        held.pages += 1
        if not page.next or page.next == held.token:
            held.done = True  # a token that leads to itself would lead on for ever
        elif len(held.rows) >= MAX_ROWS or held.pages >= MAX_PAGES:
            state.pop(key)
            return held
        held.token = page.next
    return held


async def _page(state: State, key: str, fetch: Callable[[str], Awaitable[Page[Row]]], held: Walk[Row]) -> Page[Row]:
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
