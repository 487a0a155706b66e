"""A gRPC fake of Modal's control plane, and a program that reads it: with the real SDK, then with our collector.

Runs in a virtual environment that has `modal`, `httpx` and `prometheus_client` (see test_modal.py): it takes a
scenario by name and prints what came of it as JSON. Only what the SDK sends and parses itself is in here.
"""

import asyncio
import base64
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

T0 = 1_795_291_200.0  # 2026-11-21T20:00:00Z
KEY = "ak-0123456789abcdef:as-fedcba9876543210"


def listed(info: Any, request: Any) -> bool:
    return (
        request.app_id in ("", info.app_id)
        and (request.include_finished or not info.task_info.finished_at)
        and (not request.before_timestamp or info.created_at < request.before_timestamp)
    )


def fake_class() -> Any:
    from grpclib import GRPCError, Status  # noqa: PLC0415  only there where the SDK is
    from modal._utils.grpc_testing import patch_mock_servicer  # noqa: PLC0415
    from modal_proto import api_grpc, api_pb2  # noqa: PLC0415

    class FakeModal(api_grpc.ModalClientBase):  # type: ignore[misc]
        page = 100

        def __init__(self, rows: list[Any]) -> None:
            self.rows = sorted(rows, key=lambda info: -info.created_at)
            self.calls: Counter[str] = Counter()
            self.metadata: dict[str, str] = {}
            self.refuse: tuple[str, str, float | None] | None = None
            self.fail_at = 0
            self.hang = False

        async def ClientHello(self, stream: Any) -> None:
            await stream.recv_message()
            self.calls["ClientHello"] += 1
            await stream.send_message(api_pb2.ClientHelloResponse())

        async def AuthTokenGet(self, stream: Any) -> None:
            await stream.recv_message()
            self.calls["AuthTokenGet"] += 1
            body = base64.urlsafe_b64encode(json.dumps({"exp": int(time.time()) + 3600}).encode()).decode().rstrip("=")
            await stream.send_message(api_pb2.AuthTokenGetResponse(token=f"e30.{body}.x"))

        async def AppGetOrCreate(self, stream: Any) -> None:
            request = await stream.recv_message()
            self.calls["AppGetOrCreate"] += 1
            assert request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_UNSPECIFIED
            if request.app_name != "verifiers-v1":
                raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found")
            await stream.send_message(api_pb2.AppGetOrCreateResponse(app_id="ap-1"))

        async def SandboxListV2(self, stream: Any) -> None:
            request = await stream.recv_message()
            self.calls["SandboxListV2"] += 1
            self.metadata = {key: str(value) for key, value in stream.metadata.items()}
            if self.hang:
                await asyncio.sleep(3600)
            if self.refuse is not None and self.calls["SandboxListV2"] > self.fail_at:
                status, message, wait = self.refuse
                details = [api_pb2.RPCRetryPolicy(retry_after_secs=wait)] if wait is not None else None
                raise GRPCError(Status[status], message, details)
            rows = [info for info in self.rows if listed(info, request)]
            await stream.send_message(api_pb2.SandboxListResponse(sandboxes=rows[: self.page]))

    return patch_mock_servicer(FakeModal)


def info(uid: str, age: float = 100.0, start: float | None = 5.0, **more: Any) -> Any:
    from modal_proto import api_pb2  # noqa: PLC0415

    born = T0 - age
    result = api_pb2.GenericResult(**more.pop("result", {}))
    task = {
        "id": "ta-1",
        "enqueued_at": born + 1,
        "started_at": 0.0 if start is None else born + start,
        "result": result,
    }
    tags = [api_pb2.SandboxTag(tag_name=k, tag_value=v) for k, v in more.pop("tags", {"run": "run-a"}).items()]
    return api_pb2.SandboxInfo(
        id=f"sb-{uid}", created_at=born, task_info=api_pb2.TaskInfo(**task | more.pop("task", {})), app_id="ap-1",
        tags=tags, name=f"trace-{uid}", image_id="im-1", timeout_secs=3600, **more,
    )  # fmt: skip


def sample() -> list[Any]:
    from modal_proto import api_pb2  # noqa: PLC0415

    ended = {"finished_at": T0 - 10}
    return [
        info("run"),
        info("probed", age=90, ready_at=T0 - 60, readiness_probe=api_pb2.Probe()),
        info("booting", age=80, readiness_probe=api_pb2.Probe()),
        info("pending", age=4000, start=None),
        info("dead-at-init", age=70, start=None, task=ended, result={"status": 5, "exception": "mount failed: s3"}),
        info("oom", age=60, task=ended, result={"status": 10}),
        info("done", age=50, task=ended, result={"status": 1}),
    ]


async def sdk(_url: str) -> Any:
    """The real SDK against the fake: proves the fake."""
    import modal  # noqa: PLC0415

    app = await modal.App.lookup.aio("verifiers-v1")
    return [sandbox.object_id async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id)]


async def ours(url: str, *, polls: int = 1, key: str = KEY, timeout: float = 4.0, **options: str) -> Any:
    import httpx  # noqa: PLC0415

    from collectors.model import Limits, ScrapeError  # noqa: PLC0415
    from collectors.sandboxes import modal  # noqa: PLC0415

    state: dict[str, Any] = {"options": options}
    found = []
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"} if key else {}) as client:
        for _ in range(polls):
            try:
                reading = await modal.poll(client, state, Limits(timeout_seconds=timeout))
            except ScrapeError as error:
                found.append({"kind": error.kind, "message": str(error), "retry_after": error.retry_after})
            else:
                rows = {row.id: {k: v for k, v in structs.asdict(row).items() if v} for row in reading.sandboxes}
                found.append({"rows": rows, "listed": reading.listed, "unmapped": dict(reading.unmapped)})
    return found


Setup = Callable[[Any], None]


def plain(_fake: Any) -> None:
    pass


def refusing(status: str, message: str, wait: float | None = None, after: int = 0) -> Setup:
    def setup(fake: Any) -> None:
        fake.refuse, fake.fail_at, fake.page = (status, message, wait), after, 3

    return setup


def hanging(fake: Any) -> None:
    fake.hang = True


def thousands(fake: Any) -> None:
    # Ten at a time are created by one call: their times are equal to the last bit, also across page edges.
    fake.rows = [info(f"s{n}", age=100.0 + (n // 10)) for n in range(10_000)]
    fake.page = 995


SCENARIOS: dict[str, tuple[Setup, Callable[..., Awaitable[Any]], dict[str, Any]]] = {
    "sdk": (plain, sdk, {}),
    "rows": (plain, ours, {"app": "verifiers-v1", "polls": 2}),
    "environment": (plain, ours, {"key": ""}),
    "thousands": (thousands, ours, {"polls": 3, "timeout": 50.0}),
    "no app": (plain, ours, {"app": "other"}),
    "no token": (plain, ours, {"key": "half"}),
    "rate": (refusing("RESOURCE_EXHAUSTED", "Sandbox creation rate limit (5/s) exceeded", 7.5), ours, {}),
    "quota": (refusing("RESOURCE_EXHAUSTED", "Workspace quota exceeded"), ours, {}),
    "credit": (refusing("PERMISSION_DENIED", "out of credits"), ours, {}),
    "auth": (refusing("UNAUTHENTICATED", f"Token {KEY} is invalid"), ours, {}),
    "denied": (refusing("PERMISSION_DENIED", "viewers may not"), ours, {}),
    "unavailable": (refusing("UNAVAILABLE", "try later"), ours, {}),
    "internal": (refusing("INTERNAL", "oops"), ours, {}),
    "middle": (refusing("INTERNAL", "second page", after=1), ours, {}),
    "hang": (hanging, ours, {"timeout": 1.0}),
}


async def main(name: str) -> None:
    from grpclib.encoding.proto import ProtoCodec  # noqa: PLC0415
    from grpclib.server import Server  # noqa: PLC0415
    from modal._utils.grpc_utils import custom_detail_codec  # noqa: PLC0415
    from modal.client import _Client  # noqa: PLC0415
    from modal.config import config  # noqa: PLC0415

    setup, read, options = SCENARIOS[name]
    fake = fake_class()(sample())
    setup(fake)
    server = Server([fake], codec=ProtoCodec(), status_details_codec=custom_detail_codec)
    await server.start("127.0.0.1", int(sys.argv[2]))
    url = f"http://127.0.0.1:{sys.argv[2]}"
    assert url == config["server_url"]
    found = await read("https://api.modal.com" if name == "environment" else url, **options)
    server.close()
    left_open = sum(isinstance(one, _Client) and not one.is_closed() for one in gc.get_objects())
    token = "x-modal-auth-token" in fake.metadata
    print(json.dumps({"found": found, "calls": fake.calls, "token": token, "left_open": left_open}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
