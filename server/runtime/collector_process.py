"""Role `collect` in a process of its own, beside the web's: a thousand pages parsed are not felt by a browser.

One command, one tree. The parent serves, holds the right to write (it is asked before every step) and starts the child
again when that dies; the child does everything `serve.CollectorService` does. Between them is one pipe: when the parent
is gone, however it went, the pipe ends, and with it the child. What the child is told goes through the pipe as well, so
that no secret is on a command line.
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

from server.clock import WallClock
from server.config.settings import Settings
from server.runtime import logs
from server.runtime.collector_service import DRAIN_SECONDS, CollectorService, Health
from server.runtime.leader import Leader
from server.runtime.memory import few_arenas, giving_back, seldom_swept
from server.store import Store, StoreError
from server.targets.resolve import Attached

log = logging.getLogger("rollscope")

# From so many engines on their pages take a tenth of a core.
MANY_TARGETS = 20
# Between the child's death and its next life; one that lived for a minute begins anew.
BACKOFF_SECONDS, BACKOFF_MAX_SECONDS, LIVED_SECONDS = 1.0, 60.0, 60.0
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
    """Is there enough to read for a process of its own? A list of targets may name any number."""
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

    def say(self, word: str, value: object) -> None:
        """To a child that may be gone: whoever listens finds that out."""
        with self._guard, suppress(OSError):
            self.pipe.send((word, value))


class CollectorProcess(AbstractContextManager[None]):
    """Keeps the child alive. Leaving drains it."""

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
            child.say("end", None)
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
            self._listen(child)
            code = child.process.wait()
            child.pipe.close()
            if self._ending.is_set():
                return
            pause = BACKOFF_SECONDS if time.monotonic() - begun > LIVED_SECONDS else pause
            self._health.failed = f"the collecting process ended ({_how(code)}); it is started again"
            log.error("the collecting process ended (%s); starting it again in %g s", _how(code), pause)
            self._ending.wait(pause)
            pause = min(BACKOFF_MAX_SECONDS, 2 * pause)

    def _listen(self, child: _Child) -> None:
        """What the child says, until it says nothing more."""
        with suppress(EOFError, OSError):
            while True:
                word, value = child.pipe.recv()
                if word == "leading?":
                    child.say("leading", self._leading())
                elif word == "turned":
                    self._health.turned[value] = time.monotonic()
                elif word == "forgot":
                    self._health.turned.pop(value, None)
                else:
                    self._told(value)

    def _told(self, failed: str) -> None:
        """The child's own word on how it is."""
        if self._health.failed and not failed:
            log.info("the collecting process is back")
        self._health.failed = failed
        if not failed:
            self._health.turned.clear()

    def _leading(self) -> bool | str:
        try:
            return self._leader.leading()
        except StoreError as error:
            return str(error)


def _started(job: Job, lease: Sequence[int]) -> _Child:
    """``lease``: descriptors that hold the right to write: it is given back only when the child is gone, too."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path), str(theirs.fileno())],
            pass_fds=(theirs.fileno(), *lease), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    pipe = Connection(ours.detach())
    with suppress(OSError):  # it died at once: the next one who listens finds that out
        pipe.send(job)
    return _Child(process, pipe)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# ---- the child's side


@dataclass(slots=True)
class _Parent:
    """The pipe, for all threads of the child; and, as a `Leader`, who says whether we may write."""

    pipe: Connection
    answers: "queue.SimpleQueue[bool | str]" = field(default_factory=queue.SimpleQueue)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def say(self, word: str, value: object) -> None:
        """Without an answer. A parent that is gone needs none."""
        with self._guard, suppress(OSError):
            self.pipe.send((word, value))

    def leading(self) -> bool:
        """As `Leader.leading`."""
        with self._asking:
            self.say("leading?", None)
            answer = self.answers.get()
        if isinstance(answer, str):
            raise StoreError(answer)
        return answer

    def listen(self) -> None:
        """Until told to end, or there is nobody."""
        with suppress(EOFError, OSError):
            while True:
                word, value = self.pipe.recv()
                if word == "end":
                    return
                self.answers.put(value)

    def gone(self) -> None:
        """Nobody answers any more: who waits for it is let go."""
        for _ in range(8):
            self.answers.put(False)


class _Health(Health):
    """Tells the parent of every turn, which is what `/readyz` judges by."""

    def __init__(self, parent: _Parent) -> None:
        super().__init__(_ChangedLevels(parent))
        self._parent = parent

    def fail(self, why: str) -> None:
        super().fail(why)
        self._parent.say("failed", why)


class _ChangedLevels(dict[str, float]):
    def __init__(self, parent: _Parent) -> None:
        super().__init__()
        self._parent = parent

    def __setitem__(self, run: str, at: float) -> None:
        super().__setitem__(run, at)
        self._parent.say("turned", run)

    def pop(self, run: str, *default: Any) -> Any:
        self._parent.say("forgot", run)
        return super().pop(run, *default)


def main(descriptor: int) -> None:
    """The child: collect until the pipe ends."""
    few_arenas()
    seldom_swept()
    # Ctrl-C and systemd reach the whole tree; the parent says when it is over, after it has stopped serving.
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
        with collecting, giving_back():
            parent.say("failed", "")
            parent.listen()
            parent.gone()
        if collecting.stuck:
            os._exit(0)  # the interpreter would wait for the hung thread for ever
