"""The process that the packing test kills: recomputes rollups of late samples and packs all that is due.

It kills itself at the ``moment``-th point that changes what a crash leaves behind: after each INSERT, UPDATE and
DELETE, before each commit and after it. It prints each point before, so that the test sees where the process ended.
"""

import os
import re
import signal
from itertools import count
from typing import Any

from sqlalchemy import event

from server.store import Store

CHANGE = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM) (\w+)")
"""Also inside of a WITH."""


def main(url: str, moment: int, closed: int) -> None:
    """``closed``: event time (ms) up to which rollups are computed."""
    store = Store.open(url)
    engine = store._engines.writable()
    numbers = count(1)
    changed = False

    def reached(name: str) -> None:
        print(name, flush=True)
        if next(numbers) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    @event.listens_for(engine, "after_cursor_execute")
    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal changed
        if change := CHANGE.search(statement):
            changed = True
            reached(change[0])

    @event.listens_for(engine, "commit")
    def commits(_connection: Any) -> None:
        if changed:
            reached("before commit")

    @event.listens_for(engine, "checkin")
    def returned(_connection: Any, _record: Any) -> None:
        nonlocal changed
        if changed:
            changed = False
            reached("after commit")

    store.rollup("run", closed)
    while store.chunks.step():
        pass
    store.close()
