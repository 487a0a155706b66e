"""Tools of the simulation: an agenda of future actions, and the integral of a step function."""

import heapq
from collections.abc import Callable

Action = Callable[[float], None]


class Agenda:
    """Actions at event times (seconds since the run began).

    Actions at equal times run in the order in which they were planned.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._planned = 0

    def plan(self, at: float, action: Action) -> None:
        # The serial number orders equal times; otherwise the heap would compare actions and fail.
        self._planned += 1
        heapq.heappush(self._heap, (at, self._planned, action))

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def run_next(self) -> None:
        at, _, action = heapq.heappop(self._heap)
        action(at)


class Level:
    """A piecewise constant number, and its integral over time (number x seconds)."""

    __slots__ = ("_since", "_sum", "value")

    def __init__(self) -> None:
        self.value = 0
        self._since = 0.0
        self._sum = 0.0

    def set(self, now: float, value: int) -> None:
        self._sum += self.value * (now - self._since)
        self._since = now
        self.value = value

    def add(self, now: float, change: int) -> None:
        self.set(now, self.value + change)

    def integral(self, now: float) -> float:
        return self._sum + self.value * (now - self._since)
