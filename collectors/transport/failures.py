"""Turns the exception of a failed HTTP request into one sentence, cause first.

The sentence holds no URL, header or body, so it may be logged, stored and shown on a page.
"""

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Iterator

import httpx

from collectors.transport.connection import ConnectionLost

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


_STATUS = {
    401: "the credentials are missing or wrong",
    403: "the server refuses access to this page",
    404: "there is no such page",
    502: "a proxy answers, the server behind it does not",
    503: "the server is not ready",
    504: "a proxy answers, the server behind it does not",
}


def status(code: int) -> str:
    """An HTTP status that is not 200, in plain words: ``HTTP 404: there is no such page``."""
    redirect = "redirects are not followed; configure the final URL" if 300 <= code < 400 else ""
    text = _STATUS.get(code, redirect)
    return f"HTTP {code}: {text}" if text else f"HTTP {code}"
