"""A persistent HTTP/1.1 connection that carries one GET after the other.

httpx takes 0.6 ms of CPU per exchange (perf.md 2b), this module 0.1 ms: the request is built once, and the answer is
read as it arrives. It supports what servers of metrics pages send (lengths, chunks, answers that end with their
connection); anything else is an error. Callers bound bytes through `BodySink`, and time by cancelling.
"""

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

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
