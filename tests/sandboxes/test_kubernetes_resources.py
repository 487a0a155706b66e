"""Resources of agent-sandbox, quotas, and how the API is reached."""

from typing import Any

import pytest

from collectors.model import Sandbox
from collectors.sandbox_providers import sweep
from collectors.sandboxes import kubernetes
from tests.sandboxes.fake_engines import T0, FakeKubernetes, condition, pod, resource, stamp, waiting
from tests.sandboxes.fake_http import Poller, Reply, values
from tests.sandboxes.test_kubernetes import read, said


def ready(status: str = "True", reason: str = "DependenciesReady", message: str = "") -> dict[str, str]:
    return condition("Ready", status, T0 - 70, reason, message)


SCHEDULED = condition("PodScheduled", "True", T0 - 95)


def resources(*items: dict[str, Any], **options: str) -> list[Sandbox]:
    return list(read(FakeKubernetes([], list(items)), kind="sandboxes", **options).sandboxes)


def test_a_ready_resource() -> None:
    (row,) = resources(resource("s", ready(), SCHEDULED, spec={"shutdownTime": stamp(T0 + 600)}))
    assert row == Sandbox(
        provider="kubernetes", id="s", state="running", name="sandbox-s", run_key="run-a", provider_state="Ready",
        requested_at=T0 - 100, started_at=T0 - 95, ready_at=T0 - 70, image="python:3.11", latency_source="server",
        expires_at=T0 + 600,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), ("queued", None, "")),
        ((ready("False", "DependenciesNotReady"), SCHEDULED), ("starting", None, "")),
        (
            (ready("False", "DependenciesNotReady"), condition("PodScheduled", "False", T0, "Gated", "no room")),
            ("queued", None, "no room"),
        ),
        ((ready("False", "SandboxSuspended"),), ("paused", None, "")),
        ((ready("False", "SandboxExpired"),), ("terminated", None, "")),
        ((ready("False", "ReconcilerError", "pods forbidden: exceeded quota: q"),),
         ("failed", "quota", "pods forbidden: exceeded quota: q")),
        ((ready("False", "MultiplePods"),), ("failed", "internal", "")),
        ((condition("Finished", "True", T0 - 3, "PodFailed", "OOMKilled"),), ("failed", "oom", "OOMKilled")),
        ((condition("Finished", "True", T0 - 3, "PodSucceeded"), ready("False", "PodSucceeded")),
         ("terminated", None, "")),
        ((ready("False", "Brand/New", "hm"),), ("unknown", None, "hm")),
        # Resumed: the old condition lingers, Ready is right.
        ((ready(), condition("Suspended", "True", T0 - 90, "PodTerminated")), ("running", None, "")),
    ],
)  # fmt: skip
def test_conditions_of_a_resource(
    conditions: tuple[dict[str, str], ...], expected: tuple[str, str | None, str]
) -> None:
    (row,) = resources(resource("s", *conditions))
    assert said(row) == expected


def test_a_resumed_resource_has_no_known_first_readiness() -> None:
    (row,) = resources(resource("s", ready(), condition("Suspended", "True", T0 - 90, "PodTerminated")))
    assert row.ready_at is None and row.latency_source is None


def test_a_warm_one_was_not_asked_for_when_it_was_made() -> None:
    (row,) = resources(resource("s", ready(), metadata={"labels": {"agents.x-k8s.io/launch-type": "warm"}}))
    assert (row.requested_at, row.started_at, row.image_cached, row.latency_source) == (None, T0 - 100, True, None)
    assert row.run_key == ""


def test_an_older_cluster_serves_v1alpha1_and_that_is_remembered() -> None:
    fake = FakeKubernetes([], [resource("s", ready(), spec={"replicas": 0})])
    fake.version = "v1alpha1"
    with fake.serve():
        poller = Poller(fake, "kubernetes", kind="sandboxes")
        assert poller.poll().listed == poller.poll().listed == ("kubernetes",)
    newer, older = (f"/apis/agents.x-k8s.io/{version}/sandboxes" for version in ("v1beta1", "v1alpha1"))
    assert fake.paths() == [newer, older, older]


def test_a_cluster_without_agent_sandbox_says_so() -> None:
    with FakeKubernetes([]).serve() as fake:
        error = Poller(fake, "kubernetes", kind="sandboxes").error()
    assert error.kind == "status" and "agent-sandbox not installed" in str(error)


def test_a_pod_of_a_resource_is_not_counted_twice() -> None:
    owner = {"ownerReferences": [{"kind": "Sandbox", "apiVersion": "agents.x-k8s.io/v1beta1", "uid": "s1"}]}
    other = {"ownerReferences": [{"kind": "ReplicaSet", "apiVersion": "apps/v1", "uid": "s1"}]}
    pods = [
        pod("p1", "Pending", metadata=owner, status=waiting("ImagePullBackOff", "manifest unknown")),
        pod("p2", metadata=other),
    ]
    fake = FakeKubernetes(pods, [resource("s1", ready("False", "DependenciesNotReady"), SCHEDULED)])
    rows = {row.id: row for row in read(fake, kind="both").sandboxes}
    assert set(rows) == {"s1", "p2"}
    assert said(rows["s1"]) == ("failed", "image", "manifest unknown")
    assert rows["s1"].provider_state == "DependenciesNotReady ImagePullBackOff"
    assert rows["p2"].state == "running"


def test_quotas_the_tightest_counts() -> None:
    fake = FakeKubernetes([pod("a")])
    fake.quotas = [
        {"status": {"hard": {"pods": "1k", "requests.cpu": "2000", "requests.memory": "1Ti"},
                    "used": {"pods": "960", "requests.cpu": "1500m", "requests.memory": "64Gi"}}},
        {"status": {"hard": {"count/pods": "970", "requests.nvidia.com/gpu": "8"},
                    "used": {"count/pods": "960", "requests.nvidia.com/gpu": "0"}}},
        {"status": {"hard": {"pods": "many"}, "used": {"pods": "-3"}}},
    ]  # fmt: skip
    assert values(read(fake, namespace="rl")) == {
        "sandbox_quota_used{concurrent}": 960.0, "sandbox_quota_limit{concurrent}": 970.0,
        "sandbox_quota_used{cpu}": 1.5, "sandbox_quota_limit{cpu}": 2000.0,
        "sandbox_quota_used{memory_gb}": 68.719476736, "sandbox_quota_limit{memory_gb}": 1099.511627776,
        "sandbox_quota_used{gpu}": 0.0, "sandbox_quota_limit{gpu}": 8.0,
    }  # fmt: skip


def test_quotas_that_may_not_be_read_are_no_failure() -> None:
    fake = FakeKubernetes([pod("a")])
    fake.fault = lambda request: Reply({"message": "forbidden"}, 403) if "quota" in request.path else None
    reading = read(fake, namespace="rl")
    assert reading.samples == () and len(reading.sandboxes) == 1


@pytest.mark.parametrize(
    ("value", "number"),
    [("500m", 0.5), ("1Gi", 1073741824.0), ("1G", 1e9), ("2", 2.0), (3, 3.0), ("1e3", 1000.0), ("1E", 1e18),
     ("5u", 5e-6), ("", None), ("Gi", None), ("-1", None), ("1GB", None), (None, None), ("NaN", None), ([], None)],
)  # fmt: skip
def test_quantities(value: Any, number: float | None) -> None:
    assert kubernetes.quantity(value) == (pytest.approx(number) if number is not None else None)


def test_a_token_that_is_rotated_is_read_anew(tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("first-token\n")
    fake = FakeKubernetes([pod("a")])
    fake.expected = "Bearer first-token"
    with fake.serve():
        poller = Poller(fake, "kubernetes", token_file=str(token))
        assert poller.poll().listed == ("kubernetes",)
        token.write_text("second-token\n")
        fake.expected = "Bearer second-token"
        assert poller.poll().listed == ("kubernetes",)
        token.unlink()
        assert poller.error().kind == "missing"


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_files_that_are_no_certificates(option: str, tmp_path: Any) -> None:
    (tmp_path / "x.pem").write_text("no pem")
    with FakeKubernetes([]).serve() as fake:
        assert Poller(fake, "kubernetes", **{option: str(tmp_path / "x.pem")}).error().kind == "missing"


def test_an_unknown_kind_is_refused() -> None:
    with FakeKubernetes([]).serve() as fake:
        assert "pods, sandboxes, both" in str(Poller(fake, "kubernetes", kind="jobs").error())


def test_both_lists_may_take_several_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SHARE", 0.0)
    owner = [
        {"ownerReferences": [{"kind": "Sandbox", "apiVersion": "agents.x-k8s.io/v1", "uid": str(n)}]}
        for n in range(300)
    ]
    fake = FakeKubernetes(
        [pod(f"p{n}", metadata=owner[n]) for n in range(300)],
        [resource(str(n), ready(), SCHEDULED) for n in range(300)],
    )
    with fake.serve():
        poller = Poller(fake, "kubernetes", kind="both")
        readings = [poller.poll() for _ in range(3)]
    assert [len(reading.sandboxes) for reading in readings] == [0, 250, 300]
    assert [reading.listed for reading in readings] == [(), (), ("kubernetes",)]
    assert not [row.id for reading in readings for row in reading.sandboxes if row.id.startswith("p")]
