"""Memory of a process that runs for weeks: what Python looks through again, and what goes back to the system."""

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Young objects that are looked through for rings at a time (default: 700). What a tick makes of a thousand pages goes
# with the tick, and hardly any of it was in a ring: looking for them was a sixth of a page's cost. So many are 10 MB.
YOUNG_OBJECTS = 50_000
# Parts of its memory the C library hands out from, each to some threads (default: eight a core). What was freed in one
# serves no other: a hundred MB after six hours of a run, with two parts 15.
ARENAS = 2
_M_ARENA_MAX = -8  # mallopt's, of glibc's malloc.h
# Giving back takes 2 to 20 ms, beside whatever runs.
GIVE_BACK_SECONDS = 60.0


def seldom_swept() -> None:
    """What was imported stays, and is not looked through again; what comes is, but seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def few_arenas() -> bool:
    """Threads share free memory; said before there are any. False: not said.

    Whoever runs it has (``MALLOC_ARENA_MAX``), or this C library has no such parts.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None or "MALLOC_ARENA_MAX" in os.environ:
        return False
    return bool(option(_M_ARENA_MAX, ARENAS))


def give_back() -> bool:
    """Whole pages that nobody uses go back to the system. False: this C library does not (glibc's does).

    Left alone it keeps those below the last one in use, in each thread's part: after four hours of a run with ten
    viewers 40 MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


@contextmanager
def giving_back(every: float = GIVE_BACK_SECONDS) -> Iterator[None]:
    """`give_back` from time to time, until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every):
            give_back()

    thread = threading.Thread(target=run, name="giving-back", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
