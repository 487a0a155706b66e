"""The fakes are proven by the providers' own SDKs, which then see what our collectors see.

The SDKs are no dependency of ours and some exclude each other, so they live in virtual environments of their own
(`tests/support_sdks.py`); `requirements/sdks.in` and `sdks-apart.in` say which versions.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.sandboxes.fake_apis import (
    T0,
    FakeDaytona,
    FakeE2B,
    FakePrime,
    FakeRunloop,
    daytona_row,
    e2b_row,
    prime_row,
    runloop_row,
)
from tests.sandboxes.fake_http import KEY, Fake, Poller, values
from tests.support_sdks import python_with


def run(module: str, script: str, home: Path, env: Mapping[str, str]) -> Any:
    told = subprocess.run(
        [python_with(module), "-I", "-c", script], capture_output=True, text=True, timeout=60, cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"], **env},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-3000:]
    return json.loads(told.stdout.splitlines()[-1])


def ours(fake: Fake, collector: str, **options: str) -> tuple[dict[str, tuple[str, float | None]], dict[str, float]]:
    """id -> (the provider's word, when it was asked for or started), and the metrics."""
    reading = Poller(fake, collector, **options).poll()
    rows = {one.id: (one.provider_state, one.requested_at or one.started_at) for one in reading.sandboxes}
    return rows, values(reading)


PRIME = """
import json
from prime_sandboxes import APIClient, SandboxClient
client, rows, page = SandboxClient(APIClient()), {}, 1
while True:
    answer = client.list(page=page, per_page=2, exclude_terminated=True)
    rows.update({one.id: [one.status, one.created_at.timestamp()] for one in answer.sandboxes})
    if not answer.has_next:
        break
    page += 1
one = client.get("d")
rows["d"] = [one.status, one.created_at.timestamp()]
print(json.dumps({"rows": rows, "total": answer.total, "error": one.error_type}))
"""
PRIME_CLI = """
import json
from prime_cli.api.wallet import WalletClient
from prime_cli.core import APIClient
client = APIClient()
who = client.get("/user/whoami")["data"]
print(json.dumps({"balance": WalletClient(client).get(limit=1).balance_usd, "key": who["key_limits"]}))
"""


def test_prime(tmp_path: Path) -> None:
    rows = [prime_row("a"), prime_row("b", "PENDING", boot=None), prime_row("c"),
            prime_row("d", "ERROR", errorType="OOM_KILLED")]  # fmt: skip
    fake = FakePrime(rows)
    fake.key = {"max_concurrent_sandboxes": 10}
    with fake.serve():
        env = {"PRIME_API_BASE_URL": fake.url, "PRIME_API_KEY": KEY}
        told = run("prime_sandboxes", PRIME, tmp_path, env)
        found, metrics = ours(fake, "prime_sandboxes")
        assert found == {key: tuple(row) for key, row in told["rows"].items()}
        assert (told["total"], told["error"]) == (3, "OOM_KILLED")
        wallet = run("prime_cli", PRIME_CLI, tmp_path, env)
        assert metrics["sandbox_credit_usd"] == wallet["balance"] == 12.5
        assert metrics["sandbox_quota_limit{concurrent}"] == wallet["key"]["max_concurrent_sandboxes"] == 10


E2B = """
import json
from e2b import Sandbox
pages, rows = Sandbox.list(limit=2), {}
while pages.has_next:
    rows.update({one.sandbox_id: [one.state.value, one.started_at.timestamp()] for one in pages.next_items()})
print(json.dumps({"rows": rows}))
"""


def test_e2b(tmp_path: Path) -> None:
    fake = FakeE2B([e2b_row("a"), e2b_row("b"), e2b_row("c", "paused")])
    with fake.serve():
        told = run("e2b", E2B, tmp_path, {"E2B_API_URL": fake.url, "E2B_API_KEY": KEY})
        assert ours(fake, "e2b")[0] == {key: tuple(row) for key, row in told["rows"].items()}


DAYTONA = """
import json
from datetime import datetime
from daytona import Daytona, ListSandboxesQuery
from daytona_api_client import ApiClient, Configuration, OrganizationsApi
import os
rows = {}
for one in Daytona().list(ListSandboxesQuery(limit=2)):
    rows[one.id] = [one.state.value, datetime.fromisoformat(one.created_at).timestamp()]
client = ApiClient(Configuration(host=os.environ["DAYTONA_API_URL"]))
client.default_headers["Authorization"] = "Bearer " + os.environ["DAYTONA_API_KEY"]
usage = OrganizationsApi(client).get_organization_usage_overview("org-1").region_usage[0]
print(json.dumps({"rows": rows, "cpu": [usage.current_cpu_usage, usage.total_cpu_quota]}))
"""


def test_daytona(tmp_path: Path) -> None:
    fake = FakeDaytona([daytona_row("a"), daytona_row("b", "creating"), daytona_row("c", "error")])
    none = {f"max{name}": None for name in (
        "CpuPerSandbox", "MemoryPerSandbox", "DiskPerSandbox", "DiskPerNonEphemeralSandbox", "CpuPerGpu",
        "MemoryPerGpu", "DiskPerGpu")}  # fmt: skip
    used = {f"current{name}Usage": 3 for name in ("Cpu", "Memory", "Disk", "Gpu")}
    granted = {f"total{name}Quota": 10 for name in ("Cpu", "Memory", "Disk", "Gpu")}
    fake.usage = [{"regionId": "us", "sandboxClass": "container", **none, **used, **granted}]
    with fake.serve():
        env = {"DAYTONA_API_URL": f"{fake.url}/daytona", "DAYTONA_API_KEY": KEY}
        told = run("daytona", DAYTONA, tmp_path, env)
        found, metrics = ours(fake, "daytona", organization="org-1")
        assert found == {key: tuple(row) for key, row in told["rows"].items()}
        assert [metrics["sandbox_quota_used{cpu}"], metrics["sandbox_quota_limit{cpu}"]] == told["cpu"] == [3, 10]


RUNLOOP = """
import json
from runloop_api_client import Runloop
client, rows = Runloop(), {}
for one in client.devboxes.list(limit=2):
    running = [step.transition_time_ms for step in one.state_transitions if step.status == "running"]
    rows[one.id] = [one.status, one.create_time_ms / 1000, running[0] / 1000]
print(json.dumps({"rows": rows, "account": client.accounts.me().account_status}))
"""


def test_runloop(tmp_path: Path) -> None:
    fake = FakeRunloop([runloop_row("a"), runloop_row("b", "provisioning"), runloop_row("c", "failure")])
    with fake.serve():
        told = run("runloop_api_client", RUNLOOP, tmp_path, {"RUNLOOP_BASE_URL": fake.url, "RUNLOOP_API_KEY": KEY})
        found, metrics = ours(fake, "runloop")
        assert found == {key: (word, asked) for key, (word, asked, _) in told["rows"].items()}
        assert [row[2] for row in told["rows"].values()] == [T0 - 88.5] * 3
        assert (told["account"], metrics["sandbox_account_suspended"]) == ("ACCOUNT_STATUS_ENABLED", 0.0)
