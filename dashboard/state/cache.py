"""Answers that cost a look at many rows, kept for a few seconds for all browsers together."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

T = TypeVar("T")


# An answer of an older state is read again after so many times what reading took: a tenth of a thread at most, however
# fast a run moves.
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
    """Thread-safe and bounded: the answer asked for longest ago goes first, and none outlives its time for long.

    A run's status is 0.3 MB, and there is one for each tick.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = 256) -> None:
        self._clock, self._size = clock, size
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, seconds: float, read: Callable[[], T], state: str = "") -> T:
        """What ``read`` said at most ``seconds`` ago. What it raises is raised, and not kept.

        ``state``: the cursor of what is shown beside it. Of another state it is read again, but not all the time.
        """
        entry = self._entry(key)
        # Of many browsers that ask for the same at once, one reads; those with another run do not wait.
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
        # Who is at no state, as at a page's first load, shows what others see.
        return age > seconds or bool(state and state != entry.state and age >= _REST * entry.took)

    def _entry(self, key: Hashable) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while next(iter(self._entries)) != key and self._goes(next(iter(self._entries.values()))):
                self._entries.popitem(last=False)
            return entry

    def _goes(self, oldest: _Entry) -> bool:
        return len(self._entries) > self._size or oldest.until < self._clock()
