"""Lists requested over HTTP: one bounded GET per interval; the last good list counts until the next.

Follows no redirect and sends no credentials except the configured ones. `refuse_target` decides about addresses.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from collectors.model import Limits, ScrapeError
from collectors.transport import failures, http
from server.lib.outbound_policy import refuse_target
from server.targets.discovery.model import BYTES, DiscoveryError, Found, Listing, Parsed
from server.targets.discovery.parsing import from_json

LIMITS = Limits(body_bytes=BYTES, timeout_seconds=10.0)


async def document(client: httpx.AsyncClient, url: str, headers: Mapping[str, str], limits: Limits = LIMITS) -> Any:
    """Returns the JSON answer of a GET; None for a 404 or 405.

    Raises:
        DiscoveryError: no valid answer.
    """
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            plain = {**headers, "accept-encoding": "identity"}
            async with client.stream("GET", url, headers=plain, follow_redirects=False) as response:
                if response.status_code in (404, 405):
                    return None
                _check(response)
                return from_json(await http.body(response, limits))
    except (TimeoutError, httpx.TimeoutException):
        raise DiscoveryError(f"no complete answer within {limits.timeout_seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as error:
        raise DiscoveryError(failures.sentence(error)) from None
    except ScrapeError as error:
        raise DiscoveryError(str(error)) from None


def _check(response: httpx.Response) -> None:
    if response.status_code != 200:
        raise DiscoveryError(failures.status(response.status_code))
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise DiscoveryError("the answer is not application/json")


def client(limits: Limits = LIMITS) -> httpx.AsyncClient:
    """Returns an HTTP client, one per list."""
    return httpx.AsyncClient(timeout=limits.timeout_seconds, follow_redirects=False, trust_env=False)


@dataclass(slots=True)
class HttpList:
    """A list that is requested every `interval_seconds`; see `Provider`. Subclasses implement the request.

    ``headers``: sent with every request (a bearer token, if the list needs one).
    """

    url: str
    interval_seconds: float = 60.0
    limits: Limits = LIMITS
    headers: Mapping[str, str] = field(default_factory=dict)
    _client: httpx.AsyncClient | None = None
    _due: float = float("-inf")
    _last: tuple[Found, ...] = ()
    _error: str = ""
    _left_out: str = ""

    async def targets(self, now: float) -> Listing:
        """See `Provider`. After an error the last list counts; an empty list is a valid list."""
        if now < self._due:
            return Listing(self._last, error=self._error, left_out=self._left_out)
        self._due = now + self.interval_seconds
        before = self._last
        try:
            if refusal := refuse_target(self.url):
                raise DiscoveryError(f"its address {refusal}")
            self._client = self._client or client(self.limits)
            parsed = await self.ask(self._client)
        except DiscoveryError as error:
            remains = f"; its last {len(before)} targets are kept" if before else ""
            self._error = f"{self.name()}: {error}{remains}"
            return Listing(before, error=self._error)
        self._last = tuple(dict.fromkeys(parsed.found))
        self._error, self._left_out = "", "; ".join(f"{self.name()}: {problem}" for problem in parsed.problems)
        return Listing(self._last, self._last != before, left_out=self._left_out)

    def name(self) -> str:
        """Name of the list in errors; never its URL, which may contain a secret."""
        return "the list"

    async def ask(self, client: httpx.AsyncClient) -> Parsed:
        """Sends one request; raises `DiscoveryError`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Closes its connections."""
        if self._client is not None:
            await self._client.aclose()
