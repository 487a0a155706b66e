"""Reads a whole listing page by page, over several polls if the provider is slow, and checks its completeness.

A listing shifts while it is read: when sandboxes end between two pages, others move up and are missed. So a live
sandbox that is missing from a listing is requested by its id. Only a listing without missing sandboxes is complete.
Ended sandboxes are read newest first, as far back as they are new. There is one request at a time and no retry: an
error ends the poll, and the next poll continues at the same page.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from msgspec import structs

from collectors.model import Limits, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers.provider import Extent, ended, under_way
from collectors.transport.rest import Refusal

# No page is requested after this share of the poll's time, so that a slow last page still fits.
SHARE = 0.6
# Bounds of one listing.
MAX_PAGES = 1000
MAX_ROWS = 50_000
MAX_ENDED_PAGES = 10
# Missing sandboxes that one poll requests by id.
MAX_LOOKUPS = 50
# A listing without a page for this time starts again, because the sandboxes have changed too much.
IDLE_SECONDS = 600.0
# Equal pages in a row that mean an endless listing. One repetition is normal if a page of new sandboxes was inserted.
SAME_PAGES = 2

LIVE: frozenset[SandboxState] = frozenset(
    ("queued", "building_image", "starting", "running", "paused", "stopping", "unknown")
)


@dataclass(frozen=True, slots=True)
class ListedRow:
    """One record, and its use of each quota resource (``cpu``: 4)."""

    sandbox: Sandbox
    uses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListingPage:
    """One answer: raw rows, and the position of the next page (opaque; None after the last)."""

    rows: list[Any]
    next: Any = None


@dataclass(frozen=True, slots=True)
class ListingSource:
    """How the listing of one provider is read.

    Attributes:
        live: queries that together return every live sandbox, in the order of a sandbox's states.
        ended: queries that return ended sandboxes (also), newest first; read as long as they are new.
        fetch: a query and a page's position (None: the first) -> that page.
        row: a raw row -> its record; None for a row without an id (the source counts it).
        request_row: an id -> its current raw row; None if the provider has no such request.
    """

    live: tuple[Any, ...]
    fetch: Callable[[Any, Any], Awaitable[ListingPage]]
    row: Callable[[Any], ListedRow | None]
    ended: tuple[Any, ...] = ()
    request_row: Callable[[str], Awaitable[Any]] | None = None


@dataclass(slots=True)
class _Sweep:
    """One listing in progress. ``begun`` and ``touched`` (the last page) are monotonic seconds."""

    begun: float
    touched: float
    query: int = 0
    position: Any = None
    positions: set[tuple[int, Any]] = field(default_factory=set)
    rows: dict[str, ListedRow] = field(default_factory=dict)
    pages: int = 0
    ended_pages: int = 0
    ended: set[str] = field(default_factory=set)
    cut: bool = False
    unread: int = 0
    last: set[str] = field(default_factory=set)
    same: int = 0


@dataclass(slots=True)
class SweepMemory:
    """State between polls: last records of live sandboxes, the newest ended ones, and the listing in progress."""

    sweep: _Sweep | None = None
    live_rows: dict[str, ListedRow] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of one poll.

    Attributes:
        done: the listing reached its end in this poll. `rows` are then the whole listing, else the rows of this poll.
        extent: ``listed`` if the listing is done, every row was parsed and no live sandbox is missing.
    """

    rows: tuple[ListedRow, ...]
    done: bool
    extent: Extent

    def live(self) -> list[ListedRow]:
        return [row for row in self.rows if row.sandbox.state in LIVE]


async def sweep(source: ListingSource, state: State, limits: Limits, begun: float) -> Swept:
    """Reads pages until the end or until the poll's share of time is used. ``begun``: monotonic seconds.

    Raises:
        ScrapeError: as the source's calls; ``garbage`` for a listing with a loop, and for a page without a
            valid row.
    """
    memory: SweepMemory = state.setdefault("sweep", SweepMemory())
    if memory.sweep is None or begun - memory.sweep.touched > IDLE_SECONDS:
        memory.sweep = _Sweep(begun, begun)
    current, ids_of_poll = memory.sweep, set[str]()
    until = begun + SHARE * limits.timeout_seconds
    try:
        done = await _pages(source, memory, current, ids_of_poll, until)
        if not done:
            extent = under_way(len(current.rows), time.monotonic() - current.begun)
            return Swept(tuple(current.rows[key] for key in ids_of_poll), False, extent)
        missing = await _request_all_missing(source, memory, current, until)
    except ScrapeError as error:
        # After an interruption the position is still valid; after an invalid answer the position may be the reason.
        if error.kind not in ("throttled", "timeout", "unreachable"):
            memory.sweep = None
        raise
    memory.live_rows = {key: row for key, row in current.rows.items() if row.sandbox.state in LIVE} | missing
    memory.ended, memory.sweep = current.ended or memory.ended, None
    return Swept(
        tuple(current.rows.values()), True, ended(len(current.rows), current.unread, cut=current.cut, lost=len(missing))
    )


async def _pages(
    source: ListingSource, memory: SweepMemory, current: _Sweep, ids_of_poll: set[str], until: float
) -> bool:
    queries, before = (*source.live, *source.ended), current.pages
    while current.query < len(queries):
        # At least one page per poll, so that the listing of a slow account is eventually read.
        if current.pages > before and time.monotonic() > until:
            return False
        page = await source.fetch(queries[current.query], current.position)
        current.touched = time.monotonic()
        ids = _add_page(source, current, page)
        ids_of_poll |= ids
        if current.query >= len(source.live):
            enough = _enough_ended(memory, current, ids)
        else:
            enough = current.cut = current.cut or current.pages >= MAX_PAGES or len(current.rows) > MAX_ROWS
        if page.next is None or enough:
            current.query, current.position, current.ended_pages = current.query + 1, None, 0
            current.last, current.same = set(), 0
        else:
            _advance(current, page.next, ids)
    return True


def _add_page(source: ListingSource, current: _Sweep, page: ListingPage) -> set[str]:
    """Maps one page. If a row is read twice (the listing shifted), the last one counts."""
    read = [row for raw in page.rows if (row := source.row(raw)) is not None]
    if page.rows and not read:
        raise ScrapeError("garbage", f"none of the {len(page.rows)} rows of a page could be read")
    current.rows.update((row.sandbox.id, row) for row in read)
    if current.query < len(source.live):
        current.unread += len(page.rows) - len(read)  # an unread ended row hides no live sandbox
    current.pages += 1
    return {row.sandbox.id for row in read}


def _enough_ended(memory: SweepMemory, current: _Sweep, ids: set[str]) -> bool:
    """Are enough ended sandboxes read? Yes at a sandbox of the last poll or, while live ones are missing, at a page
    without new ones.

    The first poll reads one page only, because earlier sandboxes are not counted. Lists are sorted by creation and not
    by end, so new ones may follow after known ones. Those too far down are requested by id.
    """
    over = {key for key in ids if current.rows[key].sandbox.state not in LIVE}
    current.ended |= over
    current.ended_pages += 1
    if current.ended_pages >= MAX_ENDED_PAGES or not (memory.live_rows or memory.ended):
        return True
    if memory.live_rows.keys() - current.rows.keys():
        return bool(over) and over <= memory.ended
    return not over or bool(over & memory.ended)


def _advance(current: _Sweep, position: Any, ids: set[str]) -> None:
    if (current.query, position) in current.positions:
        raise ScrapeError("garbage", "the listing has a loop: a page names an earlier one as the next")
    current.same = current.same + 1 if ids and ids == current.last else 0
    current.last = ids
    if current.same >= SAME_PAGES:
        raise ScrapeError("garbage", "the listing has a loop: the same page is repeated")
    current.positions.add((current.query, position))
    current.position = position


async def _request_all_missing(
    source: ListingSource, memory: SweepMemory, current: _Sweep, until: float
) -> dict[str, ListedRow]:
    """Requests live sandboxes that were not listed by their ids. Returns those that remain unknown."""
    missing = {key: row for key, row in memory.live_rows.items() if key not in current.rows}
    if source.request_row is None:
        return {}
    for key in list(missing)[:MAX_LOOKUPS]:
        if time.monotonic() > until:
            break
        row = await _request_missing(source, source.request_row, missing[key])
        if row is not None:
            current.rows[key] = row
            del missing[key]
    return missing


async def _request_missing(
    source: ListingSource, request_row: Callable[[str], Awaitable[Any]], before: ListedRow
) -> ListedRow | None:
    try:
        row = source.row(await request_row(before.sandbox.id))
    except Refusal as error:
        if error.status in (404, 410):
            return replace(
                before, sandbox=structs.replace(before.sandbox, state="terminated", provider_state="not found")
            )
        if error.kind == "status":
            return None
        raise
    return row if row is not None and row.sandbox.id == before.sandbox.id else None


# ---- walk
# Walks through the pages of a listing within the time of a poll, and continues in the next poll.

Row = TypeVar("Row")

# Bounds of one walk.
MAX_WALKED_ROWS = 20_000
# No page is requested after this share of the poll's time, so that a slow last page still fits.
# A walk without a page for this time starts again, because the listing has changed too much.
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
        if not current.done and (len(current.rows) >= MAX_WALKED_ROWS or current.pages >= MAX_PAGES):
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
