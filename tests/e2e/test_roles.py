"""PostgreSQL: one collects, others serve; the leader's place is taken once and freed by death."""

import signal
from pathlib import Path

import pytest

from tests import support_postgres
from tests.e2e.nasty import nasty
from tests.e2e.program import Program, run

pytestmark = pytest.mark.postgres
SERIES = 'generator_requests_now{state="running"}'


@pytest.fixture
def config(tmp_path: Path, postgres_server: str):  # type: ignore[no-untyped-def]
    """A configuration file naming a run with one engine and a PostgreSQL store."""
    with nasty() as server, support_postgres.database(postgres_server) as url:
        path = tmp_path / "rollscope.toml"
        path.write_text(
            f'[store]\nurl = "{url}"\n[run.r1]\nfacts = {{ group_size = 8 }}\n'
            f'[[run.r1.target]]\nurl = "{server.url}/good"\nname = "engine"\n'
        )
        yield path


def test_collect_and_web_are_joined_by_the_store_only(tmp_path: Path, config: Path) -> None:
    with (
        Program(tmp_path, "up", "-c", str(config), "--role", "collect") as collect,
        Program(tmp_path, "up", "-c", str(config), "--role", "web") as web,
    ):
        status = web.until("/api/v1/runs/r1/status", lambda s: s["signals"].get(SERIES, {}).get("value") == 128)
        assert status["facts"]["group_size"] == 8
        assert 'rollscope_generator_requests_now{run="r1",state="running"} 128.0' in web.get("/metrics").text
        second = run(tmp_path, "up", "-c", str(config), "--role", "collect", "--port", "0", "--no-browser")
        assert second.returncode == 2 and str(collect.process.pid) in second.stderr, second.stderr
        collect.end(signal.SIGKILL)
        web.until("/readyz", lambda answer: answer["status"] == "ok")
        with Program(tmp_path, "up", "-c", str(config), "--role", "collect") as heir:
            heir.until("/api/v1/targets", lambda targets: bool(targets) and targets[0]["age_seconds"] < 10)
            assert heir.end() == (0, "")


def test_web_does_not_migrate(tmp_path: Path, postgres_server: str) -> None:
    with support_postgres.database(postgres_server) as url:
        refused = run(tmp_path, "up", "--role", "web", "--store", url, "--port", "0", "--no-browser")
        assert refused.returncode == 2 and "rollscope migrate" in refused.stderr
        assert run(tmp_path, "migrate", "--store", url).returncode == 0
        with Program(tmp_path, "up", "--role", "web", "--store", url) as web:
            assert web.get("/api/v1/runs").json() == []


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    url = "postgresql://u:hunter2@127.0.0.1:1/x"
    done = run(tmp_path, "up", "--store", url, "--port", "0", "--no-browser")
    assert done.returncode == 2 and "hunter2" not in done.stderr + done.stdout and "Traceback" not in done.stderr
    done = run(tmp_path, "migrate", "--store", url)
    assert done.returncode == 2 and "hunter2" not in done.stderr + done.stdout
