"""The ROCK collector: its list, its pages, its refusals inside 200s; that it asks for nothing that changes anything."""

from typing import Any

import pytest

from collectors.model import Limits, Reading, Sandbox
from collectors.sandbox_providers import sweep
from tests.sandboxes.fake_engines import T0, FakeRock, rock_row, rock_stamp
from tests.sandboxes.fake_http import Poller, Reply


def read(fake: FakeRock, **options: str) -> Reading:
    with fake.serve():
        return Poller(fake, "rock", **options).poll()


def one(item: dict[str, Any]) -> Sandbox:
    (row,) = read(FakeRock([item])).sandboxes
    return row


def phases(pull: tuple[str, str], run: tuple[str, str] = ("waiting", "waiting")) -> dict[str, Any]:
    names = ("image_pull", "docker_run")
    return {name: {"status": word, "message": said} for name, (word, said) in zip(names, (pull, run), strict=True)}


def test_a_running_one() -> None:
    reading = read(FakeRock([rock_row("a", auto_stop_time=rock_stamp(T0 + 60))]))
    assert reading.sandboxes == (
        Sandbox(
            provider="rock", id="a", state="running", run_key="exp-1", provider_state="running",
            requested_at=T0 - 100, started_at=T0 - 80, ready_at=T0 - 70, image="python:3.11", image_cached=False,
            latency_source="server", expires_at=T0 + 60,
        ),
    )  # fmt: skip
    assert reading.listed == ("rock",)
    assert "c2VrcmV0" not in repr(reading)  # the row's encrypted key stays where it is


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (phases(("waiting", "waiting")), ("queued", None, "", None)),
        (phases(("running", "image pull running")), ("building_image", None, "", False)),
        (phases(("success", "use cached image, skip image pull")), ("starting", None, "", True)),
        (phases(("success", "image pull success"), ("running", "docker run running")), ("starting", None, "", False)),
        (phases(("failed", "Failed to pull image x: manifest unknown")),
         ("failed", "image", "image_pull: Failed to pull image x: manifest unknown", False)),
        (phases(("failed", "toomanyrequests: pull rate limit")),
         ("failed", "rate_limit", "image_pull: toomanyrequests: pull rate limit", False)),
        (phases(("timeout", "pull")), ("failed", "image", "image_pull: pull", False)),
        (phases(("success", "image pull success"), ("timeout", "docker run timeout")),
         ("failed", "timeout", "docker_run: docker run timeout", False)),
        (phases(("success", "image pull success"), ("failed", "docker run failed")),
         ("failed", "internal", "docker_run: docker run failed", False)),
        (phases(("success", "image pull success"), ("failed", "no space left on device")),
         ("failed", "capacity", "docker_run: no space left on device", False)),
        ({}, ("queued", None, "", None)),
    ],
)  # fmt: skip
def test_phases_of_a_pending_one(status: dict[str, Any], expected: tuple[Any, ...]) -> None:
    row = one(rock_row("a", "pending", status=status))
    assert (row.state, row.cause, row.detail, row.image_cached) == expected
    assert (row.requested_at, row.ready_at) == (T0 - 100, None)


@pytest.mark.parametrize(
    ("word", "state"),
    [("stopped", "terminated"), ("archiving", "stopping"), ("archived", "terminated"), ("deleted", "terminated"),
     ("molten", "unknown")],
)  # fmt: skip
def test_other_states(word: str, state: str) -> None:
    reading = read(FakeRock([rock_row("a", word)]))
    assert reading.sandboxes[0].state == state
    assert reading.unmapped == ({"state=molten": 1} if word == "molten" else {})


def test_its_word_that_it_is_alive_is_no_evidence() -> None:
    assert one(rock_row("a", is_alive=False)).unreachable is False  # a constant of the list


def test_a_restarted_one_was_asked_for_when_it_was_restarted() -> None:
    history = [
        {"from_state": "pending", "to_state": "running", "event": "alive", "timestamp": rock_stamp(T0 - 9000)},
        {"from_state": "running", "to_state": "stopped", "event": "stop", "timestamp": rock_stamp(T0 - 5000)},
        {"from_state": "stopped", "to_state": "pending", "event": "restart", "timestamp": rock_stamp(T0 - 60)},
    ]
    item = rock_row("a", age=9999, state_history=history, start_time=rock_stamp(T0 - 45))
    row = one(item)
    assert (row.requested_at, row.ready_at) == (T0 - 60, T0 - 45)


def test_the_run_is_metadata_before_the_experiment() -> None:
    rows = [rock_row("a", metadata={"run": "run-a"}), rock_row("b"), rock_row("c", experiment_id="default")]
    assert [row.run_key for row in read(FakeRock(rows)).sandboxes] == ["run-a", "exp-1", ""]


def test_filters_go_to_the_service() -> None:
    fake = FakeRock([rock_row("a", namespace="rl"), rock_row("b")])
    assert [row.id for row in read(fake, namespace="rl").sandboxes] == ["a"]


def test_ten_thousand() -> None:
    fake = FakeRock([rock_row(str(n), age=n + 40) for n in range(10_000)])
    with fake.serve():
        poller = Poller(fake, "rock")
        for _ in range(5):
            reading = poller.poll()
            if reading.listed:
                break
    assert len(reading.sandboxes) == 10_000 and reading.listed == ("rock",)
    assert len(fake.requests) == 5


def test_a_service_with_smaller_pages() -> None:
    fake = FakeRock([rock_row(str(n)) for n in range(250)])
    fake.page_max = 100
    with fake.serve():
        poller = Poller(fake, "rock")
        assert len(poller.poll().sandboxes) == len(poller.poll().sandboxes) == 250
    asked = [(request.one("page"), request.one("page_size")) for request in fake.requests]
    assert asked == [("1", "2000"), *[("1", "100"), ("2", "100"), ("3", "100")] * 2]


def test_what_slips_between_two_pages_has_not_ended() -> None:
    fake = FakeRock([rock_row(str(n)) for n in range(150)])
    fake.page_max = 100

    def shift(request: Any) -> None:
        if request.one("page") == "2" and len(fake.requests) == 5:
            fake.rows = fake.rows[20:] + [rock_row(f"new{n}") for n in range(20)]

    fake.fault = shift
    with fake.serve():
        poller = Poller(fake, "rock")
        readings = [poller.poll() for _ in range(4)]
    sets = [{row.id for row in reading.sandboxes} for reading in readings]
    slipped, ended = {str(n) for n in range(100, 120)}, {str(n) for n in range(20)}
    assert [len(ids) for ids in sets] == [150, 170, 170, 150]
    assert all(slipped <= ids for ids in sets)
    assert ended <= sets[2] and not ended & sets[3]
    assert all(reading.listed == ("rock",) for reading in readings)


def test_on_a_single_page_what_is_missed_has_ended() -> None:
    fake = FakeRock([rock_row("a"), rock_row("b")])
    with fake.serve():
        poller = Poller(fake, "rock")
        poller.poll()
        del fake.rows[0]
        assert [row.id for row in poller.poll().sandboxes] == ["b"]


def test_a_slow_service_is_read_over_several_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SHARE", 0.0)
    fake = FakeRock([rock_row(str(n)) for n in range(5000)])
    with fake.serve():
        poller = Poller(fake, "rock")
        readings = [poller.poll() for _ in range(3)]
    assert [(len(reading.sandboxes), reading.listed) for reading in readings] == [
        (2000, ()), (2000, ()), (5000, ("rock",)),
    ]  # fmt: skip


def refusal(error: str) -> Reply:
    return FakeRock.refusal(error)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply({}, 401), "auth"),
        (Reply({}, 402), "credit"),
        (Reply({"message": "quota"}, 403), "quota"),
        (Reply({}, 429, {"Retry-After": "9"}), "throttled"),
        (Reply({}, 500), "status"),
        (Reply(raw=b"x"), "garbage"),
        (Reply({"hello": 1}), "garbage"),
        (Reply({"status": "Success", "result": {}}), "garbage"),
        (Reply(hang=True), "timeout"),
        (Reply({}, drip=True), "timeout"),
        (refusal("Redis connection lost"), "status"),
        (refusal("Unauthorized"), "auth"),
        (refusal("too many requests"), "throttled"),
        (refusal("quota exceeded for namespace"), "quota"),
        (refusal("page_size exceeds maximum 0"), "status"),
    ],
)
def test_refusals(reply: Reply, kind: str) -> None:
    fake = FakeRock([rock_row("a")])
    fake.fault = lambda _request: reply
    with fake.serve():
        poller = Poller(fake, "rock")
        poller.limits = Limits(timeout_seconds=0.3) if kind == "timeout" else Limits()
        error = poller.error()
    assert error.kind == kind
    assert error.retry_after == (9.0 if kind == "throttled" and reply.status == 429 else None)


def test_hostile_values() -> None:
    items: list[Any] = [
        None, "x", {}, {"sandbox_id": "bare"},
        rock_row("odd", status=[1], metadata=[2], state={"a": 1}, create_time=-3, start_time="yesterday",
                 state_history="long", image="i" * 99_999, experiment_id=None, auto_stop_time="NaN"),
        rock_row("early", start_time=rock_stamp(T0 - 900), status={}),
        rock_row("twice"), rock_row("twice", "stopped"),
    ]  # fmt: skip
    reading = read(FakeRock(items))
    rows = {row.id: row for row in reading.sandboxes}
    assert set(rows) == {"bare", "odd", "early", "twice"}
    assert (rows["odd"].state, rows["odd"].requested_at, len(rows["odd"].image)) == ("unknown", None, 300)
    assert (rows["early"].ready_at, rows["early"].latency_source) == (None, None)
    assert rows["twice"].state == "terminated"
    assert (reading.dropped, reading.why_dropped) == (3, "a sandbox without an id")
    assert (reading.listed, reading.partial) == ((), "listing incomplete: 3 rows could not be read")
