"""One bounded GET: how every collector that speaks HTTP reads a page.

Bounds the bytes on the wire, the bytes after inflation and the total time, follows no redirect, and turns every
failure into a `ScrapeError` whose text holds no URL, header or body. Does not retry: the next scrape does.
"""

import asyncio
import zlib
from collections.abc import Callable

import httpx

from collectors.model import Limits, ScrapeError
from collectors.readers.exposition import CONTENT_TYPE

_HEADERS = {
    "Accept": CONTENT_TYPE,
    # A page is 80 kB and the engine has better uses for its cores; also there is no zip bomb in plain text.
    "Accept-Encoding": "identity",
}


async def get(client: httpx.AsyncClient, url: httpx.URL | str, limits: Limits) -> bytes:
    """The body of a 200 answer.

    Reads at most ``limits.body_bytes`` and one chunk, for at most ``limits.timeout_seconds`` in all: an answer that
    drips for ever ends there, which httpx' own time-outs (each between two reads) would let pass.

    Raises:
        ScrapeError: ``unreachable``, ``timeout``, ``auth``, ``status``, ``too_large`` or ``garbage``.
    """
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            async with client.stream("GET", url, headers=_HEADERS, follow_redirects=False) as response:
                _check_head(response, limits)
                return await body(response, limits)
    except (TimeoutError, httpx.TimeoutException):
        raise ScrapeError("timeout", f"no complete answer within {limits.timeout_seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        # The class says enough (ConnectError, RemoteProtocolError); the message would carry the URL.
        raise ScrapeError("unreachable", f"no answer: {type(error).__name__}") from None
    except (OSError, UnicodeError) as error:
        raise ScrapeError("unreachable", f"no answer: {type(error).__name__}") from None


def _check_head(response: httpx.Response, limits: Limits) -> None:
    status = response.status_code
    if status in (401, 403):
        raise ScrapeError("auth", f"HTTP {status}: the credentials are missing or wrong")
    if 300 <= status < 400:
        raise ScrapeError("status", f"HTTP {status}: redirects are not followed; configure where it leads")
    if status != 200:
        raise ScrapeError("status", f"HTTP {status}")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > limits.body_bytes:
        raise _too_large(limits)


async def body(response: httpx.Response, limits: Limits) -> bytes:
    """The answer's bytes, bounded on the wire and inflated.

    Raises:
        ScrapeError: ``too_large`` or ``garbage``.
    """
    inflate = _inflater(response.headers.get("content-encoding", "identity"))
    parts: list[bytes] = []
    wire = size = 0
    async for chunk in response.aiter_raw():
        wire += len(chunk)
        plain = inflate(chunk, limits.body_bytes + 1 - size)
        size += len(plain)
        if wire > limits.body_bytes or size > limits.body_bytes:
            raise _too_large(limits)
        parts.append(plain)
    return b"".join(parts)


def _inflater(encoding: str) -> Callable[[bytes, int], bytes]:
    """Decoder of one chunk that never hands out more than it was told to."""
    if encoding.strip().lower() in ("", "identity"):
        return lambda chunk, _room: chunk
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        raise ScrapeError("garbage", "the answer is compressed in a way we did not ask for")
    stream = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, told by the header

    def inflate(chunk: bytes, room: int) -> bytes:
        try:
            return stream.decompress(chunk, room)
        except zlib.error:
            raise ScrapeError("garbage", "the answer does not decompress") from None

    return inflate


def _too_large(limits: Limits) -> ScrapeError:
    return ScrapeError("too_large", f"the answer is larger than {limits.body_bytes} bytes")


async def metrics_page(client: httpx.AsyncClient, limits: Limits) -> bytes:
    """GET a metrics page: the client's base URL when that names one (`.../metrics`), else /metrics under it.

    Raises:
        ScrapeError: as `get`.
    """
    path = client.base_url.path.rstrip("/")
    url: httpx.URL | str = client.base_url.copy_with(path=path) if path.endswith("metrics") else "/metrics"
    return await get(client, url, limits)
