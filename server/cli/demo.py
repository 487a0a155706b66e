"""`rollscope demo`: an imaginary cluster, live.

The cluster speaks native formats over real sockets and files; nothing here tells the collectors what is true.
"""

import argparse
import asyncio
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import collectors
from server.cli.options import settings
from server.cli.serving import announcer, composed, serving
from server.clock import ScaledClock, WallClock
from server.config.errors import ConfigError
from server.config.settings import RunSettings, TargetSettings
from server.demo.faults import KINDS
from server.demo.faults import read as read_fault
from server.demo.scenarios import SCENARIOS
from server.derive.driver import TICK_SECONDS
from server.runtime.serve import addresses, bind, serve
from server.scrape.run_loop import RunLoop
from server.secret import Secret
from server.targets.resolve import attach

log = logging.getLogger("rollscope.demo")

# Long enough for every window, rollup and chart range of the first screen to be full.
HISTORY_SECONDS = 3600.0
# Of the last part of it each rollout is told: of all of it that would take longer than everything else together.
RECORDS_SECONDS = 900.0
PREFIX = "rollscope-demo-"
# What a user would state in [run.NAME.cost]: how many GPUs there are the run's own files tell. GB300s are sold by
# contract, so the price of theirs is as imaginary as they are.
GPUS: dict[str, str | float] = {"gpu_type": "H200"}
OTHER_GPUS: dict[str, dict[str, str | float]] = {
    "gb300-sandbox-wall": {"gpu_type": "GB300", "usd_per_gpu_hour": 9.0},
}
SANDBOX_COLLECTOR = "prime_sandboxes"
MODAL_COLLECTOR = "modal"
# A listing of 1,000 sandboxes is ten pages: asked for as often as one would ask a provider that counts requests.
SANDBOX_SECONDS = 60.0


class Cluster(AbstractContextManager["Cluster"]):
    """The simulation's process. It dies with us: its standard input closes."""

    _gpus = GPUS

    def __init__(
        self, scenario: str, seed: int, directory: Path, start: float, records_from: float = 0.0,
        inject: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._args = [
            sys.executable, "-P", "-m", "server.demo", "--scenario", scenario, "--seed", str(seed),
            "--dir", str(directory), "--start", repr(start), "--records-from", repr(records_from),
            *(word for one in inject for word in ("--inject", one)),
        ]  # fmt: skip
        self._gpus = OTHER_GPUS.get(scenario, GPUS)
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> "Cluster":
        # In a process group of its own: a signal to ours (`timeout`, a job's end) ends us, and we end it.
        self._process = subprocess.Popen(
            self._args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, process_group=0
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
        if "targets" in self.ready:
            named = tuple(map(_named, self.ready["targets"]))
            return RunSettings(self.ready["run"], named, {**self._gpus, **self.ready.get("facts", {})})
        engines = [
            TargetSettings(url, name=f"engine-{number}", collector="vllm")
            for number, url in enumerate(self.ready["engines"])
        ]
        trainer = TargetSettings(self.ready["run_dir"], name="trainer", collector="prime_rl")
        records = TargetSettings(self.ready["run_dir"], name="rollouts", collector="verifiers_rollouts")
        # No file of the run says what a task's largest reward is: its user does.
        facts = {"max_reward": 1.0, **self._gpus}
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


def _named(told: Mapping[str, Any]) -> TargetSettings:
    """A target as the ready line of a stack names it."""
    return TargetSettings(
        told["source"], name=told["name"], collector=told["collector"],
        interval_seconds=told.get("seconds", TICK_SECONDS),
    )  # fmt: skip


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    """What only the demo's command line has."""
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="generator-bound")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulation; the same seed gives the same run")
    parser.add_argument(
        "--speed", type=float, default=1.0,
        help="speed of the demo's clock after the first hour; above 1 it runs ahead of real time",
    )  # fmt: skip
    parser.add_argument(
        "--dir", type=Path, default=None, help="keep the run directory, the truth files and the store here"
    )
    parser.add_argument(
        "--inject", action="append", default=[], metavar="KIND@TIME",
        help=f"a fault at 90, 10m or 1.5h after the start (an hour ago); may be repeated: {', '.join(KINDS)}",
    )  # fmt: skip


def check_faults(scenario: str, inject: Sequence[str]) -> None:
    """Raises:
    ConfigError: names every fault that is none, or that the scenario cannot have.
    """
    problems = []
    for text in inject:
        try:
            read_fault(text, SCENARIOS[scenario].sandboxes is not None)
        except ValueError as error:
            problems.append(f"--inject: {error}")
    if problems:
        raise ConfigError(problems)


def first_time(now: float) -> float:
    """One hour ago, on the grid."""
    return math.floor((now - HISTORY_SECONDS) / TICK_SECONDS) * TICK_SECONDS


async def fast_forward(cluster: Cluster, clock: ScaledClock, loops: Sequence[RunLoop], speed: float) -> None:
    """The first hour through the same scrape path, then the clock runs.

    Once the last loop has read the cluster as it is at `t`, nobody looks at it before the next instant: it simulates
    up to that beside what is derived of this one.
    """
    began, t = time.monotonic(), clock.now()
    ahead: deque[asyncio.Future[None]] = deque()

    def go_ahead() -> None:
        if t + TICK_SECONDS <= time.time():
            ahead.append(asyncio.ensure_future(asyncio.to_thread(cluster.advance, t + TICK_SECONDS)))

    for loop in loops:
        loop.present = _wall
    if loops:
        loops[-1].on_read = go_ahead
    while t + TICK_SECONDS <= time.time():
        await (ahead.popleft() if ahead else asyncio.to_thread(cluster.advance, t + TICK_SECONDS))
        t += TICK_SECONDS
        clock.set(t)
        for loop in loops:
            await loop.step(t, patient=True)
    for loop in loops:
        loop.on_read, loop.present = _nothing, _itself
    cluster.follow(t, speed)
    clock.run(speed)
    log.info("the first hour is there, after %.1f s", time.monotonic() - began)


def _nothing() -> None:
    """The clock runs: the cluster follows it by itself."""


def _wall(t: float) -> float:
    """What the first hour heads for, from every instant of it."""
    return time.time()


def _itself(t: float) -> float:
    """Once the clock runs, every instant is the present."""
    return t


def workplace() -> tempfile.TemporaryDirectory[str]:
    """Where run directory, truth and store of a demo live; gone afterwards.

    What a demo left that was killed is removed by the next one: its name holds the process it belonged to.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = left.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)


MAX_SPEED = 100.0  # a simulated hour costs 1 s of CPU and as much again to read: faster than this nothing keeps up


def arguments(parser: argparse.ArgumentParser) -> None:
    serving(parser)
    demo_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    if not 0 < args.speed <= MAX_SPEED:
        raise ConfigError([f"--speed: must be above 0 and at most {MAX_SPEED:g}"])
    check_faults(args.scenario, args.inject)
    if args.dir is not None:
        args.dir.mkdir(parents=True, exist_ok=True)
        if (args.dir / "run").exists():
            raise ConfigError([f"--dir: {args.dir} holds a demo already; name another, or remove it"])
        return _demo_in(args, args.dir)
    with workplace() as directory:
        return _demo_in(args, Path(directory))


def _demo_in(args: argparse.Namespace, directory: Path) -> int:
    chosen = settings(args)
    if args.store is None:
        chosen = replace(chosen, store=Secret(f"sqlite:///{directory / 'rollscope.db'}"))
    sock = bind(chosen.host, chosen.port)
    clock = ScaledClock(first_time(WallClock().now()))
    begin = clock.now()
    since = begin + HISTORY_SECONDS - RECORDS_SECONDS
    with Cluster(args.scenario, args.seed, directory, begin, since, args.inject) as cluster:
        chosen = replace(chosen, runs=(cluster.settings(),))
        # A socket that listens answers as soon as the application is up.
        cluster.push_to(addresses(chosen.host, sock.getsockname()[1])[0], chosen.token or "")

        async def before(loops: Sequence[RunLoop]) -> None:
            await fast_forward(cluster, clock, loops, args.speed)

        def announce(url: str, elsewhere: str) -> None:
            print(f"demo {args.scenario}, seed {args.seed}; truth in {cluster.ready['truth']}", flush=True)
            print("its first hour fills in in less than a minute; open the page and watch it grow", flush=True)
            announcer(args)(url, elsewhere)

        return serve(
            chosen, [attach(cluster.settings())], clock, composed(args, chosen),
            version=args.version, sock=sock, before=before, announce=announce,
        )  # fmt: skip
