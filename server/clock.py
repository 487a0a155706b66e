"""The clock. Everything that needs "now" gets one of these; nothing else in the server reads the time.

Event time is epoch seconds. The demo's clock may start in the past and run at its own speed, so that the
first hour, a replay and live operation are the same code.
"""

import asyncio
import time
from dataclasses import dataclass
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
