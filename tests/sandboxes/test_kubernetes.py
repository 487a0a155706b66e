"""The Kubernetes collector against an API server's lists: pods, Sandbox resources, both joined, quotas, refusals."""

from typing import Any

import pytest

from collectors.model import Limits, Reading, Sandbox
from collectors.sandbox_providers import sweep
from tests.sandboxes.fake_engines import T0, FakeKubernetes, condition, pod, resource, stamp, waiting
from tests.sandboxes.fake_http import Poller, Reply


def read(fake: FakeKubernetes, **options: str) -> Reading:
    with fake.serve():
        return Poller(fake, "kubernetes", **options).poll()


def one(item: dict[str, Any]) -> Sandbox:
    (row,) = read(FakeKubernetes([item])).sandboxes
    return row


def said(row: Sandbox) -> tuple[str, str | None, str]:
    return row.state, row.cause, row.detail


def test_a_running_pod() -> None:
    reading = read(FakeKubernetes([pod("a", age=100)]), namespace="rl")
    assert reading.listed == ("kubernetes",)
    assert reading.sandboxes == (
        Sandbox(
            provider="kubernetes", id="a", state="running", name="pod-a", run_key="run-a", provider_state="Running",
            requested_at=T0 - 100, started_at=T0 - 98, ready_at=T0 - 80, image="python:3.11", latency_source="server",
        ),
    )  # fmt: skip


def test_a_deadline_is_an_expiry() -> None:
    item = pod("a", age=100)
    item["spec"]["activeDeadlineSeconds"] = 3600
    assert one(item).expires_at == T0 - 98 + 3600


def test_the_wait_for_a_place_is_no_failure() -> None:
    words = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."
    row = one(
        pod("a", "Pending", status={"conditions": [condition("PodScheduled", "False", T0, "Unschedulable", words)]})
    )
    assert said(row) == ("queued", None, words)
    assert row.provider_state == "Pending Unschedulable"
    assert (row.requested_at, row.started_at, row.ready_at) == (T0 - 100, None, None)


def test_a_scheduled_pod_that_pulls_is_starting() -> None:
    assert one(pod("a", "Pending", status=waiting("ContainerCreating"))).state == "starting"
    assert one(pod("a", "Pending", status=waiting("ErrImagePull", "rpc error"))).state == "starting"  # tried again


@pytest.mark.parametrize(
    ("status", "cause", "detail"),
    [
        (waiting("ImagePullBackOff", 'Back-off pulling image "x:1"'), "image", 'Back-off pulling image "x:1"'),
        (waiting("InvalidImageName"), "image", ""),
        (waiting("CreateContainerConfigError", 'secret "s" not found'), "internal", 'secret "s" not found'),
        (waiting("RunContainerError", "exec: no such file or directory"), "image", "exec: no such file or directory"),
        (waiting("CrashLoopBackOff", "back-off 10s", {"reason": "OOMKilled", "exitCode": 137}, 3), "oom",
         "OOMKilled exit code 137 back-off 10s"),
        (waiting("CrashLoopBackOff", "back-off 10s", {"reason": "Error", "exitCode": 1}, 3), "unknown",
         "Error exit code 1 back-off 10s"),
    ],
)  # fmt: skip
def test_waits_that_will_not_end(status: dict[str, Any], cause: str, detail: str) -> None:
    assert said(one(pod("a", "Pending", status=status))) == ("failed", cause, detail)


def test_an_init_container_fails_the_pod() -> None:
    inits = waiting("ImagePullBackOff", "no")["containerStatuses"]
    assert said(one(pod("a", "Pending", status={"initContainerStatuses": inits}))) == ("failed", "image", "no")


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "capacity"),
        ({"reason": "DeadlineExceeded", "message": "Pod was active too long"}, "timeout"),
        ({"reason": "OutOfmemory", "message": "Node didn't have enough resource: memory"}, "capacity"),
        ({"reason": "SomethingNew", "message": "never heard of"}, "unknown"),
    ],
)
def test_failed_pods(status: dict[str, Any], cause: str) -> None:
    assert said(one(pod("a", "Failed", status=status))) == ("failed", cause, status["message"])


def test_a_pod_whose_container_was_killed_for_memory() -> None:
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": stamp(T0 - 10)}
    row = one(pod("a", "Failed", status={"containerStatuses": [{"state": {"terminated": ended}}]}))
    assert said(row) == ("failed", "oom", "exit code 137")
    assert row.ended_at == T0 - 10


def test_ended_and_leaving_pods() -> None:
    ended = {"reason": "Completed", "exitCode": 0, "finishedAt": stamp(T0 - 5)}
    row = one(pod("a", "Succeeded", status={"containerStatuses": [{"state": {"terminated": ended}}]}))
    assert (row.state, row.ended_at, row.cause) == ("terminated", T0 - 5, None)
    assert one(pod("a", metadata={"deletionTimestamp": stamp(T0)})).state == "stopping"


def not_ready(since: float, restarts: int = 0) -> dict[str, Any]:
    running = {"restartCount": restarts, "state": {"running": {"startedAt": stamp(T0 - 85)}}}
    conditions = [condition("PodScheduled", "True", T0 - 98), condition("Ready", "False", since, "ContainersNotReady")]
    return {"conditions": conditions, "containerStatuses": [running]}


def test_up_but_not_ready_yet_is_starting() -> None:
    row = one(pod("a", status=not_ready(T0 - 98)))
    assert (row.state, row.unreachable, row.ready_at) == ("starting", False, None)


def test_a_probe_that_fails_later_is_unreachable() -> None:
    row = one(pod("a", status=not_ready(T0 - 10)))
    assert (row.state, row.unreachable, row.detail) == ("running", True, "ContainersNotReady")


def test_ready_since_is_the_first_time_not_the_latest() -> None:
    fake = FakeKubernetes([pod("a"), pod("late", status={"conditions": [condition("Ready", "True", T0 - 7)]})])
    late = fake.pods[1]["status"]["containerStatuses"][0]
    late["restartCount"] = 2
    with fake.serve():
        poller = Poller(fake, "kubernetes")
        first = poller.poll().sandboxes
        fake.pods[0]["status"]["conditions"][1] = condition("Ready", "True", T0 - 1)  # it flapped
        second = poller.poll().sandboxes
    assert [row.ready_at for row in first] == [T0 - 80, None]  # restarted before it was met: nobody knows
    assert [row.ready_at for row in second] == [T0 - 80, None]
    assert [row.latency_source for row in second] == ["server", None]


def test_what_is_gone_is_forgotten() -> None:
    fake = FakeKubernetes([pod("a"), pod("b")])
    with fake.serve():
        poller = Poller(fake, "kubernetes")
        poller.poll()
        del fake.pods[0]
        assert [row.id for row in poller.poll().sandboxes] == ["b"]
    assert set(poller.state["first_ready"]) == {"b"}


def test_words_nobody_knows_are_counted() -> None:
    reading = read(FakeKubernetes([pod("a", "Levitating"), pod("b", "Levitating"), pod("c", "Unknown")]))
    assert [row.state for row in reading.sandboxes] == ["unknown"] * 3
    assert reading.unmapped == {"phase=Levitating": 2}


def test_pages_selector_and_namespace() -> None:
    fake = FakeKubernetes([pod(str(n), labels={"run": "run-a" if n % 2 else "run-b"}) for n in range(1200)])
    reading = read(fake, namespace="rl", label_selector="run=run-a")
    assert len(reading.sandboxes) == 600 and {row.run_key for row in reading.sandboxes} == {"run-a"}
    assert reading.listed == ("kubernetes",)
    assert fake.paths() == ["/api/v1/namespaces/rl/pods"] * 3 + ["/api/v1/namespaces/rl/resourcequotas"]


def test_ten_thousand_pods_over_as_many_polls_as_it_takes() -> None:
    fake = FakeKubernetes([pod(str(n), age=n) for n in range(10_000)])
    seen: set[str] = set()
    with fake.serve():
        poller = Poller(fake, "kubernetes")
        for _ in range(40):
            reading = poller.poll()
            seen |= {row.id for row in reading.sandboxes}
            if reading.listed:
                break
    assert reading.listed == ("kubernetes",) and len(reading.sandboxes) == 10_000 and len(seen) == 10_000
    assert len([path for path in fake.paths() if path.endswith("pods")]) == 40


def test_a_slow_server_is_read_over_several_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SHARE", 0.0)  # the first page takes all the time there is
    fake = FakeKubernetes([pod(str(n)) for n in range(600)])
    with fake.serve():
        poller = Poller(fake, "kubernetes")
        readings = [poller.poll() for _ in range(4)]
    assert [len(reading.sandboxes) for reading in readings] == [250, 250, 600, 250]
    assert [reading.listed for reading in readings] == [(), (), ("kubernetes",), ()]


def test_a_time_out_keeps_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SHARE", 0.0)
    fake = FakeKubernetes([pod(str(n)) for n in range(300)])
    with fake.serve():
        poller = Poller(fake, "kubernetes")
        poller.poll()
        fake.fault = lambda _request: Reply({}, 429, {"Retry-After": "5"})
        assert poller.error().kind == "throttled"
        fake.fault = lambda _request: None
        assert poller.poll().listed == ("kubernetes",)
    assert [request.one("continue") != "" for request in fake.requests] == [False, True, True]


def test_a_listing_whose_snapshot_is_gone_begins_anew() -> None:
    fake = FakeKubernetes([pod(str(n)) for n in range(600)])
    expired = []

    def expire(request: Any) -> None:
        if request.one("continue") and not expired:
            expired.append(fake.expire())

    fake.fault = expire
    reading = read(fake)
    assert expired and len(reading.sandboxes) == 600 and reading.listed == ("kubernetes",)


def test_a_page_that_fails_in_the_middle_fails_the_poll() -> None:
    fake = FakeKubernetes([pod(str(n)) for n in range(600)])
    fake.fault = lambda request: Reply({"message": "etcd leader changed"}, 500) if request.one("continue") else None
    with fake.serve():
        poller = Poller(fake, "kubernetes")
        error = poller.error()
        fake.fault = lambda _request: None
        assert len(poller.poll().sandboxes) == 600
    assert (error.kind, str(error)) == ("status", "HTTP 500: etcd leader changed")


REFUSALS = [
    (Reply({}, 401), "auth"),
    (Reply({"message": 'pods is forbidden: User "x" cannot list resource "pods"'}, 403), "auth"),
    (Reply({"message": "exceeded quota: compute"}, 403), "quota"),
    (Reply({}, 402), "credit"),
    (Reply({"message": "slow down"}, 429, {"Retry-After": "17"}), "throttled"),
    (Reply({}, 503), "status"),
    (Reply(raw=b"<html>"), "garbage"),
    (Reply([1, 2]), "garbage"),
    (Reply({"items": "none"}), "garbage"),
    (Reply(hang=True), "timeout"),
    (Reply({"items": []}, drip=True), "timeout"),
]


@pytest.mark.parametrize(("reply", "kind"), REFUSALS)
def test_refusals(reply: Reply, kind: str) -> None:
    fake = FakeKubernetes([pod("a")])
    fake.fault = lambda _request: reply
    with fake.serve():
        poller = Poller(fake, "kubernetes")
        poller.limits = Limits(timeout_seconds=0.3) if kind == "timeout" else Limits()
        error = poller.error()
    assert error.kind == kind
    assert error.retry_after == (17.0 if kind == "throttled" else None)


def test_hostile_values() -> None:
    huge = "x" * 200_000
    items: list[Any] = [
        None, 7, [], {"metadata": {"name": "no uid"}}, {"metadata": {"uid": "bare"}},
        {"metadata": {"uid": "odd", "name": huge, "labels": [1], "creationTimestamp": -5, "ownerReferences": {"a": 1}},
         "spec": {"containers": {"image": 1}, "activeDeadlineSeconds": "NaN"},
         "status": {"phase": ["Running"], "conditions": "Ready", "containerStatuses": [None, {"state": 4}]}},
        pod("twice"), pod("twice", "Succeeded"),
        pod("future", status={"conditions": [condition("Ready", "True", T0 - 5000)]}),
    ]  # fmt: skip
    reading = read(FakeKubernetes(items))
    rows = {row.id: row for row in reading.sandboxes}
    assert set(rows) == {"bare", "odd", "twice", "future"}
    assert (rows["odd"].state, len(rows["odd"].name), rows["odd"].requested_at) == ("unknown", 253, None)
    assert rows["twice"].state == "terminated"
    assert rows["future"].ready_at is None  # ready before it was asked for
    assert (reading.dropped, reading.why_dropped) == (4, "a pod without a uid")
    assert (reading.listed, reading.partial) == ((), "listing incomplete: 4 rows could not be read")


@pytest.mark.parametrize("path", ["/api/v1/namespaces/rl/pods", "/api/v1/namespaces/rl/resourcequotas"])
@pytest.mark.parametrize("body", [{}, {"items": None}, {"kind": "PodList", "metadata": {}}])
def test_an_answer_without_items_is_no_empty_list(path: str, body: Any) -> None:
    fake = FakeKubernetes([pod("a")])
    fake.fault = lambda request: Reply(body) if request.path == path else None
    with fake.serve():
        error = Poller(fake, "kubernetes", namespace="rl").error()
    assert (error.kind, str(error)) == ("garbage", "the answer is not a Kubernetes list")


def test_an_unreadable_page_of_resources_is_garbage_and_an_unreadable_row_leaves_both_lists_open() -> None:
    fake = FakeKubernetes([pod("p")], [{"metadata": {"name": "no uid", "labels": {}}}])
    with fake.serve():
        poller = Poller(fake, "kubernetes", kind="both")
        assert poller.error().kind == "garbage"
        fake.resources = [*(fake.resources or []), resource("r")]
        reading = poller.poll()
    assert ({row.id for row in reading.sandboxes}, reading.listed, reading.dropped) == ({"p", "r"}, (), 1)


def test_secrets_in_a_message_do_not_travel() -> None:
    words = "failed to pull https://user:hunter2hunter2@registry/x: Authorization=Bearer abcdefghijkl"
    row = one(pod("a", "Pending", status=waiting("ImagePullBackOff", words * 9)))
    assert "hunter2" not in row.detail and "abcdefghijkl" not in row.detail and len(row.detail) <= 200
