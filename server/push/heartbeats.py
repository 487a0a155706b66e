"""Signs of life that trainers send: each is a target that is up while it is heard often enough.

prime-rl's `heartbeat.url` does a bare GET per step (utils/heartbeat.py); anything that can fetch a URL can do so.
The web role notes a beat in the store, the collecting role judges the silence: they may be two processes.
"""

import hmac
import threading
from collections.abc import Mapping, Sequence

from collectors.model import ScrapeError, Target
from server.clock import Clock
from server.config.settings import HeartbeatSettings, RunSettings
from server.ingest.readings import Arrivals, Ingest
from server.signals.model import HEARTBEAT
from server.store import Store
from server.store.types import Batch

# A trainer in a tight loop must not become a write load; a second is finer than any `every`.
NOTED_SECONDS = 1.0


class Heartbeats:
    """Takes beats, by their tokens. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, runs: Sequence[RunSettings]) -> None:
        self._store, self._clock = store, clock
        self._known = [(beat.token.encode(), run.name, beat.name) for run in runs for beat in run.heartbeats]
        self._noted: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def beat(self, token: str) -> bool:
        """Note a beat; False for a token nobody configured."""
        given = token.encode("utf-8", "replace")
        # Every token is compared, and each in constant time: how long it took must not say how near a guess was.
        found = [place for known, *place in self._known if hmac.compare_digest(known, given)]
        for run, name in found:
            self._note(run, name)
        return bool(found)

    def _note(self, run: str, name: str) -> None:
        now = self._clock.now()
        with self._lock:
            if 0 <= now - self._noted.get((run, name), -NOTED_SECONDS) < NOTED_SECONDS:
                return
            self._noted[(run, name)] = now
        self._store.alerts.beat(run, name, round(now * 1000))


class HeartbeatWatch:
    """Judges the silence of one run's heartbeats, at every step of its loop.

    Args:
        since: when we began to listen: who has never been heard is silent since then, not for ever.
    """

    def __init__(self, store: Store, run: str, settings: Sequence[HeartbeatSettings], since: float) -> None:
        self._store, self._run, self._since = store, run, since
        self._settings: Mapping[str, HeartbeatSettings] = {one.name: one for one in settings}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._settings)

    def look(self, ingest: Ingest, now: float) -> list[tuple[Batch, Arrivals]]:
        """Health of every heartbeat at `now`, to be committed and fed like a scrape's."""
        if not self._settings:
            return []
        heard = {beat.name: beat.last_ts / 1000 for beat in self._store.alerts.heartbeats(self._run)}
        return [self._one(ingest, one, heard.get(name), now) for name, one in self._settings.items()]

    def _one(self, ingest: Ingest, one: HeartbeatSettings, heard: float | None, now: float) -> tuple[Batch, Arrivals]:
        target = Target(one.name, self._run, HEARTBEAT, "trainer", interval_seconds=one.every)
        # While we were down nobody could be heard: that is our silence, not the trainer's.
        silent = now - max(heard if heard is not None else self._since, self._since)
        if silent <= one.every:
            return ingest.heard(target, heard, now)
        said = "never" if heard is None else f"not for {silent:.0f} s"
        return ingest.failure(
            target, ScrapeError("silent", f"heard {said}; expected every {one.every:.0f} s"), now, 0.0
        )
