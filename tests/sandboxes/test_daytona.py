"""Daytona: rows by hand, readiness nobody tells, causes in texts, usage of the fullest region, suspension."""

from collections.abc import Iterator
from typing import Any

import pytest

from collectors.model import Sandbox
from tests.sandboxes.fake_apis import T0, FakeDaytona, daytona_row, iso
from tests.sandboxes.fake_http import Poller, Reply, values


@pytest.fixture
def fake() -> Iterator[FakeDaytona]:
    with FakeDaytona([]).serve() as served:
        assert isinstance(served, FakeDaytona)
        yield served


def by_id(poller: Poller) -> dict[str, Sandbox]:
    return {sandbox.id: sandbox for sandbox in poller.poll().sandboxes}


def test_rows(fake: FakeDaytona) -> None:
    fake.rows = [
        daytona_row("a", autoDestroyAt=iso(T0 + 60)),
        daytona_row("b", "creating"),
        daytona_row("c", "error", errorReason="Total CPU limit exceeded. Maximum allowed: 10", labels={}),
    ]
    reading = Poller(fake, "daytona").poll()
    assert reading.sandboxes == (
        Sandbox("daytona", "a", "running", "name-a", "run-a", "started", T0 - 100, image="daytona-small",
                expires_at=T0 + 60),
        Sandbox("daytona", "b", "starting", "name-b", "run-a", "creating", T0 - 100, image="daytona-small"),
        Sandbox("daytona", "c", "failed", "name-c", "", "error", T0 - 100, ended_at=T0 - 70, image="daytona-small",
                cause="quota", detail="Total CPU limit exceeded. Maximum allowed: 10"),
    )  # fmt: skip
    assert reading.listed == ("daytona",)
    assert fake.requests[0].query["states"][:2] == ["creating", "restoring"]
    assert not {"archived", "destroyed"} & set(fake.requests[0].query["states"])


def test_readiness_is_bounded_by_the_first_sight_of_started(fake: FakeDaytona) -> None:
    fake.rows = [daytona_row("pending", "creating", age=100), daytona_row("old", age=5000)]
    poller = Poller(fake, "daytona")
    poller.poll()
    fake.rows = [
        daytona_row("quick", age=40, updatedAt=iso(T0 - 35)),  # created and started between two polls
        daytona_row("pending", age=100, updatedAt=iso(T0 - 30)),
        daytona_row("warm", age=3000, updatedAt=iso(T0 - 5)),  # waited in a pool since long before anybody asked
        daytona_row("old", age=5000, updatedAt=iso(T0 - 1)),
    ]
    found = by_id(poller)
    assert {key: (one.ready_at, one.latency_source) for key, one in found.items()} == {
        "quick": (T0 - 35, "poll_bound"),
        "pending": (T0 - 30, "poll_bound"),
        "warm": (None, None),
        "old": (None, None),
    }
    for row in fake.rows:
        row["updatedAt"] = iso(T0 + 500)  # it changes later for other reasons
    found = by_id(poller)
    assert (found["quick"].ready_at, found["pending"].ready_at) == (T0 - 35, T0 - 30)


def test_the_first_sight_counts_when_a_listing_brings_one_twice(fake: FakeDaytona) -> None:
    poller = Poller(fake, "daytona")
    poller.poll()
    fake.rows = [daytona_row("a", updatedAt=iso(T0 - 35)), daytona_row("a", updatedAt=iso(T0 + 5))]
    assert by_id(poller)["a"].ready_at == T0 - 35


def test_an_image_that_was_built_stays_so(fake: FakeDaytona) -> None:
    fake.rows = [daytona_row("a", "building_snapshot"), daytona_row("b", "creating")]
    poller = Poller(fake, "daytona")
    assert {key: one.state for key, one in by_id(poller).items()} == {"a": "building_image", "b": "starting"}
    fake.rows = [daytona_row("a"), daytona_row("b")]
    assert {key: one.image_cached for key, one in by_id(poller).items()} == {"a": False, "b": None}


@pytest.mark.parametrize("word", ["", "yesterday", None, iso(T0 - 101)])
def test_no_readiness_without_a_sensible_change(fake: FakeDaytona, word: Any) -> None:
    fake.rows = [daytona_row("a", "creating")]
    poller = Poller(fake, "daytona")
    poller.poll()
    fake.rows = [daytona_row("a", updatedAt=word)]
    found = by_id(poller)["a"]
    assert (found.ready_at, found.latency_source) == (None, None)


@pytest.mark.parametrize(
    ("state", "more", "cause"),
    [
        ("error", {"errorReason": "Total memory limit exceeded. Maximum allowed: 10GiB"}, "quota"),
        ("error", {"errorReason": "Organization is suspended: Depleted credits"}, "credit"),
        ("error", {"errorReason": "No available runners"}, "capacity"),
        ("error", {"errorReason": "Failed to pull image: manifest unknown"}, "image"),
        ("error", {"errorReason": "container was OOM killed"}, "oom"),
        ("error", {"errorReason": "Timeout while waiting for daemon"}, "timeout"),
        ("error", {"errorReason": "zork"}, "unknown"),
        ("error", {}, "unknown"),
        ("error", {"errorReason": 5}, "unknown"),
        ("build_failed", {"errorReason": "exit code 1"}, "image"),
        ("build_failed", {"errorReason": "disk quota exceeded"}, "quota"),
    ],
)
def test_causes(fake: FakeDaytona, state: str, more: dict[str, Any], cause: str) -> None:
    fake.rows = [daytona_row("a", state, **more)]
    found = by_id(Poller(fake, "daytona"))["a"]
    assert (found.state, found.cause) == ("failed", cause)


@pytest.mark.parametrize("reason", ["queueTimedOutAt", "spotEvictedAt"])
def test_destroyed_for_want_of_a_machine_is_a_failure_met_by_id(fake: FakeDaytona, reason: str) -> None:
    fake.rows = [daytona_row("a", "creating"), daytona_row("b", "creating")]
    poller = Poller(fake, "daytona")
    poller.poll()
    fake.rows = [daytona_row("a", "destroyed", **{reason: iso(T0)}), daytona_row("b", "destroyed")]
    found = by_id(poller)
    assert (found["a"].state, found["a"].cause, found["a"].ended_at) == ("failed", "capacity", T0)
    assert (found["b"].state, found["b"].cause) == ("terminated", None)


STATES = {
    "creating": "starting", "restoring": "starting", "destroying": "stopping", "started": "running",
    "stopped": "paused", "starting": "starting", "stopping": "stopping", "pending_build": "queued",
    "building_snapshot": "building_image", "pulling_snapshot": "building_image", "archiving": "stopping",
    "resizing": "running", "snapshotting": "running", "forking": "starting", "pausing": "stopping",
    "paused": "paused", "resuming": "starting", "unknown": "unknown",
}  # fmt: skip


def test_states(fake: FakeDaytona) -> None:
    fake.rows = [daytona_row(word, word) for word in STATES]
    reading = Poller(fake, "daytona").poll()
    assert {one.id: one.state for one in reading.sandboxes} == STATES
    assert reading.unmapped == {}


def region(name: str, cpu: tuple[float, float], disk: tuple[float, float] = (0, 0)) -> dict[str, Any]:
    return {
        "regionId": name, "sandboxClass": "container", "currentCpuUsage": cpu[0], "totalCpuQuota": cpu[1],
        "currentMemoryUsage": 8, "totalMemoryQuota": 16, "currentDiskUsage": disk[0], "totalDiskQuota": disk[1],
        "currentGpuUsage": 0, "totalGpuQuota": 0, "maxCpuPerSandbox": 4,
    }  # fmt: skip


def test_the_fullest_region_is_the_quota(fake: FakeDaytona) -> None:
    """Summed, 12 of 110 CPUs look like room for everybody."""
    fake.usage = [region("us", (9, 10)), region("eu", (3, 100), (30, 30))]
    fake.organization = {"id": "org-1", "suspended": False, "sandboxCreateRateLimit": 600}
    expected = {
        "sandbox_account_suspended": 0.0,
        "sandbox_quota_limit{creates_per_second}": 10.0,
        "sandbox_quota_used{cpu}": 9.0,
        "sandbox_quota_limit{cpu}": 10.0,
        "sandbox_quota_used{memory_gb}": 8.0,
        "sandbox_quota_limit{memory_gb}": 16.0,
        "sandbox_quota_used{disk_gb}": 30.0,
        "sandbox_quota_limit{disk_gb}": 30.0,
    }
    assert values(Poller(fake, "daytona", organization="org-1").poll()) == expected
    expected |= {"sandbox_quota_used{cpu}": 3.0, "sandbox_quota_limit{cpu}": 100.0}
    assert values(Poller(fake, "daytona", organization="org-1", region="eu").poll()) == expected


def test_the_organization_is_learned_from_the_first_sandbox(fake: FakeDaytona) -> None:
    fake.rows = [daytona_row("a")]
    poller = Poller(fake, "daytona")
    assert values(poller.poll()) == {}
    assert values(poller.poll()) == {"sandbox_account_suspended": 0.0}
    assert values(poller.poll()) == {}  # seldom


def test_a_suspended_organization(fake: FakeDaytona) -> None:
    fake.organization = {"suspended": True, "sandboxCreateRateLimit": 600, "sandboxCreateRateLimitTtlSeconds": 10}
    assert values(Poller(fake, "daytona", organization="org-1").poll()) == {
        "sandbox_account_suspended": 1.0,
        "sandbox_quota_limit{creates_per_second}": 60.0,
    }
    fake.fault = lambda _request: Reply({"message": "Organization is suspended: Depleted credits"}, 403)
    assert Poller(fake, "daytona", organization="org-1").error().kind == "credit"


@pytest.mark.parametrize("usage", [None, {}, [None], [{}], [region("us", (1, -1))], [region("us", (-1, 10))]])
def test_usage_that_says_nothing(fake: FakeDaytona, usage: Any) -> None:
    fake.usage = usage
    found = values(Poller(fake, "daytona", organization="org-1").poll())
    assert "sandbox_quota_used{cpu}" not in found


def test_an_organization_that_may_not_be_read_is_told(fake: FakeDaytona) -> None:
    reading = Poller(fake, "daytona", organization="other").poll()
    assert (reading.dropped, reading.gaps) == (0, ("other: HTTP 404: not found", "usage: HTTP 404: not found"))
    assert reading.listed == ("daytona",)


def test_a_base_url_with_a_path(fake: FakeDaytona) -> None:
    fake.rows = [daytona_row("a")]
    assert len(Poller(fake, "daytona").poll("/daytona").sandboxes) == 1
