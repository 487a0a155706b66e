"""One bounded GET, used by every collector that reads a page over HTTP.

Bounds the bytes on the wire, the bytes after inflation and the total time, follows no redirect, and turns every
failure into a `ScrapeError` whose text holds no URL, header or body. Does not retry: the next scrape does.
"""

import asyncio
import errno
import ipaddress
import re
import socket
import ssl
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import httpx

from collectors.model import Limits, ScrapeError

# ---- connection
# A persistent HTTP/1.1 connection that carries one GET after the other.

# Bytes, as in h11, which httpx reads with; real headers are much smaller.
HEAD_BYTES = 100 << 10
# Bytes of a chunk's size in hex with an extension, or of a trailer's line.
CHUNK_HEAD_BYTES = 4 << 10
# As asyncio's default; of two addresses of a host one may not answer.
HAPPY_EYEBALLS_SECONDS = 0.25


def _delay(host: str) -> float | None:
    """The delay before the next address is tried as well; None for an address, which has no other.

    asyncio loses the socket of such a race if it is cancelled while the connection is made.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return HAPPY_EYEBALLS_SECONDS
    return None


class ConnectionLost(OSError):
    """The connection ended before its answer did, or the answer is not HTTP."""


class ConnectionStale(ConnectionLost):
    """A persistent connection ended before any byte of an answer: the server had closed it; repeat the request."""


class BodySink(Protocol):
    """Receives an answer in parts. An exception from it ends the exchange and the connection."""

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The status, and the headers by lower-case name (the last of repeated ones)."""

    def body(self, chunk: bytes) -> None:
        """The next bytes of the body."""


@dataclass(slots=True)
class HostPort:
    """The address of a connection."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@dataclass(slots=True)
class HttpConnection:
    """The connection, opened on first use. One exchange at a time."""

    address: HostPort
    _exchange: "_Exchange | None" = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self, request: bytes, sink: BodySink) -> None:
        """Sends a prepared request and returns when its answer is in the sink.

        Raises:
            OSError: no connection (`ConnectionLost`: one that broke).
            Exception: any exception of the sink.
        """
        async with self._lock:
            exchange = self._exchange
            if exchange is not None and exchange.open and exchange.loop is asyncio.get_running_loop():
                try:
                    return await exchange.run(request, sink)
                except ConnectionStale:
                    pass  # servers close connections after 5 s without a request, which is the usual interval
            self.close()
            self._exchange = await self._connected()
            await self._exchange.run(request, sink)

    async def _connected(self) -> "_Exchange":
        loop, address = asyncio.get_running_loop(), self.address
        _, exchange = await loop.create_connection(
            _Exchange, address.host, address.port, ssl=address.tls,
            server_hostname=address.host if address.tls else None, happy_eyeballs_delay=_delay(address.host),
        )  # fmt: skip
        return exchange

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._exchange is not None:
            self._exchange.end()
            self._exchange = None


class _Exchange(asyncio.Protocol):
    """The connection's protocol. `open`: can be used again."""

    def __init__(self) -> None:
        self.open = self._reused = self._answer_began = False
        self.loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        # The function that reads next: True if it read something and there may be more. None: nothing is expected.
        self._next: Callable[[], bool] | None = None
        self._left, self._last = 0, False

    async def run(self, request: bytes, sink: BodySink) -> None:
        """One exchange."""
        assert self._transport is not None
        self._sink, self._answer_began, self._next = sink, False, self._head
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        except BaseException:
            self.end()  # later bytes belong to no request
            raise
        self._reused = True

    def end(self) -> None:
        """Closes the connection at once."""
        self.open, self._next = False, None
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.open = transport, True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while self._buffer and self._next is not None and self._next():
                pass
        except Exception as error:  # noqa: BLE001  raised by the sink, or because the bytes are not HTTP
            self._finish(error)
        if self._buffer and self._next is None:
            self.end()  # bytes after the answer would be read as the next answer

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if exc is None and self._next == self._read_until_close:
            self._finish(None)
        elif self._reused and not self._answer_began and not self._buffer:
            self._finish(ConnectionStale("closed"))
        else:
            self._finish(ConnectionLost("the connection ended before the answer did"))

    def _finish(self, error: Exception | None) -> None:
        self._next = None
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    # ---- the parts of an answer

    def _head(self) -> bool:
        head_end = _HEAD_END.search(self._buffer)
        if head_end is None and len(self._buffer) <= HEAD_BYTES:
            return False
        if head_end is None:
            raise ConnectionLost("not HTTP: the header section has no end")
        text = bytes(self._buffer[: head_end.start()])
        del self._buffer[: head_end.end()]
        version, status, headers = _parsed(text)
        if status < 200:
            if status == 101:
                raise ConnectionLost("not HTTP: the server switched to another protocol")
            return True  # 100, 103: the answer itself follows
        self._answer_began = True
        self._last = _closes(version, headers)
        self._sink.head(status, headers)
        self._begin_body(status, headers)
        return True

    def _begin_body(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if coding is not None:
            if coding.lower() != b"chunked":
                raise ConnectionLost("not supported: a transfer coding that was not requested")
            self._next = self._chunk_head
        elif length is not None:
            if _NUMBER.fullmatch(length) is None:
                raise ConnectionLost("not HTTP: the length is not a number")
            self._left, self._next = int(length), self._read_counted
            if self._left == 0:
                self._complete()
        else:
            self._next = self._read_until_close

    def _read_counted(self) -> bool:
        self._pass_chunk()
        if self._left == 0:
            self._complete()
        return True

    def _pass_chunk(self) -> None:
        chunk = bytes(self._buffer[: self._left])
        del self._buffer[: self._left]
        self._left -= len(chunk)
        self._sink.body(chunk)

    def _read_until_close(self) -> bool:
        self._left = len(self._buffer)
        self._pass_chunk()
        return True

    def _chunk_head(self) -> bool:
        line = self._line()
        if line is None:
            return False
        size = _CHUNK.match(line)
        if size is None:
            raise ConnectionLost("not HTTP: a chunk has no size")
        self._left = int(size[1], 16)
        self._next = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        if self._left:
            self._pass_chunk()
            return True
        line = self._line()
        if line is None:
            return False
        if line:
            raise ConnectionLost("not HTTP: a chunk is longer than its size")
        self._next = self._chunk_head
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line == b"":
            self._complete()
        return line is not None

    def _line(self) -> bytes | None:
        """The next line of the framing, or None while it is incomplete."""
        end = self._buffer.find(b"\n")
        if end < 0 and len(self._buffer) <= CHUNK_HEAD_BYTES:
            return None
        if not 0 <= end <= CHUNK_HEAD_BYTES:
            raise ConnectionLost("not HTTP: the line of a chunk's size has no end")
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line

    def _complete(self) -> None:
        self._finish(None)
        if self._last:
            self.end()


_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_NUMBER = re.compile(rb"\d{1,18}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?$")


def _parsed(head: bytes) -> tuple[int, int, dict[bytes, bytes]]:
    """Minor version, status, headers."""
    first, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise ConnectionLost("not HTTP: no status line")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise ConnectionLost("not HTTP: a header line is invalid")
        name, value = header[1].lower(), header[2]
        # Two lengths or codings: client and server may not agree on where the answer ends.
        if name in (b"content-length", b"transfer-encoding") and headers.get(name, value) != value:
            raise ConnectionLost("not HTTP: two different lengths")
        headers[name] = value
    return int(status[1]), int(status[2]), headers


def _closes(version: int, headers: Mapping[bytes, bytes]) -> bool:
    options = {word.strip() for word in headers.get(b"connection", b"").lower().split(b",")}
    return b"close" in options or (version == 0 and b"keep-alive" not in options)


# ---- failures
# Turns the exception of a failed HTTP request into one sentence, cause first.

_BY_ERRNO = {
    errno.ECONNREFUSED: "connection refused: nothing listens at this host and port",
    errno.ECONNRESET: "the server closed the connection before its answer was complete",
    errno.EPIPE: "the server closed the connection before its answer was complete",
    errno.EHOSTUNREACH: "no route to this host: check the network or the firewall",
    errno.ENETUNREACH: "the network of this host cannot be reached from here",
    errno.EHOSTDOWN: "the host is down",
    errno.ETIMEDOUT: "no connection: the host did not answer in time",
    errno.EADDRNOTAVAIL: "no free local port or address for a connection",
    errno.EACCES: "the system does not permit this connection",
    errno.EPERM: "the system does not permit this connection",
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "this machine has too many open files",
}
_CLOSED = _BY_ERRNO[errno.ECONNRESET]
_ERRNO = re.compile(r"\[Errno (\d+)\]")
# OpenSSL's names of errors for an answer that is not TLS.
_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
_ENDED = re.compile(r"disconnected|closed connection|ended before", re.IGNORECASE)


def sentence(error: BaseException) -> str:
    """Why a request failed, in plain words: ``connection refused: nothing listens at this host and port``."""
    causes = list(_causes(error))
    for cause in causes:
        if text := _of_system(cause):
            return text
    for cause in causes:
        if text := _of_protocol(cause):
            return text
    return f"no answer ({type(error).__name__})"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and its causes: the HTTP library wraps the system's error, which has the reason."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from error.exceptions
        error = error.__cause__ or error.__context__


def _of_system(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "host name not found (DNS)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's TLS certificate is not trusted: {error.verify_message or 'verification failed'}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the server ended the TLS handshake: does it speak https on this port?"
    if isinstance(error, ssl.SSLError):
        plain = any(name in str(error) for name in _PLAIN)
        return "no TLS on this port: did you mean http:// instead of https://?" if plain else "the TLS handshake failed"
    if not isinstance(error, OSError) or isinstance(error, ConnectionLost):
        return ""
    # If all addresses of a name fail, one error has every errno in its text.
    numbers = [error.errno, *map(int, _ERRNO.findall(str(error)))]
    reset = _CLOSED if isinstance(error, ConnectionResetError | BrokenPipeError) else ""
    return next((_BY_ERRNO[number] for number in numbers if number in _BY_ERRNO), reset)


def _of_protocol(error: BaseException) -> str:
    if isinstance(error, httpx.TimeoutException | TimeoutError | asyncio.TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionLost | httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        broken = isinstance(error, httpx.ReadError | httpx.WriteError) or _ENDED.search(str(error))
        return _CLOSED if broken else "the answer is not HTTP: another kind of server listens on this port"
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol | UnicodeError):
        return "the URL is not valid: write http://HOST:PORT"
    if isinstance(error, httpx.LocalProtocolError):
        return "the request cannot be sent: a header or the URL holds a character that HTTP does not allow"
    return ""


_STATUS_TEXTS = {
    401: "the credentials are missing or wrong",
    403: "the server refuses access to this page",
    404: "there is no such page",
    502: "a proxy answers, the server behind it does not",
    503: "the server is not ready",
    504: "a proxy answers, the server behind it does not",
}


def status_text(code: int) -> str:
    """An HTTP status that is not 200, in plain words: ``HTTP 404: there is no such page``."""
    redirect = "redirects are not followed; configure the final URL" if 300 <= code < 400 else ""
    text = _STATUS_TEXTS.get(code, redirect)
    return f"HTTP {code}: {text}" if text else f"HTTP {code}"


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
        raise ScrapeError("unreachable", sentence(error)) from None


def _check_head(status: int, length: str, limits: Limits) -> None:
    if status in (401, 403):
        raise ScrapeError("auth", status_text(status))
    if status != 200:
        raise ScrapeError("status", status_text(status))
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
