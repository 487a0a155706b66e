"""E2B: rows by hand, the count in the header, the team's metrics, and what it does not tell."""

from collections.abc import Iterator
from typing import Any

import pytest

from collectors.model import Sandbox
from tests.sandboxes.fake_apis import T0, FakeE2B, e2b_row
from tests.sandboxes.fake_http import Poller, Reply, values


@pytest.fixture
def fake() -> Iterator[FakeE2B]:
    with FakeE2B([]).serve() as served:
        assert isinstance(served, FakeE2B)
        yield served


def test_rows(fake: FakeE2B) -> None:
    fake.rows = [e2b_row("a"), e2b_row("b", "paused", age=5000, alias=None, metadata=None)]
    reading = Poller(fake, "e2b").poll()
    assert reading.sandboxes == (
        # No creation time, so no latency: started is all it tells.
        Sandbox("e2b", "a", "running", "", "run-a", "running", None, T0 - 100, T0 - 100, image="base",
                expires_at=T0 + 300),
        Sandbox("e2b", "b", "paused", "", "", "paused", None, T0 - 5000, T0 - 5000, image="tpl-1",
                expires_at=T0 + 300),
    )  # fmt: skip
    assert reading.listed == ("e2b",)
    assert values(reading) == {"sandbox_quota_used{concurrent}": 1.0}  # paused ones do not count
    assert fake.requests[0].headers["X-API-Key"] and fake.requests[0].headers["Authorization"] is None


def test_the_header_counts_before_paging(fake: FakeE2B) -> None:
    fake.rows = [e2b_row(str(n)) for n in range(230)] + [e2b_row(f"p{n}", "paused") for n in range(40)]
    reading = Poller(fake, "e2b").poll()
    assert len(reading.sandboxes) == 270
    assert values(reading) == {"sandbox_quota_used{concurrent}": 230.0}


@pytest.mark.parametrize("total", ["", "many", "-3", "nan"])
def test_a_count_that_is_none_is_left_out(fake: FakeE2B, total: str) -> None:
    fake.fault = lambda _request: Reply([], headers={"X-Total-Running": total})
    assert values(Poller(fake, "e2b").poll()) == {}


def test_the_run_is_in_the_metadata_under_the_configured_key(fake: FakeE2B) -> None:
    fake.rows = [e2b_row("a", metadata={"experiment": "x", "run": "y"}), e2b_row("b", metadata={"experiment": 7})]
    assert [one.run_key for one in Poller(fake, "e2b", run_label="experiment").poll().sandboxes] == ["x", "7"]


def test_limits_come_from_the_configuration(fake: FakeE2B) -> None:
    poller = Poller(fake, "e2b", limit_concurrent="100", limit_creates_per_second="5")
    assert values(poller.poll()) == {
        "sandbox_quota_used{concurrent}": 0.0,
        "sandbox_quota_limit{concurrent}": 100.0,
        "sandbox_quota_limit{creates_per_second}": 5.0,
    }


@pytest.mark.parametrize("wrong", ["", "many", "-5", "nan"])
def test_a_limit_that_is_none_is_left_out(fake: FakeE2B, wrong: str) -> None:
    assert "sandbox_quota_limit{concurrent}" not in values(Poller(fake, "e2b", limit_concurrent=wrong).poll())


def test_the_team_tells_its_start_rate(fake: FakeE2B) -> None:
    fake.metrics = [
        {"timestamp": "...", "timestampUnix": int(T0) - 60, "concurrentSandboxes": 7, "sandboxStartRate": 1.5},
        {"timestamp": "...", "timestampUnix": int(T0), "concurrentSandboxes": 9, "sandboxStartRate": 2.5},
        {"timestamp": "...", "timestampUnix": int(T0) - 30, "concurrentSandboxes": 8, "sandboxStartRate": 0.5},
    ]
    reading = Poller(fake, "e2b", team="team-1").poll()
    assert values(reading) == {
        "sandbox_creates_per_second": 2.5,
        "sandbox_quota_used{creates_per_second}": 2.5,
        "sandbox_quota_used{concurrent}": 0.0,
    }
    assert reading.samples[0].ts == T0
    asked = next(request for request in fake.requests if request.path == "/teams/team-1/metrics")
    assert int(asked.one("end")) - int(asked.one("start")) == 300


@pytest.mark.parametrize(
    "points", [[], {}, [None], [{"sandboxStartRate": 3}], [{"timestampUnix": T0, "sandboxStartRate": -1}]]
)
def test_metrics_that_say_nothing(fake: FakeE2B, points: Any) -> None:
    fake.metrics = points
    assert values(Poller(fake, "e2b", team="team-1").poll()) == {"sandbox_quota_used{concurrent}": 0.0}


def test_a_team_that_may_not_be_read_is_told(fake: FakeE2B) -> None:
    reading = Poller(fake, "e2b", team="other").poll()
    assert (reading.dropped, reading.gaps) == (0, ("metrics: HTTP 404: no such route",))
    assert reading.listed == ("e2b",)


def test_without_a_team_nobody_asks(fake: FakeE2B) -> None:
    Poller(fake, "e2b").poll()
    assert fake.paths() == ["/v2/sandboxes"]


def test_what_is_gone_has_ended(fake: FakeE2B) -> None:
    """No record says so: it is just listed no more."""
    fake.rows = [e2b_row("a"), e2b_row("b")]
    poller = Poller(fake, "e2b")
    poller.poll()
    fake.rows.pop()
    reading = poller.poll()
    assert ([one.id for one in reading.sandboxes], reading.listed) == (["a"], ("e2b",))
