"""The process from outside: ready line, advance, follow, pages, and that it leaves when it should."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.demo.conftest import START
from tests.demo.test_vllm_page import value

ROOT = Path(__file__).parents[2]
# Only to fail instead of hanging; nothing is expected to take this long.
PATIENCE_SECONDS = 30


class Driver:
    """The parent's side of the control channel."""

    def __init__(self, folder: Path) -> None:
        options = ["--scenario", "healthy", "--seed", "1", "--dir", str(folder), "--start", str(START)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "demo", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT)},
        )
        self.ready = self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, **command: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def get(self, path: str, engine: int = 0) -> bytes:
        with urlopen(self.ready["engines"][engine] + path, timeout=PATIENCE_SECONDS) as response:
            body: bytes = response.read()
            return body

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    started = Driver(tmp_path / "demo")
    yield started
    started.close()


def test_ready_line_says_where_everything_is(driver: Driver, tmp_path: Path) -> None:
    ready = driver.ready
    assert ready["ready"] is True
    assert len(set(ready["engines"])) == 4
    assert all(url.startswith("http://127.0.0.1:") for url in ready["engines"])
    assert (ready["scenario"], ready["seed"], ready["start"]) == ("healthy", 1, START)
    assert ready["run_dir"] == str(tmp_path / "demo" / "run")
    assert Path(ready["truth"]).parent == tmp_path / "demo"
    assert ready["run"]


def test_advance_moves_pages_and_files(driver: Driver) -> None:
    assert value(driver.get("/metrics"), "vllm:generation_tokens_total") == 0
    assert driver.ask(advance_to=START + 120) == {"t": START + 120}
    tokens = [value(driver.get("/metrics", engine), "vllm:generation_tokens_total") for engine in range(4)]
    assert min(tokens) > 0
    assert (Path(driver.ready["run_dir"]) / "metrics.jsonl").stat().st_size > 0
    assert driver.get("/metrics") == driver.get("/metrics"), "no advance, no change"


def test_other_routes(driver: Driver) -> None:
    assert driver.get("/health") == b""
    assert json.loads(driver.get("/version")) == {"version": "0.32.0"}
    assert json.loads(driver.get("/v1/models"))["data"][0]["id"] == "Qwen/Qwen3-14B"
    with urlopen(driver.ready["engines"][0] + "/metrics", timeout=PATIENCE_SECONDS) as response:
        assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    with pytest.raises(HTTPError) as caught:
        driver.get("/nothing")
    assert caught.value.code == 404
    caught.value.close()


def test_follow_keeps_up_with_the_clock_before_every_page(driver: Driver) -> None:
    """Event time is set five minutes ahead of the start: the first page asked for must already be there."""
    driver.ask(follow={"wall": time.time(), "sim": START + 300, "speed": 100})
    page = driver.get("/metrics")
    assert value(page, "http_requests_total", handler="/pause") >= 3
    # Its own thread writes the files, without anybody asking for a page.
    wanted = START + 320
    log = Path(driver.ready["run_dir"]) / "logs" / "latest" / "orchestrator.log"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while log.stat().st_mtime < wanted:
        assert time.monotonic() < deadline


def test_nonsense_is_answered_and_survived(driver: Driver) -> None:
    assert "error" in driver.ask(advance_to="soon")
    assert "error" in driver.ask(dance=True)
    assert driver.ask(advance_to=START + 1) == {"t": START + 1}


@pytest.mark.parametrize("is_following", [False, True])
def test_end_of_input_ends_the_process(driver: Driver, is_following: bool) -> None:
    if is_following:
        driver.ask(follow={"wall": time.time(), "sim": START, "speed": 1})
    assert driver.process.stdin is not None
    driver.process.stdin.close()
    assert driver.process.wait(PATIENCE_SECONDS) == 0


def test_sigterm_ends_the_process(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(PATIENCE_SECONDS) == 0


def test_it_imports_nothing_of_ours(driver: Driver) -> None:
    """A demo that shared code with its reader would share its mistakes."""
    code = "import sys, demo.__main__; print(*sorted(m for m in sys.modules if '.' not in m))"
    out = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    ours = {name for name in out.stdout.split() if name.startswith(("server", "collectors", "dashboard"))}
    assert ours == set()
    third_party = {"fastapi", "httpx", "prometheus_client", "sqlalchemy", "dash", "numpy"}
    assert not third_party & set(out.stdout.split())
