"""The clock. Everything that needs "now" gets one of these; nothing else in the server reads the time.

Event time is epoch seconds. The demo's clock may start in the past and run at its own speed, so that the
first hour, a replay and live operation are the same code.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol


async def stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    """Wait; True when `stop` was set before the time was over."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


class Clock(Protocol):
    """Reads event time; knows how long of wall time an instant is away."""

    def now(self) -> float:
        """Event time, epoch seconds."""

    def wall_until(self, t: float) -> float:
        """Wall seconds until event time `t`; 0 when it has passed."""


class WallClock:
    """Event time is wall time."""

    def now(self) -> float:
        return time.time()

    def wall_until(self, t: float) -> float:
        return max(0.0, t - time.time())


@dataclass(slots=True)
class ScaledClock:
    """Event time = base + (wall - wall_base) * speed; `set` moves it by hand while it is stopped (speed 0)."""

    base: float
    wall_base: float = 0.0
    speed: float = 0.0

    def now(self) -> float:
        return self.base + (time.time() - self.wall_base) * self.speed if self.speed else self.base

    def wall_until(self, t: float) -> float:
        return max(0.0, (t - self.now()) / self.speed) if self.speed else 0.0

    def set(self, t: float) -> None:
        """Move a stopped clock to `t`."""
        self.base = t

    def run(self, speed: float) -> None:
        """Let it run from where it stands, `speed` times as fast as the wall's."""
        self.wall_base, self.speed = time.time(), speed


# ---- catch up
# How far a run's collector is behind the present, as it is stored with the run.

# Live, the driver is one tick of 5 s behind the clock; a slow disk or a suspended machine for a short while is not
# history. The same minute after which a tick's alerts count as replayed.
BEHIND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The position of the driver while history is worked off. Event times are epoch seconds.

    Attributes:
        start: event time where this catch-up began; None until the first tick.
        position: event time up to which signals, verdict and alerts are derived; None until the first tick.
        target: the present, which the driver is heading for.
        seconds: how long it has taken so far, in wall time.
        bytes_read, bytes_total: of the files that are read back; None where they are not counted.
        steps_read: trainer steps read so far; None where they are not counted.
        seconds_left: the collector's own estimate; None: readers estimate it from the positions.
    """

    start: float | None
    position: float | None
    target: float
    seconds: float
    bytes_read: int | None = None
    bytes_total: int | None = None
    steps_read: int | None = None
    seconds_left: float | None = None


def dumps(found: CatchUp | None) -> str:
    """The stored text; "" at the present."""
    return "" if found is None else json.dumps(asdict(found))


def loads(text: str) -> CatchUp | None:
    """The reverse of `dumps`. Fields that a later version added are ignored."""
    if not text:
        return None
    stored = json.loads(text)
    return CatchUp(**{name: stored[name] for name in CatchUp.__dataclass_fields__ if name in stored})


class CatchUpClock:
    """Measures one run's catch-ups. ``monotonic``: wall seconds from any origin."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began: float | None = None
        self._start: float | None = None

    def at(self, position: float | None, target: float, *, reading: bool = False) -> CatchUp | None:
        """The record for this moment; None when the driver is at the present.

        Args:
            position: the driver's watermark; None before the first tick.
            reading: files are being read whose end was not reached yet. Without a watermark nothing else shows
                that there is history at all.
        """
        behind = reading if position is None else target - position > BEHIND_SECONDS
        if not behind:
            self._began = self._start = None
            return None
        now = self._monotonic()
        self._began = now if self._began is None else self._began
        self._start = position if self._start is None else self._start
        return CatchUp(self._start, position, target, now - self._began)
