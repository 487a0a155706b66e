"""SWE-ReX and OpenEnv servers: health, identity without a URL, and what they are not asked."""

from typing import Any

import pytest

from collectors.model import Limits, Sandbox
from tests.sandboxes.fake_engines import FakeServer
from tests.sandboxes.fake_http import KEY, Poller, Reply, values

ALIVE = {"is_alive": True, "message": ""}


def swerex(**answers: Any) -> FakeServer:
    return FakeServer(**answers)


def openenv(**answers: Any) -> FakeServer:
    return FakeServer("Authorization", f"Bearer {KEY}", **answers)


def test_a_swerex_server_that_is_alive() -> None:
    with swerex(is_alive=ALIVE).serve() as fake:
        reading = Poller(fake, "swerex", name="box-1", run_key="run-a").poll()
    assert reading.sandboxes == (
        Sandbox("swerex", "box-1", "running", name="box-1", run_key="run-a", provider_state="alive"),
    )
    assert reading.listed == ()
    assert fake.requests[0].headers.get("X-Request-ID") is None  # would replace the answer its client may ask for again


def test_a_swerex_server_that_is_not() -> None:
    with swerex(is_alive={"is_alive": False, "message": "shell died"}).serve() as fake:
        (row,) = Poller(fake, "swerex", name="box-1").poll().sandboxes
    assert (row.state, row.unreachable, row.detail) == ("running", True, "shell died")


def test_without_a_name_the_identity_is_stable_and_no_address() -> None:
    with swerex(is_alive=ALIVE).serve() as fake:
        first, second = (Poller(fake, "swerex").poll().sandboxes[0].id for _ in range(2))
        fake.answers["/box/is_alive"] = ALIVE
        third = Poller(fake, "swerex").poll("/box").sandboxes[0].id
    assert first == second != third and len(first) == 12 and first.isalnum()


REFUSALS = [
    (Reply({}, 401), "auth"),
    (Reply({}, 402), "credit"),
    (Reply({"detail": "Not authenticated"}, 403), "auth"),
    (Reply({"detail": "quota"}, 403), "quota"),
    (Reply({}, 429, {"Retry-After": "2"}), "throttled"),
    (Reply({}, 502), "status"),
    (Reply({"swerexception": {"message": "boom", "traceback": "t"}}, 511), "status"),
    (Reply(raw=b"hello"), "garbage"),
    (Reply({"message": "hello world"}), "garbage"),
    (Reply([]), "garbage"),
    (Reply({"is_alive": "yes", "status": 7.5}), "garbage"),
    (Reply(hang=True), "timeout"),
    (Reply(ALIVE, drip=True), "timeout"),
]


@pytest.mark.parametrize(("reply", "kind"), REFUSALS)
@pytest.mark.parametrize(("collector", "fake"), [("swerex", swerex), ("openenv", openenv)])
def test_refusals(reply: Reply, kind: str, collector: str, fake: Any) -> None:
    with fake(is_alive=reply, health=reply).serve() as server:
        poller = Poller(server, collector)
        poller.limits = Limits(timeout_seconds=0.3) if kind == "timeout" else Limits()
        error = poller.error()
    assert error.kind == kind
    assert error.retry_after == (2.0 if kind == "throttled" else None)


ABOUT = {"name": "CodingEnv", "description": "d", "version": "1.2.0"}


def test_an_openenv_server() -> None:
    with openenv(health={"status": "healthy"}, metadata=ABOUT).serve() as fake:
        poller = Poller(fake, "openenv", run_key="run-a")
        first, second = poller.poll(), poller.poll()
    (row,) = first.sandboxes
    assert (row.state, row.name, row.image, row.run_key) == ("running", "CodingEnv", "1.2.0", "run-a")
    assert second == first
    # Both build an environment in the server: metadata once, state never.
    assert fake.paths() == ["/health", "/metadata", "/health"]


@pytest.mark.parametrize(
    ("status", "state", "unreachable", "unmapped"),
    [
        ("unhealthy", "running", True, {}),
        ("degraded", "running", False, {}),
        ("ok", "running", False, {}),
        ("sleepy", "unknown", False, {"status=sleepy": 1}),
    ],
)
def test_health_words(status: str, state: str, unreachable: bool, unmapped: dict[str, int]) -> None:
    with openenv(health={"status": status}).serve() as fake:
        reading = Poller(fake, "openenv", name="env").poll()
    (row,) = reading.sandboxes
    assert (row.state, row.unreachable, dict(reading.unmapped)) == (state, unreachable, unmapped)


@pytest.mark.parametrize("reply", [Reply({}, 500), Reply(raw=b"<"), Reply([1]), Reply(hang=True), None])
def test_a_server_without_usable_metadata_is_healthy_all_the_same(reply: Reply | None) -> None:
    with openenv(health={"status": "healthy"}, metadata=reply).serve() as fake:
        poller = Poller(fake, "openenv", name="env")
        poller.limits = Limits(timeout_seconds=1.0)
        assert poller.poll().sandboxes[0].state == "running"
        assert poller.poll().sandboxes[0].name == "env"
    assert fake.paths().count("/metadata") == 1


def test_sessions_where_the_state_tells_them() -> None:
    told = {"episode_id": None, "step_count": 0, "active_sessions": 3, "max_sessions": 8}
    with openenv(health={"status": "healthy"}, state=told).serve() as fake:
        assert values(Poller(fake, "openenv", state="on").poll()) == {
            "sandbox_sessions{active}": 3.0,
            "sandbox_quota_used{concurrent}": 3.0,
            "sandbox_quota_limit{concurrent}": 8.0,
        }
        fake.answers["/state"] = {"active_sessions": -1, "max_sessions": "NaN"}
        assert values(Poller(fake, "openenv", state="on").poll()) == {}


def test_hostile_values() -> None:
    huge = "x" * 100_000
    with openenv(health={"status": huge}, metadata={"name": [huge], "version": {"a": 1}}).serve() as fake:
        (row,) = Poller(fake, "openenv").poll().sandboxes
    assert (row.state, len(row.provider_state), row.name, row.image) == ("unknown", 40, "", "")
