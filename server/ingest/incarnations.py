"""Incarnations of a run's trainer: when each began, and which reported events begin one."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

from collectors.model import Event

if TYPE_CHECKING:
    from server.store import Store

BEGINS = ("restart", "resume")
"""Kinds of pushed events that begin an incarnation of the trainer."""
# Key prefix of restart events that are inferred from decreasing step numbers.
_INFERRED = "restart-"
# End of an unbounded time range, epoch ms.
_ALWAYS = 1 << 62


class Incarnations:
    """Incarnations of one run by start time (epoch seconds), added in any order.

    The incarnation that began last has the largest number; each restart after an instant subtracts one. Rows that were
    numbered before an earlier restart was reported keep their number. Such numbers only answer whether a restart lies
    between two instants.

    Args:
        newest: number of the newest incarnation; the first has 0.
        begun: start times of the incarnations after the first, as far as reported.
    """

    def __init__(self, newest: int, begun: Iterable[float] = ()) -> None:
        self.newest = newest
        self._begun = sorted(begun)

    @property
    def last(self) -> float | None:
        """Start of the newest incarnation; None if no restart is recorded."""
        return self._begun[-1] if self._begun else None

    @property
    def oldest(self) -> int:
        """The incarnation before the first recorded restart."""
        return self.newest - len(self._begun)

    def begin(self, ts: float) -> int:
        """Records a restart; returns the number of the newest incarnation."""
        insort(self._begun, ts)
        self.newest += 1
        return self.newest

    def at(self, ts: float | None) -> int:
        """Returns the incarnation at an instant; the newest for None."""
        return self.newest if ts is None else self.newest - (len(self._begun) - bisect_right(self._begun, ts))

    def next(self, ts: float) -> float | None:
        """Returns the first restart after an instant."""
        index = bisect_right(self._begun, ts)
        return self._begun[index] if index < len(self._begun) else None

    def used_in(self, at: float | None, begun: float | None, made_in: int) -> int:
        """Returns the incarnation in which a rollout was used; ``made_in`` if no restart lies between the two times.

        Numbers shift when an earlier restart is reported late, so start times are compared, not numbers.
        """
        used = self.at(at)
        if begun is None:
            return used
        if used == self.at(begun):
            return made_in
        return used if used != made_in else made_in - 1


class ReportedRestarts:
    """Restarts that clients report (`POST .../events`), without those that decreasing steps have shown already.

    Events are identified by key. Not thread-safe: one run, one loop.
    """

    def __init__(self, store: "Store", run: str, incarnations: Incarnations) -> None:
        self._store, self._run, self._incarnations = store, run, incarnations
        recorded = store.runs.events(run, 0, _ALWAYS, BEGINS)
        self._keys = {event.key for _, event in recorded}
        # When step numbers decreased, epoch ms.
        self._inferred = {ts for ts, event in recorded if event.key.startswith(_INFERRED)}

    def inferred(self, number: int, ts: float, detail: str) -> Event:
        """Returns the event of an incarnation that began with a decreasing step number."""
        event = Event("restart", f"{_INFERRED}{number}", ts, detail)
        self._keys.add(event.key)
        self._inferred.add(_ms(ts))
        return event

    def new(self, events: Iterable[Event], now: float) -> list[float]:
        """Returns times of restarts that were not recorded before, oldest first; ``now`` dates those without a time.

        A repeated event is one restart, and so is an event whose restart the steps have shown already.
        """
        reported: dict[str, float] = {}
        for event in events:
            if event.kind in BEGINS and event.key not in self._keys:
                reported.setdefault(event.key, now if event.ts is None else event.ts)
        self._keys.update(reported)
        return sorted(ts for ts in reported.values() if not self._already_inferred(ts))

    def _already_inferred(self, ts: float) -> bool:
        """Did a step number decrease after this time, with no step between the two?"""
        after = self._incarnations.next(ts)
        if after is None or _ms(after) not in self._inferred:
            return False
        before = self._store.steps.newest(self._run, last=1, incarnation=self._incarnations.at(ts))
        return all(row.ts <= _ms(ts) for row in before)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
