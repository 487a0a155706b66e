"""The bounded GET against real sockets: time, size, inflation, redirects, statuses, and nothing secret in errors."""

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable

import httpx
import pytest

from collectors.model import Limits, ScrapeError
from collectors.transport import http

SECRET = "sekret-token"
Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[httpx.AsyncClient, http.PageClient], ids=["httpx", "kept"], autouse=True)
def client_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test with either way to a page."""
    monkeypatch.setattr(f"{__name__}.Client", request.param)


Client: type[httpx.AsyncClient] = httpx.AsyncClient


def fetch(handler: Handler, limits: Limits) -> bytes | ScrapeError:
    """What `http.get` makes of a server that answers with ``handler``; the secret is planted everywhere."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await handler(writer)
        except ConnectionError:
            pass  # the client went away, which is what is tested
        finally:
            writer.close()

    async def run() -> bytes | ScrapeError:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        base = f"http://user:{SECRET}@127.0.0.1:{port}/{SECRET}"
        async with server, Client(base_url=base, headers={"Authorization": f"Bearer {SECRET}"}) as client:
            try:
                return await http.get(client, f"/metrics?key={SECRET}", limits)
            except ScrapeError as error:
                return error

    return asyncio.run(run())


def reply(status: str, body: bytes, *headers: str, length: bool = True) -> Handler:
    async def handler(writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {status}", "Connection: close", *headers]
        if length:
            head.append(f"Content-Length: {len(body)}")
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return handler


def error_of(result: bytes | ScrapeError) -> ScrapeError:
    assert isinstance(result, ScrapeError)
    assert SECRET not in str(result) and "127.0.0.1" not in str(result)
    assert result.__cause__ is None  # a chained httpx error would print the URL in a traceback
    return result


def test_a_body_comes_through() -> None:
    assert fetch(reply("200 OK", b"a 1\n"), Limits()) == b"a 1\n"


def test_exactly_the_limit_is_fine() -> None:
    assert fetch(reply("200 OK", b"x" * 1000), Limits(body_bytes=1000)) == b"x" * 1000


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("401 Unauthorized", "auth"),
        ("403 Forbidden", "auth"),
        ("404 Not Found", "status"),
        ("500 Oops", "status"),
        ("204 No Content", "status"),
    ],
)
def test_statuses(status: str, kind: str) -> None:
    error = error_of(fetch(reply(status, SECRET.encode()), Limits()))
    assert error.kind == kind
    assert status[:3] in str(error)
    assert ("there is no such page" in str(error)) == (status[:3] == "404")


def test_redirects_are_not_followed() -> None:
    error = error_of(fetch(reply("307 Temporary", b"", f"Location: http://169.254.169.254/{SECRET}"), Limits()))
    assert error.kind == "status"


def test_a_declared_length_beyond_the_limit_is_refused_unread() -> None:
    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
        await writer.drain()

    assert error_of(fetch(handler, Limits())).kind == "too_large"


def test_an_endless_body_stops_at_the_limit() -> None:
    sent = 0

    async def handler(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b"a 1\n" * 4096)
            sent += 4 * 4096
            await writer.drain()

    assert error_of(fetch(handler, Limits(body_bytes=100_000))).kind == "too_large"
    assert sent < 16 << 20  # socket buffers, not the body for ever


def test_an_endless_drip_ends_at_the_total_time_out() -> None:
    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for _ in range(500):  # it does end, so that a limit between two reads alone would show
            writer.write(b"#")
            await writer.drain()
            await asyncio.sleep(0.02)

    assert error_of(fetch(handler, Limits(timeout_seconds=0.3))).kind == "timeout"


def test_a_gzip_answer_nobody_asked_for_is_read_within_the_limit() -> None:
    body = gzip.compress(b"a 1\n" * 1000)
    assert fetch(reply("200 OK", body, "Content-Encoding: gzip"), Limits()) == b"a 1\n" * 1000


def test_a_zip_bomb_stops_at_the_limit() -> None:
    bomb = zlib.compress(b"\0" * (64 << 20), 9)  # 64 kB that become 64 MB
    result = fetch(reply("200 OK", bomb, "Content-Encoding: deflate"), Limits(body_bytes=1 << 20))
    assert error_of(result).kind == "too_large"


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_gzip_answer_of_several_members_is_read_as_one(size: int) -> None:
    """As Prometheus does; however the members fall into chunks."""
    body = gzip.compress(b"a 1\n" * 10) + gzip.compress(b"") + gzip.compress(b"b 2\n" * 10)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    handler = reply("200 OK", chunked, "Content-Encoding: gzip", "Transfer-Encoding: chunked", length=False)
    assert fetch(handler, Limits()) == b"a 1\n" * 10 + b"b 2\n" * 10


def _flushed() -> bytes:
    """Two thirds of a page, all of it inflated by whoever does not ask for the end."""
    stream = zlib.compressobj(wbits=31)
    return stream.compress(b"a 1\n" * 1000) + stream.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    "body",
    [_flushed(), gzip.compress(b"a 1\n")[:-8], gzip.compress(b"a 1\n")[:-1], gzip.compress(b"a 1\n") * 2 + b"\x1f\x8b"],
    ids=["between two flushes", "without its trailer", "within its trailer", "in its third member"],
)
def test_a_gzip_answer_that_is_cut_is_no_page(body: bytes) -> None:
    result = fetch(reply("200 OK", body, "Content-Encoding: gzip"), Limits())
    assert isinstance(result, ScrapeError) and result.kind == "garbage"
    assert str(result) == "the answer is incomplete: its compressed data is cut off"


def test_bytes_behind_a_gzip_answer_are_no_page() -> None:
    result = fetch(reply("200 OK", gzip.compress(b"a 1\n") + b"b 2\n", "Content-Encoding: gzip"), Limits())
    assert isinstance(result, ScrapeError) and str(result) == "the answer does not decompress"


def test_members_are_bounded_in_number_and_together_in_size() -> None:
    many = fetch(reply("200 OK", gzip.compress(b"") * 1001, "Content-Encoding: gzip"), Limits())
    assert isinstance(many, ScrapeError) and str(many) == "the answer is compressed in more than 1000 parts"
    large = gzip.compress(b"a 1\n" * 250)  # 1,000 bytes
    assert fetch(reply("200 OK", large * 3, "Content-Encoding: gzip"), Limits(body_bytes=3000)) == b"a 1\n" * 750
    result = fetch(reply("200 OK", large * 4, "Content-Encoding: gzip"), Limits(body_bytes=3000))
    assert isinstance(result, ScrapeError) and result.kind == "too_large"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip"])
def test_what_cannot_be_inflated_is_garbage(encoding: str) -> None:
    result = fetch(reply("200 OK", b"not compressed", f"Content-Encoding: {encoding}"), Limits())
    assert error_of(result).kind == "garbage"


def test_a_connection_cut_in_the_middle() -> None:
    result = fetch(reply("200 OK", b"a 1\n", "Content-Length: 400", length=False), Limits())
    assert error_of(result).kind == "unreachable"
    assert str(error_of(result)) == "the server closed the connection before its answer was complete"


def test_no_http_at_all() -> None:
    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(f"SSH-2.0-{SECRET}\r\n\r\n".encode())
        await writer.drain()

    error = error_of(fetch(handler, Limits()))
    assert (error.kind, str(error)) == (
        "unreachable", "the answer is not HTTP: another kind of server listens on this port"
    )  # fmt: skip


def failed(base: str) -> tuple[str, str]:
    async def run() -> None:
        async with Client(base_url=base) as client:
            await http.get(client, "/metrics", Limits())

    with pytest.raises(ScrapeError) as caught:
        asyncio.run(run())
    error = error_of(caught.value)
    return error.kind, str(error)


@pytest.mark.parametrize(
    ("base", "why"),
    [
        (f"http://user:{SECRET}@127.0.0.1:9", "connection refused: nothing listens at this host and port"),
        ("http://localhost:9", "connection refused: nothing listens at this host and port"),
        (f"http://user:{SECRET}@no-such-host.invalid:8000", "host name not found (DNS)"),
    ],
)
def test_no_connection_says_why(base: str, why: str) -> None:
    assert failed(base) == ("unreachable", why)


def test_a_server_without_tls_is_named() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> str:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Client(base_url=f"https://127.0.0.1:{port}") as client:
            with pytest.raises(ScrapeError) as caught:
                await http.get(client, "/metrics", Limits())
        return str(error_of(caught.value))

    assert asyncio.run(run()) == "no TLS on this port: did you mean http:// instead of https://?"
