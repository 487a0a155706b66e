"""Fakes of a Kubernetes API server, a Docker engine (TCP and unix socket), ROCK, SWE-ReX and OpenEnv: what is listed
and how it is paged, in the JSON of their own API types."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

from tests.sandboxes.fake_http import Fake, Reply, Request, _handler

T0 = 1_795_291_200.0  # 2026-11-21T20:00:00Z


def stamp(moment: float) -> str:
    """As Kubernetes writes times: whole seconds."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def nano(moment: float) -> str:
    """As Docker does: nanoseconds."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"


def condition(kind: str, status: str, at: float, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": stamp(at), "reason": reason, "message": message}


def pod(uid: str, phase: str = "Running", age: float = 100.0, **more: Any) -> dict[str, Any]:
    """A pod that asked for its place at T0 - age, was scheduled after 2 s and, if running, ready after 20 s."""
    born = T0 - age
    conditions = [condition("PodScheduled", "True", born + 2)]
    statuses: list[dict[str, Any]] = []
    if phase == "Running":
        conditions.append(condition("Ready", "True", born + 20))
        statuses.append(
            {
                "name": "c", "image": "python:3.11", "imageID": "sha256:1", "ready": True, "restartCount": 0,
                "state": {"running": {"startedAt": stamp(born + 15)}},
            }
        )  # fmt: skip
    labels = more.pop("labels", {"run": "run-a"})
    status = {"phase": phase, "conditions": conditions, "containerStatuses": statuses, "startTime": stamp(born + 2)}
    meta = {"uid": uid, "name": f"pod-{uid}", "creationTimestamp": stamp(born), "labels": labels}
    return {
        "metadata": meta | more.pop("metadata", {}),
        "spec": {"containers": [{"name": "c", "image": "python:3.11"}]} | more.pop("spec", {}),
        "status": status | more.pop("status", {}),
    }


def waiting(reason: str, message: str = "", died: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    one = {"name": "c", "restartCount": restarts, "state": {"waiting": {"reason": reason, "message": message}}}
    return {"containerStatuses": [one | ({"lastState": {"terminated": died}} if died else {})]}


def resource(uid: str, *conditions: dict[str, str], **more: Any) -> dict[str, Any]:
    meta = {"uid": uid, "name": f"sandbox-{uid}", "creationTimestamp": stamp(T0 - 100), "labels": {"run": "run-a"}}
    template = {"spec": {"containers": [{"name": "c", "image": "python:3.11"}]}}
    return {
        "metadata": meta | more.pop("metadata", {}),
        "spec": {"podTemplate": template, "operatingMode": "Running"} | more.pop("spec", {}),
        "status": {"conditions": list(conditions)},
    }


class FakeKubernetes(Fake):
    """Lists from a snapshot per continue token, as the API server does; ``expire`` drops the snapshots."""

    def __init__(self, pods: list[dict[str, Any]], resources: list[dict[str, Any]] | None = None) -> None:
        super().__init__()
        self.pods, self.resources = pods, resources
        self.version = "v1beta1"
        self.quotas: list[dict[str, Any]] = []
        self.snapshots: dict[str, list[dict[str, Any]]] = {}

    def expire(self) -> None:
        self.snapshots.clear()

    def answer(self, request: Request) -> Reply:
        path = request.path.replace("/namespaces/rl", "")
        if path == "/api/v1/pods":
            return self._list(request, self.pods)
        if path == "/api/v1/resourcequotas":
            return Reply({"kind": "ResourceQuotaList", "items": self.quotas, "metadata": {}})
        if path == f"/apis/agents.x-k8s.io/{self.version}/sandboxes" and self.resources is not None:
            return self._list(request, self.resources)
        return Reply(
            {"kind": "Status", "status": "Failure", "message": "the server could not find it", "code": 404}, 404
        )

    def _list(self, request: Request, items: list[dict[str, Any]]) -> Reply:
        token, limit = request.one("continue"), int(request.one("limit", "500"))
        name, _, begin = token.partition("/")
        if token and name not in self.snapshots:
            return Reply(
                {"kind": "Status", "reason": "Expired", "message": "too old resource version", "code": 410}, 410
            )
        selector = [part.split("=") for part in request.one("labelSelector").split(",") if part]
        rows = self.snapshots.get(name) or [
            item for item in items if all(item["metadata"]["labels"].get(key) == value for key, value in selector)
        ]
        first = int(begin or 0)
        name = name or str(len(self.requests))
        more = first + limit < len(rows)
        if more:
            self.snapshots[name] = rows
        meta = {"continue": f"{name}/{first + limit}" if more else "", "resourceVersion": "1"}
        return Reply({"kind": "List", "metadata": meta, "items": rows[first : first + limit]})


ZERO = "0001-01-01T00:00:00Z"


def container(
    uid: str, state: str = "running", status: str = "Up 2 minutes", age: float = 100.0, **inside: Any
) -> dict[str, Any]:
    """A container; ``inside`` is its State as an inspection shows it (StartedAt 1.5 s after Created by default)."""
    born = T0 - age
    up = {
        "Status": state, "Running": state == "running", "StartedAt": nano(born + 1.5), "FinishedAt": ZERO,
        "ExitCode": 0, "OOMKilled": False, "Error": "",
    }  # fmt: skip
    return {
        "Id": uid, "Names": [f"/box-{uid}"], "Image": "python:3.11", "ImageID": "sha256:1", "Command": "sleep inf",
        "Created": int(born), "Labels": inside.pop("labels", {"run": "run-a"}), "State": state, "Status": status,
        "RestartCount": inside.pop("RestartCount", 0), "Inspect": up | inside,
    }  # fmt: skip


class FakeDocker(Fake):
    """Newest first; ``before`` must exist. No key: the engine has none."""

    header = "Host"

    def __init__(self, containers: list[dict[str, Any]]) -> None:
        super().__init__()
        self.containers = containers

    def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        return self.fault(request) or self.answer(request)

    def answer(self, request: Request) -> Reply:
        if request.path == "/containers/json":
            return self._list(request)
        uid = request.path.removeprefix("/containers/").removesuffix("/json")
        for one in self.containers:
            if one["Id"] == uid:
                answer = {"Id": uid, "RestartCount": one["RestartCount"], "State": one["Inspect"]}
                return Reply(answer)
        return Reply({"message": f"No such container: {uid}"}, 404)

    def _list(self, request: Request) -> Reply:
        assert request.one("all") == "true"
        filters = json.loads(request.one("filters", "{}"))
        rows = sorted(self.containers, key=lambda one: -one["Created"])
        for wanted in filters.get("label", []):
            name, _, value = wanted.partition("=")
            rows = [one for one in rows if one["Labels"].get(name) == value]
        for before in filters.get("before", []):
            ids = [one["Id"] for one in rows]
            if before not in ids:
                return Reply({"message": f"No such container: {before}"}, 404)
            rows = rows[ids.index(before) + 1 :]
        inner = ("Inspect", "RestartCount")
        limit = int(request.one("limit", "1000000"))
        return Reply([{key: value for key, value in one.items() if key not in inner} for one in rows[:limit]])

    @contextmanager
    def serve_unix(self, path: Path) -> Iterator["FakeDocker"]:
        class Server(ThreadingHTTPServer, UnixStreamServer):
            address_family = UnixStreamServer.address_family

            def server_bind(self) -> None:
                UnixStreamServer.server_bind(self)

        handler = _handler(self)
        handler.disable_nagle_algorithm = False  # no such option on a unix socket
        server = Server(str(path), handler)  # type: ignore[arg-type]
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.url = "http://docker.sock"
        try:
            yield self
        finally:
            self.ended.set()
            server.shutdown()
            thread.join()
            server.server_close()


def rock_row(uid: str, state: str = "running", age: float = 100.0, **more: Any) -> dict[str, Any]:
    """As `SandboxListStatusResponse`; up 30 s after its creation, its image pulled within 20."""
    born = T0 - age
    done = state == "running"
    phases = {
        "image_pull": {
            "status": "success" if done else "waiting", "message": "image pull success" if done else "waiting",
        },
        "docker_run": {"status": "success" if done else "waiting", "message": "docker run success"},
    }  # fmt: skip
    if done:
        phases["docker_run"] |= {"started_at": rock_stamp(born + 20), "completed_at": rock_stamp(born + 30)}
    return {
        "sandbox_id": uid, "status": phases, "state": state, "port_mapping": {"22555": 31000}, "host_name": "h",
        "host_ip": "10.0.0.1", "is_alive": True, "image": "python:3.11", "metadata": None, "user_id": "default",
        "experiment_id": "exp-1", "namespace": "default", "cpus": 2.0, "memory": "8g", "num_gpus": None,
        "start_time": rock_stamp(born + 30) if done else None, "stop_time": None, "create_time": rock_stamp(born),
        "archive_time": None, "delete_time": None, "auto_stop_time": None, "state_history": [],
        "rock_authorization_encrypted": "c2VrcmV0LWVuY3J5cHRlZA==", **more,
    }  # fmt: skip


def rock_stamp(moment: float) -> str:
    """ROCK writes its own zone."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415  only here

    return datetime.fromtimestamp(moment, ZoneInfo("Asia/Shanghai")).isoformat(timespec="seconds")


class FakeRock(Fake):
    """Pages by number, cut anew for each request; refusals are 200s. Only the list may be asked."""

    header = "X-API-Key"
    expected = "sekret-key-0123456789"
    page_max = 2000

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows

    def answer(self, request: Request) -> Reply:
        assert request.path == "/apis/envs/sandbox/v1/sandboxes", "asking for one sandbox renews its expiry"
        page, size = int(request.one("page", "1")), int(request.one("page_size", "500"))
        if size > self.page_max:
            return self.refusal(f"page_size exceeds maximum {self.page_max}")
        wanted = {key: value[0] for key, value in request.query.items() if key not in ("page", "page_size")}
        rows = [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]
        last = page * size
        result = {"items": rows[last - size : last], "total": len(rows), "has_more": last < len(rows), "code": None}
        return Reply({"status": "Success", "message": None, "error": None, "result": result})

    @staticmethod
    def refusal(error: str) -> Reply:
        return Reply({"status": "Failed", "message": "list sandboxes failed", "error": error, "result": None})


class FakeServer(Fake):
    """SWE-ReX and OpenEnv: a few paths with fixed answers; the rest is 404."""

    def __init__(self, header: str = "X-API-Key", expected: str = "sekret-key-0123456789", **answers: Any) -> None:
        super().__init__()
        self.header, self.expected = header, expected
        self.answers = {f"/{name}": answer for name, answer in answers.items()}

    def answer(self, request: Request) -> Reply:
        found = self.answers.get(request.path)
        return (
            found
            if isinstance(found, Reply)
            else Reply({"detail": "Not Found"}, 404)
            if found is None
            else Reply(found)
        )
