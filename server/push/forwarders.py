"""Targets of one run that another machine reads and forwards: which exist, and how far their data is complete.

A sender may have been cut off for an hour and then sends everything. Until all has arrived, nothing is derived beyond
what has arrived; otherwise a tick would permanently record that nothing was known there.
"""

import math
from dataclasses import dataclass, field

from msgspec import structs

import collectors
from collectors.model import Reading
from server.ingest.readings import Arrivals
from server.push.inbox import Forwarded
from server.signals.model import SKEW_SECONDS
from server.store import Store

# A forwarded target is silent after this long (s): several failed attempts of the sender, at one per minute.
SILENT_SECONDS = 120.0
# A forwarder that announced more data but went silent delays the run for at most this long (s).
HELD_SECONDS = 30.0


@dataclass(slots=True)
class _PendingReadings:
    """Nothing is derived beyond `until` before the wall clock reaches `release`; both epoch seconds."""

    until: float
    release: float


@dataclass(slots=True)
class Forwards:
    """The forwarded targets of one run. Not thread-safe: one run, one loop.

    Attributes:
        kinds: target -> its collector's name.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    _pending: dict[str, _PendingReadings] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, run: str, since: float) -> "Forwards":
        """Loads the forwarded targets from the store. Senders active until our start get time to continue."""
        newest: dict[str, float] = {}
        for row in store.pushes.forwarders(run):
            newest[row.target] = max(newest.get(row.target, 0.0), row.last_ts / 1000)
        rows = {row.name: row for _, row in store.runs.targets(run)}
        forwards = cls({name: rows[name].collector for name in newest if name in rows})
        forwards._pending = {name: _PendingReadings(newest[name], since + HELD_SECONDS) for name in forwards.kinds}
        return forwards

    def report_seconds(self, target: str) -> float:
        """Returns the report interval of the target's source, seconds; 0 for a target that is not forwarded."""
        plugin = collectors.load().get(self.kinds.get(target, ""))
        return plugin.report_seconds if plugin is not None else 0.0

    def ingested(self, target: str, forwarded: Forwarded, arrivals: Arrivals, received: float) -> None:
        """Registers a reading taken out of the inbox; ``received``: when it was pushed."""
        reading = forwarded.outcome.reading
        more = reading is not None and reading.more and reading.cursor is not None
        self._pending.pop(target, None)
        if more:
            newest = arrivals.newest()
            self._pending[target] = _PendingReadings(
                newest if newest is not None else -math.inf, received + HELD_SECONDS
            )
        elif forwarded.behind:
            self._pending[target] = _PendingReadings(forwarded.outcome.started, received + HELD_SECONDS)

    def horizon(self, now: float) -> float:
        """Returns the event time up to which all data in transit has arrived; infinity if there is none."""
        self._pending = {name: pending for name, pending in self._pending.items() if pending.release > now}
        return min((pending.until for pending in self._pending.values()), default=math.inf)


def patience(interval: float) -> float:
    """Returns the seconds of silence after which a forwarded target is down."""
    return max(SILENT_SECONDS, 3 * interval)


def with_skew(reading: Reading, skew: float) -> Reading:
    """Adds a warning about clock skew to a reading. Its times are unchanged."""
    if abs(skew) <= SKEW_SECONDS:
        return reading
    warning = f"its machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this one's"
    return structs.replace(reading, gaps=(*reading.gaps, warning))
