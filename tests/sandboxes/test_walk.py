"""Walks of pages through Docker, ROCK and Kubernetes: circles, rows nobody can read, walks that stood still."""

from collections.abc import Callable
from typing import Any

import pytest

from collectors.sandbox_providers import sweep
from tests.sandboxes.fake_engines import FakeDocker, FakeKubernetes, FakeRock, container, pod, rock_row
from tests.sandboxes.fake_http import Fake, Poller, Reply, Request

UNREAD = "none of the 1 rows of a page could be read"
NAMES_ITSELF = "the listing has a loop: a page names itself as the next"
NOTHING_NEW = "the listing has a loop: its pages contain no new rows"


def rock(rows: list[Any], more: bool) -> Reply:
    return Reply({"status": "Success", "result": {"items": rows, "has_more": more}})


def kube(rows: list[Any], token: str = "") -> Reply:
    return Reply({"kind": "PodList", "metadata": {"continue": token}, "items": rows})


def listing(request: Request) -> bool:
    return request.path in ("/containers/json", "/api/v1/pods") or request.path.endswith("/sandboxes")


def failing(fake: Fake, collector: str, reply: Callable[[Request], Reply]) -> tuple[str, str, int]:
    """(kind, words, pages asked for) of the error; afterwards the true listing is whole."""
    fake.fault = lambda request: reply(request) if listing(request) else None
    with fake.serve():
        poller = Poller(fake, collector)
        error = poller.error()
        asked = sum(map(listing, fake.requests))
        fake.fault = lambda _request: None
        assert len(poller.poll().sandboxes) == 1, "the walk begins anew"
    return error.kind, str(error), asked


@pytest.mark.parametrize("row", [None, "x", {}, {"Id": 1.5, "sandbox_id": [], "metadata": {"uid": None}}])
def test_a_page_without_a_row_that_can_be_read_is_garbage(row: Any) -> None:
    assert failing(FakeDocker([container("a")]), "docker", lambda _: Reply([row])) == ("garbage", UNREAD, 1)
    assert failing(FakeRock([rock_row("a")]), "rock", lambda _: rock([row], False)) == ("garbage", UNREAD, 1)
    assert failing(FakeKubernetes([pod("a")]), "kubernetes", lambda _: kube([row])) == ("garbage", UNREAD, 1)


def test_an_engine_that_ignores_where_a_page_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """`before` is not heeded: each page is the first, and names its own last container."""
    monkeypatch.setattr("collectors.sandboxes.docker.PAGE_ROWS", 2)
    page = Reply([container("a"), container("b")])
    assert failing(FakeDocker([container("a")]), "docker", lambda _: page) == ("garbage", NAMES_ITSELF, 2)


def test_a_service_that_always_has_more_of_the_same() -> None:
    found = failing(FakeRock([rock_row("a")]), "rock", lambda _: rock([rock_row("a"), rock_row("b")], True))
    assert found == ("garbage", NOTHING_NEW, 3)


def test_tokens_that_lead_round() -> None:
    rows = {"": "a", "t1": "b", "t2": "a"}
    after = {"": "t1", "t1": "t2", "t2": "t1"}

    def turn(request: Request) -> Reply:
        token = request.one("continue")
        return kube([pod(rows[token])], after[token])

    assert failing(FakeKubernetes([pod("a")]), "kubernetes", turn) == ("garbage", NOTHING_NEW, 4)
    same = failing(FakeKubernetes([pod("a")]), "kubernetes", lambda _: kube([pod("a")], "t1"))
    assert same == ("garbage", NAMES_ITSELF, 2)


def test_empty_pages_that_lead_on_are_honest() -> None:
    """Kubernetes cuts pages before it filters them."""
    pages = {"": "1", "1": "2", "2": "3", "3": "4"}
    fake = FakeKubernetes([])
    fake.fault = lambda request: kube(
        [] if (token := request.one("continue")) in pages else [pod("a")], pages.get(token, "")
    )
    with fake.serve():
        reading = Poller(fake, "kubernetes").poll()
    assert ([row.id for row in reading.sandboxes], reading.listed, len(fake.requests)) == (["a"], ("kubernetes",), 5)


def test_an_unreadable_row_of_an_earlier_poll_leaves_the_walk_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SHARE", 0.0)
    fake = FakeRock([{"state": "running"}, *(rock_row(str(n)) for n in range(2500))])
    with fake.serve():
        poller = Poller(fake, "rock")
        first, second = poller.poll(), poller.poll()
    assert [(one.dropped, one.listed, one.more) for one in (first, second)] == [(1, (), True), (0, (), False)]
    assert second.partial == "listing incomplete: 1 rows could not be read" and len(second.sandboxes) == 2500


def test_a_walk_that_is_cut_is_no_listing_and_is_not_hurried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "MAX_WALKED_ROWS", 250)
    fake = FakeKubernetes([pod(str(n)) for n in range(600)])
    with fake.serve():
        reading = Poller(fake, "kubernetes").poll()
    assert (len(reading.sandboxes), reading.listed, reading.more) == (250, (), False)
    assert reading.partial == "listing incomplete: it continues after 250 rows, the maximum that is read"


@pytest.mark.parametrize(("idle", "goes_on"), [(3600.0, True), (-1.0, False)])
def test_a_walk_that_stood_still_begins_anew(monkeypatch: pytest.MonkeyPatch, idle: float, goes_on: bool) -> None:
    """How long it may stand still is what is moved, not the clock: -1 s is over at once."""
    monkeypatch.setattr(sweep, "SHARE", 0.0)
    monkeypatch.setattr(sweep, "IDLE_SECONDS", idle)
    fake = FakeRock([rock_row(str(n)) for n in range(2500)])
    with fake.serve():
        poller = Poller(fake, "rock")
        readings = [poller.poll(), poller.poll()]
    assert [request.one("page") for request in fake.requests] == ["1", "2" if goes_on else "1"]
    assert [reading.more for reading in readings] == [True, not goes_on]


def test_a_walk_that_takes_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SHARE", 0.0)
    monkeypatch.setattr("collectors.sandbox_providers.provider.SLOW_SECONDS", -1.0)
    with FakeRock([rock_row(str(n)) for n in range(2500)]).serve() as fake:
        poller = Poller(fake, "rock")
        readings = [poller.poll(), poller.poll()]
    assert [reading.partial for reading in readings] == ["listing incomplete: 2000 so far", ""]
