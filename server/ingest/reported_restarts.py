"""Restarts that somebody tells of (`POST .../events`), beside those that a step which goes back gives away."""

from collections.abc import Iterable

from collectors.model import Event
from server.ingest.incarnations import BEGINS, Incarnations
from server.store import Store

_OWN = "restart-"
_ALWAYS = 1 << 62


class ReportedRestarts:
    """Which restarts are known, by the keys of their events. Not thread-safe: one run, one loop."""

    def __init__(self, store: Store, run: str, lives: Incarnations) -> None:
        self._store, self._run, self._lives = store, run, lives
        told = store.events(run, 0, _ALWAYS, BEGINS)
        self._keys = {event.key for _, event in told}
        # When steps went back, epoch ms.
        self._back = {ts for ts, event in told if event.key.startswith(_OWN)}

    def own(self, number: int, ts: float, detail: str) -> Event:
        """The event of a life that began with a step that went back."""
        event = Event("restart", f"{_OWN}{number}", ts, detail)
        self._keys.add(event.key)
        self._back.add(_ms(ts))
        return event

    def fresh(self, events: Iterable[Event], now: float) -> list[float]:
        """When the restarts among events were that nobody told before, oldest first; ``now``: of those without a time.

        The same event is one restart however often it is told, and so is one that its steps have given away already.
        """
        told: dict[str, float] = {}
        for event in events:
            if event.kind in BEGINS and event.key not in self._keys:
                told.setdefault(event.key, now if event.ts is None else event.ts)
        self._keys.update(told)
        return sorted(ts for ts in told.values() if not self._given_away(ts))

    def _given_away(self, ts: float) -> bool:
        """Did a step go back after it, with none between the two?"""
        after = self._lives.next(ts)
        if after is None or _ms(after) not in self._back:
            return False
        before = self._store.steps(self._run, last=1, incarnation=self._lives.at(ts))
        return all(row.ts <= _ms(ts) for row in before)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
