"""Which life of its trainer a run was in, and when."""

from bisect import bisect_right, insort
from collections.abc import Iterable

from collectors.model import Event

_KEY = "restart-"


class Lives:
    """Incarnations of one run by the time they began (epoch seconds); before the first restart it is the first."""

    def __init__(self, newest: int, events: Iterable[Event] = ()) -> None:
        self.newest = newest
        self._begun: list[tuple[float, int]] = []
        for event in events:
            number = event.key.removeprefix(_KEY)
            if event.kind == "restart" and event.key.startswith(_KEY) and number.isdigit() and event.ts is not None:
                self.begin(int(number), event.ts)

    def begin(self, number: int, ts: float) -> None:
        insort(self._begun, (ts, number))
        self.newest = max(self.newest, number)

    def at(self, ts: float | None) -> int:
        """The life at an instant; now for None."""
        if ts is None or not self._begun:
            return self.newest
        place = bisect_right(self._begun, (ts, 1 << 62))
        return self._begun[place - 1][1] if place else self._begun[0][1] - 1
