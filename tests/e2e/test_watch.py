"""`rollscope watch` on recorded real systems, as a user runs it; expected numbers were worked out by hand."""

import asyncio
import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Limits, Target
from server.lib.clock import ScaledClock
from server.query import Reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached
from tests.e2e import nasty as module
from tests.e2e.nasty import nasty
from tests.e2e.program import PROGRAM, ROOT, Program, environment, run

DATA = Path(__file__).parent.parent / "testdata"
PAGES = sorted((DATA / "vllm/default").glob("metrics_*.prom"))


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with nasty() as server:
        yield f"{server.url}/good"


def copied(folder: Path) -> Path:
    """A copy: a reader must never have written into it, which the test of that checks."""
    return Path(shutil.copytree(DATA / "trl/sync", folder / "my-run"))


@pytest.fixture
def trl(tmp_path: Path) -> Path:
    return copied(tmp_path)


class Watched:
    """A program that watches an engine and a finished run, for all who only ask; the last to come ends it."""

    def __init__(self, home: Path, engine: str) -> None:
        self.home, self.trl = home, copied(home)
        self.sources = (engine.replace("http://", "http://user:hunter2@"), str(self.trl))
        self.before = stamps(self.trl)
        self.program = Program(home, "watch", *self.sources)

    def complete(self) -> dict[str, Any]:
        return dict(self.program.until("/api/v1/runs/my-run/status", complete))


def test_other_accounts_can_read_nothing_that_it_writes(watched: Watched) -> None:
    """The store, its lock and log, and the admin token: files 0600, folders 0700, whatever the umask."""
    state = watched.home / ".local/state/rollscope"
    watched.complete()
    names = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()}
    assert {"rollscope.db", "rollscope.db-wal", "rollscope.db.lock", "admin-token"} <= names.keys()
    assert set(names.values()) == {0o600} and state.stat().st_mode & 0o777 == 0o700


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Watched]:
    made = Watched(tmp_path_factory.mktemp("watched"), engine)
    with made.program:
        yield made


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def complete(status: dict[str, Any]) -> bool:
    signals = status["signals"]
    return 'generator_requests{state="running"}' in signals and signals["trainer_step_seconds"]["value"] is not None


def test_a_real_engine_and_a_real_finished_run(watched: Watched) -> None:
    status, program = watched.complete(), watched.program
    metrics = program.get("/metrics").text
    page = program.get("/")
    told = run(watched.home, "status", "--json", "--url", program.url)
    words = run(watched.home, "status", "my-run", "--url", program.url)
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
    assert stamps(watched.trl) == watched.before, "the run's files were touched"


def test_a_second_server_on_one_store_exits_2_naming_the_holder(watched: Watched) -> None:
    second = run(watched.home, "watch", *watched.sources, "--port", "0", "--no-browser")
    assert second.returncode == 2
    pid, url = watched.program.process.pid, watched.program.url
    assert f"is held by pid {pid} on {socket.gethostname()}, serving {url}: " in second.stderr
    assert f"add a source to it with rollscope watch SOURCE --push {url}, stop it, or use another" in second.stderr


def test_a_taken_port_exits_2(watched: Watched, tmp_path: Path, engine: str) -> None:
    port = watched.program.url.rsplit(":", 1)[1]
    options = ("--port", port, "--store", f"sqlite:///{tmp_path}/other.db")
    second = run(tmp_path, "watch", engine, *options)
    assert (second.returncode, second.stdout) == (2, "")
    assert (empty := run(tmp_path, "up", *options)).returncode == 2 and empty.stdout == ""
    assert (
        empty.stderr == second.stderr and f"cannot listen on 127.0.0.1:{port}: Address already in use" in second.stderr
    )
    assert f"rollscope watch SOURCE --push {watched.program.url}; or choose another --port" in second.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["watch", "/nowhere"], "no such file"),
        (["watch", "."], "no run log was recognised here"),
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


def test_replaying_the_recorded_pages_counts_what_the_client_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """22 pages, 1 s apart, over idle, load and drain: 1,273 requests and 175,970 tokens were added."""
    clock, writer = ScaledClock(0.0), Writer(store)

    async def drive(url: str) -> None:
        target = Target("engine", "run", "vllm", "generator", url=f"{url}/good/metrics", interval_seconds=1.0)
        loop = RunLoop(Attached("run", (target,)), LoopServices(store, writer, clock, limits=Limits()))
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
    found = {signal.name: signal.value for signal in Reader(store, clock).status("run").signals.values()}
    finished = sum(v or 0 for name, v in found.items() if name.startswith("generator_finished_requests_total"))
    assert (len(PAGES), finished, found["generator_generated_tokens_total"]) == (22, 1273, 175970)


def test_waiting_for_a_run_that_has_not_begun(tmp_path: Path) -> None:
    """The page is up at once and names what it waits for; the run is read when it begins."""
    source = tmp_path / "later"
    source.mkdir()
    with Program(tmp_path, "watch", str(source), "--wait") as program:
        (row,) = program.until("/api/v1/targets", bool)
        assert (row["target"], row["up"]) == ("later", False)
        assert row["error"].startswith(f"{source}: no run log was recognised here; tried again at least every 10 s")
        shutil.copy(DATA / "trl/sync/grpo-tiny.db", source)
        (row,) = program.until("/api/v1/targets", lambda rows: rows[0]["up"])
        assert (row["target"], row["kind"]) == ("later", "trl")
        assert program.end()[0] == 0


def test_credentials_of_a_url_are_in_no_name(watched: Watched) -> None:
    assert "hunter2" in watched.sources[0]
    program = watched.program
    program.until("/api/v1/targets", bool)
    pages = [program.get(path).text for path in ("/api/v1/runs", "/api/v1/targets", "/metrics")]
    assert all("hunter2" not in page for page in pages) and '"vllm-127.0.0.1-' in pages[1]


def test_it_is_this_checkouts_program_that_is_tested(tmp_path: Path) -> None:
    """An environment that belongs to another checkout must not lend its program."""
    where = "import importlib.util as u; print(u.find_spec('server.main').origin)"
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


def test_sigterm_drains_and_the_next_start_goes_on(watched: Watched, tmp_path: Path) -> None:
    """The last: it ends the program. Then its store is met by a directory of the same name, and by the same again."""
    watched.complete()
    code, errors = watched.program.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in errors, errors
    path = watched.home / ".local/state/rollscope/rollscope.db"
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (steps,) = connection.execute("SELECT count(*) FROM steps").fetchone()
    connection.close()
    assert steps == 90
    offline = run(watched.home, "status", "--json")
    assert offline.returncode == 0 and json.loads(offline.stdout)["lifecycle"] == "finished"

    other = str(copied(tmp_path))
    second = run(watched.home, "watch", other, "--port", "0", "--no-browser")
    assert second.returncode == 2 and "--run NAME" in second.stderr and str(watched.trl) in second.stderr
    with Program(watched.home, "watch", other, "--run", "second") as program:
        program.until("/api/v1/runs/second/status", lambda status: status["lifecycle"] == "finished")

    with Program(watched.home, "watch", *watched.sources) as program:
        program.until("/readyz", lambda answer: answer["status"] == "ok")
        program.until("/api/v1/runs/my-run/status", complete)
    with sqlite3.connect(path) as connection:
        of_run = "SELECT count(*) FROM steps s JOIN runs r ON r.id = s.run WHERE r.name = 'my-run'"
        assert connection.execute(of_run).fetchone() == (90,)
        assert connection.execute("SELECT count(*) FROM events WHERE kind = 'restart'").fetchone() == (0,)
    connection.close()
