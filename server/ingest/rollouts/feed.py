"""Adds a reading's rollout records to a batch. Affected rollouts and groups are recalled from the store first, so that
nothing is counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from collectors.model import Event, Reading, Rollout, Target
from server.ingest.incarnations import Incarnations
from server.ingest.rollouts.fold import FoldedRecords, RolloutIngest
from server.ingest.updates import Arrivals
from server.rollouts.staleness import KEPT_VERSIONS, VersionClock
from server.store.types import Batch

if TYPE_CHECKING:
    from server.store import Store

# End of an unbounded time range, epoch ms.
ALWAYS = 1 << 62
# Newest rollouts read from the store at start to find sandboxes that later rollouts reuse.
REVISITED = 10_000
PUBLISHED = "weights_published"


class RolloutFeed:
    """Records and published versions of one run. Not thread-safe: one run, one loop.

    facts: of the run; may grow.
    incarnation: the newest incarnation of the trainer.
    """

    def __init__(self, store: "Store", run: str, facts: Mapping[str, str | float], incarnation: int) -> None:
        self._store, self._run = store.rollouts, run
        self.incarnations = Incarnations(incarnation, (ts / 1000 for ts in store.runs.incarnation_starts(run)))
        self._clock = published(store, run)
        rows = self._store.live(run)
        self._ingest = RolloutIngest(rows, self.incarnations, self._clock, facts, self._store.environments(run))
        self._looked_back = False
        self._look_back(row.record for row in rows)

    def take(self, target: Target, reading: Reading, now: float, batch: Batch, arrivals: Arrivals) -> None:
        """Adds the rollouts and published versions of a reading to the batch and to the arrivals."""
        for ts, version in versions(reading.events, now):
            self._clock.publish(version, ts)
            arrivals.published.append((ts, version))
        if not reading.rollouts:
            return
        self._recall(reading.rollouts)
        _into(self._ingest.take(target, reading.rollouts, now), batch, arrivals)

    def divide(self, target: Target, since: float, now: float, batch: Batch, arrivals: Arrivals) -> None:
        """Recomputes rollouts used across restarts that were reported late; ``since``: the first of those restarts."""
        moved = [row for row in self._store.recent(self._run, round(since * 1000)) if row.record.consumptions]
        # `recent` has no details, but a row is written as a whole, so whole rows are read.
        rows = self._store.get(self._run, [row.record.rollout_id for row in moved if self._ingest.crosses_restart(row)])
        records = [row.record for row in rows]
        self._recall(records)
        _into(self._ingest.divide(target, rows, now), batch, arrivals)

    def _recall(self, records: Sequence[Rollout]) -> None:
        self._look_back([*records, *self._recalled(records)])
        if others := self._ingest.later_in_sandboxes(records):
            self._recalled(others)

    def _recalled(self, records: Sequence[Rollout]) -> list[Rollout]:
        """Loads rollouts and groups that the records change into memory; returns those rollouts."""
        ingest, found = self._ingest, []
        if ids := ingest.unknown(records):
            found += self._store.get(self._run, ids)
            ingest.recall(found)
        if keys := ingest.missing_groups(records):
            members = self._store.members(self._run, keys)
            ingest.regroup(keys, members, self._store.groups(self._run, keys))
            # A change of one rollout may change its siblings' rows; rows are written whole, so they are read whole.
            if ids := ingest.unknown(row.record for row in members):
                found += (siblings := self._store.get(self._run, ids))
                ingest.recall(siblings)
        return [row.record for row in found]

    def _look_back(self, records: Iterable[Rollout]) -> None:
        """Loads, once, what earlier rollouts did to sandboxes, when the first record names a sandbox."""
        if not self._looked_back and self._ingest.has_new_sandbox(records):
            self._looked_back = True
            self._ingest.revisit(self._store.within(self._run, 0, ALWAYS, REVISITED))


def _into(changes: FoldedRecords, batch: Batch, arrivals: Arrivals) -> None:
    batch.rollouts += changes.rows
    batch.rollout_groups += changes.groups
    batch.rollout_sums += changes.sums
    batch.rollout_bins += changes.bins
    arrivals.rollouts += changes.arrivals


def versions(events: Iterable[Event], now: float) -> list[tuple[float, int]]:
    """Returns (time, version) of published versions among events; ``now`` dates events without a time."""
    published_ = (event for event in events if event.kind == PUBLISHED and event.version is not None)
    return [(now if event.ts is None else event.ts, event.version) for event in published_]  # type: ignore[misc]


def published(store: "Store", run: str, until: int = ALWAYS) -> VersionClock:
    """Returns the version clock of a run from the store, up to ``until`` (epoch ms)."""
    clock = VersionClock()
    for ts, event in store.runs.events(run, 0, until, [PUBLISHED], KEPT_VERSIONS):
        if event.version is not None:
            clock.publish(event.version, ts / 1000)
    return clock
