"""`rollscope demo`: simulates a cluster and serves it live.

The simulation writes native formats to real sockets and files, so that the collectors see only what a cluster shows.
"""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import collectors
from demo.faults import KINDS, kinds_of
from demo.faults import read as read_fault
from demo.scenarios import SCENARIOS
from server.cli.options import Options, settings, simulating
from server.cli.program import Choice, Command
from server.lib.clock import ScaledClock, WallClock
from server.lib.errors import ConfigError, suggestion
from server.lib.secret import Secret
from server.signals.model import TICK_SECONDS
from server.targets.model import RunSettings, TargetSettings

if TYPE_CHECKING:
    from server.scrape.run_loop import RunLoop

log = logging.getLogger("rollscope.demo")

# Long enough for every window, rollup and chart range of the first screen to be full.
HISTORY_SECONDS = 3600.0
# Rollout records cover the last part only: records of the whole hour would take longer than all the rest together.
RECORDS_SECONDS = 900.0
PREFIX = "rollscope-demo-"
# What a user would state in [run.NAME.cost]; the run's files report the number of GPUs. GB300s have no list price
# because they are sold by contract, so this price is invented.
GPUS: dict[str, str | float] = {"gpu_type": "H200"}
OTHER_GPUS: dict[str, dict[str, str | float]] = {
    "gb300-sandbox-wall": {"gpu_type": "GB300", "usd_per_gpu_hour": 9.0},
}
SANDBOX_COLLECTOR = "prime_sandboxes"
MODAL_COLLECTOR = "modal"
# A listing of 1,000 sandboxes has ten pages, and providers limit the request rate.
SANDBOX_SECONDS = 60.0


def _environment() -> dict[str, str]:
    """Puts this program's packages first: PYTHONPATH may name a folder with another `server/`."""
    root = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{rest}" if rest else root}


class Cluster(AbstractContextManager["Cluster"]):
    """The simulation's process. It ends when this process ends, because its standard input closes."""

    _gpus = GPUS

    def __init__(
        self, scenario: str, seed: int, directory: Path, start: float, records_from: float = 0.0,
        inject: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._args = [
            sys.executable, "-P", "-m", "demo", "--scenario", scenario, "--seed", str(seed),
            "--dir", str(directory), "--start", repr(start), "--records-from", repr(records_from),
            *(argument for fault in inject for argument in ("--inject", fault)),
        ]  # fmt: skip
        self._gpus = OTHER_GPUS.get(scenario, GPUS)
        self.ready: dict[str, Any] = {}

    def __enter__(self) -> "Cluster":
        # In a process group of its own: a signal to our group (`timeout`, the end of a job) must reach it through us.
        self._process = subprocess.Popen(
            self._args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, process_group=0,
            env=_environment(),
        )  # fmt: skip
        self.ready = self._answer()
        if "missing" in self.ready:
            log.info("%s", self.ready["missing"])
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # the process may have ended already
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
        """Simulate up to event time `t`; returns when pages and files show it."""
        self._send({"advance_to": t})
        self._answer()

    def push_to(self, url: str, token: str = "") -> None:
        """Set the server to which an instrumented orchestrator posts rollouts, if the scenario has one."""
        if self.ready.get("pushes"):
            self._send({"push_to": url, "token": token})
            self._answer()

    def follow(self, sim: float, speed: float) -> None:
        """From now on the simulation follows the clock by itself."""
        self._send({"follow": {"wall": time.time(), "sim": sim, "speed": speed}})
        self._answer()

    def settings(self) -> RunSettings:
        """The cluster as a user would configure it: the engines' URLs, the run directory, the provider's API."""
        if "targets" in self.ready:
            named = tuple(map(_named, self.ready["targets"]))
            return RunSettings(self.ready["run"], named, {**self._gpus, **self.ready.get("facts", {})})
        engines = [
            TargetSettings(url, name=f"engine-{number}", collector="vllm")
            for number, url in enumerate(self.ready["engines"])
        ]
        trainer = TargetSettings(self.ready["run_dir"], name="trainer", collector="prime_rl")
        records = TargetSettings(self.ready["run_dir"], name="rollouts", collector="verifiers_rollouts")
        # No file of the run holds the largest reward of a task, so the user states it.
        facts = {"max_reward": 1.0, **self._gpus}
        return RunSettings(self.ready["run"], (*engines, trainer, records, *self._sandboxes()), facts)

    def _sandboxes(self) -> Iterator[TargetSettings]:
        """The accounts of sandbox providers, if the scenario has them and a collector can read them."""
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


def _named(target: Mapping[str, Any]) -> TargetSettings:
    """A target of a stack's ready line."""
    return TargetSettings(
        target["source"], name=target["name"], collector=target["collector"],
        interval_seconds=target.get("seconds", TICK_SECONDS),
    )  # fmt: skip


def check_faults(scenario: str, inject: Sequence[str]) -> None:
    """Check the faults of the command line.

    Raises:
        ConfigError: with every fault that does not exist or that the scenario cannot have.
    """
    problems = []
    sandboxes = SCENARIOS[scenario].sandboxes is not None
    for text in inject:
        kind, at, _ = text.partition("@")
        if at and kind not in KINDS:
            problems.append(f"--inject: no fault is named {kind!r}; {suggestion(kind, kinds_of(sandboxes))}")
            continue
        try:
            read_fault(text, sandboxes)
        except ValueError as error:
            problems.append(f"--inject: {error}")
    if problems:
        raise ConfigError(problems)


def first_time(now: float) -> float:
    """One hour ago, on the tick grid."""
    return math.floor((now - HISTORY_SECONDS) / TICK_SECONDS) * TICK_SECONDS


async def fast_forward(cluster: Cluster, clock: ScaledClock, loops: "Sequence[RunLoop]", speed: float) -> None:
    """Replay the first hour through the normal scrape path, then let the clock run.

    Once the loops have read the cluster at `t`, the simulation goes on to the next tick while the readings of `t`
    are derived.
    """
    began, t = time.monotonic(), clock.now()
    ahead: asyncio.Future[None] | None = None
    while t + TICK_SECONDS <= time.time():
        await (ahead or asyncio.to_thread(cluster.advance, t + TICK_SECONDS))
        t += TICK_SECONDS
        clock.set(t)
        horizons = [await loop.read(t, patient=True, present=time.time()) for loop in loops]
        if t + TICK_SECONDS <= time.time():
            ahead = asyncio.ensure_future(asyncio.to_thread(cluster.advance, t + TICK_SECONDS))
        for loop, horizon in zip(loops, horizons, strict=True):
            await loop.derive(t, horizon, patient=True)
    cluster.follow(t, speed)
    clock.run(speed)
    log.info("the first hour is complete after %.0f s", time.monotonic() - began)


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory for run, truth files and store of a demo; removed at the end.

    Directories that killed demos left are removed here: their names hold the process id.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        process = old.name.removeprefix(PREFIX).split("-")[0]
        if process.isdigit() and not Path(f"/proc/{process}").exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)


# A simulated hour costs 1 s of CPU and another to read; a faster clock leaves the collectors behind.
MAX_SPEED = 100.0


@click.command(cls=Command)
@simulating
@click.option(
    "--scenario",
    type=Choice(sorted(SCENARIOS)),
    default="generator-bound",
    show_default=True,
    metavar="SCENARIO",
    help=f"one of {', '.join(sorted(SCENARIOS))}",
)
@click.option("--seed", type=int, default=0, help="seed of the simulation; the same seed gives the same run")
@click.option(
    "--speed",
    type=float,
    default=1.0,
    help="speed of the demo's clock after the first hour; above 1 it runs ahead of real time",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="keep the run directory, the truth files and the store in this directory",
)
@click.option(
    "--inject",
    multiple=True,
    metavar="KIND@TIME",
    help=f"inject a fault at 90, 10m or 1.5h of the demo's clock, which begins one hour before the page is live; "
    f"may be repeated; kinds: {', '.join(KINDS)}",
)
def command(
    options: Options, scenario: str, seed: int, speed: float, directory: Path | None, inject: tuple[str, ...]
) -> int:
    if not 0 < speed <= MAX_SPEED:
        raise ConfigError([f"--speed: must be above 0 and at most {MAX_SPEED:g}"])
    check_faults(scenario, inject)
    if directory is not None:
        _make_directory(directory)
        return _demo_in(options, directory, scenario, seed, speed, inject)
    with temporary_directory() as temporary:
        return _demo_in(options, Path(temporary), scenario, seed, speed, inject)


def _make_directory(directory: Path) -> None:
    """Makes the directory of ``--dir``.

    Raises:
        ConfigError: it cannot be made or written, or it holds a demo already.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (directory / "run").exists():
            raise ConfigError([f"--dir: {directory} already holds a demo; name another directory or remove it"])
        with tempfile.TemporaryFile(dir=directory):
            pass  # a directory without write permission is refused before the simulation starts
    except FileExistsError:
        raise ConfigError([f"--dir: {directory} is a file; name a directory"]) from None
    except OSError as error:
        raise ConfigError([f"--dir: {directory} cannot be written: {error.strerror}"]) from None


def _demo_in(
    options: Options, directory: Path, scenario: str, seed: int, speed: float, inject: Sequence[str]
) -> int:  # fmt: skip
    chosen = settings(options)
    from server.cli.serving import announcer, dashboard  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.runtime.serve import addresses, bind, serve  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.targets.resolve import attach  # noqa: PLC0415 - takes a second, and a usage error does not need it

    if options.store is None:
        chosen = replace(chosen, store=Secret(f"sqlite:///{directory / 'rollscope.db'}"))
    sock = bind(chosen.host, chosen.port)
    clock = ScaledClock(first_time(WallClock().now()))
    begin = clock.now()
    records_from = begin + HISTORY_SECONDS - RECORDS_SECONDS
    with Cluster(scenario, seed, directory, begin, records_from, inject) as cluster:
        chosen = replace(chosen, runs=(cluster.settings(),))
        # The socket listens already; requests are answered once the application runs.
        cluster.push_to(addresses(chosen.host, sock.getsockname()[1])[0], chosen.token or "")

        async def before(loops: "Sequence[RunLoop]") -> None:
            await fast_forward(cluster, clock, loops, speed)

        def announce(url: str, external_url: str) -> None:
            print(f"demo {scenario}, seed {seed}; truth in {cluster.ready['truth']}", flush=True)
            print("simulating the first hour takes about a minute; the page fills in meanwhile", flush=True)
            announcer(options, admin=chosen.token is None)(url, external_url)

        return serve(
            chosen, [attach(cluster.settings())], clock, dashboard(options, chosen),
            version=options.program.version, sock=sock, before=before, announce=announce,
        )  # fmt: skip
