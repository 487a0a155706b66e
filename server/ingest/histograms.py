"""Reduces histograms of engines to one reading per minute before they are stored.

A reading is cumulative, so only the last of a minute matters, and those before and after a restart. Losing the newest
readings in a crash is harmless, because the engine's next reading contains them. Pure.
"""

from dataclasses import dataclass
from operator import lt

from collectors.model import Histogram

MINUTE_MS = 60_000

Row = tuple[int, int, Histogram]
"""(series, time in ms, reading)."""


@dataclass(slots=True)
class _PendingHistogram:
    ts: int
    item: Histogram
    written: bool


class HistogramThrottle:
    """Holds the newest reading of each series. The first reading of a series is returned at once as the base line."""

    def __init__(self) -> None:
        self._held: dict[str, dict[int, _PendingHistogram]] = {}

    def take(self, target: str, series: int, ts: int, item: Histogram) -> list[Row]:
        """Holds a reading; returns the readings that must be written now."""
        held = self._held.setdefault(target, {})
        before = held.get(series)
        if before is None:
            held[series] = _PendingHistogram(ts, item, True)
            return [(series, ts, item)]
        restarted, rows = _restarted(before.item, item), []
        if not before.written and (restarted or ts // MINUTE_MS != before.ts // MINUTE_MS):
            rows.append((series, before.ts, before.item))
        if restarted:
            # Written at once: later its counts might exceed the old process' counts, which would hide the restart.
            rows.append((series, ts, item))
        before.ts, before.item, before.written = ts, item, restarted
        return rows

    def rest(self, target: str) -> list[Row]:
        """Returns the readings of a target that are not written yet, when the target fails or the run ends."""
        held = self._held.pop(target, {})
        return [(series, pending.ts, pending.item) for series, pending in held.items() if not pending.written]

    @property
    def targets(self) -> list[str]:
        """Returns targets with held readings."""
        return list(self._held)


def _restarted(before: Histogram, item: Histogram) -> bool:
    """Is this a new process? Either the bucket edges differ, or a count decreased."""
    return before.edges != item.edges or any(map(lt, item.counts, before.counts))
