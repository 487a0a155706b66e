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
    ["tests.store.crash_child", "tests.alerts.delivery_child", "tests.server.rollout_child"]
)


def begin(main: Callable[..., Any], *args: Any) -> tuple[ForkServerProcess, TextIO]:
    """A process that runs ``main(*args)``, and what it prints. ``main`` is a module's own function."""
    reading, writing = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(writing, main, args))
    process.start()
    writing.close()
    return process, os.fdopen(os.dup(reading.fileno()), encoding="utf-8")


def _run(printed: Any, main: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.dup2(printed.fileno(), 1)
    printed.close()
    main(*args)
