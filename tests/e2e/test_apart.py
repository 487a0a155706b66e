"""Scraping in a process of its own: one command, one tree, whoever of the two dies."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nasty import nasty
from tests.e2e.program import Program, run

SERIES = 'generator_requests_now{state="running"}'


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    with nasty() as server:
        path = tmp_path / "rollscope.toml"
        path.write_text(
            f'[server]\ncollect = "apart"\n[store]\nurl = "sqlite:///{tmp_path}/store/a.db"\n'
            f'[[run.r1.target]]\nurl = "{server.url}/good"\nname = "engine"\ncollector = "vllm"\n'
        )
        yield path


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def collected(program: Program) -> None:
    program.until("/api/v1/runs/r1/status", lambda s: s["signals"].get(SERIES, {}).get("value") == 128)


def test_a_child_that_dies_is_started_again_and_sigterm_drains_both(tmp_path: Path, config: Path) -> None:
    with Program(tmp_path, "up", "-c", str(config)) as program:
        collected(program)
        (child,) = children(program.process.pid)
        second = run(tmp_path, "up", "-c", str(config), "--port", "0", "--no-browser")
        assert second.returncode == 2 and f"pid {program.process.pid} " in second.stderr, second.stderr
        os.kill(child, signal.SIGKILL)
        while (answer := program.get("/readyz")).status_code == 200:
            program.breathe()
        assert "the collecting process ended (SIGKILL)" in answer.text
        program.until("/readyz", lambda ready: ready["status"] == "ok")
        (heir,) = children(program.process.pid)
        program.until("/api/v1/targets", lambda targets: bool(targets) and targets[0]["age_seconds"] < 10)
        assert heir != child
        code, errors = program.end()
    assert code == 0 and not lives(heir)
    assert "starting it again in 1 s" in errors and "runs again" in errors and "Traceback" not in errors, errors


def test_a_child_ends_with_its_parent_however_that_went(tmp_path: Path, config: Path) -> None:
    with Program(tmp_path, "up", "-c", str(config)) as program:
        collected(program)
        (child,) = children(program.process.pid)
        program.process.kill()
        program.process.wait()
        # While it drains the store is still its: nobody else may begin to write.
        while lives(child):
            pass
    with Program(tmp_path, "up", "-c", str(config)) as heir:
        collected(heir)
        assert heir.end() == (0, "")
