"""Histograms of engines on their way to the store: written by the minute, which is all that it keeps of them.

A reading is a total since the engine began, so of the dozen that a minute brings only the last says anything, but for
those before and after a restart. What is held here is lost to nobody when we die: the
engine's next reading holds it too. Pure.
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
    """The newest reading of every series. The first one of a series is handed over at once: it is the base line."""

    def __init__(self) -> None:
        self._held: dict[str, dict[int, _PendingHistogram]] = {}

    def take(self, target: str, series: int, ts: int, item: Histogram) -> list[Row]:
        """Hold a reading; what must be written now."""
        held = self._held.setdefault(target, {})
        before = held.get(series)
        if before is None:
            held[series] = _PendingHistogram(ts, item, True)
            return [(series, ts, item)]
        anew, rows = _began_anew(before.item, item), []
        if not before.written and (anew or ts // MINUTE_MS != before.ts // MINUTE_MS):
            rows.append((series, before.ts, before.item))
        if anew:
            # Held back it might have grown beyond the old process' counts when the store sees it.
            rows.append((series, ts, item))
        before.ts, before.item, before.written = ts, item, anew
        return rows

    def rest(self, target: str) -> list[Row]:
        """Everything of a target that was not handed over yet: it fell silent, or we end."""
        held = self._held.pop(target, {})
        return [(series, one.ts, one.item) for series, one in held.items() if not one.written]

    @property
    def targets(self) -> list[str]:
        """Of whom anything is held."""
        return list(self._held)


def _began_anew(before: Histogram, item: Histogram) -> bool:
    """Another process: other edges, or a count that fell. In one page nothing else can be told apart."""
    return before.edges != item.edges or any(map(lt, item.counts, before.counts))
