"""`rollscope watch` on recorded real systems, as a user runs it; expected numbers were worked out by hand."""

import asyncio
import json
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Limits, Target
from server.clock import ScaledClock
from server.collect import RunLoop
from server.query import StoreReader
from server.store import Store, Writer
from tests.e2e import nasty as module
from tests.e2e.nasty import nasty
from tests.e2e.program import PROGRAM, ROOT, Program, environment, run

DATA = Path(__file__).parent.parent / "testdata"
PAGES = sorted((DATA / "vllm/default").glob("metrics_*.prom"))


@pytest.fixture
def engine() -> Iterator[str]:
    with nasty() as server:
        yield f"{server.url}/good"


@pytest.fixture
def trl(tmp_path: Path) -> Path:
    """A copy: a reader must never have written into it, which the test of that checks."""
    return Path(shutil.copytree(DATA / "trl/sync", tmp_path / "my-run"))


def complete(status: dict[str, Any]) -> bool:
    signals = status["signals"]
    return 'generator_requests{state="running"}' in signals and signals["trainer_step_seconds"]["value"] is not None


def test_a_real_engine_and_a_real_finished_run(tmp_path: Path, engine: str, trl: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trl.rglob("*")}
    with Program(tmp_path, "watch", engine, str(trl)) as program:
        status = program.until("/api/v1/runs/my-run/status", complete)
        metrics = program.get("/metrics").text
        page = program.get("/")
        told = run(tmp_path, "status", "--json", "--url", program.url)
        words = run(tmp_path, "status", "my-run", "--url", program.url)
    assert (status["framework"], status["mode"], status["lifecycle"]) == ("trl", "sync_colocated", "finished")
    value = {name: signal["value"] for name, signal in status["signals"].items()}
    assert value['generator_requests{state="running"}'] == 128
    assert value['generator_requests{state="waiting"}'] == 723
    assert value["kv_cache_usage_ratio"] == pytest.approx(0.01636, abs=5e-6)
    assert value['zero_advantage_ratio{basis="completed"}'] == pytest.approx(0.125)
    assert value['response_tokens{stat="mean"}'] == pytest.approx(39.39, abs=0.005)
    assert value['reward{stat="mean"}'] == pytest.approx(1.148, abs=5e-4)
    assert value["trainer_step_seconds"] == pytest.approx(0.381, abs=5e-4)
    for name in ("trainer_wait_ratio", "queue_samples", "queue_batches"):
        assert status["signals"][name]["state"] == "not_applicable" and status["signals"][name]["why"]
    step = status["signals"]["trainer_step_seconds"]
    assert step["state"] == "ok" and step["age_seconds"] > 0  # as of its last step: neither stalled nor unknown
    assert 'rollscope_generator_requests{run="my-run",state="running"} 128.0' in metrics
    assert page.status_code == 200 and "content-security-policy" in page.headers
    # Labels come with values, and a rate needs a second page: between the two looks some may have come.
    later = {name.partition("{")[0] for name in json.loads(told.stdout)["signals"]}
    assert later == {name.partition("{")[0] for name in status["signals"]}
    assert "my-run: trl, sync_colocated, finished" in words.stdout
    assert {path: path.stat().st_mtime_ns for path in trl.rglob("*")} == before, "the run's files were touched"


def test_sigterm_drains_and_the_next_start_goes_on(tmp_path: Path, engine: str, trl: Path) -> None:
    with Program(tmp_path, "watch", engine, str(trl)) as program:
        program.until("/api/v1/runs/my-run/status", complete)
        code, errors = program.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in errors, errors
    path = tmp_path / ".local/state/rollscope/rollscope.db"
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (steps,) = connection.execute("SELECT count(*) FROM steps").fetchone()
    connection.close()
    assert steps == 90
    offline = run(tmp_path, "status", "--json")
    assert offline.returncode == 0 and json.loads(offline.stdout)["lifecycle"] == "finished"
    with Program(tmp_path, "watch", engine, str(trl)) as program:
        program.until("/readyz", lambda answer: answer["status"] == "ok")
        program.until("/api/v1/runs/my-run/status", complete)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (90,)
        assert connection.execute("SELECT count(*) FROM events WHERE kind = 'restart'").fetchone() == (0,)
    connection.close()


def test_a_second_server_on_one_store_exits_2_naming_the_holder(tmp_path: Path, engine: str, trl: Path) -> None:
    with Program(tmp_path, "watch", engine, str(trl)) as program:
        second = run(tmp_path, "watch", engine, str(trl), "--port", "0", "--no-browser")
        assert second.returncode == 2
        assert str(program.process.pid) in second.stderr and "Traceback" not in second.stderr


def test_a_taken_port_exits_2(tmp_path: Path, engine: str) -> None:
    with Program(tmp_path, "watch", engine) as program:
        port = program.url.rsplit(":", 1)[1]
        second = run(tmp_path, "watch", engine, "--port", port, "--store", f"sqlite:///{tmp_path}/other.db")
        assert second.returncode == 2 and f"127.0.0.1:{port}" in second.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["watch", "/nowhere"], "no such file"),
        (["watch", "."], "nothing here that a collector knows"),
        (["watch", "http://169.254.169.254/latest"], "metadata"),
        (["up", "--host", "0.0.0.0"], "ROLLSCOPE_TOKEN"),
        (["up", "-c", "missing.toml"], "missing.toml"),
        (["up", "--store", "mysql://x"], "sqlite:/// or postgresql://"),
        (["demo", "--speed", "0"], "--speed"),
        (["demo", "--speed", "nan"], "--speed"),
        (["up", "--port", "99999"], "--port"),
        (["up", "--store", "sqlite:////proc/none/x.db"], "store"),
        (["watch", "http://[::1"], "URL"),
        (["watch", "http://127.0.0.1:9", "--run", "a/b"], "printable characters without /"),
        (["status"], "rollscope demo"),
        (["status", "--url", "http://127.0.0.1:9"], "--url"),
    ],
)
def test_bad_usage_exits_2_with_one_sentence(tmp_path: Path, args: list[str], words: str) -> None:
    done = run(tmp_path, *args)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_check_tells_what_is_there_and_what_is_missing(tmp_path: Path, engine: str, trl: Path) -> None:
    done = run(tmp_path, "check", engine, str(trl))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my-run (trl): up" in done.stdout and re.search(r"trainer_step_seconds +0\.3809 seconds +\w", done.stdout)
    assert re.search(r"trainer_wait_ratio +not applicable: synchronous run", done.stdout)
    assert run(tmp_path, "check", "http://127.0.0.1:9").returncode == 1


def test_an_empty_server_needs_no_configuration(tmp_path: Path) -> None:
    with Program(tmp_path, "up") as program:
        assert program.get("/api/v1/runs").json() == []
        assert program.get("/").status_code == 200
        assert program.get("/readyz").status_code == 200
        assert program.get("/api/nope").headers["content-type"] == "application/json"


def test_replaying_the_recorded_pages_counts_what_the_client_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22 pages, 1 s apart, over idle, load and drain: 1,273 requests and 175,970 tokens were added."""
    clock, writer = ScaledClock(0.0), Writer(store)

    async def drive(url: str) -> None:
        target = Target("engine", "run", "vllm", "generator", url=f"{url}/good/metrics", interval_seconds=1.0)
        loop = RunLoop("run", [target], store, writer, clock, limits=Limits())
        for path in PAGES:
            monkeypatch.setattr(module, "PAGE", path)
            t = int(path.stem.split("_")[1]) / 1000
            clock.set(t)
            await loop.step(t, patient=True)
        clock.set(t + 5)
        await loop.step(t + 5, patient=True)
        await loop.close()

    with nasty() as server:
        asyncio.run(drive(server.url))
    writer.close()
    found = {signal.name: signal.value for signal in StoreReader(store, clock).status("run").signals}
    finished = sum(v or 0 for name, v in found.items() if name.startswith("generator_finished_requests_total"))
    assert (len(PAGES), finished, found["generator_generated_tokens_total"]) == (22, 1273, 175970)


def test_two_directories_of_one_name_do_not_become_one_run(tmp_path: Path, trl: Path) -> None:
    other = tmp_path / "elsewhere" / trl.name
    shutil.copytree(trl, other)
    with Program(tmp_path, "watch", str(trl)) as program:
        program.until("/api/v1/runs/my-run/status", lambda status: status["lifecycle"] == "finished")
        program.end()
    second = run(tmp_path, "watch", str(other), "--port", "0", "--no-browser")
    assert second.returncode == 2 and "--run NAME" in second.stderr and str(trl) in second.stderr
    with Program(tmp_path, "watch", str(other), "--run", "second") as program:
        program.until("/api/v1/runs/second/status", lambda status: status["lifecycle"] == "finished")


def test_waiting_for_a_run_that_has_not_begun(tmp_path: Path) -> None:
    source = tmp_path / "later"
    command = [*PROGRAM, "watch", str(source), "--wait", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("waiting: ")
        shutil.copytree(DATA / "trl/sync", source)
        assert process.stdout.readline().startswith("later (trl): trl ")
        assert process.stdout.readline().startswith("Rollscope is at ")
        process.terminate()


def test_credentials_of_a_url_are_in_no_name(tmp_path: Path, engine: str) -> None:
    secret = engine.replace("http://", "http://user:hunter2@")
    with Program(tmp_path, "watch", secret) as program:
        program.until("/api/v1/targets", bool)
        pages = [program.get(path).text for path in ("/api/v1/runs", "/api/v1/targets", "/metrics")]
    assert all("hunter2" not in page for page in pages) and '"vllm-127.0.0.1-' in pages[1]


def test_it_is_this_checkouts_program_that_is_tested(tmp_path: Path) -> None:
    """An environment that belongs to another checkout must not lend its program."""
    where = "import server.main; print(server.main.__file__)"
    env = environment(tmp_path)
    told = subprocess.run(
        [*PROGRAM[:2], "-c", where], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(told.stdout.strip()) == ROOT / "server" / "main.py"
    other = environment(tmp_path, root=tmp_path)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "__init__.py").write_text("")
    (tmp_path / "server" / "main.py").write_text("")
    told = subprocess.run([*PROGRAM[:2], "-c", where], env=other, cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()) == tmp_path / "server" / "main.py"
