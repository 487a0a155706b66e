"""How much of a run's logs is read, while history is worked off: for the stored record and the terminal."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from collectors.model import Position
from server.catch_up import CatchUp

log = logging.getLogger("rollscope.collect")

# A line in the terminal at most so often, and none for what takes no longer.
LINE_SECONDS = 3.0


@dataclass(slots=True)
class HistoryProgress:
    """Progress of one run's back-fill. ``monotonic``: wall seconds from any origin."""

    run: str
    monotonic: Callable[[], float] = time.monotonic
    steps: int | None = None
    _positions: Sequence[Position] = ()
    _began: float | None = None
    _begin_bytes: int = 0
    _line: float = 0.0
    _told: bool = False

    def update(self, positions: Sequence[Position], reading: bool) -> None:
        """Take the positions of the logs. ``reading``: the end of one of them was not reached yet."""
        if reading and positions and self._began is None:
            self._began = self._line = self.monotonic()
            self._begin_bytes = sum(one.read for one in positions)
        if self._began is not None:
            self._positions = positions

    def record(self, found: CatchUp) -> CatchUp:
        """The stored record with bytes, steps and an estimate."""
        if self._began is None:
            return found
        read, total = self._bytes()
        return replace(
            found, bytes_read=read, bytes_total=total, steps_read=self.steps, seconds_left=self.seconds_left()
        )

    def seconds_left(self) -> float | None:
        """By the bytes read since it began; None before the first."""
        if self._began is None:
            return None
        read, total = self._bytes()
        passed, done = self.monotonic() - self._began, read - self._begin_bytes
        return (total - read) * passed / done if done > 0 else None

    def say(self, present: bool) -> None:
        """A line in the log every few seconds, and one when the driver is at the present."""
        if self._began is None:
            return
        now = self.monotonic()
        if present:
            if self._told:
                log.info("run %s: %s is read%s in %.0f s", self.run, self._names(), self._steps(), now - self._began)
            self._began, self._told, self._positions = None, False, ()
        elif now - self._line >= LINE_SECONDS:
            self._line, self._told = now, True
            read, total = self._bytes()
            left = self.seconds_left()
            about = f", about {left:.0f} s left" if left is not None else ""
            share = read / max(total, 1)
            log.info("run %s: reading %s: %.0f%%%s%s", self.run, self._names(), 100 * share, self._steps(), about)

    def _bytes(self) -> tuple[int, int]:
        return sum(one.read for one in self._positions), sum(one.total for one in self._positions)

    def _names(self) -> str:
        names = [one.log for one in self._positions]
        return names[0] if len(names) == 1 else f"{len(names)} logs"

    def _steps(self) -> str:
        return f", {self.steps:,} steps" if self.steps is not None else ""
