"""Starts real processes for tests that kill them, forked from a server that has imported the program.

A process started by `python -m` needs a second for its imports; a forked one needs milliseconds.
"""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any, TextIO

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.store.crash_child", "tests.store.packing_child", "tests.alerts.delivery_child",
        "tests.ingest.rollout_child", "tests.ingest.roundtrip_child", "tests.derive.verdict_child",
        "tests.scrape.history_child",
    ]
)  # fmt: skip


def begin(main: Callable[..., Any], *args: Any) -> tuple[ForkServerProcess, TextIO]:
    """Starts a process that runs ``main(*args)``; returns it and its output. ``main`` is a function of a module."""
    reading, writing = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(writing, main, args))
    process.start()
    writing.close()
    return process, os.fdopen(os.dup(reading.fileno()), encoding="utf-8")


def run_and_kill(main: Callable[..., Any], *args: Any, lines: int, spin: int) -> list[str]:
    """Starts a process, reads ``lines`` + 1 lines, spins ``spin`` times, kills it. Returns all lines it printed."""
    process, output = begin(main, *args)
    printed = [output.readline().strip() for _ in range(lines + 1)]
    for _ in range(spin):
        pass  # until a seeded point of time, somewhere inside a transaction
    process.kill()
    rest = output.read().split("\n")[:-1]  # the last line may be incomplete
    process.join()
    output.close()
    return printed + rest


def _run(printed: Any, main: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.dup2(printed.fileno(), 1)
    printed.close()
    main(*args)
