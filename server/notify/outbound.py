"""Sends one bounded request to a receiver under the outbound policy; returns an answer fit for logs and pages.

Follows no redirect, verifies certificates, takes no proxy from the environment, connects only to an address it has
checked, and ends within `SendLimits`. The returned text holds no part of the URL except scheme and host, no
header and no secret, however the receiver echoes them.
"""

import asyncio
import base64
import html
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import groupby
from operator import itemgetter
from socket import SOCK_STREAM
from ssl import SSLContext
from urllib.parse import quote, unquote, unquote_plus, urlsplit

import httpx

from collectors.transport import http
from server.lib.outbound_policy import refuse_target
from server.lib.secret import Secret
from server.notify.model import DeliveryAnswer, Request

EXCERPT = 120
# Length of an answer that is searched for secrets before it is cut. All 64 kB would block the event loop for 0.2 s.
SEARCHED = 4096
# Fragments of a secret from this length on are removed too, because receivers may echo a part.
FRAGMENT = 8
# Longest Retry-After that is respected, s; the receiver may have been repaired after an hour.
AFTER_MAX_SECONDS = 3600.0
# Metadata services outside the link-local range: EC2 and Google over IPv6, Alibaba.
_METADATA = frozenset({"fd00:ec2::254", "fd20:ce::254", "100.100.100.200"})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

Resolve = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class SendLimits:
    """Bounds of one request. Together the two times stay within 15 s.

    Attributes:
        head_seconds: for resolving, connecting, sending and the answer's head.
        body_seconds: for the answer's body; the status is known by then.
        body_bytes: reading of the body ends after this many bytes.
    """

    head_seconds: float = 10.0
    connect_seconds: float = 5.0
    body_seconds: float = 5.0
    body_bytes: int = 64 << 10


LIMITS = SendLimits()

_SENDING: ContextVar[bool] = ContextVar("sending", default=False)


class _Quiet(logging.Filter):
    """Drops log records of the HTTP libraries: httpx logs the URL, httpcore the answer's headers."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _SENDING.get()


_QUIET = _Quiet()
for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy"):
    logging.getLogger(_name).addFilter(_QUIET)


class _Refused(Exception):
    """The policy forbids this request. The text is our own and has no secret."""


async def resolve(host: str, port: int) -> list[str]:
    """Returns every address of a name, in the order in which to try them.

    Raises:
        OSError: the name has none.
    """
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


async def send(
    request: Request,
    *,
    client: httpx.AsyncClient | None = None,
    limits: SendLimits = LIMITS,
    resolve: Resolve = resolve,
) -> DeliveryAnswer:
    """Makes one attempt. Never raises except for cancellation.

    2xx is ok; 5xx, 408, 429 and network errors are worth a retry; every other status is final.

    Args:
        client: provides the trusted certificates; None creates one. Requests never share a connection.
        resolve: resolves names to addresses.
    """
    with _quiet():
        try:
            if client is not None:
                return await _attempt(client, request, limits, resolve)
            async with new_client() as own_client:
                return await _attempt(own_client, request, limits, resolve)
        except _Refused as error:
            return DeliveryAnswer(False, text=str(error))
        except TimeoutError:
            return DeliveryAnswer(False, retry=True, text=f"no answer within {limits.head_seconds:g} s")
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, UnicodeError) as error:
            # Not retried, because it would fail again; the message may quote the invalid header or URL.
            return DeliveryAnswer(False, text=f"the request cannot be sent: {type(error).__name__}")
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            return DeliveryAnswer(
                False, retry=True, text=f"no answer{_excerpt(http.sentence(error), request, whole=True)}"
            )


def new_client() -> httpx.AsyncClient:
    """Returns a client for `send`, to be closed by the caller."""
    return httpx.AsyncClient(verify=_certificates(), trust_env=False, follow_redirects=False)


@cache
def _certificates() -> SSLContext:
    # Takes 20 ms to create. SSL_CERT_FILE is respected, because internal receivers may use a private authority.
    return httpx.create_ssl_context()


@contextmanager
def _quiet() -> Iterator[None]:
    token = _SENDING.set(True)
    try:
        yield
    finally:
        _SENDING.reset(token)


async def _attempt(client: httpx.AsyncClient, request: Request, limits: SendLimits, resolve: Resolve) -> DeliveryAnswer:
    async with asyncio.timeout(limits.head_seconds):
        url = httpx.URL(request.url)
        addresses = await _checked(request.url, url, resolve)
        response = await _connect(client, request, url, addresses, limits)
    try:
        body, whole = await _body(response, limits)
        return _answer(response, _excerpt(body, request, whole=whole))
    finally:
        await response.aclose()


async def _checked(text: str, url: httpx.URL, resolve: Resolve) -> list[str]:
    """Returns the addresses to try. One forbidden address forbids the name, because the resolver's order is random."""
    refusal = refuse_target(text)
    if refusal is not None:
        raise _Refused(f"refused: the URL {refusal}")
    host = url.raw_host.decode("ascii").strip("[]")
    addresses = await resolve(host, url.port or (443 if url.scheme == "https" else 80))
    if any(_forbidden(address) for address in addresses):
        raise _Refused("refused: the name resolves to a link-local, multicast or cloud metadata address")
    if not addresses:
        raise OSError("the name has no address")
    return addresses


def _forbidden(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        low = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF) if parsed in _NAT64 else None
        parsed = parsed.ipv4_mapped or parsed.sixtofour or low or parsed
    return parsed.is_link_local or parsed.is_multicast or str(parsed) in _METADATA


async def _connect(
    client: httpx.AsyncClient, request: Request, url: httpx.URL, addresses: list[str], limits: SendLimits
) -> httpx.Response:
    """Returns the answer's head from the first address that accepts the connection.

    The URL carries the checked address, so that nothing is resolved a second time; the name goes into the Host
    header and into the TLS handshake, whose certificate must be the name's.
    """
    last = addresses[-1]
    for address in addresses:
        try:
            return await client.send(
                _pinned(client, request, url, address, limits), stream=True, follow_redirects=False
            )
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if address == last:
                raise
    raise AssertionError("unreachable: the last address returns or raises")


def _pinned(
    client: httpx.AsyncClient, request: Request, url: httpx.URL, address: str, limits: SendLimits
) -> httpx.Request:
    name = url.raw_host.decode("ascii").strip("[]")
    headers = {
        "User-Agent": "rollscope",
        **request.headers,
        "Host": url.netloc.decode("ascii"),
        # Prevents zip bombs, and connections reused for another name at the same address.
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    return client.build_request(
        request.method,
        url.copy_with(host=address),
        content=request.body,
        headers=headers,
        timeout=httpx.Timeout(limits.head_seconds, connect=limits.connect_seconds),
        extensions={"sni_hostname": name} if name != address else {},
    )


async def _body(response: httpx.Response, limits: SendLimits) -> tuple[str, bool]:
    """Returns the body, and whether it is complete. A body that fails changes nothing, because the status is known."""
    parts: list[bytes] = []
    size = 0
    whole = False
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in response.aiter_raw():
                parts.append(chunk)
                size += len(chunk)
                if size >= limits.body_bytes:
                    break
            else:
                whole = True
    except (TimeoutError, httpx.HTTPError, httpx.StreamError, OSError):
        pass
    plain = response.headers.get("content-encoding", "identity").strip().lower() in ("", "identity")
    return b"".join(parts).decode("utf-8", "replace") if plain else "", whole


def _answer(response: httpx.Response, excerpt: str) -> DeliveryAnswer:
    status = response.status_code
    if 200 <= status < 300:
        return DeliveryAnswer(True, text=f"HTTP {status}{excerpt}")
    if 300 <= status < 400:
        return DeliveryAnswer(False, text=f"HTTP {status}: redirects are not followed; configure the final URL")
    if status >= 500 or status in (408, 429):
        return DeliveryAnswer(False, retry=True, text=f"HTTP {status}{excerpt}", after=_after(response.headers))
    return DeliveryAnswer(False, text=f"HTTP {status}{excerpt}")


def _after(headers: httpx.Headers) -> float | None:
    """Parses Retry-After to seconds from now, as a number or a date (RFC 9110, 10.2.3)."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:20]), AFTER_MAX_SECONDS)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), AFTER_MAX_SECONDS)


def _excerpt(text: str, request: Request, *, whole: bool) -> str:
    secrets = list(_secrets_of(request))
    if len(text) > SEARCHED:
        text, whole = text[:SEARCHED], False
    if not whole:  # it may end in the midst of a secret
        longest = max((len(form) for secret in secrets for form in _forms(secret)), default=0)
        text = text[: max(0, len(text) - longest)]
    excerpt = plain(redacted(text, secrets))[:EXCERPT]
    return f": {excerpt}" if excerpt else ""


def _secrets_of(request: Request) -> Iterator[str]:
    """Returns all parts of a request that must not be displayed: URL after the host, secret headers, others."""
    yield from request.secrets
    for name, value in request.headers.items():
        if isinstance(value, Secret) or name.lower() in ("authorization", "cookie"):
            yield value
            yield value.partition(" ")[2]
    try:
        parts = urlsplit(request.url)
    except ValueError:
        yield request.url
        return
    yield from (parts.path if parts.path != "/" else "", parts.query, parts.fragment)
    user, password = parts.username or "", parts.password or ""
    yield from (user, password, base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode())


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Replaces every secret with ``***``: whole, in any usual encoding, or a fragment of 8 characters."""
    forms = {form for secret in secrets for form in _forms(secret)}
    pieces = {form[index : index + FRAGMENT] for form in forms for index in range(len(form) - FRAGMENT + 1)}
    hidden = bytearray(len(text))
    for index in range(len(text) - FRAGMENT + 1):
        if text[index : index + FRAGMENT] in pieces:
            hidden[index : index + FRAGMENT] = b"\1" * FRAGMENT
    runs = groupby(zip(text, hidden, strict=True), key=itemgetter(1))
    text = "".join("***" if hide else "".join(char for char, _ in run) for hide, run in runs)
    # Short forms last: replaced first, they would split a longer one whose pieces would then remain.
    for form in sorted((form for form in forms if len(form) < FRAGMENT), key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def plain(text: str) -> str:
    """Returns the text in one line, without control characters (including those that change writing direction)."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _forms(secret: str) -> Iterator[str]:
    for form in (secret, unquote(secret), unquote_plus(secret)):
        encoded = (form, quote(form), quote(form, safe=""), json.dumps(form)[1:-1], html.escape(form))
        yield from (encoded_form for encoded_form in encoded if encoded_form)
