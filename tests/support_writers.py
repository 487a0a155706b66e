"""The real writers of the logs we read (wandb, TensorBoard, trackio, mlflow), run in an environment of their own.

`make test` makes it from `requirements/writers.txt`; ROLLSCOPE_TEST_WRITERS names another. Where it is missing the
test fails: a skip would hide that nothing was held against the writer.
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
# wandb's own process and mlflow's migrations take seconds on a busy machine; a writer that hangs must end the test.
SECONDS = 180.0
# Nobody listens on the discard port: what is tried over the network fails at once.
NOWHERE = "http://127.0.0.1:9"


def python() -> str:
    """The interpreter that has the writers; fails the test where there is none."""
    venv = Path(os.environ.get("ROLLSCOPE_TEST_WRITERS") or ENVIRONMENT)
    if not any(venv.glob("lib/python*/site-packages/wandb/__init__.py")):
        pytest.fail(f"{venv} has no wandb: run `make test`, which sets it up")
    return str(venv / "bin" / "python")


def run_writer(script: str, *args: object) -> str:
    """Run a script (Python source, arguments in ``sys.argv[1:]``) to its end; what it printed.

    Its HOME and working directory are a temporary folder, so paths given to it are absolute. A script that fails
    fails the test, with what it said.
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
    """A writer that lives: it does something for every line it is sent, and answers with one line when it is done."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def say(self, line: object) -> str:
        """Send a line, wait for the answer. A writer that ended instead fails the test."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            pytest.fail(f"the writer ended with {self.process.wait(SECONDS)} instead of answering {line!r}")
        return answer.rstrip("\n")

    def end(self) -> int:
        """Close its input and wait for its end; the exit code."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.wait(SECONDS)


@contextmanager
def live_writer(script: str, *args: object) -> Iterator[LiveWriter]:
    """A script that runs on: ``for line in sys.stdin: ...; print(answer, flush=True)``.

    Nothing else may go to its stdout. It is ended (by the end of its input, at last by a signal) with the block.
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
