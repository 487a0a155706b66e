"""Targets of one run that are read on another machine: which there are, and how far they were told.

Such a machine may have been cut off for an hour and then tells all of it. Until it has, nothing is derived beyond what
it told: a tick that went ahead would say for ever that nothing was known there.
"""

import math
from dataclasses import dataclass, field, replace

import collectors
from collectors.model import Reading
from server.ingest.readings import Arrivals
from server.push.readings import Forwarded
from server.signals.model import SKEW_SECONDS
from server.store import Store

# Several failed attempts of the sender's, and a target that is down is asked once a minute.
SILENT_SECONDS = 120.0
# Who was about to tell more and does not go on holds nobody up for longer.
HELD_SECONDS = 30.0


@dataclass(slots=True)
class _PendingReadings:
    """Nothing is derived beyond `until` before the wall's clock shows `release`; both epoch seconds."""

    until: float
    release: float


@dataclass(slots=True)
class Forwards:
    """The forwarded targets of one run. Not thread-safe: one run, one loop.

    Attributes:
        kinds: target -> its collector's name.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    _held: dict[str, _PendingReadings] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, run: str, since: float) -> "Forwards":
        """As the store knows them. Who sent until just before we came is given time to go on."""
        newest: dict[str, float] = {}
        for one in store.pushes.forwarders(run):
            newest[one.target] = max(newest.get(one.target, 0.0), one.last_ts / 1000)
        rows = {row.name: row for _, row in store.targets(run)}
        found = cls({name: rows[name].collector for name in newest if name in rows})
        found._held = {name: _PendingReadings(newest[name], since + HELD_SECONDS) for name in found.kinds}
        return found

    def report_seconds(self, target: str) -> float:
        """How often its source reports; 0 for a target that is not forwarded."""
        known = collectors.load().get(self.kinds.get(target, ""))
        return known.report_seconds if known is not None else 0.0

    def took(self, target: str, found: Forwarded, arrivals: Arrivals, heard: float) -> None:
        """A reading was taken out of the inbox; ``heard``: when it came in."""
        reading = found.outcome.reading
        more = reading is not None and reading.more and reading.cursor is not None
        self._held.pop(target, None)
        if more:
            newest = arrivals.newest()
            self._held[target] = _PendingReadings(newest if newest is not None else -math.inf, heard + HELD_SECONDS)
        elif found.behind:
            self._held[target] = _PendingReadings(found.outcome.started, heard + HELD_SECONDS)

    def horizon(self, now: float) -> float:
        """Event time up to which everything that is still on its way is known; infinity when nothing is."""
        self._held = {name: held for name, held in self._held.items() if held.release > now}
        return min((held.until for held in self._held.values()), default=math.inf)


def patience(interval: float) -> float:
    """Seconds of silence after which a forwarded target is down."""
    return max(SILENT_SECONDS, 3 * interval)


def with_skew(reading: Reading, skew: float) -> Reading:
    """The same, with a word on a clock that is not ours: its times are as they were told."""
    if abs(skew) <= SKEW_SECONDS:
        return reading
    said = f"its machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this one's"
    return replace(reading, gaps=(*reading.gaps, said))
