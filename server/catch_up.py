"""How far a run's collector is behind the present, as it is stored with the run.

The collector stamps every batch with the time and, while it works off history, with this record. Readers tell from
the stamp whether a collector still works on the run (`server.query.run_state`).
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

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
