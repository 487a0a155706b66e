"""Event time of a simulated cluster: advances from event to event, of the agenda and of the engines."""

from collections.abc import Sequence
from typing import Protocol

from server.demo.engine import Engine
from server.demo.events import Agenda


class Looker(Protocol):
    """An observer, notified when the run begins and when nothing more happens until a later time."""

    def started(self, now: float) -> None: ...
    def flush(self) -> None: ...


class EventTime:
    """Event time in seconds since the run began. State changes at events only, so reads have no effect."""

    agenda: Agenda
    engines: list[Engine]
    observers: Sequence[Looker]
    now: float = 0.0
    _is_begun = False

    def advance(self, until: float) -> None:
        """Runs every event up to and including `until`."""
        if not self._is_begun:
            self._is_begun = True
            for observer in self.observers:
                observer.started(0.0)
            self._begin()
        while (at := min(self.agenda.next_at, *(engine.next_at for engine in self.engines))) <= until:
            if at == self.agenda.next_at:
                self.agenda.run_next()
            else:
                min(self.engines, key=lambda engine: engine.next_at).fire()
        self.now = max(self.now, until)
        for observer in self.observers:
            observer.flush()

    def _begin(self) -> None:
        """Plans the first events."""
        raise NotImplementedError
