"""Caches expensive answers for a few seconds, shared by all browsers."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")


# Wait between reads of an outdated answer, as a multiple of the read time: bounds the load to a tenth of a thread.
_REST = 10


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float | None = None
    until: float = inf
    took: float = 0.0
    state: str = ""
    value: Any = None


class TimedCache:
    """Thread-safe and bounded: evicts the least recently used entry first, and expired entries.

    A run's status is 0.3 MB, and there is one for each tick.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = 256) -> None:
        self._clock, self._size = clock, size
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, seconds: float, read: Callable[[], T], state: str = "") -> T:
        """The result of ``read``, at most ``seconds`` old. Exceptions are raised and not cached.

        ``state``: the cursor of the points shown. With a new cursor the answer is read again, at a bounded rate.
        """
        entry = self._entry(key)
        # One of several concurrent requests reads; requests for another key do not wait.
        with entry.lock:
            if self._due(entry, seconds, state):
                began = self._clock()
                entry.value = read()
                entry.at, entry.state = self._clock(), state
                entry.took, entry.until = entry.at - began, entry.at + seconds
            value: T = entry.value
        return value

    def _due(self, entry: _Entry, seconds: float, state: str) -> bool:
        if entry.at is None:
            return True
        age = self._clock() - entry.at
        # A first load has no cursor and takes the cached answer.
        return age > seconds or bool(state and state != entry.state and age >= _REST * entry.took)

    def _entry(self, key: Hashable) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while next(iter(self._entries)) != key and self._evictable(next(iter(self._entries.values()))):
                self._entries.popitem(last=False)
            return entry

    def _evictable(self, oldest: _Entry) -> bool:
        return len(self._entries) > self._size or oldest.until < self._clock()
