"""`rollscope demo`: starts the imaginary cluster in its own process and drives it through the first hour.

The cluster speaks native formats over real sockets and files; nothing here tells the collectors what is true.
"""

import asyncio
import json
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import collectors
from server.clock import ScaledClock
from server.collect import RunLoop
from server.config import RunSettings, TargetSettings
from server.drive import TICK_SECONDS
from server.problems import ConfigError
from server.security import Secret

log = logging.getLogger("rollscope.demo")

# Long enough for every window, rollup and chart range of the first screen to be full.
HISTORY_SECONDS = 3600.0
# Of the last part of it each rollout is told: of all of it that would take longer than everything else together.
RECORDS_SECONDS = 900.0
PREFIX = "rollscope-demo-"
SANDBOX_COLLECTOR = "prime_sandboxes"
MODAL_COLLECTOR = "modal"
# A listing of 1,000 sandboxes is ten pages: asked for as often as one would ask a provider that counts requests.
SANDBOX_SECONDS = 60.0


class Cluster(AbstractContextManager["Cluster"]):
    """The simulation's process. It dies with us: its standard input closes."""

    def __init__(
        self, scenario: str, seed: int, directory: Path, start: float, records_from: float = 0.0
    ) -> None:  # fmt: skip
        self._args = [
            sys.executable, "-P", "-m", "server.demo", "--scenario", scenario, "--seed", str(seed),
            "--dir", str(directory), "--start", repr(start), "--records-from", repr(records_from),
        ]  # fmt: skip
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> "Cluster":
        self._process = subprocess.Popen(
            self._args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.ready = self._answer()
        if "missing" in self.ready:
            log.info("%s", self.ready["missing"])
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it may be gone already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(
                [f"demo: the simulation ended early with code {self._process.wait()}; its error is above"]
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def advance(self, t: float) -> None:
        """Simulate to event time `t`; returns when pages and files show it."""
        self._send({"advance_to": t})
        self._answer()

    def push_to(self, url: str, token: str = "") -> None:
        """Where an instrumented orchestrator posts its rollouts, in a scenario that has one."""
        if self.ready.get("pushes"):
            self._send({"push_to": url, "token": token})
            self._answer()

    def follow(self, sim: float, speed: float) -> None:
        """From now on it follows the clock by itself."""
        self._send({"follow": {"wall": time.time(), "sim": sim, "speed": speed}})
        self._answer()

    def settings(self) -> RunSettings:
        """The cluster as a user would name it: engines' URLs, the run's directory, the provider's API."""
        engines = [
            TargetSettings(url, name=f"engine-{number}", collector="vllm")
            for number, url in enumerate(self.ready["engines"])
        ]
        trainer = TargetSettings(self.ready["run_dir"], name="trainer", collector="prime_rl")
        records = TargetSettings(self.ready["run_dir"], name="rollouts", collector="verifiers_rollouts")
        # No file of the run says what a task's largest reward is: its user does.
        facts = {"max_reward": 1.0}
        return RunSettings(self.ready["run"], (*engines, trainer, records, *self._sandboxes()), facts)

    def _sandboxes(self) -> Iterator[TargetSettings]:
        """The providers' accounts, where the scenario has them and there are collectors that read them."""
        api = self.ready.get("sandbox_api")
        if api is not None and SANDBOX_COLLECTOR in collectors.load():
            yield TargetSettings(
                api["url"], "sandboxes", SANDBOX_COLLECTOR, interval_seconds=SANDBOX_SECONDS, bearer=Secret(api["key"])
            )
        modal = self.ready.get("modal_api")
        if modal is not None and MODAL_COLLECTOR in collectors.load():
            yield TargetSettings(
                modal["url"], "judges", MODAL_COLLECTOR, interval_seconds=SANDBOX_SECONDS,
                bearer=Secret(f"{modal['token_id']}:{modal['token_secret']}"), options=(("app", modal["app"]),),
            )  # fmt: skip


def own_url(sock: socket.socket) -> str:
    """Where this server is reached from its own machine, whatever address it is bound to."""
    host = "[::1]" if sock.family == socket.AF_INET6 else "127.0.0.1"
    bound = str(sock.getsockname()[0])
    host = host if bound in ("0.0.0.0", "::") else f"[{bound}]" if ":" in bound else bound
    return f"http://{host}:{sock.getsockname()[1]}"


def begin(now: float) -> float:
    """One hour ago, on the grid."""
    return math.floor((now - HISTORY_SECONDS) / TICK_SECONDS) * TICK_SECONDS


async def fast_forward(cluster: Cluster, clock: ScaledClock, loops: Sequence[RunLoop], speed: float) -> None:
    """The first hour through the same scrape path, then the clock runs."""
    began, t = time.monotonic(), clock.now()
    while t + TICK_SECONDS <= time.time():
        t += TICK_SECONDS
        await asyncio.to_thread(cluster.advance, t)
        clock.set(t)
        for loop in loops:
            await loop.step(t, patient=True)
    cluster.follow(t, speed)
    clock.run(speed)
    log.info("the first hour is there, after %.1f s", time.monotonic() - began)


def workplace() -> tempfile.TemporaryDirectory[str]:
    """Where run directory, truth and store of a demo live; gone afterwards.

    What a demo left that was killed is removed by the next one: its name holds the process it belonged to.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = left.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
