"""`rollscope watch --push` with real processes: the server is killed, the agent is killed, the trainer writes on."""

import json
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.e2e.program import PROGRAM, Program, environment, run

BEGUN = time.time() - 7200
TOKEN = "the token of this test"
RUN = "/api/v1/runs/job-1/status"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Server(Program):
    """`rollscope up` on a port that stays its own over restarts."""

    def __init__(self, home: Path, port: int, token: str = "") -> None:
        super().__init__(home, "up", ROLLSCOPE_TOKEN=token)
        at = self._args.index("--port")
        self._args[at + 1] = str(port)


class Agent:
    """`rollscope watch DIR --push URL`, up once it says where it forwards to; its words on stderr are kept."""

    def __init__(self, home: Path, port: int, *args: str, **env: str) -> None:
        url = f"http://127.0.0.1:{port}"
        self._args = [*PROGRAM, "watch", *args, "--push", url, "--run", "job-1"]
        self._env = {**environment(home), **env}
        self._home = home
        self.said: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._args, env=self._env, cwd=self._home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self._listener = threading.Thread(target=lambda: self.said.extend(self.process.stderr or ()))
        self._listener.start()
        for line in self.process.stdout:
            if line.startswith("Forwarding job-1 to http://127.0.0.1:"):
                return self
        self.__exit__(None, None, None)
        raise AssertionError(f"it ended with {self.process.returncode}: {self.said}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def says(self, words: str) -> None:
        """Wait until it has written this, for a minute at most."""
        deadline = time.monotonic() + 60
        while not any(words in line for line in tuple(self.said)):
            assert time.monotonic() < deadline and self.process.poll() is None, f"it never said {words!r}: {self.said}"
            time.sleep(0.02)


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    (folder / "orchestrator").mkdir(parents=True)
    return folder


def write(folder: Path, first: int, last: int) -> None:
    """prime-rl's own rows, appended as the orchestrator does; step n trains n thousand tokens."""
    with (folder / "orchestrator/metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in range(first, last + 1):
            row = {"step": step, "time": BEGUN + 30 * step, "time/step": 30.0, "progress/output_tokens": 1000 * step}
            file.write(json.dumps({**row, "train/agg/all/reward/mean": 0.5}) + "\n")


def tokens(status: dict[str, Any]) -> float | None:
    found: float | None = status["signals"].get("trained_tokens_total", {}).get("value")
    return found


def total(last: int) -> float:
    return 1000.0 * last * (last + 1) / 2


def rows(home: Path) -> tuple[int, int]:
    """(steps, restarts) in the server's store."""
    import sqlite3  # noqa: PLC0415

    connection = sqlite3.connect(home / ".local/state/rollscope/rollscope.db")
    (steps,) = connection.execute("SELECT count(*) FROM steps WHERE axis = 'orchestrator'").fetchone()
    (restarts,) = connection.execute("SELECT count(*) FROM events WHERE kind = 'restart'").fetchone()
    connection.close()
    return steps, restarts


def spooled(home: Path) -> int:
    import sqlite3  # noqa: PLC0415

    (path,) = (home / ".local/state/rollscope/spool").glob("job-1-*.db")
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM queue").fetchone()
    connection.close()
    return int(count)


@pytest.mark.crash
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.long)])
def test_nothing_is_lost_and_nothing_counts_twice_whoever_is_killed(tmp_path: Path, trainer: Path, kills: int) -> None:
    port, node, head = free_port(), tmp_path / "node", tmp_path / "head"
    node.mkdir()
    head.mkdir()
    write(trainer, 1, 20)
    # The server is not there yet.
    with Agent(node, port, str(trainer)) as agent:
        agent.says(
            "the server does not answer: connection refused: nothing listens at this host and port; nothing is lost"
        )
        with Server(head, port) as server:
            # What the run is comes with the facts, the numbers with the rows: neither waits for the other.
            # On a machine so busy that the agent is silent for long, the target is down for a while.
            up = lambda s: all(one["up"] for one in s["trust"])  # noqa: E731
            status = server.until(RUN, lambda s: tokens(s) == total(20) and s["framework"] and up(s))
            assert status["framework"] == "prime_rl"
            assert [(one["target"], one["kind"], one["up"]) for one in status["trust"]] == [
                ("outputs", "prime_rl", True)
            ]
            server.end(signal.SIGKILL)
        # Nobody answers, and the trainer goes on; then the agent dies too, with readings that nobody has taken.
        write(trainer, 21, 40)
        agent.says("connection refused")
        deadline = time.monotonic() + 60
        while not spooled(node):
            assert time.monotonic() < deadline
            server.breathe()
        agent.end(signal.SIGKILL)
    write(trainer, 41, 60)
    with Agent(node, port, str(trainer)), Server(head, port) as server:
        server.until(RUN, lambda s: tokens(s) == total(60))
    # Both killed in the middle of sending and taking, wherever they are by then.
    last = 60 + 20 * kills
    for first in range(61, last, 20):
        with Agent(node, port, str(trainer)) as agent, Server(head, port) as server:
            write(trainer, first, first + 19)
            agent.end(signal.SIGKILL)
            server.end(signal.SIGKILL)
    with Agent(node, port, str(trainer)) as agent, Server(head, port) as server:
        server.until(RUN, lambda s: tokens(s) == total(last))
        # The end of a job: what was written last is told before the agent goes.
        write(trainer, last + 1, last + 10)
        assert agent.end(signal.SIGTERM) == 0
        server.until(RUN, lambda s: tokens(s) == total(last + 10))
        assert spooled(node) == 0
    assert rows(head) == (last + 10, 0)
    assert sorted(path.name for path in trainer.rglob("*")) == ["metrics.jsonl", "orchestrator"], "the run was touched"


def test_a_token_is_shown_and_a_wrong_one_loses_nothing(tmp_path: Path, trainer: Path) -> None:
    port = free_port()
    secret = tmp_path / "token"
    secret.write_text("not the token\n")
    write(trainer, 1, 5)
    with Server(tmp_path, port, TOKEN) as server:
        with Agent(tmp_path, port, str(trainer), "--token-file", str(secret)) as agent:
            agent.says("refuses with 401: token missing or wrong; set ROLLSCOPE_TOKEN or --token-file")
            assert agent.end(signal.SIGTERM) == 0
            assert TOKEN not in "".join(agent.said) and "not the token" not in "".join(agent.said)
        with Agent(tmp_path, port, str(trainer), ROLLSCOPE_TOKEN=TOKEN):
            headers = {"authorization": f"Bearer {TOKEN}"}
            deadline = time.monotonic() + 60
            answer = server.get(RUN, headers=headers)
            while answer.status_code != 200 or tokens(answer.json()) != total(5):
                assert time.monotonic() < deadline, answer.text
                server.breathe()
                answer = server.get(RUN, headers=headers)


def test_two_agents_do_not_share_a_spool(tmp_path: Path, trainer: Path) -> None:
    write(trainer, 1, 1)
    port = free_port()
    with Agent(tmp_path, port, str(trainer)):
        args = ["watch", str(trainer), "--push", f"http://127.0.0.1:{port}", "--run", "job-1"]
        second = run(tmp_path, *args)
    assert second.returncode == 2 and "another process forwards this run" in second.stderr
