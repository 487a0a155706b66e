"""Runs the collector in a child process, so that scraping many targets does not slow HTTP responses.

The parent serves, holds the lease for writing (queried before every step) and restarts the child when it dies. The
child runs `CollectorService`. They share one pipe: when the parent ends for any reason, the child ends with the pipe.
The child's settings go through the pipe too, so that no secret is on a command line.
"""

import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from server.config.settings import Settings
from server.lib.clock import WallClock
from server.runtime import logs
from server.runtime.collector_service import (
    DRAIN_SECONDS,
    CollectorService,
    Health,
    Leader,
    few_arenas,
    giving_back,
    seldom_swept,
)
from server.runtime.self_metrics import CollectorNumbers
from server.store import Store, StoreError
from server.targets.model import Attached

log = logging.getLogger("rollscope")

# Number of targets from which a child process is used; their pages take a tenth of a core.
MANY_TARGETS = 20
# First pause before a restart of the child, s; it doubles with each failure.
BACKOFF_SECONDS = 1.0
# Longest pause, s.
BACKOFF_MAX_SECONDS = 60.0
# After this run time (s) the pause starts from the beginning.
LIVED_SECONDS = 60.0
# Uses this environment's `sys.path`, so that nothing in the working directory is imported.
# The interpreter's own start, of this environment and no other: nothing of the working directory is imported.
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from server.runtime.collector_process import main; main(int(sys.argv[2]))"
)


@dataclass(frozen=True, slots=True)
class Job:
    """What the child process receives. Log levels and style are those of the parent."""

    settings: Settings
    runs: tuple[Attached, ...]
    levels: logs.Levels
    log_style: str


def wanted(settings: Settings, runs: Sequence[Attached]) -> bool:
    """Are there enough targets for a child process? A target list counts as many."""
    if settings.collect != "auto":
        return settings.collect == "apart"
    named = sum(1 for run in runs for target in run.targets if target.url)
    many = named + sum(1 for run in runs for one in run.awaited if one.source.is_url) >= MANY_TARGETS
    return many or any(run.discover for run in runs)


# ---- the parent's side


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    pipe: Connection
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def send(self, kind: str, value: object) -> None:
        """Sends a message. The child may have ended, which its listener detects."""
        with self._guard, suppress(OSError):
            self.pipe.send((kind, value))


class CollectorProcess(AbstractContextManager[None]):
    """Runs and restarts the child. Leaving drains it."""

    stuck = False

    def __init__(self, settings: Settings, runs: Sequence[Attached], health: Health, leader: Leader) -> None:
        root = logging.getLogger()
        self._job = Job(settings, tuple(runs), (root.level, log.level), logs.style())
        self._health, self._leader = health, leader
        self._ending = threading.Event()
        self._guard = threading.Lock()
        self._child: _Child | None = None
        self._thread = threading.Thread(target=self._keep, name="collect", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._ending.set()
            child = self._child
        if child is not None:
            child.send("end", None)
            try:
                child.process.wait(DRAIN_SECONDS + 5.0)
            except subprocess.TimeoutExpired:
                child.process.kill()
        self._thread.join()

    def _keep(self) -> None:
        pause = BACKOFF_SECONDS
        while True:
            begun = time.monotonic()
            with self._guard:
                if self._ending.is_set():
                    return
                child = self._child = _started(self._job, self._leader.descriptors)
            self._handle_messages(child)
            code = child.process.wait()
            child.pipe.close()
            if self._ending.is_set():
                return
            pause = BACKOFF_SECONDS if time.monotonic() - begun > LIVED_SECONDS else pause
            self._health.failed = f"the collecting process ended ({_how(code)}); it is started again"
            log.error("the collecting process ended (%s); starting it again in %g s", _how(code), pause)
            self._ending.wait(pause)
            pause = min(BACKOFF_MAX_SECONDS, 2 * pause)

    def _handle_messages(self, child: _Child) -> None:
        """Handles the child's messages until the pipe ends."""
        with suppress(EOFError, OSError):
            while True:
                kind, value = child.pipe.recv()
                if kind == "leading?":
                    child.send("leading", self._leading())
                elif kind == "turned":
                    self._health.turned[value] = time.monotonic()
                elif kind == "numbers":
                    self._health.publish(value)
                elif kind == "forgot":
                    self._health.turned.pop(value, None)
                else:
                    self._set_failed(value)

    def _set_failed(self, failed: str) -> None:
        """Records the failure that the child reports; "" means that it works."""
        if self._health.failed and not failed:
            log.info("the collecting process runs again")
        self._health.failed = failed
        if not failed:
            self._health.turned.clear()

    def _leading(self) -> bool | str:
        try:
            return self._leader.leading()
        except StoreError as error:
            return str(error)


def _started(job: Job, lease: Sequence[int]) -> _Child:
    """Starts the child. ``lease``: descriptors of the lease, so that it is released only when the child ended."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path), str(theirs.fileno())],
            pass_fds=(theirs.fileno(), *lease), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    pipe = Connection(ours.detach())
    with suppress(OSError):  # it died at once, which its listener detects
        pipe.send(job)
    return _Child(process, pipe)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# ---- the child's side


@dataclass(slots=True)
class _Parent:
    """The child's end of the pipe, for all threads; also the child's `LeaseHolder`."""

    pipe: Connection
    answers: "queue.SimpleQueue[bool | str]" = field(default_factory=queue.SimpleQueue)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def send(self, kind: str, value: object) -> None:
        """Sends a message without an answer. The parent may have ended."""
        with self._guard, suppress(OSError):
            self.pipe.send((kind, value))

    def leading(self) -> bool:
        """As `Leader.leading`."""
        with self._asking:
            self.send("leading?", None)
            answer = self.answers.get()
        if isinstance(answer, str):
            raise StoreError(answer)
        return answer

    def listen(self) -> None:
        """Receives messages until the parent sends "end" or has ended."""
        with suppress(EOFError, OSError):
            while True:
                kind, value = self.pipe.recv()
                if kind == "end":
                    return
                self.answers.put(value)

    def gone(self) -> None:
        """Releases threads that wait for an answer, because none will come."""
        for _ in range(8):
            self.answers.put(False)


class _Health(Health):
    """Reports every turn to the parent, for `/readyz`."""

    def __init__(self, parent: _Parent) -> None:
        super().__init__(_ReportedTurns(parent))
        self._parent = parent

    def publish(self, numbers: CollectorNumbers) -> None:
        self._parent.send("numbers", numbers)

    def fail(self, why: str) -> None:
        super().fail(why)
        self._parent.send("failed", why)


class _ReportedTurns(dict[str, float]):
    def __init__(self, parent: _Parent) -> None:
        super().__init__()
        self._parent = parent

    def __setitem__(self, run: str, at: float) -> None:
        super().__setitem__(run, at)
        self._parent.send("turned", run)

    def pop(self, run: str, *default: Any) -> Any:
        self._parent.send("forgot", run)
        return super().pop(run, *default)


def main(descriptor: int) -> None:
    """Entry point of the child: collects until the pipe ends."""
    few_arenas()
    seldom_swept()
    # Ctrl-C and systemd signal the whole tree; the parent ends the child after it has stopped serving.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = _Parent(Connection(descriptor))
    try:
        job: Job = parent.pipe.recv()
    except (EOFError, OSError):
        return
    logs.configure(job.levels, job.log_style)
    with closing(Store.open(job.settings.store)) as store:
        collecting = CollectorService(job.settings, store, job.runs, WallClock(), _Health(parent), None, parent)
        collecting.report_process()
        with collecting, giving_back():
            parent.send("failed", "")
            parent.listen()
            parent.gone()
        if collecting.stuck:
            os._exit(0)  # the interpreter would wait for the hanging thread permanently
