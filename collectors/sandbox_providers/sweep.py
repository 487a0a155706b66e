"""A whole listing from pages: over several polls when the provider is slow, and honest about what it saw.

A listing moves while it is read: sandboxes end between two pages, and what moved up is missed. So a sandbox known to
live that a listing leaves out is asked for by its id, and only a listing without such doubts counts as complete.
Ended ones are read newest first, as far back as there is news. One request at a time, none waited for: a
refusal ends the poll, and the next one goes on where it stopped.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from collectors.model import Limits, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers.listing import Extent, ended, under_way
from collectors.transport.rest import Refusal

# Of a poll's time: after this no further page is begun, so that the last one may still be slow.
SHARE = 0.6
PAGES_MAX = 1000
ROWS_MAX = 50_000
ENDED_PAGES_MAX = 10
# How many lost ones a poll asks for by id.
LOOKUPS_MAX = 50
# A listing that got no page for so long would go on in another world. One that is merely slow goes on.
IDLE_SECONDS = 600.0
# A server that gives one page again and again has no end. Once is honest: just a page of new ones may have pushed in.
SAME_PAGES = 2

LIVE: frozenset[SandboxState] = frozenset(
    ("queued", "building_image", "starting", "running", "paused", "stopping", "unknown")
)


@dataclass(frozen=True, slots=True)
class ListedRow:
    """One record, and what it takes of each quota resource (``cpu``: 4)."""

    sandbox: Sandbox
    uses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListingPage:
    """One answer: raw rows and where the next ones are (opaque; None: this was the last)."""

    rows: list[Any]
    next: Any = None


@dataclass(frozen=True, slots=True)
class ListingSource:
    """How one provider lists.

    Attributes:
        live: one query each, together every live sandbox, in the order of a sandbox' life.
        ended: queries that bring ended ones (too), newest first; read while they are news.
        fetch: a query and a page's place (None: the first) -> that page.
        row: a raw row -> its record; None for what has no id (counting it is the source's).
        look: an id -> its raw row now; None where the provider cannot say.
    """

    live: tuple[Any, ...]
    fetch: Callable[[Any, Any], Awaitable[ListingPage]]
    row: Callable[[Any], ListedRow | None]
    ended: tuple[Any, ...] = ()
    look: Callable[[str], Awaitable[Any]] | None = None


@dataclass(slots=True)
class _Sweep:
    """One listing under way. ``begun``, ``touched`` (the last page): monotonic seconds."""

    begun: float
    touched: float
    query: int = 0
    place: Any = None
    places: set[tuple[int, Any]] = field(default_factory=set)
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
    """What is kept between polls: the live by their last record, the newest ended, and the listing under way."""

    sweep: _Sweep | None = None
    known: dict[str, ListedRow] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one poll brought.

    Attributes:
        done: the listing reached its end in this poll; `rows` then holds all of it, else what this poll read.
        extent: ``listed`` when it is done, every row was read and no sandbox known to live is left out.
    """

    rows: tuple[ListedRow, ...]
    done: bool
    extent: Extent

    def live(self) -> list[ListedRow]:
        return [row for row in self.rows if row.sandbox.state in LIVE]


async def sweep(source: ListingSource, state: State, limits: Limits, begun: float) -> Swept:
    """Read pages until the end or until this poll's share of time is over. ``begun``: monotonic seconds.

    Raises:
        ScrapeError: as the source's calls; ``garbage`` for a listing that runs in circles and for a page of which
            no row can be read.
    """
    memory: SweepMemory = state.setdefault("sweep", SweepMemory())
    if memory.sweep is None or begun - memory.sweep.touched > IDLE_SECONDS:
        memory.sweep = _Sweep(begun, begun)
    now, met = memory.sweep, set[str]()
    until = begun + SHARE * limits.timeout_seconds
    try:
        done = await _pages(source, memory, now, met, until)
        if not done:
            extent = under_way(len(now.rows), time.monotonic() - now.begun)
            return Swept(tuple(now.rows[key] for key in met), False, extent)
        lost = await _look_for_lost(source, memory, now, until)
    except ScrapeError as error:
        # A place in a listing outlives a pause; an answer that makes no sense may be the place's fault.
        if error.kind not in ("throttled", "timeout", "unreachable"):
            memory.sweep = None
        raise
    memory.known = {key: row for key, row in now.rows.items() if row.sandbox.state in LIVE} | lost
    memory.ended, memory.sweep = now.ended or memory.ended, None
    return Swept(tuple(now.rows.values()), True, ended(len(now.rows), now.unread, cut=now.cut, lost=len(lost)))


async def _pages(source: ListingSource, memory: SweepMemory, now: _Sweep, met: set[str], until: float) -> bool:
    queries, before = (*source.live, *source.ended), now.pages
    while now.query < len(queries):
        # One page at least, so that a slow account cannot keep its listing from ever being read.
        if now.pages > before and time.monotonic() > until:
            return False
        page = await source.fetch(queries[now.query], now.place)
        now.touched = time.monotonic()
        ids = _take(source, now, page)
        met |= ids
        if now.query >= len(source.live):
            enough = _enough_ended(memory, now, ids)
        else:
            enough = now.cut = now.cut or now.pages >= PAGES_MAX or len(now.rows) > ROWS_MAX
        if page.next is None or enough:
            now.query, now.place, now.ended_pages = now.query + 1, None, 0
            now.last, now.same = set(), 0
        else:
            _go_on(now, page.next, ids)
    return True


def _take(source: ListingSource, now: _Sweep, page: ListingPage) -> set[str]:
    """Map one page; a row that is read twice (the listing moved) counts as it was read last."""
    read = [row for raw in page.rows if (row := source.row(raw)) is not None]
    if page.rows and not read:
        raise ScrapeError("garbage", f"none of the {len(page.rows)} rows of a page could be read")
    now.rows.update((row.sandbox.id, row) for row in read)
    if now.query < len(source.live):
        now.unread += len(page.rows) - len(read)  # an ended one hides nothing that lives
    now.pages += 1
    return {row.sandbox.id for row in read}


def _enough_ended(memory: SweepMemory, now: _Sweep, ids: set[str]) -> bool:
    """Back at what the last poll had read, or, while known ones are missing, at a page without news.

    At first one page: history before our time is not ours to count. Lists are sorted by creation and not by end, so
    the news may begin below what is known; what is too far down is asked for by id.
    """
    over = {key for key in ids if now.rows[key].sandbox.state not in LIVE}
    now.ended |= over
    now.ended_pages += 1
    if now.ended_pages >= ENDED_PAGES_MAX or not (memory.known or memory.ended):
        return True
    if memory.known.keys() - now.rows.keys():
        return bool(over) and over <= memory.ended
    return not over or bool(over & memory.ended)


def _go_on(now: _Sweep, place: Any, ids: set[str]) -> None:
    if (now.query, place) in now.places:
        raise ScrapeError("garbage", "the listing runs in circles: a page names an earlier one as the next")
    now.same = now.same + 1 if ids and ids == now.last else 0
    now.last = ids
    if now.same >= SAME_PAGES:
        raise ScrapeError("garbage", "the listing runs in circles: the same page comes again and again")
    now.places.add((now.query, place))
    now.place = place


async def _look_for_lost(source: ListingSource, memory: SweepMemory, now: _Sweep, until: float) -> dict[str, ListedRow]:
    """Ask for those known to live that were not listed; returns those still in doubt."""
    lost = {key: row for key, row in memory.known.items() if key not in now.rows}
    if source.look is None:
        return {}
    for key in list(lost)[:LOOKUPS_MAX]:
        if time.monotonic() > until:
            break
        row = await _look(source, source.look, lost[key])
        if row is not None:
            now.rows[key] = row
            del lost[key]
    return lost


async def _look(source: ListingSource, look: Callable[[str], Awaitable[Any]], before: ListedRow) -> ListedRow | None:
    try:
        row = source.row(await look(before.sandbox.id))
    except Refusal as error:
        if error.status in (404, 410):
            return replace(before, sandbox=replace(before.sandbox, state="terminated", provider_state="not found"))
        if error.kind == "status":
            return None
        raise
    return row if row is not None and row.sandbox.id == before.sandbox.id else None
