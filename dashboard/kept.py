"""Answers that cost a look at many rows, kept for a few seconds for all browsers together."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float | None = None
    until: float = inf
    value: Any = None


class Kept:
    """Thread-safe and bounded: the answer asked for longest ago goes first, and none outlives its time for long.

    A run's status is 0.3 MB, and there is one for each tick.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = 256) -> None:
        self._clock, self._size = clock, size
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, seconds: float, read: Callable[[], T]) -> T:
        """What ``read`` said at most ``seconds`` ago. What it raises is raised, and not kept."""
        entry = self._entry(key)
        # Of many browsers that ask for the same at once, one reads; those with another run do not wait.
        with entry.lock:
            if entry.at is None or self._clock() - entry.at > seconds:
                entry.value = read()
                entry.at = self._clock()
                entry.until = entry.at + seconds
            value: T = entry.value
        return value

    def _entry(self, key: Hashable) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while next(iter(self._entries)) != key and self._goes(next(iter(self._entries.values()))):
                self._entries.popitem(last=False)
            return entry

    def _goes(self, oldest: _Entry) -> bool:
        return len(self._entries) > self._size or oldest.until < self._clock()
