"""Progress of reading a run's logs during a back-fill, for the stored record and the terminal."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from collectors.model import Position
from server.lib.clock import CatchUp

log = logging.getLogger("rollscope.collect")

# Shortest interval of log lines, s; a shorter back-fill logs nothing.
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
    _logged: bool = False

    def update(self, positions: Sequence[Position], reading: bool) -> None:
        """Updates the positions of the logs. ``reading``: the end of at least one log was not reached yet."""
        if reading and positions and self._began is None:
            self._began = self._line = self.monotonic()
            self._begin_bytes = sum(position.read for position in positions)
        if self._began is not None:
            self._positions = positions

    def record(self, catch_up: CatchUp) -> CatchUp:
        """The stored record with bytes, steps and an estimate."""
        if self._began is None:
            return catch_up
        read, total = self._bytes()
        return replace(
            catch_up, bytes_read=read, bytes_total=total, steps_read=self.steps, seconds_left=self.seconds_left()
        )

    def seconds_left(self) -> float | None:
        """Returns the estimated remaining time, by the bytes read since the start; None before the first byte."""
        if self._began is None:
            return None
        read, total = self._bytes()
        passed, done = self.monotonic() - self._began, read - self._begin_bytes
        return (total - read) * passed / done if done > 0 else None

    def log_line(self, present: bool) -> None:
        """Logs a line every few seconds, and one when the driver has reached the present."""
        if self._began is None:
            return
        now = self.monotonic()
        if present:
            if self._logged:
                log.info("run %s: %s is read%s in %.0f s", self.run, self._names(), self._steps(), now - self._began)
            self._began, self._logged, self._positions = None, False, ()
        elif now - self._line >= LINE_SECONDS:
            self._line, self._logged = now, True
            read, total = self._bytes()
            left = self.seconds_left()
            about = f", about {left:.0f} s left" if left is not None else ""
            share = read / max(total, 1)
            log.info("run %s: reading %s: %.0f%%%s%s", self.run, self._names(), 100 * share, self._steps(), about)

    def _bytes(self) -> tuple[int, int]:
        return sum(position.read for position in self._positions), sum(position.total for position in self._positions)

    def _names(self) -> str:
        names = [position.log for position in self._positions]
        return names[0] if len(names) == 1 else f"{len(names)} logs"

    def _steps(self) -> str:
        return f", {self.steps:,} steps" if self.steps is not None else ""
