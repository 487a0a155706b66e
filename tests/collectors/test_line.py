"""The kept connection against a real socket: framing, reuse, what must end it. What `get` makes of it: test_http."""

import asyncio
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectors.model import Limits, ScrapeError
from collectors.transport import http

OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Length: 4\r\n\r\na 1\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def talk(*answers: bytes, gets: int = 2, tls: Path | None = None) -> tuple[list[bytes | str], list[int], list[bytes]]:
    """(what each GET brought, of which connection each request was, the requests). "|" in an answer ends a write.

    An answer that ends in "X" is followed by the end of the connection.
    """
    connections: list[int] = []
    requests: list[bytes] = []
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        own = count
        while len(requests) < len(answers):
            try:
                request = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            answer = answers[len(requests)]
            requests.append(request)
            connections.append(own)
            for part in answer.removesuffix(b"X").split(b"|"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if answer.endswith(b"X"):
                break
        writer.close()

    async def run() -> list[bytes | str]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=_server_side(tls))
        port = server.sockets[0].getsockname()[1]
        base = f"{'https://localhost' if tls else 'http://127.0.0.1'}:{port}"
        found: list[bytes | str] = []
        async with server, http.PageClient(base_url=base) as client:
            for _ in range(gets):
                try:
                    found.append(await http.get(client, "/metrics", Limits()))
                except ScrapeError as error:
                    found.append(error.kind)
        return found

    return asyncio.run(run()), connections, requests


def _server_side(tls: Path | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls)
    return context


@pytest.mark.parametrize(
    "answer",
    [
        PLAIN,
        b"HTTP/1.1 200 OK\r\nConte|nt-Length: 4\r\n\r|\na |1\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN,
        CHUNKED + b"2\r\na \r\n2;x=y\r\n1\n\r\n0\r\n\r\n",
        CHUNKED + b"2\r|\na| \r\n|2\r\n1\n|\r\n0\r|\nTrailer: x\r\n\r|\n",
        b"HTTP/1.1 200\r\ncontent-length:4\r\n\r\na 1\n",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\na 1\n",
    ],
)
def test_an_answer_is_read_and_the_connection_kept(answer: bytes) -> None:
    found, connections, _ = talk(answer, PLAIN)
    assert (found, connections) == ([b"a 1\n", b"a 1\n"], [1, 1])


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"\r\na 1\nX",
        OK + b"Connection: close\r\nContent-Length: 4\r\n\r\na 1\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\na 1\n",
        PLAIN + b"HTTP/1.1 200 OK\r\n",  # more than was asked for: it must not be taken for the next answer
    ],
)
def test_an_answer_is_read_and_the_connection_is_not_used_again(answer: bytes) -> None:
    found, connections, _ = talk(answer, PLAIN)
    assert (found, connections) == ([b"a 1\n", b"a 1\n"], [1, 2])


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew_unseen() -> None:
    """uvicorn closes after 5 s, which is when the next scrape begins."""
    found, connections, _ = talk(PLAIN, b"X", PLAIN)
    assert (found, connections) == ([b"a 1\n", b"a 1\n"], [1, 1, 2])


def test_a_new_connection_that_ends_without_an_answer_is_not_asked_twice() -> None:
    assert talk(b"X", PLAIN, gets=1)[:2] == (["unreachable"], [1])


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 9\r\n\r\na 1\nX",
        CHUNKED + b"4\r\na 1\n\r\nX",
        CHUNKED + b"2\r\na 1\n\r\n0\r\n\r\n",
        CHUNKED + b"-4\r\na 1\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\na 1\n",
        OK + b"Content-Length: +4\r\n\r\na 1\n",
        OK + b"Transfer-Encoding: gzip\r\n\r\na 1\nX",
        OK + b"no colon\r\n\r\na 1\n",
        OK + b"Content-Length : 4\r\n\r\na 1\n",
        OK + b"A: b\r\n folded\r\nContent-Length: 4\r\n\r\na 1\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\nX",
        b"HTTP/2 200\r\n\r\nX",
        OK + b"A: " + b"x" * (200 << 10),
    ],
)
def test_what_is_no_answer_is_none_and_the_next_one_is_asked_for_anew(answer: bytes) -> None:
    found, connections, _ = talk(answer, PLAIN)
    assert (found, connections) == (["unreachable", b"a 1\n"], [1, 2])


def test_a_status_that_is_refused_unread_leaves_nothing_for_the_next_answer() -> None:
    found, connections, _ = talk(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nb 2\n", PLAIN)
    assert (found, connections) == (["status", b"a 1\n"], [1, 2])


def test_the_request_is_what_httpx_would_send() -> None:
    _, _, (request, again) = talk(PLAIN, PLAIN)
    assert request == again and request.startswith(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAccept-Encoding: identity\r\n" in request and b"\r\nConnection: keep-alive\r\n" in request


def test_credentials_of_the_url_are_sent_and_no_header_can_hold_another() -> None:
    async def laid_out(url: str, **headers: str) -> bytes | str:
        async with http.PageClient(base_url=url, headers=headers) as client:
            try:
                return client._prepared("/metrics")[1]
            except Exception as error:  # noqa: BLE001
                return type(error).__name__

    found = asyncio.run(laid_out("http://us%40r:p%3Aw@h/base"))
    assert isinstance(found, bytes)
    assert found.startswith(b"GET /base/metrics HTTP/1.1\r\n") and b"Authorization: Basic dXNAcjpwOnc=\r\n" in found
    assert asyncio.run(laid_out("http://h", Authorization="Bearer x\r\nEvil: 1")) == "LocalProtocolError"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for localhost, signed by itself, in one file."""
    path = tmp_path_factory.mktemp("tls")
    command: Sequence[str] = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "key", "-out", "crt",
    ]  # fmt: skip
    subprocess.run(command, cwd=path, check=True, capture_output=True)
    both = path / "both.pem"
    both.write_bytes((path / "key").read_bytes() + (path / "crt").read_bytes())
    return both


def test_tls_is_spoken_with_whom_we_trust_only(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk(PLAIN, gets=1, tls=certificate)[0] == ["unreachable"], "nobody vouches for it"
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(http, "certificates", lambda: trusting)
    found, connections, _ = talk(PLAIN, PLAIN, tls=certificate)
    assert (found, connections) == ([b"a 1\n", b"a 1\n"], [1, 1])
