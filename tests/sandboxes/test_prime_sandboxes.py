"""Prime: rows by hand, causes, labels, limits and wallet, and a page-numbered listing that moves while it is read."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collectors.model import Sandbox
from tests.sandboxes.fake_apis import T0, FakePrime, iso, prime_row
from tests.sandboxes.fake_http import Poller, Reply, Request, values


@pytest.fixture
def fake() -> Iterator[FakePrime]:
    with FakePrime([]).serve() as served:
        assert isinstance(served, FakePrime)
        yield served


def by_id(poller: Poller) -> dict[str, Sandbox]:
    return {sandbox.id: sandbox for sandbox in poller.poll().sandboxes}


def test_rows(fake: FakePrime) -> None:
    fake.rows = [
        prime_row("a"),
        prime_row("b", "PENDING", age=4000, boot=None, pendingImageBuildId="bld-1"),
        prime_row("c", "PENDING", age=3700, boot=None, labels=["run-b"]),
        prime_row("d", "ERROR", age=50, boot=None, errorType="IMAGE_PULL_FAILED", errorMessage="no such manifest"),
        prime_row("e", "TERMINATED", age=900, terminatedAt=iso(T0 - 60), terminationReason="user request"),
    ]
    reading = Poller(fake, "prime_sandboxes").poll()
    assert sorted(reading.sandboxes, key=lambda one: one.id) == [
        Sandbox(
            "prime", "a", "running", "trace-a", "run-a", "RUNNING", T0 - 100, T0 - 80, T0 - 80,
            image="python:3.11-slim", latency_source="server", expires_at=T0 - 80 + 3600,
        ),
        Sandbox(
            "prime", "b", "building_image", "trace-b", "run-a", "PENDING", T0 - 4000, image="python:3.11-slim",
            image_cached=False,
        ),
        Sandbox("prime", "c", "queued", "trace-c", "run-b", "PENDING", T0 - 3700, image="python:3.11-slim"),
        Sandbox(
            "prime", "d", "failed", "trace-d", "run-a", "ERROR", T0 - 50, ended_at=T0 - 20, image="python:3.11-slim",
            cause="image", detail="IMAGE_PULL_FAILED: no such manifest",
        ),
        Sandbox(
            "prime", "e", "terminated", "trace-e", "run-a", "TERMINATED", T0 - 900, T0 - 880, T0 - 880,
            ended_at=T0 - 60, image="python:3.11-slim", latency_source="server", detail="user request",
            expires_at=T0 - 880 + 3600,
        ),
    ]  # fmt: skip
    assert reading.listed == ("prime",)
    assert (reading.dropped, reading.unmapped, reading.samples_scraped) == (0, {}, 5)


@pytest.mark.parametrize(
    ("status", "kind", "message", "state", "cause", "detail"),
    [
        ("ERROR", "OOM_KILLED", None, "failed", "oom", "OOM_KILLED"),
        ("TERMINATED", "OOM_KILLED", "killed", "failed", "oom", "OOM_KILLED: killed"),
        ("TIMEOUT", None, None, "failed", "timeout", ""),
        ("TIMEOUT", "TIMEOUT", None, "failed", "timeout", "TIMEOUT"),
        ("ERROR", None, "insufficient funds", "failed", "credit", "insufficient funds"),
        ("ERROR", "NEW_TYPE", "no capacity left", "failed", "capacity", "NEW_TYPE: no capacity left"),
        ("ERROR", "NEW_TYPE", "zork", "failed", "unknown", "NEW_TYPE: zork"),
        ("ERROR", None, "key sk-abcdefghijklmnop was used", "failed", "unknown", "key ... was used"),
        ("ERROR", None, None, "failed", "unknown", ""),
        ("TERMINATED", None, None, "terminated", None, ""),
        ("PAUSED", None, None, "paused", None, ""),
        ("PROVISIONING", None, None, "starting", None, ""),
    ],
)
def test_states_and_causes(
    fake: FakePrime, status: str, kind: str | None, message: str | None, state: str, cause: str | None, detail: str
) -> None:
    fake.rows = [prime_row("a", status, errorType=kind, errorMessage=message)]
    found = by_id(Poller(fake, "prime_sandboxes"))["a"]
    assert (found.state, found.cause, found.detail) == (state, cause, detail)


@pytest.mark.parametrize(
    ("labels", "options", "run_key"),
    [
        (["run-a", "task"], {}, "run-a"),
        (["task", "run=run-b"], {}, "run-b"),
        (["task", "run:run-b"], {}, "run-b"),
        (["task", "experiment=x"], {"run_label": "experiment"}, "x"),
        ([], {}, ""),
        (None, {}, ""),
        ("run-a", {}, ""),
        ([1.5, None, "run-a"], {}, "run-a"),
    ],
)
def test_run_key(fake: FakePrime, labels: Any, options: dict[str, str], run_key: str) -> None:
    fake.rows = [prime_row("a", labels=labels)]
    assert by_id(Poller(fake, "prime_sandboxes", **options))["a"].run_key == run_key


@pytest.mark.parametrize(
    ("changed", "started", "source", "expires"),
    [
        ({"startedAt": iso(T0 - 101)}, None, None, None),  # before it was asked for
        ({"startedAt": iso(T0 - 100)}, T0 - 100, "server", T0 + 3500),
        ({"createdAt": None}, T0 - 80, None, T0 + 3520),
        ({"timeoutMinutes": -1}, T0 - 80, "server", None),  # -1: for ever
        ({"timeoutMinutes": float("1e300")}, T0 - 80, "server", None),
        ({"startedAt": "0001-01-01T00:00:00Z"}, None, None, None),
    ],
)
def test_times(
    fake: FakePrime, changed: dict[str, Any], started: float | None, source: str | None, expires: float | None
) -> None:
    fake.rows = [prime_row("a", **changed)]
    found = by_id(Poller(fake, "prime_sandboxes"))["a"]
    assert (found.started_at, found.ready_at, found.latency_source, found.expires_at) == (
        started, started, source, expires,
    )  # fmt: skip


def test_an_image_that_was_built_stays_so(fake: FakePrime) -> None:
    """The build's id is gone once the sandbox runs."""
    poller = Poller(fake, "prime_sandboxes")
    fake.rows = [prime_row("a", "PENDING", boot=None, pendingImageBuildId="b"), prime_row("b")]
    poller.poll()
    fake.rows[0] = prime_row("a", boot=600)
    found = by_id(poller)
    assert (found["a"].state, found["a"].image_cached, found["b"].image_cached) == ("running", False, None)


def test_limits_usage_and_credit(fake: FakePrime) -> None:
    fake.rows = [prime_row("a", gpuCount=1), prime_row("b", vm=True), prime_row("c", "PENDING", boot=None, cpuCores=4)]
    fake.rows.append(prime_row("d", "TERMINATED"))
    fake.account = {
        "vm_sandbox_limit": 50, "sandbox_total_cpu_limit": 64, "vm_sandbox_gpu_limit": 8,
        "vm_sandbox_creation_burst_limit": 25, "tunnel_limit": 3,
    }  # fmt: skip
    fake.key = {"max_concurrent_sandboxes": 10, "max_sandbox_creations_per_hour": 1000, "max_sandbox_cpu_cores": 32}
    assert values(Poller(fake, "prime_sandboxes").poll()) == {
        "sandbox_credit_usd": 12.5,
        "sandbox_quota_limit{creates_per_second}": 2.5,
        "sandbox_quota_limit{creates_per_hour}": 1000.0,
        "sandbox_quota_limit{cpu}": 32.0,
        "sandbox_quota_used{cpu}": 8.0,
        "sandbox_quota_limit{gpu}": 8.0,
        "sandbox_quota_used{gpu}": 1.0,
        "sandbox_quota_limit{concurrent}": 10.0,
        "sandbox_quota_used{concurrent}": 3.0,
    }


@pytest.mark.parametrize(
    ("account", "key", "vms", "used", "limit"),
    [
        ({}, {"max_concurrent_sandboxes": 10}, 2, 3.0, 10.0),
        ({"vm_sandbox_limit": 4}, {}, 0, 0.0, 4.0),
        ({"vm_sandbox_limit": 4}, {"max_concurrent_sandboxes": 10}, 2, 2.0, 4.0),  # room for 2 VMs, for 7 of any kind
        ({"vm_sandbox_limit": 4}, {"max_concurrent_sandboxes": 10}, 0, 3.0, 10.0),  # nobody uses VMs
        ({"vm_sandbox_limit": 40}, {"max_concurrent_sandboxes": 5}, 2, 3.0, 5.0),
        ({"vm_sandbox_limit": 5}, {"max_concurrent_sandboxes": 6}, 1, 3.0, 6.0),  # the larger cap has less room
        ({"vm_sandbox_limit": None}, {"max_concurrent_sandboxes": "many"}, 0, 3.0, None),
        (None, None, 0, 3.0, None),
    ],
)
def test_concurrent_is_the_cap_with_less_room(
    fake: FakePrime, account: Any, key: Any, vms: int, used: float, limit: float | None
) -> None:
    fake.rows = [prime_row(str(n), vm=n < vms) for n in range(3)]
    fake.account, fake.key = account, key
    found = values(Poller(fake, "prime_sandboxes").poll())
    assert found["sandbox_quota_used{concurrent}"] == used
    assert found.get("sandbox_quota_limit{concurrent}") == limit


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply({"detail": "no billing scope"}, 403), "wallet: HTTP 403: no billing scope"),
        (Reply({"detail": "empty"}, 402), "wallet: HTTP 402: empty"),
        (Reply({}, 500), "wallet: HTTP 500"),
        (Reply(raw=b"<html>"), "wallet: the answer is not JSON"),
        (Reply(hang=True), "wallet: no complete answer within 0.25 s"),
        (Reply({"balance_usd": "lots"}), ""),
        (Reply({"balance_usd": 5.0, "currency": "EUR"}), ""),
        (Reply([1]), ""),
    ],
)
def test_a_wallet_that_cannot_be_read_costs_nothing_else(fake: FakePrime, reply: Reply, told: str) -> None:
    fake.rows = [prime_row("a")]
    fake.fault = lambda request: reply if request.path.endswith("/wallet") else None
    poller = Poller(fake, "prime_sandboxes")
    poller.limits = type(poller.limits)(timeout_seconds=1.0)
    reading = poller.poll()
    assert "sandbox_credit_usd" not in values(reading)
    assert (len(reading.sandboxes), reading.gaps) == (1, (told,) if told else ())
    assert (reading.dropped, reading.listed) == (0, ("prime",))


def test_the_wallet_is_asked_in_event_time(fake: FakePrime) -> None:
    """A replayed hour passes in seconds: a balance asked once in it would be unknown, repeated it would not fall."""
    poller, found = Poller(fake, "prime_sandboxes"), []
    for now in (T0, T0 + 15, T0 + 60, T0 + 75, T0 + 120):
        poller.state["now"] = now
        found.append(values(poller.poll()).get("sandbox_credit_usd"))
    assert found == [12.5, None, 12.5, None, 12.5]


def test_a_throttled_wallet_is_told_to_wait(fake: FakePrime) -> None:
    fake.fault = lambda request: Reply({}, 429, {"Retry-After": "9"}) if request.path.endswith("/wallet") else None
    error = Poller(fake, "prime_sandboxes").error()
    assert (error.kind, error.retry_after) == ("throttled", 9.0)


def test_the_account_is_asked_seldom_and_the_team_always(fake: FakePrime) -> None:
    poller = Poller(fake, "prime_sandboxes", team="t-1")
    poller.poll()
    poller.poll()
    assert fake.paths().count("/api/v1/user/whoami") == fake.paths().count("/api/v1/billing/wallet") == 1
    for request in fake.requests:
        assert request.one("team_id" if request.path == "/api/v1/sandbox" else "teamId") == "t-1"


def test_a_base_url_with_the_version_is_the_same(fake: FakePrime) -> None:
    Poller(fake, "prime_sandboxes").poll("/api/v1")
    assert set(fake.paths()) == {"/api/v1/sandbox", "/api/v1/user/whoami", "/api/v1/billing/wallet"}


def test_the_failed_are_met_though_they_live_no_more(fake: FakePrime) -> None:
    """The newest page at first, and then back to where the last poll began, page by page."""
    poller = Poller(fake, "prime_sandboxes")
    fake.rows = [prime_row(f"old-{n}", "ERROR", age=9000 + n) for n in range(250)]
    assert len(poller.poll().sandboxes) == 100
    fake.rows = [prime_row(f"new-{n}", "ERROR", age=100 + n) for n in range(250)] + fake.rows
    found = by_id(poller)
    assert {f"new-{n}" for n in range(250)} <= set(found)
    assert len(found) == 300


def test_a_flood_of_ended_ones_is_read_ten_pages_deep(fake: FakePrime) -> None:
    poller = Poller(fake, "prime_sandboxes")
    fake.rows = [prime_row("old", "ERROR", age=9000)]
    poller.poll()
    fake.rows = [prime_row(f"new-{n}", "ERROR", age=100 + n) for n in range(1500)] + fake.rows
    assert len(poller.poll().sandboxes) == 1000


def test_a_thousand_that_come_and_go_are_all_accounted_for(fake: FakePrime) -> None:
    """Every poll finds 300 of 960 ended, young and old alike: their ends are below younger ones already known."""
    poller = Poller(fake, "prime_sandboxes")
    fake.rows = [prime_row(f"sb-{n:04d}", age=n) for n in range(960)]
    poller.poll()
    met: set[str] = set()
    for turn in range(1, 4):
        for n, row in enumerate(row for row in list(fake.rows) if row["status"] == "RUNNING"):
            if n % 3 == turn % 3:
                row["status"] = "TERMINATED"
        gone = {row["id"] for row in fake.rows if row["status"] == "TERMINATED"}
        fake.rows[:0] = [prime_row(f"t{turn}-{n}", age=0) for n in range(300)]
        live = {row["id"] for row in fake.rows if row["status"] == "RUNNING"}
        reading = poller.poll()
        states = {one.id: one.state for one in reading.sandboxes}
        assert reading.listed == ("prime",)
        assert live == {key for key, state in states.items() if state == "running"}
        met |= gone & set(states)
        assert met == gone


def test_an_old_one_that_fails_is_met_by_id(fake: FakePrime) -> None:
    """It is far down in the list of the failed, which is sorted by creation."""
    poller = Poller(fake, "prime_sandboxes")
    fake.rows = [prime_row(f"e-{n}", "ERROR", age=n) for n in range(150)] + [prime_row("a", age=9000)]
    poller.poll()
    fake.rows[-1] = prime_row("a", "ERROR", age=9000, errorType="OOM_KILLED")
    found = by_id(poller)
    assert (found["a"].state, found["a"].cause) == ("failed", "oom")


def test_what_moves_up_between_two_pages_is_not_missed(fake: FakePrime) -> None:
    """120 of the newest end after the second page was read: 120 others moved into pages already read."""
    fake.rows = [prime_row(f"sb-{n:03d}", age=n) for n in range(500)]

    def ends(request: Request) -> Reply | None:
        if request.one("is_active") and request.one("page") == "3" and len(fake.rows) == 500:
            del fake.rows[:120]
        return None

    fake.fault = ends
    reading = Poller(fake, "prime_sandboxes").poll()
    assert {one.id for one in reading.sandboxes} >= {f"sb-{n:03d}" for n in range(120, 500)}
    asked = [request.one("page") for request in fake.requests if request.one("is_active")]
    assert asked == ["1", "2", "3", "1", "2", "3", "4"]
    assert reading.listed == ("prime",)


def test_new_ones_between_two_pages_come_once(fake: FakePrime) -> None:
    fake.rows = [prime_row(f"sb-{n:03d}", age=n) for n in range(250)]

    def begins(request: Request) -> Reply | None:
        if request.one("is_active") and request.one("page") == "2" and len(fake.rows) == 250:
            fake.rows[:0] = [prime_row(f"new-{n}", age=0) for n in range(30)]
        return None

    fake.fault = begins
    reading = Poller(fake, "prime_sandboxes").poll()
    ids = [one.id for one in reading.sandboxes]
    assert len(ids) == len(set(ids)) == 250


def always_more(rows: Callable[[int], list[dict[str, Any]]]) -> Callable[[Request], Reply | None]:
    def fault(request: Request) -> Reply | None:
        number = int(request.one("page", "1"))
        answer = {"sandboxes": rows(number), "total": 1, "page": number, "perPage": 100, "hasNext": True}
        return Reply(answer) if request.path == "/api/v1/sandbox" else None

    return fault


def test_a_server_that_always_says_more_ends(fake: FakePrime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.sandbox_providers.sweep.MAX_PAGES", 7)
    fake.fault = always_more(lambda number: [prime_row(f"sb-{number}")])
    reading = Poller(fake, "prime_sandboxes").poll()
    assert len([request for request in fake.requests if request.one("is_active")]) == 7
    assert {f"sb-{number}" for number in range(1, 8)} <= {one.id for one in reading.sandboxes}
    assert (reading.listed, reading.more) == ((), False)
    assert reading.partial.startswith("listing incomplete: it continues after")


def test_a_server_that_gives_the_same_page_for_ever_is_garbage(fake: FakePrime) -> None:
    fake.fault = always_more(lambda number: [prime_row("a"), prime_row("b")])
    error = Poller(fake, "prime_sandboxes").error()
    assert (error.kind, len([one for one in fake.requests if one.one("is_active")])) == ("garbage", 3)
    assert str(error) == "the listing has a loop: the same page is repeated"


def test_what_is_used_is_not_counted_from_a_part(fake: FakePrime) -> None:
    fake.key = {"max_concurrent_sandboxes": 10, "max_sandbox_cpu_cores": 64}
    fake.rows = [prime_row("a"), prime_row("b") | {"id": None}]
    reading = Poller(fake, "prime_sandboxes").poll()
    told = {name: value for name, value in values(reading).items() if "quota" in name}
    assert told == {"sandbox_quota_limit{concurrent}": 10.0, "sandbox_quota_limit{cpu}": 64.0}
    assert (reading.listed, reading.dropped) == ((), 1)
