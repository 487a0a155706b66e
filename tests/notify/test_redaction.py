"""What comes back in words holds no secret: however it is spelt, cut, torn off or quoted by the receiver."""

import asyncio

import pytest

from server.lib.secret import Secret
from server.notify.model import DeliveryAnswer, Request
from server.notify.outbound import FRAGMENT, redacted, send
from tests.notify.support import Got, Reply, echo, serving


def test_redacted_hides_every_spelling() -> None:
    secret = 'T0ken/with "quotes" & more'
    text = (
        f'plain {secret}; url T0ken%2Fwith%20%22quotes%22%20%26%20more; json T0ken/with \\"quotes\\" & more; '
        "html T0ken/with &quot;quotes&quot; &amp; more."
    )
    assert redacted(text, [secret]) == "plain ***; url ***; json ***; html ***."


def test_redacted_hides_pieces_and_short_ones() -> None:
    assert redacted("cut: abcdefghijk...", ["abcdefghijklmnopqrstuvwxyz"]) == "cut: ***..."
    assert redacted("pw is s3c, token is xs3cyz12", ["s3c", "xs3cyz12"]) == "pw is ***, token is ***"
    assert redacted("nothing here", ["", "something"]) == "nothing here"
    assert FRAGMENT == 8


def test_a_secret_cut_off_by_a_broken_answer_is_not_shown() -> None:
    async def torn(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 No\r\nContent-Length: 1000\r\n\r\nno such token: sekret")
        await writer.drain()

    async def run() -> DeliveryAnswer:
        async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await torn(writer)
            writer.close()

        async with await asyncio.start_server(on_connect, "127.0.0.1", 0) as server:
            url = Secret(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            return await send(Request(url, b"", secrets=("sekret-token",)))

    assert asyncio.run(run()).text == "HTTP 400: no such t"  # as many characters are dropped as the secret has


def test_a_secret_at_the_end_of_what_is_searched_is_not_shown() -> None:
    # Eight secrets shrink to ***, so that the last of the 4,096 characters, 7 of a ninth, would be in the excerpt.
    secret = "".join(f"{number:07d}" for number in range(71))
    body = secret * 8 + "x" * 113 + secret
    with serving(Reply(400, body.encode())) as server:
        request = Request(Secret(f"http://127.0.0.1:{server.port}/"), b"", secrets=(secret,))
        text = asyncio.run(send(request)).text
    assert text == "HTTP 400: ***"


def test_what_the_receiver_echoes_is_redacted() -> None:
    with serving(echo) as server:
        url = f"http://user:pass%2Fword@127.0.0.1:{server.port}/services/T000/B0-SECRET?token=query-secret"
        headers = {"Authorization": Secret("Bearer bearer-secret"), "X-Key": Secret("header-secret")}
        request = Request(Secret(url), b'{"routing_key":"body-secret"}', headers, secrets=("body-secret",))
        text = asyncio.run(send(request)).text
    assert len(text) <= len("HTTP 400: ") + 120
    for word in ("services", "T000", "SECRET", "query-secret", "user", "pass", "bearer-secret", "header-secret"):
        assert word not in text


def test_a_short_token_is_hidden_without_its_scheme_too() -> None:
    with serving(Reply(401, b"token t0k is unknown")) as server:
        request = Request(Secret(f"http://127.0.0.1:{server.port}/"), b"", {"Authorization": Secret("Bearer t0k")})
        assert asyncio.run(send(request)).text == "HTTP 401: token *** is unknown"


def test_the_whole_echo_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.notify.outbound.EXCERPT", 1 << 20)  # see all that would be shown
    seen: list[Got] = []

    def behave(got: Got) -> Reply:
        seen.append(got)
        return echo(got)

    with serving(behave) as server:
        url = f"http://us%40er:pass%2Fword@127.0.0.1:{server.port}/services/T000/B0-SECRET?token=query-secret"
        headers = {"X-Key": Secret("header-secret")}
        request = Request(Secret(url), b'{"routing_key":"body-secret"}', headers, secrets=("body-secret",))
        text = asyncio.run(send(request)).text
    assert seen[0].headers["authorization"] == "Basic dXNAZXI6cGFzcy93b3Jk"  # the server did have it
    assert "routing_key" in text and "host: 127.0.0.1" in text
    secrets = ("T000", "SECRET", "query-secret", "us@er", "us%40er", "pass", "header-secret", "body-secret")
    for word in (*secrets, "dXNAZXI", "cGFzcy9", "93b3Jk"):  # the last three: pieces of the base64 above
        assert word not in text
