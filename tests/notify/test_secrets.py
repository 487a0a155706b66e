"""No receiver of any kind leaks a secret: not into log, error, answer, terminal or repr, whatever the server does."""

import asyncio
import logging
import time
from collections.abc import Callable

import httpx
import pytest

from server.lib.secret import Secret
from server.notify import load
from server.notify.model import DeliveryAnswer, Receiver, ReceiverSettings, Request
from server.notify.outbound import FRAGMENT, send
from tests.notify.support import Behaviour, Reply, Server, alert, echo, note, serving

PATH, QUERY, PASSWORD = "Pa7hS3cret0123456789", "Qu3ryS3cret0123456789", "Us3rinf0S3cret/0123456789"
LOGGERS = ("", "httpx", "httpcore", "httpcore.connection", "httpcore.http11", "apprise", "urllib3", "asyncio")


def redirect(_: object) -> Reply:
    return Reply(302, b"moved", {"Location": f"http://127.0.0.1:1/{PATH}?token={QUERY}"})


def echo_and_fail(got: object) -> Reply:
    return Reply(503, echo(got).body, {"Retry-After": "1", "X-Echo": PATH})  # type: ignore[arg-type]


BEHAVIOURS: dict[str, Behaviour] = {
    "failing": lambda _: Reply(500, b"internal error"),
    "hanging-up": lambda _: Reply(hang_up=True),
    "redirecting": redirect,
    "echoing": echo,
    "echoing-body": lambda got: Reply(400, got.body),
    "echoing-503": echo_and_fail,
    "taking": lambda got: Reply(200, echo(got).body),
}


def settings_of(receiver: Receiver, port: int) -> ReceiverSettings:
    scheme = "json" if receiver.kind == "apprise" else "http"
    url = f"{scheme}://someone:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{port}/hooks/{PATH}?token={QUERY}"
    options = {
        name: Secret(f"Opt10nS3cret{at}-0123456789") if option.secret else "plain"
        for at, (name, option) in enumerate(receiver.options.items())
    }
    if receiver.kind == "alertmanager":
        del options["bearer"]  # or basic authentication would not be tried
    return ReceiverSettings("ops", receiver.kind, Secret(url), options)


def attempt(receiver: Receiver, settings: ReceiverSettings) -> tuple[DeliveryAnswer, str]:
    """As the dispatcher does it: the answer and the repr of what there is to print."""
    found = note(alert())
    if receiver.render is None:
        assert receiver.deliver is not None
        return receiver.deliver(found, settings), ""
    request = receiver.render(found, settings, time.time())
    return asyncio.run(send(request)), f"{request!r} {[request]}"


def secrets(settings: ReceiverSettings) -> list[str]:
    options = [value for value in settings.options.values() if isinstance(value, Secret)]
    return [PATH, QUERY, PASSWORD, PASSWORD.replace("/", "%2F"), *options]


def leaks(text: str, settings: ReceiverSettings) -> list[str]:
    """Every piece of 8 characters of a secret that the text holds."""
    pieces = {secret[at : at + FRAGMENT] for secret in secrets(settings) for at in range(len(secret) - FRAGMENT + 1)}
    return sorted(piece for piece in pieces if piece in text)


def had_the_secrets(server: Server) -> bool:
    got = server.next()
    return PATH in got.path


@pytest.fixture
def everything(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """All that was logged, at DEBUG, and printed so far."""
    for name in LOGGERS:
        caplog.set_level(logging.DEBUG, logger=name)

    def read() -> str:
        out, err = capfd.readouterr()
        return "\n".join([caplog.text, *(str(record.__dict__) for record in caplog.records), out, err])

    return read


@pytest.mark.parametrize("kind", list(load()))
@pytest.mark.parametrize("behaviour", list(BEHAVIOURS))
def test_no_receiver_leaks_its_secrets(
    kind: str, behaviour: str, everything: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("outbound", "receivers.apprise"):  # no leak is hidden by being cut off
        monkeypatch.setattr(f"server.notify.{module}.EXCERPT", 1 << 20)
    receiver = load()[kind]
    with serving(BEHAVIOURS[behaviour]) as server:
        settings = settings_of(receiver, server.port)
        answer, printed = attempt(receiver, settings)
        assert had_the_secrets(server)
    assert answer.ok == (behaviour == "taking")
    assert leaks("\n".join([answer.text, repr(answer), printed, repr(settings), everything()]), settings) == []


@pytest.mark.parametrize("kind", list(load()))
def test_a_receiver_that_is_not_there_leaks_nothing(kind: str, everything: Callable[[], str]) -> None:
    with serving() as server:
        settings = settings_of(load()[kind], server.port)
    answer, printed = attempt(load()[kind], settings)
    assert (answer.ok, answer.retry) == (False, True)
    assert leaks("\n".join([answer.text, repr(answer), printed, repr(settings), everything()]), settings) == []


def test_the_capture_would_have_seen_a_leak(everything: Callable[[], str]) -> None:
    """The same libraries without our guard do log the path: the tests above look where it would be."""
    with serving(redirect) as server:
        settings = settings_of(load()["webhook"], server.port)

        async def plainly() -> None:
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.post(settings.url)

        asyncio.run(plainly())
    found = leaks(everything(), settings)
    assert PATH[:FRAGMENT] in found and QUERY[:FRAGMENT] in found


def test_our_guard_hushes_only_our_own_requests(caplog: pytest.LogCaptureFixture) -> None:
    # The program, which other tests run in this process, sets levels of its own.
    for name in LOGGERS:
        caplog.set_level(logging.DEBUG, name or None)

    async def both() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            await asyncio.gather(send(Request(url, b"")), client.get(f"http://127.0.0.1:{server.port}/other"))

    with serving() as server:
        url = Secret(f"http://127.0.0.1:{server.port}/ours")
        asyncio.run(both())
    assert "/other" in caplog.text and "/ours" not in caplog.text
