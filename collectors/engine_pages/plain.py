"""What collectors of one plain page share: asking for it, and knowing it by a pattern."""

import re
from collections.abc import Awaitable, Callable

import httpx

from collectors.engine_pages import pages as engine_pages_pages
from collectors.model import Limits, Reading, State

Parse = Callable[[bytes, State, Limits], Reading]


def poll_of(parse: Parse) -> Callable[[httpx.AsyncClient, State, Limits], Awaitable[Reading]]:
    """The verb that GETs the page (at the client's base URL when that names one, else at /metrics) and parses it.

    It raises `ScrapeError` as `http.get` and `parse` do.
    """

    async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        return await engine_pages_pages.parsed(parse, await engine_pages_pages.fetch(client, limits), state, limits)

    return poll


def known_by(pattern: re.Pattern[bytes]) -> Callable[[bytes], bool]:
    """Is a page such a system's? By a pattern that is on each of them and on no other's."""
    return lambda body: pattern.search(body) is not None
