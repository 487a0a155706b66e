"""Memory of a process that runs for weeks: garbage collection, and memory returned to the system."""

import ctypes
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Threshold of garbage collection, young objects (default 700). A tick allocates many short-lived acyclic objects;
# collecting them was a sixth of the cost of a page. This many objects have 10 MB.
YOUNG_OBJECTS = 50_000
# Malloc arenas (default: eight per core). Memory freed in one arena does not serve another: a hundred MB after six
# hours of a run by default, 15 MB with two arenas.
ARENAS = 2
_M_ARENA_MAX = -8  # parameter of mallopt, from glibc's malloc.h
# Interval of returning memory to the system, s. A call takes 2 to 20 ms.
GIVE_BACK_SECONDS = 60.0


def seldom_swept() -> None:
    """Excludes imported objects from garbage collection, and collects others rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def few_arenas() -> bool:
    """Limits the number of malloc arenas; must be called before threads start. Returns False if it did not.

    It does not if the user set ``MALLOC_ARENA_MAX``, or if this C library has no arenas.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None or "MALLOC_ARENA_MAX" in os.environ:
        return False
    return bool(option(_M_ARENA_MAX, ARENAS))


def give_back() -> bool:
    """Returns free memory pages to the system. Returns False if this C library cannot (glibc can).

    Otherwise free pages below the last used one in each arena stay allocated: 40 MB after four hours of a run with ten
    viewers.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


@contextmanager
def giving_back(every: float = GIVE_BACK_SECONDS) -> Iterator[None]:
    """Calls `give_back` at intervals until the block ends."""
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
