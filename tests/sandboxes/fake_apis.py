"""Fakes of Prime, E2B, Daytona and Runloop as far as listing and limits go, in the JSON their SDKs parse."""

from datetime import UTC, datetime
from typing import Any

from tests.sandboxes.fake_http import KEY, Fake, Reply, Request

T0 = 1_795_291_200.0  # 2026-11-21T20:00:00Z


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


ENDED_OF_PRIME = ("TERMINATED", "ERROR", "TIMEOUT")


def prime_row(
    key: str, status: str = "RUNNING", age: float = 100.0, boot: float | None = 20.0, **more: Any
) -> dict[str, Any]:
    created = T0 - age
    return {
        "id": key, "name": f"trace-{key}", "dockerImage": "python:3.11-slim", "startCommand": None, "cpuCores": 2.0,
        "memoryGB": 4.0, "diskSizeGB": 10.0, "diskMountPath": "/workspace", "gpuCount": 0, "gpuType": None, "vm": False,
        "status": status, "timeoutMinutes": 60, "idleTimeoutMinutes": None, "terminationReason": None,
        "labels": ["run-a", "env-x"], "createdAt": iso(created), "updatedAt": iso(created + 30),
        "startedAt": None if boot is None else iso(created + boot), "terminatedAt": None, "exitCode": None,
        "errorType": None, "errorMessage": None, "userId": "u1", "teamId": None, "region": "us",
        "pendingImageBuildId": None, **more,
    }  # fmt: skip


class FakePrime(Fake):
    """Newest first, as pages."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows
        self.account: dict[str, Any] = {}
        self.key: dict[str, Any] = {}
        self.wallet: dict[str, Any] = {
            "wallet_id": "w", "balance_usd": 12.5, "currency": "USD", "total_billings": 0, "recent_billings": [],
        }  # fmt: skip

    def answer(self, request: Request) -> Reply:
        path = request.path.removeprefix("/api/v1")
        if path == "/sandbox":
            return Reply(self._list(request))
        if path == "/user/whoami":
            data = {"id": "u1", "email": "a@b.c", "account_limits": self.account, "key_limits": self.key}
            return Reply({"data": data})
        if path == "/billing/wallet":
            return Reply(self.wallet)
        found = [row for row in self.rows if path == f"/sandbox/{row['id']}"]
        return Reply(found[0]) if found else Reply({"detail": "Sandbox not found"}, 404)

    def _list(self, request: Request) -> dict[str, Any]:
        rows = self.rows
        if request.one("is_active") == "true":
            rows = [row for row in rows if row["status"] not in ENDED_OF_PRIME]
        if status := request.one("status"):
            rows = [row for row in rows if row["status"] == status]
        page, size = int(request.one("page", "1")), int(request.one("per_page", "50"))
        part = rows[(page - 1) * size : page * size]
        return {
            "sandboxes": part,
            "total": len(rows),
            "page": page,
            "perPage": size,
            "hasNext": page * size < len(rows),
        }


def e2b_row(key: str, state: str = "running", age: float = 100.0, **more: Any) -> dict[str, Any]:
    return {
        "templateID": "tpl-1", "sandboxID": key, "clientID": "c1", "startedAt": iso(T0 - age), "endAt": iso(T0 + 300),
        "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024, "state": state, "envdVersion": "0.2.0", "alias": "base",
        "metadata": {"run": "run-a"}, **more,
    }  # fmt: skip


class FakeE2B(Fake):
    header = "X-API-Key"
    expected = KEY

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows
        self.metrics: list[dict[str, Any]] = []

    def answer(self, request: Request) -> Reply:
        if request.path == "/teams/team-1/metrics":
            return Reply(self.metrics)
        if request.path != "/v2/sandboxes":
            return Reply({"code": 404, "message": "no such route"}, 404)
        states = ",".join(request.query.get("state", ["running,paused"])).split(",")
        rows = [row for row in self.rows if row["state"] in states or row["state"] not in ("running", "paused")]
        start, size = int(request.one("nextToken", "0")), int(request.one("limit", "100"))
        headers = {"X-Total-Running": str(sum(row["state"] == "running" for row in rows))}
        if start + size < len(rows):
            headers["X-Next-Token"] = str(start + size)
        return Reply(rows[start : start + size], headers=headers)


def daytona_row(key: str, state: str = "started", age: float = 100.0, **more: Any) -> dict[str, Any]:
    created = T0 - age
    return {
        "id": key, "organizationId": "org-1", "name": f"name-{key}", "target": "us", "runnerId": "r1", "state": state,
        "desiredState": "started", "snapshot": "daytona-small", "user": "daytona", "public": False,
        "networkBlockAll": False, "cpu": 1, "gpu": 0, "memory": 1, "disk": 3, "env": {},
        "labels": {"run": "run-a", "code-toolbox-language": "python"}, "createdAt": iso(created),
        "updatedAt": iso(created + 30), "toolboxProxyUrl": "http://127.0.0.1:1/toolbox", **more,
    }  # fmt: skip


class FakeDaytona(Fake):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows
        self.hidden: set[str] = set()  # not in the list yet or no more: it is eventually consistent
        self.organization: dict[str, Any] = {"id": "org-1", "suspended": False}
        self.usage: list[dict[str, Any]] = []

    def answer(self, request: Request) -> Reply:
        path = request.path.removeprefix("/daytona")
        if path == "/sandbox":
            return Reply(self._list(request))
        if path == "/organizations/org-1":
            return Reply(self.organization)
        if path == "/organizations/org-1/usage":
            rest = {"totalSnapshotQuota": 1, "currentSnapshotUsage": 0, "totalVolumeQuota": 1, "currentVolumeUsage": 0}
            return Reply({"regionUsage": self.usage, **rest})
        found = [row for row in self.rows if path == f"/sandbox/{row['id']}"]
        return Reply(found[0]) if found else Reply({"message": "not found", "statusCode": 404}, 404)

    def _list(self, request: Request) -> dict[str, Any]:
        states = request.query.get("states", [])
        known = [row for row in self.rows if not states or row["state"] in states or row["state"] == "new-word"]
        rows = [row for row in known if row["id"] not in self.hidden]
        start, size = int(request.one("cursor", "0")), int(request.one("limit", "100"))
        more = start + size < len(rows)
        return {"items": rows[start : start + size], "nextCursor": str(start + size) if more else None}


def runloop_row(key: str, status: str = "running", age: float = 100.0, **more: Any) -> dict[str, Any]:
    created = int((T0 - age) * 1000)
    steps = [("queued", 0), ("provisioning", 2_000), ("initializing", 9_000), ("running", 11_500)]
    return {
        "id": key, "name": f"name-{key}", "status": status, "capabilities": [], "create_time_ms": created,
        "metadata": {"run": "run-a"}, "blueprint_id": "bpt-1", "launch_parameters": {"keep_alive_time_seconds": 3600},
        "state_transitions": [{"status": word, "transition_time_ms": created + after} for word, after in steps], **more,
    }  # fmt: skip


class FakeRunloop(Fake):
    """Newest first; one status at a time."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows
        self.account: dict[str, Any] = {"id": "a1", "account_status": "ACCOUNT_STATUS_ENABLED"}

    def answer(self, request: Request) -> Reply:
        if request.path == "/v1/accounts/me":
            return Reply(self.account)
        if request.path == "/v1/devboxes":
            return Reply(self._list(request))
        found = [row for row in self.rows if request.path == f"/v1/devboxes/{row['id']}"]
        return Reply(found[0]) if found else Reply({"message": "devbox not found"}, 404)

    def _list(self, request: Request) -> dict[str, Any]:
        status, size = request.one("status"), int(request.one("limit", "20"))
        rows = [row for row in self.rows if status in ("", row["status"])]
        ids = [row["id"] for row in rows]
        start = ids.index(request.one("starting_after")) + 1 if request.one("starting_after") else 0
        return {"devboxes": rows[start : start + size], "has_more": start + size < len(rows), "total_count": None}
