"""Runs the real writers of the logs we read (wandb, TensorBoard, trackio, mlflow) in a separate environment.

`make test` makes it from `requirements/writers.txt`; ROLLSCOPE_TEST_WRITERS names another. Without it the test fails,
because a skip would hide that nothing was compared with the writer.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-writers"
# Timeout of a writer. wandb's process and mlflow's migrations take seconds on a busy machine.
SECONDS = 180.0
# The discard port is closed, so that network access fails at once.
NOWHERE = "http://127.0.0.1:9"


def python() -> str:
    """The interpreter with the writers; fails the test if there is none."""
    venv = Path(os.environ.get("ROLLSCOPE_TEST_WRITERS") or ENVIRONMENT)
    if not any(venv.glob("lib/python*/site-packages/wandb/__init__.py")):
        pytest.fail(f"{venv} has no wandb: run `make test`, which sets it up")
    return str(venv / "bin" / "python")


def run_writer(script: str, *args: object) -> str:
    """Runs a script (Python source, arguments in ``sys.argv[1:]``) to its end and returns its output.

    Its HOME and working directory are a temporary folder, so pass absolute paths. A script that fails makes the test
    fail, with its output.
    """
    with tempfile.TemporaryDirectory(prefix="rs-writer-") as home:
        command = [python(), "-c", script, *map(str, args)]
        done = subprocess.run(
            command, env=_environment(home), cwd=home, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    if done.returncode != 0:
        pytest.fail(f"the writer failed with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class LiveWriter:
    """A running writer: it performs an action for each line it receives, and then answers with one line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def say(self, line: object) -> str:
        """Sends a line and returns the answer. If the writer ends instead, the test fails."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            pytest.fail(f"the writer ended with {self.process.wait(SECONDS)} instead of answering {line!r}")
        return answer.rstrip("\n")

    def end(self) -> int:
        """Closes its input, waits for its end and returns the exit code."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.wait(SECONDS)


@contextmanager
def live_writer(script: str, *args: object) -> Iterator[LiveWriter]:
    """Starts a script that continues to run: ``for line in sys.stdin: ...; print(answer, flush=True)``.

    It must write nothing else to stdout. At the end of the block its input is closed and, if needed, it is killed.
    """
    with tempfile.TemporaryDirectory(prefix="rs-writer-") as home:
        process = subprocess.Popen(
            [python(), "-c", script, *map(str, args)],
            env=_environment(home),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        writer = LiveWriter(process)
        try:
            yield writer
            writer.end()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(SECONDS)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _environment(home: str) -> dict[str, str]:
    proxies = {name: NOWHERE for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": home,
        "TMPDIR": home,
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "no_proxy": "127.0.0.1,localhost",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        **proxies,
    }
