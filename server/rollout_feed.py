"""Rollout records on their way into a batch: what the store knows of them is recalled first, so that nothing counts
twice.
"""

from collections.abc import Iterable, Mapping

from collectors.model import Event, Reading, Target
from server.arrivals import Arrivals
from server.lives import Lives
from server.rollout_ingest import RolloutIngest
from server.signals._versions import KEPT_VERSIONS, VersionClock
from server.store import Store
from server.store.types import Batch

ALWAYS = 1 << 62
PUBLISHED = "weights_published"


class RolloutFeed:
    """Records and published versions of one run. Not thread-safe: one run, one loop.

    Args:
        facts: of the run, as they come to be known.
        incarnation: the newest life of its trainer.
    """

    def __init__(self, store: Store, run: str, facts: Mapping[str, str | float], incarnation: int) -> None:
        self._store, self._run = store.rollouts, run
        self.lives = Lives(incarnation, (event for _, event in store.events(run, 0, ALWAYS, ["restart"])))
        self._clock = published(store, run)
        rows = self._store.live(run)
        self._ingest = RolloutIngest(rows, self.lives, self._clock, facts, self._store.environments(run))

    def take(self, target: Target, reading: Reading, now: float, batch: Batch, arrivals: Arrivals) -> None:
        """What a reading tells of rollouts and versions, into the batch and on to the driver."""
        for ts, version in versions(reading.events, now):
            self._clock.publish(version, ts)
            arrivals.published.append((ts, version))
        if not reading.rollouts:
            return
        ingest, records = self._ingest, reading.rollouts
        if ids := ingest.unknown(records):
            ingest.recall(self._store.get(self._run, ids))
        if keys := ingest.lacking(records):
            members = self._store.members(self._run, keys)
            ingest.regroup(keys, members, self._store.groups(self._run, keys))
            # What becomes known of one may change what follows for its siblings; whole, for they are written whole.
            if ids := ingest.unknown(row.record for row in members):
                ingest.recall(self._store.get(self._run, ids))
        taken = ingest.take(target, records, now)
        batch.rollouts += taken.rows
        batch.rollout_groups += taken.groups
        batch.rollout_sums += taken.sums
        batch.rollout_bins += taken.bins
        arrivals.rollouts += taken.arrivals


def versions(events: Iterable[Event], now: float) -> list[tuple[float, int]]:
    """(time, version) of published versions among events; ``now`` dates what has no time of its own."""
    told = (event for event in events if event.kind == PUBLISHED and event.version is not None)
    return [(now if event.ts is None else event.ts, event.version) for event in told]  # type: ignore[misc]


def published(store: Store, run: str, until: int = ALWAYS) -> VersionClock:
    """The clock of a run as the store has it, up to ``until`` (epoch ms)."""
    clock = VersionClock()
    for ts, event in store.events(run, 0, until, [PUBLISHED], KEPT_VERSIONS):
        if event.version is not None:
            clock.publish(event.version, ts / 1000)
    return clock
