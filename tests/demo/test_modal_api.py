"""The demo's Modal account over a socket: Modal's own SDK reads it, our collector finds what is true.

Both run in the environment that has the extra (`tests/support_sdks.py`), the demo too: its messages come with it.
"""

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.cli import demo as command
from tests.demo.conftest import START
from tests.demo.read_judges import MOMENTS
from tests.support_sdks import python_with

ROOT = Path(__file__).parents[2]
RUN, OLD_RUN = "swe-32b-sandbox-wall", "swe-32b-ablation-07"
LIVE = ("queued", "starting", "running")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[command.Cluster]:
    """27 minutes in: 96 rollouts at once, and a few hundred were judged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python_with("modal"))
        patch.setenv("PYTHONPATH", str(ROOT))
        made = command.Cluster("gb300-sandbox-wall", 1, tmp_path_factory.mktemp("modal"), START)
        made.__enter__()
    made.advance(START + 420.0)
    yield made
    made.__exit__()


def run(arguments: list[str], folder: Path, **more: str) -> Any:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), **more}
    program = [python_with("modal"), *arguments]
    done = subprocess.run(program, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout.splitlines()[-1])


def truth(cluster: command.Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(cluster.ready["truth_sandboxes"]).read_text().splitlines()[-1])["modal"]
    return found


# The public part: what lives, what a tag selects, and by which class a call is refused.
SDK = """
import json
import modal

def refused(call):
    try:
        call()
    except modal.exception.Error as error:
        return type(error).__name__

app = modal.App.lookup("swe-judges")
stranger = modal.Client.from_credentials("ak-wrong", "as-wrong")
print(json.dumps({
    "live": [one.object_id for one in modal.Sandbox.list(app_id=app.app_id)],
    "left": len(list(modal.Sandbox.list(app_id=app.app_id, tags={"run": "swe-32b-ablation-07"}))),
    "elsewhere": len(list(modal.Sandbox.list(app_id="ap-another"))),
    "refused": [
        refused(lambda: modal.App.lookup("another-app")),
        refused(lambda: modal.App.lookup("swe-judges", create_if_missing=True)),
        refused(lambda: modal.App.lookup("swe-judges", client=stranger)),
    ],
}))
"""
# The messages behind it, which the public objects do not show: everything, in pages, with results.
STUB = """
import asyncio, json, os
from modal.client import _Client
from modal.exception import AuthError
from modal_proto import api_pb2 as api

async def main():
    keys = (os.environ["MODAL_TOKEN_ID"], os.environ["MODAL_TOKEN_SECRET"])
    client = _Client(os.environ["MODAL_SERVER_URL"], api.CLIENT_TYPE_CLIENT, keys)
    await client._open()
    token = (await client._stub.AuthTokenGet(api.AuthTokenGetRequest())).token
    found, sizes, before, refused = [], [], 0.0, 0
    while not sizes or sizes[-1]:
        asked = api.SandboxListRequest(include_finished=True, before_timestamp=before)
        page = (await client._stub.SandboxListV2(asked, metadata=[("x-modal-auth-token", token)])).sandboxes
        found += [[one.id, one.created_at, one.task_info.result.status] for one in page]
        sizes.append(len(page))
        before = found[-1][1]
    for wrong in ("x", "e30.e30.0", token[:-1], token.replace(".", "")):
        try:
            await client._stub.SandboxListV2(api.SandboxListRequest(), metadata=[("x-modal-auth-token", wrong)])
        except AuthError:
            refused += 1
    await client.close()
    print(json.dumps({"found": found, "sizes": sizes, "refused": refused}))

asyncio.run(main())
"""


def keys(cluster: command.Cluster) -> dict[str, str]:
    api = cluster.ready["modal_api"]
    return {
        "MODAL_SERVER_URL": api["url"],
        "MODAL_TOKEN_ID": api["token_id"],
        "MODAL_TOKEN_SECRET": api["token_secret"],
    }


def test_the_real_sdk_reads_it(cluster: command.Cluster, tmp_path: Path) -> None:
    told = run(["-W", "error", "-c", SDK], tmp_path, **keys(cluster))
    assert len(set(told["live"])) == len(told["live"]) == sum(truth(cluster)["states"].values()) == 16
    assert (told["left"], told["elsewhere"]) == (2, 0)
    assert told["refused"] == ["NotFoundError", "PermissionDeniedError", "AuthError"]


def test_pages_hold_each_sandbox_once_newest_first_with_its_result(cluster: command.Cluster, tmp_path: Path) -> None:
    told, true = run(["-c", STUB], tmp_path, **keys(cluster)), truth(cluster)
    ids, times, results = zip(*told["found"], strict=True)
    assert len(set(ids)) == len(ids) == true["created"] + true["dangling"] == 316
    assert list(times) == sorted(times, reverse=True)
    assert told["sizes"] == [100, 100, 100, 16, 0]
    counts = Counter(results)
    assert counts[0] == sum(true["states"].values())
    assert true["failures"] == {"INIT_FAILURE": counts[5], "KERNEL_OOM_KILL": counts[10]} == {
        "INIT_FAILURE": 7, "KERNEL_OOM_KILL": 1,
    }  # fmt: skip
    assert told["refused"] == 4, "a listing needs the very token that was given"


def test_the_command_names_the_account_as_a_target(cluster: command.Cluster) -> None:
    api = cluster.ready["modal_api"]
    target = cluster.settings().targets[-1]
    assert (target.name, target.source, target.collector) == ("judges", api["url"], "modal")
    assert (target.bearer, target.options) == (f"{api['token_id']}:{api['token_secret']}", (("app", "swe-judges"),))
    assert api["token_secret"] not in repr(target)
    assert "missing" not in cluster.ready


@pytest.mark.long
def test_the_collector_finds_what_the_truth_says(tmp_path: Path) -> None:
    """Over the socket, twenty minutes in and ten later: states, names, the oldest, leftovers, ends and causes."""
    first, second = run(["-m", "tests.demo.read_judges", str(tmp_path / "demo")], tmp_path)
    for now, found in zip(MOMENTS, (first, second), strict=True):
        true, rows = found["truth"], found["rows"]
        assert (found["t"], found["listed"], found["unmapped"]) == (now, ["modal"], {})
        live = [row for row in rows if row["state"] in LIVE]
        counts = Counter(row["state"] for row in live)
        assert {state: counts[state] for state in LIVE} == true["states"]
        pending = [row["requested"] for row in live if row["state"] != "running"]
        oldest = now - min(pending) if pending else 0.0
        assert oldest == pytest.approx(true["oldest_pending_seconds"], abs=1e-3)
        assert Counter(row["run"] for row in live)[OLD_RUN] == true["dangling"] == 2
        assert {row["run"] for row in rows} == {RUN, OLD_RUN}
        assert all(len(row["name"]) == 32 for row in rows), "the trace's id"
    # What lived at first and does no more has ended meanwhile, and was read as such: nothing is lost.
    after = {row["id"]: row for row in second["rows"]}
    ended = {row["id"] for row in first["rows"] if row["state"] in LIVE} - {
        row["id"] for row in second["rows"] if row["state"] in LIVE
    }
    assert len(ended) > 20 and all(after[id]["state"] in ("terminated", "failed") for id in ended)
    # Every failure between the two, by its cause; a time-out of its own is an end like others.
    failed = [row for row in second["rows"] if row["state"] == "failed" and row["ended"] > MOMENTS[0]]
    happened = Counter(second["truth"]["failures"])
    happened.subtract(first["truth"]["failures"])
    causes = Counter(row["cause"] for row in failed)
    assert causes == {"internal": happened["INIT_FAILURE"], "oom": happened["KERNEL_OOM_KILL"]}
    assert min(causes.values()) > 0


# -- without the extra -----------------------------------------------------------------------------------------


def test_without_the_extra_the_demo_runs_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The interpreter is one that lacks the SDK; what really happens is the same."""
    monkeypatch.setattr(sys, "executable", python_with("e2b"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with caplog.at_level(logging.INFO), command.Cluster("gb300-sandbox-wall", 1, tmp_path, START) as cluster:
        cluster.advance(START + 420.0)
        assert "modal_api" not in cluster.ready
        assert cluster.settings().targets[-1].collector == "prime_sandboxes"
        assert truth(cluster)["created"] == 314
    [line] = [record.getMessage() for record in caplog.records if "Modal" in record.getMessage()]
    assert line == "the run's sandboxes on Modal are not served: they need the extra modal (uv tool install '.[modal]')"


CLOSING = """
import json, sys, threading
from pathlib import Path
from demo.process import Demo
demo = Demo("gb300-sandbox-wall", 1, Path(sys.argv[1]), 1_795_000_000.0)
before = [thread.name for thread in threading.enumerate()]
demo.close()
print(json.dumps([before.count("modal-api"), [one.name for one in threading.enumerate()].count("modal-api")]))
"""


def test_closing_leaves_no_thread(tmp_path: Path) -> None:
    assert run(["-W", "error", "-c", CLOSING, str(tmp_path / "demo")], tmp_path) == [1, 0]
