"""The sandbox API over a socket: Prime's paths, filters, fields and refusals; and the real SDK against it."""

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import collectors
from collectors.model import Target
from demo.process import Demo
from server.cli import demo as command
from server.push.inbox import Outcome
from server.scrape.target_reader import TargetReader
from server.targets.resolve import attach
from tests.demo.conftest import START
from tests.support_sdks import python_with

PATIENCE_SECONDS = 30
# The ramp is over after 2,100 s, and the oldest has waited for an hour by now.
NOW = START + 2_790.0
RUN, OLD_RUN = "swe-32b-sandbox-wall", "swe-32b-ablation-07"
# models.py of prime-sandboxes 0.5.1, by alias; those a list does not have to carry left out.
FIELDS = {
    "id", "name", "dockerImage", "startCommand", "cpuCores", "memoryGB", "diskSizeGB", "diskMountPath", "gpuCount",
    "gpuType", "vm", "status", "timeoutMinutes", "idleTimeoutMinutes", "terminationReason", "environmentVars",
    "labels", "createdAt", "updatedAt", "startedAt", "terminatedAt", "exitCode", "errorType", "errorMessage",
    "userId", "teamId", "region", "pendingImageBuildId",
}  # fmt: skip
Get = Callable[..., Any]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """27 minutes in: 96 at once, some images are being built."""
    made = Demo("gb300-sandbox-wall", 1, tmp_path_factory.mktemp("api") / "demo", START)
    yield made
    made.close()


@pytest.fixture
def get(demo: Demo) -> Get:
    api: Any = demo.ready["sandbox_api"]

    def ask(path: str, key: str = api["key"]) -> Any:
        request = Request(f"{api['url']}/api/v1{path}", headers={"Authorization": f"Bearer {key}"} if key else {})
        with urlopen(request, timeout=PATIENCE_SECONDS) as response:
            assert response.headers["content-type"] == "application/json"
            return json.loads(response.read())

    demo.advance(demo.start + demo.cluster.now + 30.0)  # the bucket is full again
    return ask


def refused(get: Get, path: str, **options: str) -> HTTPError:
    with pytest.raises(HTTPError) as caught:
        get(path, **options)
    caught.value.close()
    return caught.value


def epoch(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def test_every_documented_field_is_there(get: Get) -> None:
    body = get("/sandbox")
    assert set(body) == {"sandboxes", "total", "page", "perPage", "hasNext"}
    assert (body["page"], body["perPage"], body["hasNext"], len(body["sandboxes"])) == (1, 50, True, 50)
    assert all(set(row) == FIELDS for row in body["sandboxes"])
    assert {row["labels"][0] for row in body["sandboxes"]} == {RUN}


def test_rows_are_the_providers_own(demo: Demo, get: Get) -> None:
    harness = demo.cluster.orchestrator.harness
    assert harness is not None
    rows = get("/sandbox?is_active=true&per_page=1000")["sandboxes"]
    live = harness.provider.live
    assert [row["id"] for row in rows] == list(live)[::-1], "newest first"
    for row in rows:
        sandbox = live[row["id"]]
        assert (row["status"], row["name"], row["labels"]) == (sandbox.status, sandbox.name, [sandbox.label])
        assert epoch(row["createdAt"]) == pytest.approx(demo.start + sandbox.created, abs=1e-5)
        started = None if sandbox.started is None else pytest.approx(demo.start + sandbox.started, abs=1e-5)
        assert epoch(row["startedAt"]) == started
        assert row["terminatedAt"] is None
        assert row["pendingImageBuildId"] == sandbox.build_id
    assert {row["status"] for row in rows} == {"PENDING", "PROVISIONING", "RUNNING"}


def test_pages_hold_each_sandbox_once(get: Get) -> None:
    total = get("/sandbox?is_active=true&per_page=1")["total"]
    seen, page, more = [], 1, True
    while more:
        body = get(f"/sandbox?is_active=true&per_page=20&page={page}")
        seen += [row["id"] for row in body["sandboxes"]]
        page, more = page + 1, body["hasNext"]
    assert len(seen) == len(set(seen)) == total
    assert page - 1 == -(-total // 20)
    assert get(f"/sandbox?is_active=true&per_page=20&page={page}")["sandboxes"] == []
    assert get(f"/sandbox?is_active=true&per_page={total}")["hasNext"] is False, "a page that is just full is the last"


def test_filters(get: Get) -> None:
    old = get(f"/sandbox?labels={OLD_RUN}&is_active=true")
    assert old["total"] == 14
    assert {(row["status"], row["timeoutMinutes"]) for row in old["sandboxes"]} == {("RUNNING", 1440)}
    assert get(f"/sandbox?labels={OLD_RUN}&labels={RUN}")["total"] == 0, "all labels must be there"
    every = get("/sandbox?per_page=1")["total"]
    states = ("PENDING", "PROVISIONING", "RUNNING", "PAUSED", "ERROR", "TERMINATED", "TIMEOUT")
    totals = {state: get(f"/sandbox?per_page=1&status={state}")["total"] for state in states}
    assert sum(totals.values()) == every
    assert min(totals[state] for state in ("PROVISIONING", "RUNNING", "ERROR", "TERMINATED")) > 0
    active = get("/sandbox?per_page=1&is_active=true")["total"]
    assert active == totals["PENDING"] + totals["PROVISIONING"] + totals["RUNNING"]
    # 96 in flight and 14 left over; of the 96 a few may be between a failed one and the next.
    assert 90 + 14 <= active <= 96 + 14
    failed = get("/sandbox?status=ERROR&per_page=1000")["sandboxes"]
    assert {row["errorType"] for row in failed} <= {"IMAGE_PULL_FAILED", "TIMEOUT", "OOM_KILLED"}
    assert all(row["errorMessage"] and row["terminatedAt"] for row in failed)


def test_one_sandbox(get: Get) -> None:
    row = get("/sandbox?per_page=1")["sandboxes"][0]
    assert get(f"/sandbox/{row['id']}") == row
    assert refused(get, "/sandbox/sbnone").code == 404


def test_limits_and_wallet(demo: Demo, get: Get) -> None:
    data = get("/user/whoami")["data"]
    assert data["account_limits"]["vm_sandbox_limit"] == 1_000
    assert data["account_limits"]["sandbox_total_cpu_limit"] == 4_096
    assert data["key_limits"]["max_concurrent_sandboxes"] == 2_000
    assert data["key_limits"]["max_sandbox_creations_per_hour"] is None
    wallet = get("/billing/wallet?limit=3")
    assert wallet["currency"] == "USD"
    assert len(wallet["recent_billings"]) == 3
    assert [row["resource_type"] for row in wallet["recent_billings"]] == ["SANDBOX"] * 3
    running = get("/sandbox?status=RUNNING&per_page=1")["total"]
    demo.advance(demo.start + demo.cluster.now + 10.0)
    later = get("/billing/wallet?limit=1")
    # Ten seconds and some at 0.12 USD an hour each; how many run changes little meanwhile.
    assert wallet["balance_usd"] - later["balance_usd"] == pytest.approx(running * 10 * 0.12 / 3_600, rel=0.2)
    assert later["total_billings"] > wallet["total_billings"]


@pytest.mark.parametrize("key", ["", "pit_wrong"])
def test_without_the_key_nothing_is_told(get: Get, key: str) -> None:
    for path in ("/sandbox", "/user/whoami", "/billing/wallet", "/sandbox/x"):
        assert refused(get, path, key=key).code == 401


@pytest.mark.parametrize(
    "query", ["page=0", "page=x", "per_page=0", "per_page=1001", "per_page=-1", "is_active=maybe", "status=HAPPY"]
)
def test_nonsense_is_refused(get: Get, query: str) -> None:
    assert refused(get, f"/sandbox?{query}").code == 422


def test_other_paths_are_not_found(get: Get) -> None:
    assert refused(get, "/pods").code == 404
    assert refused(get, "/sandbox/").code == 404


def test_who_asks_too_often_is_told_to_wait(demo: Demo, get: Get) -> None:
    """240 at once, then 20 a second of event time."""
    for _ in range(240):
        get("/user/whoami")
    error = refused(get, "/user/whoami")
    assert (error.code, error.headers["retry-after"]) == (429, "1")
    demo.advance(demo.start + demo.cluster.now + 0.5)
    for _ in range(10):
        get("/user/whoami")
    assert refused(get, "/user/whoami").code == 429


def test_looking_changes_nothing(demo: Demo, get: Get, tmp_path: Path) -> None:
    other = Demo("gb300-sandbox-wall", 1, tmp_path / "other", START)
    for _ in range(5):
        get("/sandbox?per_page=100")
    other.advance(demo.advance(START + 1_000.0))
    for demos_file in ("truth.jsonl", "truth_sandboxes.jsonl", "run/metrics.jsonl"):
        mine = Path(str(demo.ready["truth"])).parent / demos_file
        assert (tmp_path / "other" / demos_file).read_bytes() == mine.read_bytes()
    other.close()


# -- who reads it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scenario", "has_api"), [("healthy", False), ("gb300-sandbox-wall", True)])
def test_the_command_names_the_account_as_a_target(tmp_path: Path, scenario: str, has_api: bool) -> None:
    with command.Cluster(scenario, 1, tmp_path, START) as cluster:
        # Modal's account is there as well where somebody has installed the extra.
        targets = [target for target in cluster.settings().targets if target.collector != "modal"]
        engines = [f"engine-{number}" for number in range(2 if has_api else 4)]
        rest = ["trainer", "rollouts", *(["sandboxes"] if has_api else [])]
        assert [target.name for target in targets] == [*engines, *rest]
        if has_api:
            api = cluster.ready["sandbox_api"]
            assert (targets[-1].source, targets[-1].collector) == (api["url"], "prime_sandboxes")
            assert targets[-1].bearer == api["key"]
            assert api["key"] not in repr(targets)


def test_without_the_collector_the_demo_runs_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: found for name, found in collectors.load().items() if name != "prime_sandboxes"}
    monkeypatch.setattr(collectors, "load", lambda: known)
    with command.Cluster("gb300-sandbox-wall", 1, tmp_path, START) as cluster:
        assert "sandboxes" not in {target.name for target in cluster.settings().targets}


def test_the_collector_finds_what_the_truth_says(tmp_path: Path) -> None:
    """Over the socket, once all 960 are there: states, oldest pending, failures, dangling, quota and credit."""
    with command.Cluster("gb300-sandbox-wall", 2, tmp_path, START) as cluster:
        cluster.advance(NOW)
        [target] = [target for target in attach(cluster.settings()).targets if target.name == "sandboxes"]
        outcome = asyncio.run(read(target))
        truth = json.loads(Path(cluster.ready["truth_sandboxes"]).read_text().splitlines()[-1])
    assert outcome.reading is not None, outcome.error
    assert (truth["t"], outcome.reading.listed) == (NOW, ("prime",))
    found = outcome.reading.sandboxes
    states = Counter(sandbox.state for sandbox in found)
    assert states["queued"] == truth["states"]["pending"] > 400
    assert states["building_image"] == truth["states"]["building_image"]
    assert states["starting"] == truth["starting"] == 128
    assert states["running"] == truth["states"]["running"]
    pending = [sandbox for sandbox in found if sandbox.state in ("queued", "building_image", "starting")]
    oldest = min(sandbox.requested_at or START for sandbox in pending)
    assert NOW - oldest == pytest.approx(truth["oldest_pending_seconds"], abs=1e-3)
    assert truth["oldest_pending_seconds"] > 3_600
    assert Counter(sandbox.run_key for sandbox in found)[OLD_RUN] == truth["dangling"] == 14
    causes = Counter(sandbox.cause for sandbox in found if sandbox.state == "failed")
    assert {"image", "oom", "quota"} <= causes.keys() <= {"image", "oom", "quota", "timeout"}
    assert causes.total() == 100, "a first poll reads one page of what failed"
    samples = {(s.metric, dict(s.labels).get("resource")): s.value for s in outcome.reading.samples}
    assert samples["sandbox_quota_used", "concurrent"] == sum(truth["states"].values())
    assert samples["sandbox_quota_limit", "concurrent"] == 1_000
    assert samples["sandbox_credit_usd", None] == pytest.approx(truth["credit_usd"], abs=1e-3)


async def read(target: Target) -> Outcome:
    reader = TargetReader(target, collectors.load()[target.collector])
    try:
        return await reader.read(NOW)
    finally:
        await reader.close()


SDK_PROGRAM = """
import json
from prime_sandboxes import APIClient, SandboxClient
from prime_sandboxes.core import UnauthorizedError

client = SandboxClient(APIClient())
page = client.list(per_page=20, exclude_terminated=True)
old = client.list(labels=["swe-32b-ablation-07"], exclude_terminated=True)
one = client.get(page.sandboxes[0].id)
try:
    SandboxClient(APIClient(api_key="pit_wrong")).list()
    refused = False
except UnauthorizedError:
    refused = True
print(json.dumps([page.total, len(page.sandboxes), page.has_next, old.total, one.id == page.sandboxes[0].id, refused]))
"""


def test_the_real_sdk_reads_it(demo: Demo, get: Get, tmp_path: Path) -> None:
    api: Any = demo.ready["sandbox_api"]
    env = {"PRIME_API_BASE_URL": api["url"], "PRIME_API_KEY": api["key"], "HOME": str(tmp_path)}
    program = [python_with("prime_sandboxes"), "-c", SDK_PROGRAM]
    out = subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=True)
    total = get("/sandbox?is_active=true&per_page=1")["total"]
    assert json.loads(out.stdout) == [total, 20, True, 14, True, True]
