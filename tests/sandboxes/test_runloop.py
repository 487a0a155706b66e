"""Runloop: rows by hand from state changes, statuses asked for one by one, failures, the account."""

from collections.abc import Iterator
from typing import Any

import pytest

from collectors.model import Sandbox
from tests.sandboxes.fake_apis import T0, FakeRunloop, runloop_row
from tests.sandboxes.fake_http import Poller, Reply, Request, values

MS = int(T0 * 1000)


@pytest.fixture
def fake() -> Iterator[FakeRunloop]:
    with FakeRunloop([]).serve() as served:
        assert isinstance(served, FakeRunloop)
        yield served


def by_id(poller: Poller) -> dict[str, Sandbox]:
    return {sandbox.id: sandbox for sandbox in poller.poll().sandboxes}


def changes(*steps: tuple[str, float]) -> list[dict[str, Any]]:
    """``(status, seconds after T0)``"""
    return [{"status": word, "transition_time_ms": int((T0 + after) * 1000)} for word, after in steps]


def test_rows(fake: FakeRunloop) -> None:
    fake.rows = [
        runloop_row("a"),
        runloop_row("b", "queued", age=3700, state_transitions=changes(("queued", -3700)), metadata={}),
        runloop_row("c", "failure", failure_reason="out_of_memory", end_time_ms=MS),
        runloop_row("d", "shutdown", shutdown_reason="ttl_expired", end_time_ms=MS - 500, name=None),
    ]
    reading = Poller(fake, "runloop").poll()
    common = {"image": "bpt-1", "latency_source": "server", "expires_at": T0 - 100 + 3600}
    assert sorted(reading.sandboxes, key=lambda one: one.id) == [
        Sandbox("runloop", "a", "running", "name-a", "run-a", "running", T0 - 100, T0 - 91, T0 - 88.5, **common),
        Sandbox("runloop", "b", "queued", "name-b", "", "queued", T0 - 3700, image="bpt-1", expires_at=T0 - 100),
        Sandbox("runloop", "c", "failed", "name-c", "run-a", "failure", T0 - 100, T0 - 91, T0 - 88.5,
                    ended_at=T0, cause="oom", detail="out_of_memory", **common),
        Sandbox("runloop", "d", "terminated", "", "run-a", "shutdown", T0 - 100, T0 - 91, T0 - 88.5,
                    ended_at=T0 - 0.5, detail="ttl_expired", **common),
    ]  # fmt: skip
    assert reading.listed == ("runloop",)


@pytest.mark.parametrize(
    ("transitions", "started", "ready"),
    [
        # Resumed: it runs again, which is no second spin-up.
        (changes(("queued", -100), ("running", -60), ("suspended", -40), ("running", -10)), T0 - 60, T0 - 60),
        (changes(("running", -10), ("initializing", -50), ("running", -60)), T0 - 60, T0 - 60),  # in any order
        (changes(("initializing", -90)), T0 - 90, None),
        (changes(("running", -101)), None, None),  # before it was asked for
        ([{"status": "running"}, {"transition_time_ms": MS}, None, 5], None, None),
        ([{"status": "running", "transition_time_ms": float("nan")}], None, None),
        ([{"status": ["running"], "transition_time_ms": MS}], None, None),
        ([{"status": "running", "transition_time_ms": str(MS - 1000)}], T0 - 1, T0 - 1),
        ("running", None, None),
    ],
)
def test_times_come_from_the_changes(
    fake: FakeRunloop, transitions: Any, started: float | None, ready: float | None
) -> None:
    fake.rows = [runloop_row("a", state_transitions=transitions)]
    found = by_id(Poller(fake, "runloop"))["a"]
    assert (found.started_at, found.ready_at) == (started, ready)
    assert found.latency_source == (None if ready is None else "server")


STATES = {
    "scheduled": "queued", "queued": "queued", "provisioning": "starting", "initializing": "starting",
    "running": "running", "suspending": "stopping", "suspended": "paused", "resuming": "starting",
    "failure": "failed", "shutdown": "terminated",
}  # fmt: skip


def test_states(fake: FakeRunloop) -> None:
    fake.rows = [runloop_row(word, word) for word in STATES]
    reading = Poller(fake, "runloop").poll()
    assert {one.id: one.state for one in reading.sandboxes} == STATES
    assert values(reading)["sandbox_quota_used{concurrent}"] == 7.0  # a suspended one holds no machine


@pytest.mark.parametrize(
    ("more", "cause", "detail"),
    [
        ({"failure_reason": "out_of_disk"}, "capacity", "out_of_disk"),
        ({"failure_reason": "execution_failed"}, "internal", "execution_failed"),
        ({"failure_reason": "health_check_failed"}, "internal", "health_check_failed"),
        ({"state_transitions": [{"status": "failure", "failure_reason": "out_of_memory"}]}, "oom", "out_of_memory"),
        ({"state_transitions": [{"failure_reason": "image pull error"}]}, "image", "image pull error"),
        (
            {"state_transitions": [{"failure_reason": "out_of_disk"}, {"failure_reason": "out_of_memory"}]},
            "oom",
            "out_of_memory",
        ),  # the last one ended it
        ({"failure_reason": "zork"}, "unknown", "zork"),
        ({"failure_reason": None}, "unknown", ""),
        ({"failure_reason": {"a": 1}}, "unknown", ""),
    ],
)
def test_causes(fake: FakeRunloop, more: dict[str, Any], cause: str, detail: str) -> None:
    fake.rows = [runloop_row("a", "failure", **more)]
    found = by_id(Poller(fake, "runloop"))["a"]
    assert (found.state, found.cause, found.detail) == ("failed", cause, detail)


@pytest.mark.parametrize(
    ("launch", "expires"),
    [
        ({"keep_alive_time_seconds": 60}, T0 - 40),
        ({"keep_alive_time_seconds": 60, "after_idle": {"idle_time_seconds": 5}}, None),
        ({"keep_alive_time_seconds": 60, "lifecycle": {"after_idle": {"idle_time_seconds": 5}}}, None),
        ({"keep_alive_time_seconds": -60}, None),
        ({}, None),
        (None, None),
    ],
)
def test_expiry(fake: FakeRunloop, launch: Any, expires: float | None) -> None:
    fake.rows = [runloop_row("a", launch_parameters=launch)]
    assert by_id(Poller(fake, "runloop"))["a"].expires_at == expires


def test_the_old_and_living_are_found_under_a_long_history(fake: FakeRunloop) -> None:
    fake.rows = [runloop_row(f"gone-{n}", "shutdown", age=n) for n in range(1200)] + [runloop_row("a", age=9000)]
    poller = Poller(fake, "runloop")
    found = by_id(poller)
    assert found["a"].state == "running"
    assert len(found) == 501  # and of the history one page
    assert [request.one("status") for request in fake.requests if request.path == "/v1/devboxes"] == [
        "scheduled", "queued", "provisioning", "initializing", "suspending", "suspended", "resuming", "running", "",
    ]  # fmt: skip


def test_one_that_changes_status_between_two_questions_is_asked_for(fake: FakeRunloop) -> None:
    fake.rows = [runloop_row(f"new-{n}", "shutdown", age=1) for n in range(600)] + [runloop_row("a", age=9000)]
    poller = Poller(fake, "runloop")
    poller.poll()

    def suspends(request: Request) -> Reply | None:
        if request.one("status") == "running":
            fake.rows[-1]["status"] = "suspending"  # which was asked for before
        return None

    fake.fault = suspends
    reading = poller.poll()
    assert {one.id: one.state for one in reading.sandboxes}["a"] == "stopping"
    assert reading.listed == ("runloop",)
    assert fake.paths()[-1] == "/v1/devboxes/a"


@pytest.mark.parametrize(
    ("word", "suspended"),
    [
        ("ACCOUNT_STATUS_ENABLED", 0.0),
        ("ACCOUNT_STATUS_DISABLED_QUOTA_REACHED", 1.0),
        ("ACCOUNT_STATUS_DISABLED_BY_ADMIN", 1.0),
        ("ACCOUNT_STATUS_NEW_WORD", None),
        (None, None),
        ({}, None),
    ],
)
def test_the_account(fake: FakeRunloop, word: Any, suspended: float | None) -> None:
    fake.account = {"account_status": word}
    reading = Poller(fake, "runloop").poll()
    assert values(reading).get("sandbox_account_suspended") == suspended
    assert len(reading.unmapped) == (0 if word is None or suspended is not None else 1)


def test_the_limit_comes_from_the_configuration(fake: FakeRunloop) -> None:
    fake.rows = [runloop_row("a")]
    assert values(Poller(fake, "runloop", limit_concurrent="200").poll()) == {
        "sandbox_account_suspended": 0.0,
        "sandbox_quota_used{concurrent}": 1.0,
        "sandbox_quota_limit{concurrent}": 200.0,
    }
