"""Real processes for the tests that kill them, begun in milliseconds: forked from a server that has imported us.

A process of its own by `python -m` takes a second to import what it needs; twenty of them are half a minute.
"""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import Any, TextIO

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.store.crash_child", "tests.alerts.delivery_child", "tests.ingest.rollout_child",
        "tests.derive.verdict_child", "tests.scrape.history_child",
    ]
)  # fmt: skip


def begin(main: Callable[..., Any], *args: Any) -> tuple[ForkServerProcess, TextIO]:
    """A process that runs ``main(*args)``, and what it prints. ``main`` is a module's own function."""
    reading, writing = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(writing, main, args))
    process.start()
    writing.close()
    return process, os.fdopen(os.dup(reading.fileno()), encoding="utf-8")


def run_and_kill(main: Callable[..., Any], *args: Any, lines: int, spin: int) -> list[str]:
    """Begin a process, read its first word and ``lines`` more, burn ``spin`` turns, kill it: all that it printed."""
    process, said = begin(main, *args)
    printed = [said.readline().strip() for _ in range(lines + 1)]
    for _ in range(spin):
        pass  # a seeded moment later, somewhere inside a transaction
    process.kill()
    rest = said.read().split("\n")[:-1]  # the last line may be torn
    process.join()
    said.close()
    return printed + rest


def _run(printed: Any, main: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.dup2(printed.fileno(), 1)
    printed.close()
    main(*args)
