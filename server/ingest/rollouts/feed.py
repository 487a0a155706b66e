"""Rollout records on their way into a batch: what the store knows of them is recalled first, so that nothing counts
twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from collectors.model import Event, Reading, Rollout, Target
from server.ingest.incarnations import Incarnations
from server.ingest.rollouts.fold import FoldedRecords, RolloutIngest
from server.ingest.updates import Arrivals
from server.rollouts.versions import KEPT_VERSIONS, VersionClock
from server.store.types import Batch

if TYPE_CHECKING:
    from server.store import Store

ALWAYS = 1 << 62
# So many of the rollouts that moved last may have left a sandbox that is kept.
REVISITED = 10_000
PUBLISHED = "weights_published"


class RolloutFeed:
    """Records and published versions of one run. Not thread-safe: one run, one loop.

    Args:
        facts: of the run, as they come to be known.
        incarnation: the newest life of its trainer.
    """

    def __init__(self, store: "Store", run: str, facts: Mapping[str, str | float], incarnation: int) -> None:
        self._store, self._run = store.rollouts, run
        self.lives = Incarnations(incarnation, (ts / 1000 for ts in store.lives(run)))
        self._clock = published(store, run)
        rows = self._store.live(run)
        self._ingest = RolloutIngest(rows, self.lives, self._clock, facts, self._store.environments(run))
        self._looked_back = False
        self._look_back(row.record for row in rows)

    def take(self, target: Target, reading: Reading, now: float, batch: Batch, arrivals: Arrivals) -> None:
        """What a reading tells of rollouts and versions, into the batch and on to the driver."""
        for ts, version in versions(reading.events, now):
            self._clock.publish(version, ts)
            arrivals.published.append((ts, version))
        if not reading.rollouts:
            return
        self._recall(reading.rollouts)
        _into(self._ingest.take(target, reading.rollouts, now), batch, arrivals)

    def divide(self, target: Target, since: float, now: float, batch: Batch, arrivals: Arrivals) -> None:
        """Judge anew what was used across restarts that are told only now; the first of them was at ``since``."""
        moved = [row for row in self._store.recent(self._run, round(since * 1000)) if row.record.consumptions]
        # Details are of a few, and what is written is written whole.
        rows = self._store.get(self._run, [row.record.rollout_id for row in moved if self._ingest.crosses(row)])
        records = [row.record for row in rows]
        self._recall(records)
        _into(self._ingest.divide(target, rows, now), batch, arrivals)

    def _recall(self, records: Sequence[Rollout]) -> None:
        self._look_back([*records, *self._recalled(records)])
        if others := self._ingest.neighbours(records):
            self._recalled(others)

    def _recalled(self, records: Sequence[Rollout]) -> list[Rollout]:
        """Take what the store knows of them and of their groups into memory; what that was."""
        ingest, found = self._ingest, []
        if ids := ingest.unknown(records):
            found += self._store.get(self._run, ids)
            ingest.recall(found)
        if keys := ingest.lacking(records):
            members = self._store.members(self._run, keys)
            ingest.regroup(keys, members, self._store.groups(self._run, keys))
            # What becomes known of one may change what follows for its siblings; whole, for they are written whole.
            if ids := ingest.unknown(row.record for row in members):
                found += (siblings := self._store.get(self._run, ids))
                ingest.recall(siblings)
        return [row.record for row in found]

    def _look_back(self, records: Iterable[Rollout]) -> None:
        """What was done before our start to the sandboxes that these were in; once, as soon as one was in any."""
        if not self._looked_back and self._ingest.met_before(records):
            self._looked_back = True
            self._ingest.revisit(self._store.within(self._run, 0, ALWAYS, REVISITED))


def _into(taken: FoldedRecords, batch: Batch, arrivals: Arrivals) -> None:
    batch.rollouts += taken.rows
    batch.rollout_groups += taken.groups
    batch.rollout_sums += taken.sums
    batch.rollout_bins += taken.bins
    arrivals.rollouts += taken.arrivals


def versions(events: Iterable[Event], now: float) -> list[tuple[float, int]]:
    """(time, version) of published versions among events; ``now`` dates what has no time of its own."""
    told = (event for event in events if event.kind == PUBLISHED and event.version is not None)
    return [(now if event.ts is None else event.ts, event.version) for event in told]  # type: ignore[misc]


def published(store: "Store", run: str, until: int = ALWAYS) -> VersionClock:
    """The clock of a run as the store has it, up to ``until`` (epoch ms)."""
    clock = VersionClock()
    for ts, event in store.events(run, 0, until, [PUBLISHED], KEPT_VERSIONS):
        if event.version is not None:
            clock.publish(event.version, ts / 1000)
    return clock
