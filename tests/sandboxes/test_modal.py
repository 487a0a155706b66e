"""The Modal collector: rows from messages, the message without the SDK, and the contract with the real SDK.

The contract tests run in the environment that has the runtime's packages and the extra (`tests/support_sdks.py`).
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from collectors.model import Limits, Sandbox, ScrapeError
from collectors.sandbox_providers.provider import Tally
from collectors.sandboxes import modal
from collectors.sandboxes.modal import row
from tests.sandboxes.fake_modal import KEY, T0
from tests.support_sdks import python_with

ROOT = Path(__file__).parents[2]


def message(**fields: Any) -> Any:
    """Fields of a SandboxInfo as protobuf shows them: what is not set is 0 or empty."""
    result = {"status": 0, "exception": "", "exitcode": 0, "propagation_reason": ""} | fields.pop("result", {})
    task = {"id": "ta-1", "enqueued_at": T0 - 99, "started_at": T0 - 95, "finished_at": 0.0} | fields.pop("task", {})
    probe = fields.pop("probe", False)
    plain = {
        "id": "sb-1", "created_at": T0 - 100, "app_id": "ap-1", "name": "trace-1", "image_id": "im-1",
        "timeout_secs": 600, "ready_at": 0.0, "tags": [SimpleNamespace(tag_name="run", tag_value="run-a")],
        "task_info": SimpleNamespace(**task, result=SimpleNamespace(**result)),
        "HasField": lambda name: probe and name == "readiness_probe",
    }  # fmt: skip
    return SimpleNamespace(**plain | fields)


def read(tally: Tally | None = None, **fields: Any) -> Sandbox:
    found = row(message(**fields), "run", tally or Tally())
    assert found is not None
    return found


def test_a_running_one() -> None:
    assert read() == Sandbox(
        provider="modal", id="sb-1", state="running", name="trace-1", run_key="run-a", provider_state="running",
        requested_at=T0 - 100, started_at=T0 - 95, ready_at=T0 - 95, image="im-1", latency_source="server",
        expires_at=T0 + 505,
    )  # fmt: skip


def test_with_a_probe_it_is_ready_when_the_probe_says_so() -> None:
    waiting, ready = read(probe=True), read(probe=True, ready_at=T0 - 60)
    assert (waiting.state, waiting.ready_at, waiting.latency_source) == ("starting", None, None)
    assert (ready.state, ready.ready_at) == ("running", T0 - 60)


def test_before_the_start() -> None:
    assert read(task={"started_at": 0.0}).state == "starting"
    new = read(task={"id": "", "enqueued_at": 0.0, "started_at": 0.0})
    assert (new.state, new.requested_at, new.started_at, new.ready_at) == ("queued", T0 - 100, None, None)


@pytest.mark.parametrize(
    ("result", "started", "expected"),
    [
        ({"status": 1}, True, ("terminated", None, "")),
        ({"status": 2, "exitcode": 1}, True, ("failed", "unknown", "exit code 1")),
        ({"status": 2, "exitcode": 137}, True, ("terminated", None, "exit code 137")),
        ({"status": 2, "exception": "image build failed"}, False, ("failed", "image", "image build failed")),
        ({"status": 3}, True, ("terminated", None, "")),
        ({"status": 4}, True, ("terminated", None, "")),
        ({"status": 4}, False, ("failed", "timeout", "")),
        # The trap: the public return code of this one is 0.
        ({"status": 5, "exitcode": 0}, False, ("failed", "internal", "")),
        ({"status": 5, "exception": "Insufficient capacity"}, False, ("failed", "capacity", "Insufficient capacity")),
        ({"status": 6}, True, ("failed", "internal", "")),
        ({"status": 7}, True, ("terminated", None, "")),
        ({"status": 8}, True, ("failed", "capacity", "")),
        ({"status": 9}, True, ("failed", "oom", "")),
        ({"status": 10}, True, ("failed", "oom", "")),
        ({"status": 77}, True, ("unknown", None, "")),
    ],
)
def test_results(result: dict[str, Any], started: bool, expected: tuple[str, str | None, str]) -> None:
    tally = Tally()
    task = {"finished_at": T0 - 5} | ({} if started else {"started_at": 0.0})
    found = read(tally, result=result, task=task)
    assert (found.state, found.cause, found.detail) == expected
    assert found.ended_at == T0 - 5
    assert dict(tally.unmapped) == ({"status=77": 1} if result["status"] == 77 else {})


def test_hostile_values() -> None:
    huge = "x" * 100_000
    odd = read(
        created_at=float("nan"), timeout_secs=-1, name=huge, tags=[SimpleNamespace(tag_name="run", tag_value=huge)],
        task={"started_at": -3.0, "enqueued_at": float("inf"), "id": ""},
    )  # fmt: skip
    assert (odd.state, odd.requested_at, odd.started_at, odd.expires_at) == ("queued", None, None, None)
    assert (len(odd.name), len(odd.run_key)) == (253, 200)
    backwards = read(task={"started_at": T0 - 900})
    assert (backwards.ready_at, backwards.latency_source) == (None, None)
    secret = read(result={"status": 5, "exception": f"s3://u:{KEY}@bucket token={KEY}"}, task={"started_at": 0.0})
    assert "fedcba" not in secret.detail and "0123456789" not in secret.detail
    tally = Tally()
    assert row(message(id=""), "run", tally) is None and tally.dropped == 1


def test_without_the_sdk_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modal.exception", None)  # also where somebody has installed the extra

    async def run() -> None:
        async with httpx.AsyncClient(base_url=modal.DEFAULT_URL) as client:
            await modal.poll(client, {}, Limits())

    with pytest.raises(ScrapeError) as caught:
        asyncio.run(run())
    assert caught.value.kind == "missing"
    assert "uv tool install '.[modal]'" in str(caught.value)


@cache
def scenario(name: str) -> Any:
    """What a scenario of fake_modal.py prints, run by the interpreter that has the SDK."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        "PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT), "HOME": "/nonexistent",
        "MODAL_SERVER_URL": f"http://127.0.0.1:{port}", "MODAL_TOKEN_ID": "ak-1", "MODAL_TOKEN_SECRET": "as-1",
    }  # fmt: skip
    command = [python_with("modal"), "-m", "tests.sandboxes.fake_modal", name, str(port)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "fedcba9876543210" not in done.stdout
    told = json.loads(done.stdout)
    assert told["left_open"] == (1 if name == "sdk" else 0)  # the SDK's own singleton is not ours to close
    return told


def test_the_real_sdk_reads_the_fake() -> None:
    assert scenario("sdk")["found"] == ["sb-booting", "sb-probed", "sb-run", "sb-pending"]


def test_rows_over_the_real_sdk() -> None:
    told = scenario("rows")
    first, second = told["found"]
    assert first == second and first["listed"] == ["modal"]
    states = {uid: (one["state"], one.get("cause")) for uid, one in first["rows"].items()}
    assert states == {
        "sb-run": ("running", None), "sb-probed": ("running", None), "sb-booting": ("starting", None),
        "sb-pending": ("starting", None), "sb-dead-at-init": ("failed", "internal"), "sb-oom": ("failed", "oom"),
        "sb-done": ("terminated", None),
    }  # fmt: skip
    assert first["rows"]["sb-probed"] == {
        "provider": "modal", "id": "sb-probed", "state": "running", "name": "trace-probed", "run_key": "run-a",
        "provider_state": "running", "requested_at": T0 - 90, "started_at": T0 - 85, "ready_at": T0 - 60,
        "image": "im-1", "latency_source": "server", "expires_at": T0 - 85 + 3600,
    }  # fmt: skip
    assert first["rows"]["sb-dead-at-init"]["detail"] == "mount failed: s3"
    assert told["token"] and told["calls"]["AuthTokenGet"] == told["calls"]["AppGetOrCreate"] == 1


def test_the_sdks_own_credentials_and_environment() -> None:
    assert len(scenario("environment")["found"][0]["rows"]) == 7


def test_ten_thousand_with_equal_times_across_page_edges() -> None:
    *_, last = scenario("thousands")["found"]
    assert len(last["rows"]) == 10_000 and last["listed"] == ["modal"]


@pytest.mark.parametrize(
    ("name", "kind", "wait"),
    [
        ("rate", "throttled", 7.5), ("quota", "quota", None), ("credit", "credit", None), ("auth", "auth", None),
        ("denied", "auth", None), ("unavailable", "unreachable", None), ("internal", "status", None),
        ("middle", "status", None), ("hang", "timeout", None), ("no app", "status", None), ("no token", "auth", None),
    ],
)  # fmt: skip
def test_refusals(name: str, kind: str, wait: float | None) -> None:
    (found,) = scenario(name)["found"]
    assert (found["kind"], found["retry_after"]) == (kind, wait)
    assert scenario(name)["calls"].get("SandboxListV2", 0) <= 2  # not retried behind our back
