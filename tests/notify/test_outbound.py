"""The outbound policy against real sockets: statuses, redirects, limits, addresses, certificates, excerpts."""

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest

from server.lib.secret import Secret
from server.notify.model import DeliveryAnswer, Request
from server.notify.outbound import LIMITS, SendLimits, send
from tests.notify.support import Reply, serving

Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


def post(url: str, **options: object) -> DeliveryAnswer:
    return asyncio.run(send(Request(Secret(url), b'{"a":1}'), **options))  # type: ignore[arg-type]


def answered(reply: Reply) -> DeliveryAnswer:
    with serving(reply) as server:
        return post(f"http://127.0.0.1:{server.port}/hook")


def raw(handler: Handler, limits: SendLimits) -> DeliveryAnswer:
    """What `send` makes of a server that writes whatever it likes."""

    async def run() -> DeliveryAnswer:
        async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            try:
                await handler(writer)
            except ConnectionError:
                pass  # the client went away, which is what is tested
            finally:
                writer.close()

        server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
        async with server:
            url = Secret(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            return await send(Request(url, b"{}"), limits=limits)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "ok", "retry"),
    [
        (200, True, False),
        (202, True, False),
        (400, False, False),
        (401, False, False),
        (404, False, False),
        (408, False, True),
        (410, False, False),
        (425, False, False),
        (429, False, True),
        (500, False, True),
        (503, False, True),
        (599, False, True),
    ],
)
def test_what_a_status_means(status: int, ok: bool, retry: bool) -> None:
    assert answered(Reply(status, b"words")) == DeliveryAnswer(ok, retry, f"HTTP {status}: words")


def test_the_request_arrives_as_it_was_made() -> None:
    with serving() as server:
        request = Request(Secret(f"http://u:p%40w@127.0.0.1:{server.port}/h?k=v"), b'{"a":1}', {"X-A": "b"})
        assert asyncio.run(send(request)) == DeliveryAnswer(True, text="HTTP 200: ok")
        got = server.next()
    assert (got.method, got.path, got.body) == ("POST", "/h?k=v", b'{"a":1}')
    assert got.headers["x-a"] == "b" and got.headers["host"] == f"127.0.0.1:{server.port}"
    assert got.headers["authorization"] == "Basic dTpwQHc="  # u:p@w
    assert got.headers["connection"] == "close" and got.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_a_final_failure_that_says_so(status: int) -> None:
    with serving() as other, serving(Reply(status, b"", {"Location": f"http://127.0.0.1:{other.port}/"})) as server:
        text = f"HTTP {status}: redirects are not followed; configure the final URL"
        assert post(f"http://127.0.0.1:{server.port}/hook") == DeliveryAnswer(False, text=text)
        assert other.got.empty()


@pytest.mark.parametrize(
    ("value", "after"), [("7", 7.0), ("0", 0.0), ("99999999999", 3600.0), ("soon", None), ("-1", None), ("", None)]
)
def test_retry_after_in_seconds(value: str, after: float | None) -> None:
    assert answered(Reply(429, b"", {"Retry-After": value})).after == after


def test_retry_after_as_a_date() -> None:
    # Half an hour ahead: the seconds that the test itself takes do not matter.
    found = answered(Reply(503, b"", {"Retry-After": formatdate(time.time() + 1800, usegmt=True)})).after
    assert found is not None and 1700 < found <= 1800
    assert answered(Reply(503, b"", {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"})).after == 0.0
    assert answered(Reply(400, b"", {"Retry-After": "7"})).after is None


def test_nobody_there_is_worth_a_retry() -> None:
    with serving() as server:
        port = server.port
    found = post(f"http://127.0.0.1:{port}/hook")
    assert (found.ok, found.retry) == (False, True) and found.text.startswith(
        "no answer: connection refused: nothing listens at this host and port"
    )


def test_a_server_that_hangs_up_is_worth_a_retry() -> None:
    found = answered(Reply(hang_up=True))
    assert (found.ok, found.retry) == (False, True) and found.text.startswith(
        "no answer: the server closed the connection"
    )


def test_a_name_without_address_is_worth_a_retry() -> None:
    found = post("http://rollscope.invalid/hook")
    assert (found.ok, found.retry) == (False, True) and found.text.startswith("no answer: host name not found (DNS)")


def test_a_silent_server_ends_at_the_limit() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    assert raw(silent, SendLimits(head_seconds=0.2)) == DeliveryAnswer(False, retry=True, text="no answer within 0.2 s")


def test_a_dripping_head_ends_at_the_limit() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            writer.write(b"#")
            await writer.drain()
            await asyncio.sleep(0.02)

    assert raw(drip, SendLimits(head_seconds=0.3)) == DeliveryAnswer(False, retry=True, text="no answer within 0.3 s")


def test_the_status_counts_when_the_body_does_not_come() -> None:
    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        await writer.drain()
        await writer.wait_closed()

    assert raw(half, SendLimits(body_seconds=0.2)) == DeliveryAnswer(True, text="HTTP 200")


def test_an_endless_body_is_read_up_to_the_cap() -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 400 No\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    assert raw(endless, SendLimits()).text == "HTTP 400: " + "x" * 120
    assert sent < 16 << 20  # socket buffers, not the body for ever


def test_the_two_times_stay_within_15_seconds() -> None:
    assert LIMITS.head_seconds + LIMITS.body_seconds == 15.0 and LIMITS.body_bytes == 65536


def test_a_compressed_answer_is_not_inflated() -> None:
    assert answered(Reply(400, b"\x1f\x8b\x08", {"Content-Encoding": "gzip"})).text == "HTTP 400"


def test_an_excerpt_is_short_and_plain() -> None:
    assert answered(Reply(400, b"a\x1b[31m\r\nb\0\xe2\x80\xaec " + b"y" * 200)).text == (
        "HTTP 400: a [31m b c " + "y" * 109
    )


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://2852039166/",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://224.0.0.1/",
        "http://metadata.google.internal/",
        "ftp://127.0.0.1/",
        "http://[/",
        "hook",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    found = post(url)
    assert not found.ok and not found.retry and found.text.startswith("refused: the URL ")


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1",
        "fe80::1%lo",
        "ff02::1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "239.1.2.3",
    ],
)
def test_names_that_lead_to_refused_addresses(address: str) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1", address]  # one bad address spoils the name, in whatever order they come

    with serving() as server:
        found = post(f"http://receiver.example:{server.port}/", resolve=resolve)
        assert server.got.empty()
    text = "refused: the name resolves to a link-local, multicast or cloud metadata address"
    assert found == DeliveryAnswer(False, text=text)


def test_the_checked_address_is_the_one_that_is_asked() -> None:
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    with serving() as server:
        # A second look-up would have found the other answer (DNS rebinding); .example resolves nowhere in truth.
        assert post(f"http://receiver.example:{server.port}/hook", resolve=resolve).ok
        assert server.next().headers["host"] == f"receiver.example:{server.port}"
    assert asked == [("receiver.example", server.port)]


def test_the_next_address_is_tried_when_one_takes_no_connection() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["::1", "127.0.0.1"]  # the server listens on IPv4 alone

    with serving() as server:
        assert post(f"http://receiver.example:{server.port}/hook", resolve=resolve).ok
        assert server.got.qsize() == 1


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server, serving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert post(f"http://127.0.0.1:{server.port}/hook").ok
        assert proxy.got.empty()


def test_a_header_that_cannot_be_sent_is_final_and_not_quoted() -> None:
    with serving() as server:
        url = Secret(f"http://127.0.0.1:{server.port}/")
        for value in ("Bearer abc\nX: y", "Bearer schlüssel-√"):
            found = asyncio.run(send(Request(url, b"", {"Authorization": Secret(value)})))
            assert not found.ok and not found.retry
            assert found.text.startswith("the request cannot be sent: ") and "abc" not in found.text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of receiver.example, made here: one in the repository would expire."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=receiver.example"]
    command += ["-addext", "subjectAltName=DNS:receiver.example", "-keyout", "-", "-out", "-"]
    path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    return path


def https(certificate: Path, name: str, *, trusted: bool) -> tuple[DeliveryAnswer, list[str | None]]:
    """What comes of a POST to https://NAME/ at a server with that certificate, and the names it was asked for."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _socket, asked, _context: names.append(asked)

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run() -> DeliveryAnswer:
        ours = ssl.create_default_context(cafile=str(certificate) if trusted else None)
        server = await asyncio.start_server(on_connect, "127.0.0.1", 0, ssl=context)
        async with server, httpx.AsyncClient(verify=ours, trust_env=False) as client:
            url = Secret(f"https://{name}:{server.sockets[0].getsockname()[1]}/hook")
            return await send(Request(url, b"{}"), client=client, resolve=resolve)

    return asyncio.run(run()), names


def test_a_certificate_is_checked_against_the_name_not_the_address(certificate: Path) -> None:
    assert https(certificate, "receiver.example", trusted=True) == (
        DeliveryAnswer(True, text="HTTP 204"),
        ["receiver.example"],
    )


@pytest.mark.parametrize(("name", "trusted"), [("other.example", True), ("receiver.example", False)])
def test_wrong_certificates_are_refused(certificate: Path, name: str, trusted: bool) -> None:
    found, _ = https(certificate, name, trusted=trusted)
    assert not found.ok and found.retry
    assert found.text.startswith("no answer: the server's TLS certificate is not trusted: ")
