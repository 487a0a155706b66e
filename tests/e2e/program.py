"""The program as a user starts it, of this very checkout: a process, its output, its signals."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120
# Not the environment's own script: an editable install leads to the checkout it was made in, which may be another one.
PROGRAM = (sys.executable, "-P", "-m", "server.main")


def environment(home: Path, root: Path | None = ROOT) -> dict[str, str]:
    """Nothing of the developer's own settings. ``root``: whose code runs; None: what is installed."""
    own = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONWARNINGS": "error::ResourceWarning"}
    return own | ({"PYTHONPATH": str(root)} if root is not None else {})


class Program:
    """`rollscope ARGS --port 0`, up once it has said where it is."""

    def __init__(self, home: Path, *args: str, script: Path | None = None, **env: str) -> None:
        self._args = [*(PROGRAM if script is None else [str(script)]), *args, "--port", "0", "--no-browser"]
        self._env = {**environment(home, ROOT if script is None else None), **env}
        self._home = home
        self.url = ""
        # One for all questions: to make one is work, for the certificates it reads. Each has a connection of its own,
        # for a kept one may be closed by the program at the moment it is used again.
        self._client = httpx.Client(timeout=30, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._args, env=self._env, cwd=self._home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.search(r"Rollscope is at (\S+)", line):
                self.url = match[1]
                return self
        _, errors = self.process.communicate()
        raise AssertionError(f"it ended with {self.process.returncode}: {errors}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Signal it and wait. Returns exit code and what it wrote to stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def admin(self) -> str:
        """The admin token of a server on a loopback address."""
        return (self._home / ".local/state/rollscope/admin-token").read_text("ascii").strip()

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self._client.get(self.url + path, **kwargs)

    def breathe(self, seconds: float = 0.05) -> None:
        """Before asking again: without it the program would mostly answer us. One that ends is not waited for."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=seconds)

    def until(self, path: str, good: Any, seconds: float = 180.0) -> Any:
        """The JSON of `path` once `good` accepts it; polls as a script would, for `seconds` at most."""
        import time  # noqa: PLC0415

        deadline, pause = time.monotonic() + seconds, 0.05
        last: Any = None
        while time.monotonic() < deadline:
            answer = self.get(path)
            last = answer.json() if answer.status_code == 200 else answer.text
            if answer.status_code == 200 and good(last):
                return last
            self.breathe(pause)
            # What takes long is not asked for twenty times a second: a question is work for both.
            pause = min(1.1 * pause, 1.0)
        raise AssertionError(f"{path} never became good; last: {str(last)[:2000]}")


def run(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [*PROGRAM, *args], env={**environment(home), **env}, cwd=home, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
