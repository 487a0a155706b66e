"""The Docker collector against an engine's list and inspections, over TCP and over a real unix socket."""

from pathlib import Path
from typing import Any

import pytest

from collectors.model import Limits, Reading, Sandbox
from collectors.sandbox_providers import sweep
from tests.sandboxes.fake_engines import T0, ZERO, FakeDocker, container, nano
from tests.sandboxes.fake_http import Poller, Reply


def read(fake: FakeDocker, **options: str) -> Reading:
    with fake.serve():
        return Poller(fake, "docker", **options).poll()


def one(item: dict[str, Any]) -> Sandbox:
    (row,) = read(FakeDocker([item])).sandboxes
    return row


def said(row: Sandbox) -> tuple[str, str | None, str]:
    return row.state, row.cause, row.detail


RUNNING = Sandbox(
    provider="docker", id="a", state="running", name="box-a", run_key="run-a", provider_state="running",
    requested_at=T0 - 100, started_at=pytest.approx(T0 - 98.5), ready_at=pytest.approx(T0 - 98.5), image="python:3.11",
    latency_source="server",
)  # fmt: skip


def test_a_running_container() -> None:
    reading = read(FakeDocker([container("a")]))
    assert reading.sandboxes == (RUNNING,)
    assert reading.listed == ("docker",)


def test_over_a_unix_socket(tmp_path: Path) -> None:
    fake = FakeDocker([container("a"), container("b")])
    with fake.serve_unix(tmp_path / "docker.sock"):
        reading = Poller(fake, "docker", socket=str(tmp_path / "docker.sock")).poll()
    assert [row.id for row in reading.sandboxes] == ["a", "b"]
    assert fake.requests[0].headers["Host"] == "docker.sock"


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    fake = FakeDocker([])
    fake.url = "http://docker.sock"
    assert Poller(fake, "docker", socket=str(tmp_path / "none.sock")).error().kind == "unreachable"


@pytest.mark.parametrize(
    ("state", "status", "inside", "expected"),
    [
        ("exited", "Exited (0)", {"FinishedAt": nano(T0 - 5)}, ("terminated", None, "")),
        ("exited", "Exited (137)", {"ExitCode": 137}, ("terminated", None, "exit code 137")),
        ("exited", "Exited (137)", {"ExitCode": 137, "OOMKilled": True}, ("failed", "oom", "exit code 137")),
        ("exited", "Exited (127)", {"ExitCode": 127}, ("failed", "image", "exit code 127")),
        ("exited", "Exited (1)", {"ExitCode": 1}, ("failed", "unknown", "exit code 1")),
        ("created", "Created",
         {"StartedAt": ZERO, "ExitCode": 127, "Error": 'runc create failed: exec: "server": executable file not found'},
         ("failed", "image", 'runc create failed: exec: "server": executable file not found')),
        ("created", "Created", {"StartedAt": ZERO}, ("starting", None, "")),
        ("paused", "Up 2 minutes (Paused)", {}, ("paused", None, "")),
        ("removing", "Removal In Progress", {}, ("stopping", None, "")),
        ("dead", "Dead", {"Error": "device or resource busy"}, ("failed", "internal", "device or resource busy")),
        ("running", "Up (health: starting)", {"Health": {"Status": "starting", "Log": []}}, ("starting", None, "")),
        ("restarting", "Restarting (1)", {"Status": "restarting"}, ("running", None, "restarting")),
        ("running", "Up (unhealthy)", {"Health": {"Status": "unhealthy"}}, ("running", None, "unhealthy")),
    ],
)  # fmt: skip
def test_states(state: str, status: str, inside: dict[str, Any], expected: tuple[str, str | None, str]) -> None:
    row = one(container("a", state, status, **inside))
    assert said(row) == expected
    assert row.unreachable == (expected[2] in ("restarting", "unhealthy"))


def test_the_zero_date_is_no_start() -> None:
    row = one(container("a", "created", "Created", StartedAt=ZERO))
    assert (row.requested_at, row.started_at, row.ready_at, row.latency_source) == (T0 - 100, None, None, None)


def probe(end: float, code: int) -> dict[str, Any]:
    return {"Start": nano(end - 1), "End": nano(end), "ExitCode": code, "Output": ""}


def healthy(*probes: dict[str, Any]) -> Sandbox:
    return one(container("a", status="Up (healthy)", Health={"Status": "healthy", "Log": list(probes)}))


def test_with_a_health_check_the_first_probe_that_passed_is_ready() -> None:
    assert healthy(probe(T0 - 90, 1), probe(T0 - 80, 0), probe(T0 - 70, 0)).ready_at == pytest.approx(T0 - 80)
    # The engine keeps five: whether the oldest of them was the first is not known.
    assert healthy(*(probe(T0 - 50 + n, 0) for n in range(5))).ready_at is None
    assert healthy(probe(T0 - 50, 1), *(probe(T0 - 40 + n, 0) for n in range(4))).ready_at == pytest.approx(T0 - 40)


def test_a_restarted_container_has_no_known_first_start() -> None:
    assert one(container("a", RestartCount=2)).started_at is None
    again = one(container("a", StartedAt=nano(T0 - 3), FinishedAt=nano(T0 - 30)))
    assert (again.started_at, again.ready_at, again.latency_source) == (None, None, None)


def test_a_restart_that_was_watched_keeps_the_first_start() -> None:
    fake = FakeDocker([container("a")])
    with fake.serve():
        poller = Poller(fake, "docker")
        poller.poll()
        fake.containers = [container("a", "exited", "Exited (0)", FinishedAt=nano(T0 - 50))]
        poller.poll()
        fake.containers = [container("a", StartedAt=nano(T0 - 3), FinishedAt=nano(T0 - 50))]
        (row,) = poller.poll().sandboxes
    assert (row.state, row.started_at, row.ready_at) == ("running", pytest.approx(T0 - 98.5), pytest.approx(T0 - 98.5))


def inspections(fake: FakeDocker) -> list[str]:
    return [path for path in fake.paths() if path != "/containers/json"]


def test_a_container_is_inspected_once_per_state() -> None:
    fake = FakeDocker([container("a"), container("b", status="Up 1 second (health: starting)")])
    fake.containers[1]["Inspect"]["Health"] = {"Status": "starting"}
    with fake.serve():
        poller = Poller(fake, "docker")
        poller.poll()
        poller.poll()
        assert sorted(inspections(fake)) == ["/containers/a/json", "/containers/b/json"]
        fake.containers[1]["Status"] = "Up 9 seconds (healthy)"
        fake.containers[1]["Inspect"]["Health"] = {"Status": "healthy", "Log": [probe(T0 - 91, 0)]}
        rows = {row.id: row for row in poller.poll().sandboxes}
    assert inspections(fake)[2:] == ["/containers/b/json"]
    assert rows["b"].state == "running" and rows["b"].ready_at == pytest.approx(T0 - 91)


def test_removed_containers_are_forgotten() -> None:
    fake = FakeDocker([container("a"), container("b")])
    with fake.serve():
        poller = Poller(fake, "docker")
        poller.poll()
        del fake.containers[0]
        assert [row.id for row in poller.poll().sandboxes] == ["b"]
    assert set(poller.state["inspected"]) == set(poller.state["starts"]) == {"b"}


def test_a_container_removed_before_its_inspection() -> None:
    fake = FakeDocker([container("a"), container("b")])
    gone = Reply({"message": "No such container: a"}, 404)
    fake.fault = lambda request: gone if request.path == "/containers/a/json" else None
    rows = {row.id: row for row in read(fake).sandboxes}
    assert (rows["a"].state, rows["a"].started_at) == ("running", None)
    assert rows["b"].started_at is not None


def test_ten_thousand_containers() -> None:
    fake = FakeDocker([container(f"{n:05}", age=n / 10) for n in range(10_000)])
    with fake.serve():
        poller = Poller(fake, "docker")
        for _ in range(12):
            reading = poller.poll()
            if reading.listed:
                break
    rows = {row.id: row for row in reading.sandboxes}
    assert len(rows) == 10_000 and reading.listed == ("docker",)
    assert rows["00000"].ready_at is not None  # the newest are inspected first


def test_inspections_go_on_in_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDocker([container(str(n), age=n) for n in range(20)])
    clock = iter([False] * 2 + [True] * 1 + [False] * 99)
    monkeypatch.setattr(sweep.Budget, "spent", lambda _self: next(clock))
    with fake.serve():
        poller = Poller(fake, "docker")
        first, second = poller.poll(), poller.poll()
    assert [len([row for row in reading.sandboxes if row.ready_at]) for reading in (first, second)] == [16, 20]
    assert first.listed == second.listed == ("docker",)


def test_labels() -> None:
    fake = FakeDocker([container("a"), container("b", labels={"run": "run-b", "team": "rl"})])
    assert [row.id for row in read(fake, label="run=run-b,team=rl").sandboxes] == ["b"]
    assert [row.run_key for row in read(fake, run_label="team").sandboxes] == ["", "rl"]


def test_the_container_a_page_begins_after_is_removed() -> None:
    fake = FakeDocker([container(f"{n:04}", age=n) for n in range(1500)])

    def remove(request: Any) -> None:
        if "before" in request.one("filters") and len(fake.containers) == 1500:
            del fake.containers[999]

    fake.fault = remove
    reading = read(fake)
    assert len(reading.sandboxes) == 1499 and reading.listed == ("docker",)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply({}, 401), "auth"),
        (Reply({}, 402), "credit"),
        (Reply({"message": "quota exceeded"}, 403), "quota"),
        (Reply({}, 429, {"Retry-After": "3"}), "throttled"),
        (Reply({"message": "oops"}, 500), "status"),
        (Reply(raw=b"nope"), "garbage"),
        (Reply({"message": "no list"}), "garbage"),
        (Reply(hang=True), "timeout"),
        (Reply([], drip=True), "timeout"),
    ],
)
@pytest.mark.parametrize("path", ["/containers/json", "/containers/a/json"])
def test_refusals(reply: Reply, kind: str, path: str) -> None:
    fake = FakeDocker([container("a")])
    fake.fault = lambda request: reply if request.path == path else None
    if path != "/containers/json" and kind == "garbage" and reply.raw is None:
        assert read(fake).sandboxes[0].state == "unknown"  # an inspection without a state
        return
    if path != "/containers/json" and reply.drip:
        reply = Reply({}, drip=True)
    with fake.serve():
        poller = Poller(fake, "docker")
        poller.limits = Limits(timeout_seconds=0.3) if kind == "timeout" else Limits()
        error = poller.error()
    assert error.kind == kind
    assert error.retry_after == (3.0 if kind == "throttled" else None)


def test_hostile_values() -> None:
    huge = "x" * 100_000
    items: list[Any] = [
        container("a") | {"Names": None, "Labels": None, "Created": "soon", "State": huge, "Status": 5},
        container("b") | {"Names": [7], "Labels": {"run": {"a": 1}}, "Created": -1, "RestartCount": "NaN"},
        container("twice", age=5), container("twice", "paused", "Paused", age=6),
    ]  # fmt: skip
    items[1]["Inspect"] = {"Status": "running", "StartedAt": 10**400, "Health": "good", "OOMKilled": "yes"}
    fake = FakeDocker([])
    listed = [{key: value for key, value in item.items() if key not in ("Inspect", "RestartCount")} for item in items]
    fake.containers = items
    fake.fault = lambda request: (
        Reply([None, 3, {"Id": ""}, {}, *listed]) if request.path == "/containers/json" else None
    )
    reading = read(fake)
    rows = {row.id: row for row in reading.sandboxes}
    assert set(rows) == {"a", "b", "twice"}
    assert (rows["a"].state, rows["a"].requested_at, len(rows["a"].provider_state)) == ("running", None, 40)
    assert (rows["b"].state, rows["b"].started_at, rows["b"].name, rows["b"].run_key) == ("running", None, "7", "")
    assert reading.unmapped == {"state=" + "x" * 40: 1}
    assert (reading.dropped, reading.listed) == (4, ())
    assert reading.partial == "listing incomplete: 4 rows could not be read"
