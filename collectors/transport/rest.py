"""One bounded GET of JSON from a provider's API, and conversions of JSON values.

Bounds are those of `collectors.transport.http` (wire bytes, inflated bytes, total time, no redirect). Refusals become
error kinds on which an operator can act: wrong key, no money, a limit used up, too many requests. Only a short, cleaned
part of the provider's own message is kept; never a URL, a key or a body.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

import httpx

from collectors.model import ErrorKind, Limits, ScrapeError
from collectors.transport import http

Params = Mapping[str, str | int | list[str]]

# Bytes. Parsing a larger body takes 10 ms or more, so it is done in a thread.
THREAD_BYTES = 512 << 10
ERROR_BODY_BYTES = 64 << 10
EXCERPT_CHARS = 120
RETRY_AFTER_MAX_SECONDS = 86_400.0

# Epoch seconds: 2000-01-01, and the year 5138. Larger numbers are milliseconds (1e11 ms is 1973).
OLDEST, NEWEST = 946_684_800.0, 1e11

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip"}
_HARMLESS = {"accept", "accept-encoding", "connection", "user-agent", "content-type", "host"}
_CREDIT = re.compile(
    r"\bcredits?\b|\bsuspend(?:ed)?\b|\bsuspension\b|\bpayments?\b|insufficient (?:funds|balance)", re.I
)
_RATE = re.compile(r"rate[ _-]?limit|too many requests|throttl", re.I)
_QUOTA = re.compile(r"\bquotas?\b|\blimits?\b", re.I)
_MESSAGE_KEYS = ("message", "detail", "msg", "error", "error_message", "errors", "code")

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.I)
_NAMED = r"((?:token|api[_-]?key|secret|passw(?:or)?d|authorization)\w*[\"']?\s*[=:]\s*)[\"']?[^\s\"',;]+"
_SHAPED = r"\b(?:sk|pk|rk|pit|e2b|dtn|ghp|gho|ghs|hf|ak|xox[bp])[-_][\w-]{12,}|\bAKIA\w{12,}|\beyJ[\w.-]{12,}"
_SECRETS = (
    (re.compile(r"://[^/\s@]*@"), "://"),
    (re.compile(r"\?\S*=\S*"), "?..."),
    (re.compile(r"\b(bearer|basic)\s+\S+", re.I), r"\1 ..."),
    (re.compile(_NAMED, re.I), r"\1..."),
    (re.compile(_SHAPED), "..."),
    (re.compile(r"\b(?=\w*\d)(?=\w*[A-Za-z])\w{32,}\b"), "..."),
)


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """A 200 answer: its JSON, of any shape, and its headers (any case)."""

    json: Any
    headers: Mapping[str, str]


class Refusal(ScrapeError):
    """An answer with a status other than 200; `status` is that number."""

    def __init__(self, status: int, kind: ErrorKind, message: str, retry_after: float | None = None) -> None:
        super().__init__(kind, message, retry_after)
        self.status = status


@asynccontextmanager
async def total_timeout(limits: Limits) -> AsyncIterator[None]:
    """Limits everything inside together to ``limits.timeout_seconds``.

    Raises:
        ScrapeError: ``timeout``.
    """
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            yield
    except TimeoutError:
        raise _timeout_error(limits) from None


async def get_json(client: httpx.AsyncClient, path: str, params: Params, limits: Limits) -> JsonAnswer:
    """GET ``path`` under the client's base URL with ``params`` (a list repeats its key).

    Raises:
        ScrapeError: ``auth``, ``credit``, ``quota``, ``throttled`` (with `retry_after` in seconds, if sent),
            ``status``, ``too_large``, ``garbage``, ``timeout`` or ``unreachable``; a `Refusal` for an error status.
    """
    return await _request_json(client, "GET", path, limits, params=params)


async def search_json(client: httpx.AsyncClient, path: str, query: Mapping[str, Any], limits: Limits) -> JsonAnswer:
    """POST ``query`` to a search that takes it in the body. Only for endpoints that change nothing.

    Raises:
        ScrapeError: as `get_json`.
    """
    return await _request_json(client, "POST", path, limits, json=query)


async def form_json(client: httpx.AsyncClient, path: str, form: Mapping[str, str], limits: Limits) -> JsonAnswer:
    """POST ``form`` to a query too long for a URL (PromQL). Only for endpoints that change nothing.

    Raises:
        ScrapeError: as `get_json`.
    """
    return await _request_json(client, "POST", path, limits, data=form)


async def _request_json(
    client: httpx.AsyncClient, method: str, path: str, limits: Limits, **request: Any
) -> JsonAnswer:
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            async with client.stream(method, path, headers=_HEADERS, follow_redirects=False, **request) as response:
                if response.status_code != 200:
                    raise await _refusal(client, response, limits)
                body = await http.body(response, limits)
                headers = response.headers
        return JsonAnswer(await _parse(body), headers)
    except (TimeoutError, httpx.TimeoutException):
        raise _timeout_error(limits) from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as error:
        raise ScrapeError("unreachable", http.sentence(error)) from None


def _timeout_error(limits: Limits) -> ScrapeError:
    return ScrapeError("timeout", f"no complete answer within {limits.timeout_seconds:g} s")


async def _parse(body: bytes) -> Any:
    try:
        return json.loads(body) if len(body) < THREAD_BYTES else await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError):
        raise ScrapeError("garbage", "the answer is not JSON") from None


async def _refusal(client: httpx.AsyncClient, response: httpx.Response, limits: Limits) -> Refusal:
    status = response.status_code
    if 300 <= status < 400:
        return Refusal(status, "status", f"HTTP {status}: redirects are not followed; configure the final URL")
    if status == 401:
        # The message of a refused key is the one that may quote the key.
        return Refusal(status, "auth", f"HTTP 401: {_WHY['auth']}")
    body = await _error_body(response, limits)
    kind = _kind(status, body)
    why = _excerpt(body, _own_secrets(client)) or _WHY.get(kind, "")
    return Refusal(status, kind, f"HTTP {status}: {why}" if why else f"HTTP {status}", retry_after(response.headers))


_WHY: Mapping[ErrorKind, str] = {
    "auth": "the credentials are missing or wrong",
    "credit": "no credit left",
    "quota": "a limit of the account is used up",
    "throttled": "too many requests",
}


def _kind(status: int, body: str) -> ErrorKind:
    if status == 402:
        return "credit"
    if status == 429:
        return "throttled"
    if status != 403:
        return "status"
    # First, as in `causes`: every rate limit is a limit, but a temporary one.
    if _RATE.search(body):
        return "throttled"
    if _CREDIT.search(body):
        return "credit"
    return "quota" if _QUOTA.search(body) else "auth"


async def _error_body(response: httpx.Response, limits: Limits) -> str:
    """The beginning of the body as text; errors of the body are ignored, because the status matters."""
    try:
        body = await http.body(response, replace(limits, body_bytes=min(limits.body_bytes, ERROR_BODY_BYTES)))
    except (ScrapeError, httpx.HTTPError, httpx.StreamError):
        return ""
    return body.decode("utf-8", "replace")


def _excerpt(body: str, secrets: tuple[str, ...]) -> str:
    """The message inside a JSON error; "" for other bodies (a proxy's page)."""
    try:
        message = _message(json.loads(body))
    except (ValueError, RecursionError):
        return ""
    for secret in secrets:
        message = message.replace(secret, "...")
    return clean(_URL.sub("...", message), EXCERPT_CHARS)


def _message(answer: Any, depth: int = 0) -> str:
    if isinstance(answer, str):
        return answer[:4096]
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    if isinstance(answer, dict) and depth < 4:
        return next((text_found for key in _MESSAGE_KEYS if (text_found := _message(answer.get(key), depth + 1))), "")
    return ""


def _own_secrets(client: httpx.AsyncClient) -> tuple[str, ...]:
    """Secrets that we sent and an error may quote: header values and the parts of the URL, longest first."""

    def parts() -> Iterator[str]:
        for name, value in client.headers.items():
            if name not in _HARMLESS:
                yield from (value, *value.split())
        yield from (client.base_url.host, client.base_url.username, client.base_url.password, client.base_url.path)
        yield from (value for _, value in client.params.multi_items())

    return tuple(sorted({part for part in parts() if len(part) >= 6}, key=len, reverse=True))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a ``Retry-After`` header (seconds or a date), 0 to a day; None without a valid one."""
    value = headers.get("retry-after", "").strip()
    seconds = number(value)
    if seconds is None:
        then, now = _http_date(value), _http_date(headers.get("date", ""))
        seconds = None if then is None else then - (time.time() if now is None else now)
    return None if seconds is None else min(max(seconds, 0.0), RETRY_AFTER_MAX_SECONDS)


def _http_date(value: str) -> float | None:
    try:
        return parsedate_to_datetime(value[:64]).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError, IndexError):
        return None


def epoch(value: Any) -> float | None:
    """Epoch seconds from ISO 8601 (any zone, UTC without one), epoch seconds or epoch milliseconds.

    None for anything else and for times before 2000 or after 5138: zero dates, negative times, NaN.
    """
    seconds = number(value)
    if seconds is not None:
        seconds = seconds if seconds < NEWEST else seconds / 1000.0
    elif isinstance(value, str):
        seconds = _iso(value.strip())
    return seconds if seconds is not None and OLDEST <= seconds < NEWEST else None


def _iso(value: str) -> float | None:
    try:
        moment = datetime.fromisoformat(value[:64])
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def number(value: Any) -> float | None:
    """A finite number from JSON: int, float or a string with one (the form of money and 64-bit integers)."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        result = float(value if not isinstance(value, str) else value[:64])
    except (ValueError, OverflowError):
        return None
    return result if isfinite(result) else None


def text(value: Any, limit: int) -> str:
    """A string (or an integer's digits) on one line, at most ``limit`` characters, storable; else ""."""
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        value = str(value)
    if not isinstance(value, str):
        return ""
    return _UNPRINTABLE.sub(" ", value[: 4 * limit]).strip()[:limit].rstrip()


def clean(value: Any, limit: int = 200) -> str:
    """As `text`, without anything that looks like a credential: for a provider's own message about a failure."""
    cleaned = text(value, 4 * limit)
    for pattern, put in _SECRETS:
        cleaned = pattern.sub(put, cleaned)
    return cleaned[:limit].rstrip()
