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

from server.lib.clock import Clock
from server.preflight import checks as report
from server.preflight.model import PreflightPlan
from server.preflight.probe import OVER
from server.query import Reader
from server.query.preflight import CheckInfo, PreflightInfo
from server.targets.model import RunSettings

log = logging.getLogger("rollscope")

# Seconds. The collector queries providers that limit requests already, and a button is pressed more than once.
PAUSE_SECONDS = 30.0

Probe = Callable[[str], Mapping[str, Any]]
"""A run's name -> its report, as of `server.preflight.checks.run`."""


class Busy(Exception):
    """The run's last preflight has not ended."""


class TooSoon(Exception):
    """It was begun less than `PAUSE_SECONDS` ago; ``seconds`` are left."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a preflight was started a moment ago; try again in {seconds:.0f} s")
        self.seconds = seconds


class NotConfigured(Exception):
    """There is nothing to read the run with."""


def active_run_names(reader: Reader) -> set[str]:
    """Names under which runs that are not known to be over may be known to a provider."""
    alive = [run for run in reader.runs.all() if run.lifecycle not in OVER]
    return {run.name for run in alive} | {str(run.facts["run_name"]) for run in alive if "run_name" in run.facts}


@dataclass(slots=True)
class _PreflightState:
    """``begun``: by the monotonic clock, which no correction moves; the other times are for people."""

    begun: float | None = None
    running: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    error: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)


class Preflights:
    """Thread-safe. Only configured runs can be read, because targets are not in the store.

    Args:
        living: names of the active runs. Unlike the command, which runs before a launch, a server has them,
            and a command that removes a sandbox in use must never be offered.
        probe: for tests; by default every configured target is read once.
    """

    def __init__(
        self, runs: Sequence[tuple[RunSettings, PreflightPlan]], clock: Clock,
        active_run_names: Callable[[], Collection[str]],
        probe: Probe | None = None, ticks: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._runs, self._clock, self._ticks = {run.name: (run, plan) for run, plan in runs}, clock, ticks
        self._active_names = active_run_names
        self._probe = probe or self._read
        self._lock = threading.Lock()
        self._states = {name: _PreflightState() for name in self._runs}

    def get(self, run: str) -> PreflightInfo:
        """The last one of a run, or why there is none."""
        if run not in self._runs:
            return PreflightInfo("not_configured", run=run)
        with self._lock:
            return self._info(run, self._states[run], report.finite(asdict(self._runs[run][1])))

    def begin(self, run: str) -> PreflightInfo:
        """Start one, and do not wait for it.

        Raises:
            NotConfigured, Busy, TooSoon: why not.
        """
        if run not in self._runs:
            raise NotConfigured(run)
        with self._lock:
            state = self._states[run]
            if state.running:
                raise Busy(run)
            left = self._left(state)
            if left > 0:
                raise TooSoon(left)
            state.begun, state.running, state.started_at = self._ticks(), True, self._clock.now()
        # Daemon: a file system that hangs must not hold up the end of the server.
        threading.Thread(target=self._work, args=(run, state), name=f"preflight {run}", daemon=True).start()
        return self.get(run)

    def _work(self, run: str, state: _PreflightState) -> None:
        outcome: Mapping[str, Any] | None = None
        error = ""
        try:
            outcome = self._probe(run)
        except Exception as problem:  # the thread's outermost frame: otherwise the page would wait permanently
            log.exception("the preflight of %s failed", run)
            error = f"it failed: {type(problem).__name__}; the server's log has more"
        with self._lock:
            state.running, state.error = False, error
            if outcome is not None:
                state.report, state.finished_at = outcome, self._clock.now()

    def _read(self, run: str) -> Mapping[str, Any]:
        # The other runs are read too: what belongs to them does not dangle.
        answer = report.run(list(self._runs.values()), PreflightPlan(), self._clock, [run], self._active_names())
        outcome: Mapping[str, Any] = answer["runs"][0]
        return outcome

    def _left(self, state: _PreflightState) -> float:
        return 0.0 if state.begun is None else state.begun + PAUSE_SECONDS - self._ticks()

    def _info(self, run: str, kept: _PreflightState, plan: Mapping[str, Any]) -> PreflightInfo:
        state = "running" if kept.running else "failed" if kept.error else "done" if kept.report else "never"
        left = self._left(kept)
        return PreflightInfo(
            state,  # type: ignore[arg-type]
            kept.started_at, kept.finished_at, self._clock.now() + left if left > 0 else None, kept.error, plan,
            str(kept.report.get("outcome", "")), tuple(_check(check) for check in kept.report.get("checks", ())), run,
        )  # fmt: skip


def _check(check: Mapping[str, Any]) -> CheckInfo:
    lists = {name: tuple(check[name]) for name in ("details", "ids", "commands")}
    return CheckInfo(**{**check, **lists})
