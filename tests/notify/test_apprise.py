"""The library for real: its json:// plugin against a server of ours, and what is said when it is not installed."""

import importlib.util
import json
import sys

import pytest

from server.lib.secret import Secret
from server.notify.model import DeliveryAnswer, ReceiverSettings
from server.notify.receivers import apprise
from tests.notify.support import T0, Reply, alert, note, serving


def settings(url: str) -> ReceiverSettings:
    return ReceiverSettings("ops", "apprise", Secret(url))


def answered(reply: Reply) -> DeliveryAnswer:
    with serving(reply) as server:
        return apprise.deliver(note(), settings(f"json://127.0.0.1:{server.port}/hooks/tok"))


def test_a_notification_arrives() -> None:
    ended = alert("resolved", ends_at=T0 + 60, engine="1", annotations={"summary": "over"}, url="")
    with serving() as server:
        found = apprise.deliver(note(ended, alert(), truncated=2), settings(f"json://127.0.0.1:{server.port}/hooks"))
        got = json.loads(server.next().body)
    assert found == DeliveryAnswer(True, text="delivered by apprise")
    assert (got["title"], got["type"]) == ("[FIRING:1, RESOLVED:1] TrainerStarved in run a", "warning")
    first, second, *rest = got["message"].split("\n\n")
    assert first.splitlines()[:2] == [
        "firing: The trainer waits 62 % of its step",
        "trainer_wait_ratio is 0.62, the limit is 0.4, for 5 min.",
    ]
    assert first.splitlines()[-1] == "http://rollscope.lab:8050/?run=a&at=1800000000"
    assert second.splitlines() == [
        "resolved: over",
        "from 2027-01-15 08:00:00 to 2027-01-15 08:01:00 UTC (1 min)",
        "warning, tuning, engine=1",
    ]
    assert rest == ["and 2 more", "http://rollscope.lab:8050"]


@pytest.mark.parametrize(
    ("status", "retry"), [(400, False), (401, False), (404, False), (408, True), (429, True), (500, True), (503, True)]
)
def test_refusals(status: int, retry: bool) -> None:
    found = answered(Reply(status, b"no"))
    assert (found.ok, found.retry) == (False, retry)
    assert f"error={status}" in found.text and len(found.text) <= 120


def test_redirects_are_not_followed() -> None:
    with serving() as other:
        found = answered(Reply(307, b"", {"Location": f"http://127.0.0.1:{other.port}/"}))
        assert (found.ok, found.retry) == (False, False) and other.got.empty()


def test_a_server_that_is_not_there_is_worth_a_retry() -> None:
    with serving() as server:
        port = server.port
    found = apprise.deliver(note(), settings(f"json://127.0.0.1:{port}/hooks"))
    assert (found.ok, found.retry) == (False, True) and found.text.startswith("apprise: ")


def test_what_stands_in_the_place_of_the_host_is_not_shown() -> None:
    # The library names the host it did not reach; for many services a token stands there.
    with serving() as server:
        port = server.port
    found = apprise.deliver(note(), settings(f"json://0.0.0.0:{port}/hooks"))
    assert found.text == "apprise: A Connection error occurred sending JSON notification to ***."


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("json://127.0.0.1/hooks", None),
        ("mailto://user:pass@example.com", None),
        ("nosuch://x", apprise.UNKNOWN),
        ("", apprise.UNKNOWN),
        ("json://u:p@169.254.169.254/x", "the url is a link-local or multicast address (clouds serve metadata there)"),
    ],
)
def test_check(url: str, problem: str | None) -> None:
    assert apprise.check(settings(url)) == problem
    if problem is not None:
        assert apprise.deliver(note(), settings(url)) == DeliveryAnswer(False, text=problem)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, "apprise")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "apprise" else real(name))
    text = "needs the library apprise: pip install apprise"
    assert apprise.check(settings("json://127.0.0.1/")) == text
    assert apprise.deliver(note(), settings("json://127.0.0.1/")) == DeliveryAnswer(False, text=text)
    assert apprise.RECEIVER.check is apprise.check
