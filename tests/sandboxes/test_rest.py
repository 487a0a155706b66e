"""The JSON reader against real sockets: kinds of refusal, bounds, what an error may say; and the conversions."""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest

from collectors.model import Limits, ScrapeError
from collectors.transport import rest

SECRET = "sekret-token"
Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


def fetch(handler: Handler, limits: Limits | None = None, **params: str | list[str]) -> rest.JsonAnswer | ScrapeError:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        try:
            await handler(writer)
        except ConnectionError:
            pass  # the client went away, which is what is tested
        finally:
            writer.close()

    async def run() -> rest.JsonAnswer | ScrapeError:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        base = f"http://user:{SECRET}@127.0.0.1:{server.sockets[0].getsockname()[1]}/base"
        async with server, httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {SECRET}"}) as client:
            try:
                return await rest.get_json(client, "/things", params, limits or Limits())
            except ScrapeError as error:
                return error

    seen.clear()
    return asyncio.run(run())


seen: list[str] = []


def reply(status: str, body: object, *headers: str) -> Handler:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def handler(writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {status}", "Connection: close", f"Content-Length: {len(raw)}", *headers]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + raw)
        await writer.drain()

    return handler


def error_of(result: rest.JsonAnswer | ScrapeError) -> ScrapeError:
    assert isinstance(result, ScrapeError)
    assert SECRET not in str(result) and "127.0.0.1" not in str(result) and "things" not in str(result)
    assert result.__cause__ is None  # a chained httpx error would print the URL in a traceback
    return result


def test_an_answer_has_its_json_and_headers() -> None:
    answer = fetch(reply("200 OK", [{"a": 1}], "X-Next-Token: abc"), state="running", label=["a", "b"])
    assert isinstance(answer, rest.JsonAnswer)
    assert answer.json == [{"a": 1}]
    assert answer.headers["x-next-token"] == "abc"
    assert seen == ["GET /base/things?state=running&label=a&label=b HTTP/1.1"]


def test_a_big_answer_is_parsed_off_the_loop_all_the_same() -> None:
    rows = [{"id": f"{n:0100d}"} for n in range(10_000)]
    answer = fetch(reply("200 OK", gzip.compress(json.dumps(rows).encode()), "Content-Encoding: gzip"))
    assert isinstance(answer, rest.JsonAnswer) and answer.json == rows


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        ("401 Unauthorized", {"detail": f"bad key {SECRET}"}, "auth", "HTTP 401: the credentials are missing or wrong"),
        ("402 Payment Required", {"detail": "Top up"}, "credit", "HTTP 402: Top up"),
        ("402 Payment Required", b"", "credit", "HTTP 402: no credit left"),
        ("403 Forbidden", {"message": "Total CPU limit exceeded. Maximum allowed: 10"}, "quota",
         "HTTP 403: Total CPU limit exceeded. Maximum allowed: 10"),
        ("403 Forbidden", {"detail": {"message": "sandbox Quota reached"}}, "quota", "HTTP 403: sandbox Quota reached"),
        ("403 Forbidden", {"message": "Organization is suspended: Depleted credits"}, "credit",
         "HTTP 403: Organization is suspended: Depleted credits"),
        ("403 Forbidden", {"message": "credit limit reached"}, "credit", "HTTP 403: credit limit reached"),
        ("403 Forbidden", {"message": "API rate limit exceeded"}, "throttled", "HTTP 403: API rate limit exceeded"),
        ("403 Forbidden", {"message": "Rate-limited: too many requests, see your credit plan"}, "throttled",
         "HTTP 403: Rate-limited: too many requests, see your credit plan"),
        ("403 Forbidden", {"message": "not yours"}, "auth", "HTTP 403: not yours"),
        ("403 Forbidden", b"<html>quota exceeded</html>", "quota", "HTTP 403: a limit of the account is used up"),
        ("403 Forbidden", {"message": "unlimited access needed"}, "auth", "HTTP 403: unlimited access needed"),
        ("404 Not Found", {"code": 404, "message": "no team"}, "status", "HTTP 404: no team"),
        ("422 No", {"detail": [{"loc": ["q"], "msg": "too big"}]}, "status", "HTTP 422: too big"),
        ("500 Oops", SECRET.encode(), "status", "HTTP 500"),
        ("503 Busy", {"error": {"message": "no runner"}}, "status", "HTTP 503: no runner"),
        ("204 No Content", b"", "status", "HTTP 204"),
        ("500 Oops", b"[" * 60_000, "status", "HTTP 500"),
        ("500 Oops", {"detail": "x" * 100_000}, "status", "HTTP 500"),
    ],
)  # fmt: skip
def test_refusals(status: str, body: object, kind: str, message: str) -> None:
    error = error_of(fetch(reply(status, body)))
    assert (error.kind, str(error), error.retry_after) == (kind, message, None)


def test_an_excerpt_is_short_and_holds_nothing_of_ours() -> None:
    told = f"GET http://127.0.0.1/base/things?k={SECRET} with Bearer {SECRET}\n\0 at user:{SECRET} " + "y " * 500
    message = str(error_of(fetch(reply("500 Oops", {"message": told}))))
    assert message.startswith("HTTP 500: GET ... with ...  at user:... y y")
    assert len(message) <= len("HTTP 500: ") + 120


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (("Retry-After: 30",), 30.0),
        (("Retry-After: 0.5",), 0.5),
        (("Retry-After: -5",), 0.0),
        (("Retry-After: 1e300",), 86_400.0),
        (("Retry-After: Sat, 21 Nov 2026 20:00:30 GMT", "Date: Sat, 21 Nov 2026 20:00:00 GMT"), 30.0),
        (("Retry-After: Sat, 21 Nov 2026 20:00:30 GMT", "Date: Sat, 21 Nov 2026 20:01:00 GMT"), 0.0),
        (("Retry-After: Fri, 21 Nov 2036 20:00:30 GMT",), 86_400.0),
        (("Retry-After: nan",), None),
        (("Retry-After: soon",), None),
        ((), None),
    ],
)
def test_throttled_says_how_long(headers: tuple[str, ...], seconds: float | None) -> None:
    error = error_of(fetch(reply("429 Too Many Requests", {}, *headers)))
    assert (error.kind, error.retry_after) == ("throttled", seconds)
    assert str(error) == "HTTP 429: too many requests"


def test_an_outage_may_say_how_long_too() -> None:
    assert error_of(fetch(reply("503 Busy", {}, "Retry-After: 7"))).retry_after == 7.0


def test_redirects_are_not_followed() -> None:
    assert error_of(fetch(reply("307 Go", b"", f"Location: http://169.254.169.254/{SECRET}"))).kind == "status"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{", b"[" * 100_000, b"\xff\xfe\xfa", b"1" * 5000, b"[1" + b" " * 600_000]
)
def test_what_is_not_json_is_garbage(body: bytes) -> None:
    assert error_of(fetch(reply("200 OK", body))).kind == "garbage"


def test_a_body_over_the_limit_is_not_parsed() -> None:
    assert error_of(fetch(reply("200 OK", b'"' + b"x" * 1000 + b'"'), Limits(body_bytes=1001))).kind == "too_large"
    bomb = gzip.compress(b'"' + b"x" * (8 << 20) + b'"')
    assert (
        error_of(fetch(reply("200 OK", bomb, "Content-Encoding: gzip"), Limits(body_bytes=1 << 20))).kind == "too_large"
    )


def test_a_hang_and_a_drip_end_at_the_total_time() -> None:
    async def hang(_writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def drip_an_error(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 No\r\nConnection: close\r\n\r\n[")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    for handler in (hang, drip, drip_an_error):
        error = error_of(fetch(handler, Limits(timeout_seconds=0.2)))
        assert (error.kind, str(error)) == ("timeout", "no complete answer within 0.2 s")


def test_nobody_listens() -> None:
    async def run() -> None:
        async with httpx.AsyncClient(base_url=f"http://user:{SECRET}@127.0.0.1:9") as client:
            await rest.get_json(client, "/things", {}, Limits())

    with pytest.raises(ScrapeError) as caught:
        asyncio.run(run())
    assert error_of(caught.value).kind == "unreachable"


def test_the_whole_is_bounded_too() -> None:
    async def run() -> None:
        async with rest.total_timeout(Limits(timeout_seconds=0.05)):
            await asyncio.Event().wait()

    with pytest.raises(ScrapeError) as caught:
        asyncio.run(run())
    assert caught.value.kind == "timeout"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2026-11-21T20:00:00Z", 1795291200.0),
        ("2026-11-21T20:00:00", 1795291200.0),
        ("2026-11-21T22:00:00.250+02:00", 1795291200.25),
        ("2026-11-21T20:00:00.123456789Z", 1795291200.123456),
        (1795291200, 1795291200.0),
        (1795291200.5, 1795291200.5),
        (1795291200500, 1795291200.5),
        ("1795291200500", 1795291200.5),
        (946684800, 946684800.0),
        (946684799, None),
        (99_999_999_999, 99_999_999_999.0),
        (1e14, None),
        (100_000_000_000, None),  # milliseconds of 1973
        ("0001-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("yesterday", None),
        ("", None),
        (0, None),
        (-1795291200, None),
        (True, None),
        (None, None),
        ({}, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        ("9" * 100_000, None),
    ],
)
def test_epoch(value: object, seconds: float | None) -> None:
    assert rest.epoch(value) == seconds


@pytest.mark.parametrize(
    ("value", "found"),
    [(1, 1.0), ("2.50", 2.5), (-3.5, -3.5), (0, 0.0), (float("nan"), None), ("inf", None), (True, None), ([], None),
     ("", None), ("4 cores", None), (10**400, None), (None, None)],
)  # fmt: skip
def test_number(value: object, found: float | None) -> None:
    assert rest.number(value) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [(" a\nb\0c ", "a b c"), ("\ud800x", "x"), ("é" * 20, "é" * 10), (12, "12"), (10**400, ""), (True, ""), (None, ""),
     (1.5, ""), (["a"], ""), ("x" * 10_000_000, "x" * 10)],
)  # fmt: skip
def test_text(value: object, found: str) -> None:
    assert rest.text(value, 10) == found


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("pull of ghcr.io/org/image:v1 failed", "pull of ghcr.io/org/image:v1 failed"),
        ("https://me:pw@host/x?sig=abc&y=1 gave 403", "https://host/x?... gave 403"),
        ("Authorization: Bearer abc.def", "Authorization: ... ..."),
        ("api_key='abc', disk full", "api_key=...', disk full"),
        ("PASSWORD=hunter2; exit 1", "PASSWORD=...; exit 1"),
        ("with e2b_0123456789abcdef and sk-proj-abcdefghijkl", "with ... and ..."),
        ("id 0123456789abcdef0123456789abcdef is gone", "id ... is gone"),
        ("node 7f6b2c1e-0d3a-4b5c-8d7e-6f5a4b3c2d1e", "node 7f6b2c1e-0d3a-4b5c-8d7e-6f5a4b3c2d1e"),
        ("x " * 500, ("x " * 100).rstrip()),
        (None, ""),
    ],
)
def test_clean_takes_what_looks_like_a_key(words: object, left: str) -> None:
    assert rest.clean(words) == left
