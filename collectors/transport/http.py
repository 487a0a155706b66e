"""One bounded GET, used by every collector that reads a page over HTTP.

Bounds the bytes on the wire, the bytes after inflation and the total time, follows no redirect, and turns every
failure into a `ScrapeError` whose text holds no URL, header or body. Does not retry: the next scrape does.
"""

import asyncio
import ssl
import zlib
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import httpx

from collectors.model import Limits, ScrapeError
from collectors.transport import failures
from collectors.transport.connection import HostPort, HttpConnection

CONTENT_TYPE = "text/plain;version=0.0.4"


_HEADERS = {
    "Accept": CONTENT_TYPE,
    # A page has 80 kB, and compressing would use the engine's CPU; plain text also has no zip bombs.
    "Accept-Encoding": "identity",
}

WBITS = 47  # 32 + 15: gzip or zlib, detected by the header
# gzip members of a body. Each costs a microsecond and needs twenty bytes: a body of members would take seconds.
MEMBERS = 1_000


@lru_cache(maxsize=1)
def certificates() -> ssl.SSLContext:
    """The trusted certificates, read once: a thousand clients with one copy each would take 20 s and 400 MB."""
    return httpx.create_ssl_context(trust_env=False)


class PageClient(httpx.AsyncClient):
    """A client of one target. `get` reads its pages over a persistent connection of their own instead of httpx.

    The request is httpx's, built once per URL. All other requests to the target use httpx.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(verify=certificates(), follow_redirects=False, trust_env=False, **options)
        self._connections: dict[tuple[str, str, int], HttpConnection] = {}
        self._requests: dict[str, tuple[HttpConnection, bytes]] = {}

    @property
    def plain(self) -> bool:
        """Returns whether the page may be read without httpx: hooks on the client need httpx."""
        return not any(self.event_hooks.values())

    async def page(self, url: httpx.URL | str, limits: Limits) -> bytes:
        """The body of a 200 answer; see `get`."""
        key = str(url)
        if key not in self._requests:
            self._requests[key] = self._prepared(url)
        connection, request = self._requests[key]
        sink = _Body(limits)
        await connection.get(request, sink)
        return sink.whole()

    def _prepared(self, url: httpx.URL | str) -> tuple[HttpConnection, bytes]:
        request = self.build_request("GET", url, headers=_HEADERS)
        found, headers = request.url, request.headers
        if found.userinfo:
            named = f"{found.username}:{found.password}".encode()
            headers["Authorization"] = "Basic " + b64encode(named).decode()
        if found.scheme not in ("http", "https") or not found.host:
            raise httpx.UnsupportedProtocol("not http or https")
        port = found.port or (443 if found.scheme == "https" else 80)
        place = (found.scheme, found.raw_host.decode("ascii"), port)
        if place not in self._connections:
            self._connections[place] = HttpConnection(
                HostPort(place[1], port, certificates() if found.scheme == "https" else None)
            )
        if any(byte in value for _, value in headers.raw for byte in (b"\r", b"\n", b"\0")):
            raise httpx.LocalProtocolError("a header contains a line break")
        head = b"".join(b"%s: %s\r\n" % pair for pair in headers.raw)
        return self._connections[place], b"GET %s HTTP/1.1\r\n%s\r\n" % (found.raw_path, head)

    async def aclose(self) -> None:
        for connection in self._connections.values():
            connection.close()
        await super().aclose()


class _Body:
    """A page's body in parts, bounded on the wire and inflated."""

    def __init__(self, limits: Limits, encoding: str = "identity") -> None:
        self.parts: list[bytes] = []
        self._limits, self._wire, self._size, self._stream = limits, 0, 0, _stream(encoding)

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Refuses a status other than 200, and a length beyond the limit."""
        _check_head(status, headers.get(b"content-length", b"").decode("latin-1"), self._limits)
        self._stream = _stream(headers.get(b"content-encoding", b"identity").decode("latin-1"))

    def body(self, chunk: bytes) -> None:
        """Adds the next bytes, inflated."""
        room = self._limits.body_bytes + 1 - self._size
        plain = chunk if self._stream is None else self._stream.inflate(chunk, room)
        self._wire, self._size = self._wire + len(chunk), self._size + len(plain)
        if max(self._wire, self._size) > self._limits.body_bytes:
            raise _too_large(self._limits)
        self.parts.append(plain)

    def whole(self) -> bytes:
        """The whole body after its last part."""
        if self._stream is not None and not self._stream.ended:
            raise ScrapeError("garbage", "the answer is incomplete: its compressed data is cut off")
        return b"".join(self.parts)


async def get(client: httpx.AsyncClient, url: httpx.URL | str, limits: Limits) -> bytes:
    """The body of a 200 answer.

    Reads at most ``limits.body_bytes`` and one chunk, for at most ``limits.timeout_seconds`` in total. httpx's own
    time-outs, each between two reads, would not end an answer that trickles in.

    Raises:
        ScrapeError: ``unreachable``, ``timeout``, ``auth``, ``status``, ``too_large`` or ``garbage``.
    """
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            if isinstance(client, PageClient) and client.plain:
                return await client.page(url, limits)
            async with client.stream("GET", url, headers=_HEADERS, follow_redirects=False) as response:
                _check_head(response.status_code, response.headers.get("content-length", ""), limits)
                return await body(response, limits)
    except (TimeoutError, httpx.TimeoutException):
        raise ScrapeError("timeout", f"no complete answer within {limits.timeout_seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as error:
        raise ScrapeError("unreachable", failures.sentence(error)) from None


def _check_head(status: int, length: str, limits: Limits) -> None:
    if status in (401, 403):
        raise ScrapeError("auth", failures.status(status))
    if status != 200:
        raise ScrapeError("status", failures.status(status))
    if length.isdecimal() and int(length[:20]) > limits.body_bytes:
        raise _too_large(limits)


async def body(response: httpx.Response, limits: Limits) -> bytes:
    """The answer's bytes, bounded on the wire and inflated.

    Raises:
        ScrapeError: ``too_large`` or ``garbage``.
    """
    sink = _Body(limits, response.headers.get("content-encoding", "identity"))
    async for chunk in response.aiter_raw():
        sink.body(chunk)
    return sink.whole()


class _Stream:
    """A compressed body in parts: gzip (of any number of members, as a proxy may join them) or zlib."""

    def __init__(self) -> None:
        self._member, self._members = zlib.decompressobj(wbits=WBITS), 1

    @property
    def ended(self) -> bool:
        """Returns whether it ended with a member: a body cut between two flushes inflates without an error."""
        return self._member.eof

    def inflate(self, chunk: bytes, room: int) -> bytes:
        """Inflates a chunk, at most ``room`` bytes."""
        plain = b""
        try:
            while chunk and len(plain) < room:
                if self._member.eof:
                    self._begin()
                plain += self._member.decompress(chunk, room - len(plain))
                chunk = self._member.unused_data
        except zlib.error:
            raise ScrapeError("garbage", "the answer does not decompress") from None
        return plain

    def _begin(self) -> None:
        self._member, self._members = zlib.decompressobj(wbits=WBITS), self._members + 1
        if self._members > MEMBERS:
            raise ScrapeError("garbage", f"the answer is compressed in more than {MEMBERS} parts")


def _stream(encoding: str) -> _Stream | None:
    """The decoder of a body; None: it is not compressed."""
    if encoding.strip().lower() in ("", "identity"):
        return None
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        raise ScrapeError("garbage", "the answer has a compression that was not requested")
    return _Stream()


def _too_large(limits: Limits) -> ScrapeError:
    return ScrapeError("too_large", f"the answer is larger than {limits.body_bytes} bytes")


async def metrics_page(client: httpx.AsyncClient, limits: Limits) -> bytes:
    """GET a metrics page: the client's base URL if it names one (`.../metrics`), else /metrics under it.

    Raises:
        ScrapeError: as `get`.
    """
    path = client.base_url.path.rstrip("/")
    url: httpx.URL | str = client.base_url.copy_with(path=path) if path.endswith("metrics") else "/metrics"
    return await get(client, url, limits)
