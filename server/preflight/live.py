"""Preflights on demand: one at a time per run, each on a thread of its own, the last answer kept in memory.

A reading takes as long as its slowest provider (each request is bounded, see `server.preflight.probe`), and a file
system may hang permanently: nothing waits for the thread, and no second one starts while it is alive.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from server.clock import Clock
from server.config.preflight import PreflightPlan
from server.config.settings import RunSettings
from server.preflight import report
from server.preflight.probe import OVER
from server.query import Reader
from server.query.preflight import CheckInfo, PreflightInfo

log = logging.getLogger("rollscope")

# Seconds. The collector queries providers that limit requests already, and a button is pressed more than once.
PAUSE_SECONDS = 30.0

Probe = Callable[[str], Mapping[str, Any]]
"""A run's name -> its report, as of `server.preflight.report.run`."""


class Busy(Exception):
    """The run's last preflight has not ended."""


class TooSoon(Exception):
    """It was begun less than `PAUSE_SECONDS` ago; ``seconds`` are left."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a preflight was started a moment ago; try again in {seconds:.0f} s")
        self.seconds = seconds


class NotConfigured(Exception):
    """There is nothing to read the run with."""


def living(reader: Reader) -> set[str]:
    """Names under which runs that are not known to be over may be known to a provider."""
    alive = [run for run in reader.runs.all() if run.lifecycle not in OVER]
    return {run.name for run in alive} | {str(run.facts["run_name"]) for run in alive if "run_name" in run.facts}


@dataclass(slots=True)
class _Kept:
    """``begun``: by the monotonic clock, which no correction moves; the other times are for people."""

    begun: float | None = None
    running: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    error: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)


class Preflights:
    """Thread-safe. Only configured runs can be read, because targets are not in the store.

    Args:
        living: names of the active runs. Unlike the command, which runs before a launch, a server has them,
            and a command that removes a sandbox in use must never be offered.
        probe: for tests; by default every configured target is read once.
    """

    def __init__(
        self, runs: Sequence[RunSettings], clock: Clock, living: Callable[[], Collection[str]],
        probe: Probe | None = None, ticks: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._runs, self._clock, self._ticks = {run.name: run for run in runs}, clock, ticks
        self._living = living
        self._probe = probe or self._read
        self._lock = threading.Lock()
        self._kept = {name: _Kept() for name in self._runs}

    def get(self, run: str) -> PreflightInfo:
        """The last one of a run, or why there is none."""
        if run not in self._runs:
            return PreflightInfo("not_configured")
        with self._lock:
            return self._info(self._kept[run], report.finite(asdict(self._runs[run].preflight)))

    def begin(self, run: str) -> PreflightInfo:
        """Start one, and do not wait for it.

        Raises:
            NotConfigured, Busy, TooSoon: why not.
        """
        if run not in self._runs:
            raise NotConfigured(run)
        with self._lock:
            kept = self._kept[run]
            if kept.running:
                raise Busy(run)
            left = self._left(kept)
            if left > 0:
                raise TooSoon(left)
            kept.begun, kept.running, kept.started_at = self._ticks(), True, self._clock.now()
        # Daemon: a file system that hangs must not hold up the end of the server.
        threading.Thread(target=self._work, args=(run, kept), name=f"preflight {run}", daemon=True).start()
        return self.get(run)

    def _work(self, run: str, kept: _Kept) -> None:
        found: Mapping[str, Any] | None = None
        error = ""
        try:
            found = self._probe(run)
        except Exception as problem:  # the thread's outermost frame: otherwise the page would wait permanently
            log.exception("the preflight of %s failed", run)
            error = f"it failed: {type(problem).__name__}; the server's log has more"
        with self._lock:
            kept.running, kept.error = False, error
            if found is not None:
                kept.found, kept.finished_at = found, self._clock.now()

    def _read(self, run: str) -> Mapping[str, Any]:
        # The other runs are read too: what belongs to them does not dangle.
        runs = [(one, one.preflight) for one in self._runs.values()]
        found: Mapping[str, Any] = report.run(runs, PreflightPlan(), self._clock, [run], self._living())["runs"][0]
        return found

    def _left(self, kept: _Kept) -> float:
        return 0.0 if kept.begun is None else kept.begun + PAUSE_SECONDS - self._ticks()

    def _info(self, kept: _Kept, plan: Mapping[str, Any]) -> PreflightInfo:
        state = "running" if kept.running else "failed" if kept.error else "done" if kept.found else "never"
        left = self._left(kept)
        return PreflightInfo(
            state,  # type: ignore[arg-type]
            kept.started_at, kept.finished_at, self._clock.now() + left if left > 0 else None, kept.error, plan,
            str(kept.found.get("outcome", "")), tuple(_check(check) for check in kept.found.get("checks", ())),
        )  # fmt: skip


def _check(check: Mapping[str, Any]) -> CheckInfo:
    lists = {name: tuple(check[name]) for name in ("details", "ids", "commands")}
    return CheckInfo(**{**check, **lists})
