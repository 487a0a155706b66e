"""The listing over pages, through all four providers: refusals, slow providers, 10,000 rows, listings that move."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import collectors
from collectors.model import Limits
from tests.sandboxes.fake_apis import (
    FakeDaytona,
    FakeE2B,
    FakePrime,
    FakeRunloop,
    daytona_row,
    e2b_row,
    prime_row,
    runloop_row,
)  # fmt: skip
from tests.sandboxes.fake_http import Fake, Poller, Reply, Request


@dataclass
class Kind:
    collector: str
    provider: str
    fake: Callable[[list[dict[str, Any]]], Fake]
    row: Callable[..., dict[str, Any]]
    path: str
    size: int
    id: str = "id"
    running: str = "running"


KINDS = [
    Kind("prime_sandboxes", "prime", FakePrime, prime_row, "/api/v1/sandbox", 100, running="RUNNING"),
    Kind("e2b", "e2b", FakeE2B, e2b_row, "/v2/sandboxes", 100, "sandboxID"),
    Kind("daytona", "daytona", FakeDaytona, daytona_row, "/sandbox", 200, running="started"),
    Kind("runloop", "runloop", FakeRunloop, runloop_row, "/v1/devboxes", 500),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.collector)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def start() -> Iterator[Callable[..., Poller]]:
    with ExitStack() as stack:

        def begin(kind: Kind, rows: list[dict[str, Any]], **options: str) -> Poller:
            return Poller(stack.enter_context(kind.fake(rows).serve()), kind.collector, **options)

        yield begin


def many(kind: Kind, count: int) -> list[dict[str, Any]]:
    return [kind.row(f"sb-{n:05d}", age=float(n + 1)) for n in range(count)]


def test_nothing_there_is_a_complete_listing(kind: Kind, start: Callable[..., Poller]) -> None:
    reading = start(kind, []).poll()
    assert (reading.sandboxes, reading.listed, reading.dropped) == ((), (kind.provider,), 0)


def test_pages_are_put_together(kind: Kind, start: Callable[..., Poller]) -> None:
    count = 2 * kind.size + 1
    poller = start(kind, many(kind, count))
    reading = poller.poll()
    assert sorted(sandbox.id for sandbox in reading.sandboxes) == [f"sb-{n:05d}" for n in range(count)]
    assert {sandbox.run_key for sandbox in reading.sandboxes} == {"run-a"}
    assert reading.listed == (kind.provider,)
    assert {request.method for request in poller.fake.requests} == {"GET"}


def test_ten_thousand_fit(kind: Kind, start: Callable[..., Poller]) -> None:
    """In one poll where the machine is quick, over several where not: all of them, once, and only then listed."""
    poller = start(kind, many(kind, 10_000))
    for _ in range(20):
        reading = poller.poll()
        if reading.listed:
            break
    assert len(reading.sandboxes) == len({sandbox.id for sandbox in reading.sandboxes}) == 10_000


def test_a_slow_provider_is_read_over_several_polls(
    kind: Kind, start: Callable[..., Poller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page takes 1.5 s of a clock that only this provider moves: two begin within 60 % of 4 s."""
    poller = start(kind, many(kind, 3 * kind.size))
    Slow(poller, kind.path, 1.5, monkeypatch)
    readings, pages = [], []
    while not readings or not readings[-1].listed:
        before = poller.fake.paths().count(kind.path)
        readings.append(poller.poll())
        pages.append(poller.fake.paths().count(kind.path) - before)
    assert len(readings) == {"prime_sandboxes": 3, "e2b": 2, "daytona": 2, "runloop": 6}[kind.collector]
    assert set(pages[:-1]) == {2}
    assert {reading.listed for reading in readings[:-1]} == {()}
    assert len(readings[-1].sandboxes) == 3 * kind.size
    if kind.collector != "runloop":  # its first queries are of statuses nobody is in
        assert len(readings[0].sandboxes) == 2 * kind.size


REFUSALS = [
    (Reply({"message": "no"}, 401), "auth", None),
    (Reply({"message": "no money"}, 402), "credit", None),
    (Reply({"message": "Total disk limit exceeded. Maximum allowed: 30GiB"}, 403), "quota", None),
    (Reply({"message": "Organization is suspended: Depleted credits"}, 403), "credit", None),
    (Reply({"message": "not yours"}, 403), "auth", None),
    (Reply({"message": "slow down"}, 429, {"Retry-After": "17"}), "throttled", 17.0),
    (Reply({"message": "slow down"}, 429), "throttled", None),
    (Reply({"message": "broken"}, 500), "status", None),
    (Reply({"message": "busy"}, 503, {"Retry-After": "3"}), "status", 3.0),
    (Reply(raw=b"<html>gateway</html>", status=502), "status", None),
    (Reply(raw=b"<html>welcome</html>"), "garbage", None),
    (Reply({"unexpected": 1}), "garbage", None),
    (Reply({"sandboxes": 3, "items": "x", "devboxes": None}), "garbage", None),
    (Reply(raw=b"x" * (17 << 20)), "too_large", None),
]


@pytest.mark.parametrize(("reply", "expected", "after"), REFUSALS)
def test_refusals(kind: Kind, start: Callable[..., Poller], reply: Reply, expected: str, after: float | None) -> None:
    poller = start(kind, many(kind, 3))
    poller.fake.fault = lambda request: reply if request.path == kind.path else None
    error = poller.error()
    assert (error.kind, error.retry_after) == (expected, after)
    poller.fake.fault = lambda _request: None
    assert len(poller.poll().sandboxes) == 3


def test_the_wrong_key(kind: Kind, start: Callable[..., Poller]) -> None:
    poller = start(kind, [])
    poller.key = "another-sekret-key-9876543210"
    error = poller.error()
    assert error.kind == "auth" and "sekret" not in str(error)


@pytest.mark.parametrize("reply", [Reply(hang=True), Reply([], drip=True)], ids=["hang", "drip"])
def test_a_hang_ends_in_time(kind: Kind, start: Callable[..., Poller], reply: Reply) -> None:
    poller = start(kind, many(kind, 3))
    poller.fake.fault = lambda request: reply if request.path == kind.path else None
    poller.limits = Limits(timeout_seconds=0.3)
    assert poller.error().kind == "timeout"


def second_page(request: Request) -> bool:
    return (
        any(name in request.query for name in ("nextToken", "cursor", "starting_after")) or request.one("page") == "2"
    )


@pytest.mark.parametrize(("status", "expected"), [(429, "throttled"), (500, "status"), (403, "auth")])
def test_a_page_that_fails_in_the_middle_fails_the_poll(
    kind: Kind, start: Callable[..., Poller], status: int, expected: str
) -> None:
    poller = start(kind, many(kind, 2 * kind.size))
    poller.fake.fault = lambda request: Reply({}, status) if second_page(request) else None
    assert poller.error().kind == expected
    poller.fake.fault = lambda _request: None
    asked = len(poller.fake.requests)
    reading = poller.poll()
    assert len(reading.sandboxes) == 2 * kind.size and reading.listed == (kind.provider,)
    # Throttled, the listing goes on where it stopped: from the start it would be throttled at the same place for ever.
    assert second_page(next(r for r in poller.fake.requests[asked:] if r.path == kind.path)) == (status == 429)


def test_duplicates_and_rows_without_an_id(kind: Kind, start: Callable[..., Poller]) -> None:
    rows = [kind.row("sb-1"), kind.row("sb-1"), kind.row("sb-2") | {kind.id: None}, kind.row("sb-3")]
    reading = start(kind, rows).poll()
    assert [sandbox.id for sandbox in reading.sandboxes] == ["sb-1", "sb-3"]
    assert reading.dropped >= 1 and "without" in reading.why_dropped
    # What could not be read may live: nobody may take it for ended, or count without it.
    assert (reading.listed, reading.partial) == ((), "listing incomplete: 1 rows could not be read")
    assert kind.collector == "e2b" or not [one for one in reading.samples if one.metric == "sandbox_quota_used"]


HOSTILE = [None, True, -1, 10**400, "x" * 100_000, "\ud800\0\n", [], {}, [[]], {"run": {}}, {"run": "x" * 99_999}]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_any_value_anywhere_is_survived(kind: Kind, start: Callable[..., Poller], value: object) -> None:
    base = kind.row("sb-1")
    rows = [base | {key: value, kind.id: f"sb-{key}"} for key in base if key not in (kind.id, "state", "status")]
    reading = start(kind, rows).poll()
    assert len(reading.sandboxes) == len(rows)
    for sandbox in reading.sandboxes:
        assert len(sandbox.name) <= 200 and len(sandbox.run_key) <= 200 and len(sandbox.detail) <= 200
        assert len(sandbox.image) <= 300
        (sandbox.name + sandbox.run_key + sandbox.image + sandbox.detail).encode()
        assert "\0" not in sandbox.name + sandbox.run_key + sandbox.image + sandbox.detail
        for moment in (
            sandbox.requested_at,
            sandbox.started_at,
            sandbox.ready_at,
            sandbox.ended_at,
            sandbox.expires_at,
        ):
            assert moment is None or 946_684_800.0 <= moment < 1e11
        assert (sandbox.latency_source is None) == (sandbox.requested_at is None or sandbox.ready_at is None)
        assert sandbox.latency_source is None or sandbox.ready_at >= sandbox.requested_at


@pytest.mark.parametrize("rows", [[None], ["x"], [1e999], [[[]]], [{}], [{"id": {}}]])
def test_a_page_without_a_row_that_can_be_read_is_garbage(
    kind: Kind, start: Callable[..., Poller], rows: list[Any]
) -> None:
    poller = start(kind, [])
    body = {"sandboxes": rows, "items": rows, "devboxes": rows, "total": 1, "hasNext": False, "nextCursor": None}
    reply = Reply(rows) if kind.collector == "e2b" else Reply(body)
    poller.fake.fault = lambda request: reply if request.path == kind.path else None
    error = poller.error()
    assert (error.kind, str(error)) == ("garbage", "none of the 1 rows of a page could be read")


class Slow:
    """A clock that only this provider's pages move."""

    def __init__(self, poller: Poller, path: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._path, self._seconds = 0.0, path, seconds
        # As the product sets it: how many pages fit into a poll is counted here, a few of them, at no time.
        poller.limits = Limits()
        slowed = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        monkeypatch.setattr("collectors.sandbox_providers.sweep.time", slowed)
        module = dict(collectors.modules("collectors.sandboxes"))[poller.collector.name]
        monkeypatch.setattr(module, "time", slowed)
        poller.fake.fault = self._page

    def _page(self, request: Request) -> Reply | None:
        self.now += self._seconds if request.path == self._path else 0.0
        return None


def test_an_unreadable_row_of_an_earlier_poll_leaves_the_listing_open(
    start: Callable[..., Poller], monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = start(KINDS[1], [e2b_row("x") | {"sandboxID": 0.5}, *many(KINDS[1], 250)])
    Slow(poller, "/v2/sandboxes", 1.5, monkeypatch)
    first, second = poller.poll(), poller.poll()
    assert [(one.dropped, one.listed, one.more) for one in (first, second)] == [(1, (), True), (0, (), False)]
    assert (first.partial, second.partial) == ("", "listing incomplete: 1 rows could not be read")
    assert len(second.sandboxes) == 250


def test_ten_thousand_of_a_slow_provider_take_longer_than_ten_minutes(
    start: Callable[..., Poller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 pages of 0.5 s, five of them begin within 60 % of 4 s, and 30 s lie between two polls."""
    poller = start(KINDS[1], many(KINDS[1], 10_000))
    clock = Slow(poller, "/v2/sandboxes", 0.5, monkeypatch)
    readings = [poller.poll()]
    while readings[-1].more and len(readings) < 25:
        clock.now += 30.0
        readings.append(poller.poll())
    assert (len(readings), clock.now) == (20, 100 * 0.5 + 19 * 30.0)
    assert (len(readings[-1].sandboxes), readings[-1].listed, readings[-1].partial) == (10_000, ("e2b",), "")
    assert [one.partial for one in readings[:4]] == [
        "", "", "listing incomplete: 1500 so far", "listing incomplete: 2000 so far",
    ]  # fmt: skip


@pytest.mark.parametrize(("pause", "goes_on"), [(599.0, True), (601.0, False)])
def test_a_listing_that_stood_still_begins_anew(
    start: Callable[..., Poller], monkeypatch: pytest.MonkeyPatch, pause: float, goes_on: bool
) -> None:
    poller = start(KINDS[1], many(KINDS[1], 1000))
    clock = Slow(poller, "/v2/sandboxes", 1.5, monkeypatch)
    poller.poll()
    clock.now += pause
    asked = len(poller.fake.requests)
    poller.poll()
    assert ("nextToken" in poller.fake.requests[asked].query) == goes_on


def test_an_unknown_state_is_unknown_and_counted(kind: Kind, start: Callable[..., Poller]) -> None:
    word = "state" if kind.collector in ("e2b", "daytona") else "status"
    reading = start(kind, [kind.row("sb-1", "new-word")]).poll()
    assert [(one.state, one.provider_state) for one in reading.sandboxes] == [("unknown", "new-word")]
    assert reading.unmapped == {f"{word}=new-word": 1}


def test_a_listing_that_runs_in_circles_is_garbage(start: Callable[..., Poller]) -> None:
    poller = start(KINDS[1], [])
    tokens = iter("abab" * 10)
    poller.fake.fault = lambda request: Reply([e2b_row("sb-1")], headers={"X-Next-Token": next(tokens)})
    assert poller.error().kind == "garbage"


def test_the_lost_are_asked_for_by_id(start: Callable[..., Poller]) -> None:
    kind = KINDS[2]
    poller = start(kind, [daytona_row("sb-1"), daytona_row("sb-2"), daytona_row("sb-3")])
    poller.poll()
    fake = poller.fake
    fake.hidden = {"sb-2", "sb-3"}  # type: ignore[attr-defined]
    fake.rows.pop()  # type: ignore[attr-defined]
    reading = poller.poll()
    found = {one.id: (one.state, one.provider_state) for one in reading.sandboxes}
    assert found == {
        "sb-1": ("running", "started"), "sb-2": ("running", "started"), "sb-3": ("terminated", "not found"),
    }  # fmt: skip
    assert reading.listed == ("daytona",)
    # The gone one is not asked for again.
    asked = len(fake.requests)
    poller.poll()
    assert [path for path in fake.paths()[asked:] if "sb-" in path] == ["/sandbox/sb-2"]


def test_too_many_lost_leave_the_listing_in_doubt(start: Callable[..., Poller]) -> None:
    poller = start(KINDS[2], many(KINDS[2], 120))
    poller.poll()
    poller.fake.rows.clear()  # type: ignore[attr-defined]
    readings = [poller.poll() for _ in range(4)]
    assert [len(reading.sandboxes) for reading in readings] == [50, 50, 20, 0]
    assert [reading.listed for reading in readings] == [(), (), ("daytona",), ("daytona",)]
    assert {one.state for reading in readings for one in reading.sandboxes} == {"terminated"}


def test_a_lost_one_that_cannot_be_asked_for_stays_in_doubt(start: Callable[..., Poller]) -> None:
    poller = start(KINDS[2], [daytona_row("sb-1")])
    poller.poll()
    poller.fake.hidden = {"sb-1"}  # type: ignore[attr-defined]
    poller.fake.fault = lambda request: Reply({}, 500) if request.path == "/sandbox/sb-1" else None
    reading = poller.poll()
    assert (reading.sandboxes, reading.listed) == ((), ())
