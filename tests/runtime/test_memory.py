"""What a process gives back to the system, and what is not looked through for garbage."""

import gc
import os
import subprocess
import sys
import threading

from server.runtime import collector_service

# A hundred megabytes in pieces, of which the last one stays: what lies below it no allocator gives back unasked.
_HOLES = """
from server.runtime.collector_service import give_back

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) >> 10

pieces = [bytes(4000) for _ in range(25_000)]
last = pieces[-1]
del pieces
before = resident()
assert give_back()
print(before - resident())
"""


def test_pages_that_nobody_uses_go_back() -> None:
    told = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True).stdout
    assert 80 <= int(told) <= 110


def test_they_do_so_from_time_to_time_until_the_end(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    gave, enough = [], threading.Event()

    def once() -> bool:
        gave.append(1)
        if len(gave) == 3:
            enough.set()
        return True

    monkeypatch.setattr(collector_service, "give_back", once)
    with collector_service.giving_back(0.001):
        assert enough.wait(30)
    count = len(gave)
    assert not [one for one in threading.enumerate() if one.name == "giving-back"]
    assert len(gave) == count


def test_what_is_there_is_not_looked_through_again() -> None:
    """In a process of its own: what is frozen stays so."""
    asks = "import gc; from server.runtime.collector_service import *; seldom_swept()"
    asks += "; print(gc.get_freeze_count(), gc.get_threshold())"
    told = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout
    count, _, threshold = told.partition(" ")
    assert int(count) > 5_000
    assert threshold.strip() == "(50000, 10, 10)"
    assert gc.get_threshold()[0] != 50_000


# Threads that each free what they had, one after the other, all of them alive to the end.
_PARTS = """
import ctypes, threading
from server.runtime.collector_service import few_arenas

def parts():
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    path = b"/proc/self/fd/1"
    out = libc.fopen(path, b"w")
    libc.malloc_info(0, ctypes.c_void_p(out))
    libc.fclose(ctypes.c_void_p(out))

assert few_arenas()
together = threading.Barrier(13)
def work():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    together.wait()
    libc.free(ctypes.c_void_p(libc.malloc(4000)))
    together.wait()
for _ in range(12):
    threading.Thread(target=work).start()
together.wait()
parts()
together.wait()
"""


def test_threads_share_two_parts_of_memory() -> None:
    told = subprocess.run([sys.executable, "-c", _PARTS], capture_output=True, text=True, check=True).stdout
    assert told.count("<heap nr=") == 2
    untold = _PARTS.replace("assert few_arenas()", "")
    told = subprocess.run([sys.executable, "-c", untold], capture_output=True, text=True, check=True).stdout
    assert told.count("<heap nr=") > 2


def test_who_runs_it_may_say_another_number() -> None:
    asks = "from server.runtime.collector_service import few_arenas; print(few_arenas())"
    env = {**os.environ, "MALLOC_ARENA_MAX": "8"}
    assert subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, env=env).stdout == "False\n"
