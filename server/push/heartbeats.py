"""Heartbeats of trainers: each is a target that is up while its beats arrive in time.

prime-rl's `heartbeat.url` does a plain GET per step (utils/heartbeat.py), as any HTTP client can. The web role stores
beats and the collecting role detects silence, because they may be two processes.
"""

import hmac
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectors.model import ScrapeError, Target
from server.lib.clock import Clock
from server.lib.secret import Secret
from server.signals.model import HEARTBEAT

if TYPE_CHECKING:
    # Reading a configuration must not load the database library.
    from server.ingest.readings import Arrivals, Ingest
    from server.store import Store
    from server.store.types import Batch

# Shortest time between two stored beats of one name (s), so that a tight loop is no write load. Finer than any `every`.
NOTED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """A client of `GET /api/v1/heartbeat/{token}`. ``every``: longest silence in seconds."""

    name: str
    token: Secret
    every: float


class Heartbeats:
    """Stores beats, identified by their tokens. Thread-safe."""

    def __init__(self, store: "Store", clock: Clock, settings: Mapping[str, Sequence[HeartbeatSettings]]) -> None:
        """``settings``: name of a run -> its heartbeats."""
        self._store, self._clock = store, clock
        self._tokens = [(beat.token.encode(), run, beat.name) for run, beats in settings.items() for beat in beats]
        self._noted: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def beat(self, token: str) -> bool:
        """Stores a beat; returns False for an unknown token."""
        given = token.encode("utf-8", "replace")
        # Every token is compared in constant time, so that the duration does not reveal how close a guess is.
        matches = [names for known, *names in self._tokens if hmac.compare_digest(known, given)]
        for run, name in matches:
            self._note(run, name)
        return bool(matches)

    def _note(self, run: str, name: str) -> None:
        now = self._clock.now()
        with self._lock:
            if 0 <= now - self._noted.get((run, name), -NOTED_SECONDS) < NOTED_SECONDS:
                return
            self._noted[(run, name)] = now
        self._store.alerts.beat(run, name, round(now * 1000))


class HeartbeatWatch:
    """Detects missing heartbeats of one run, at every step of its loop.

    Args:
        since: start of this process. A heartbeat never received counts as silent since then.
    """

    def __init__(self, store: "Store", run: str, settings: Sequence[HeartbeatSettings], since: float) -> None:
        self._store, self._run, self._since = store, run, since
        self._settings: Mapping[str, HeartbeatSettings] = {heartbeat.name: heartbeat for heartbeat in settings}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._settings)

    def look(self, ingest: "Ingest", now: float) -> "list[tuple[Batch, Arrivals]]":
        """Returns the health of every heartbeat at `now`, to be committed and fed like a scrape's."""
        if not self._settings:
            return []
        last_beats = {beat.name: beat.last_ts / 1000 for beat in self._store.alerts.heartbeats(self._run)}
        return [self._health(ingest, beat, last_beats.get(name), now) for name, beat in self._settings.items()]

    def _health(
        self, ingest: "Ingest", beat: HeartbeatSettings, last: float | None, now: float
    ) -> "tuple[Batch, Arrivals]":
        target = Target(beat.name, self._run, HEARTBEAT, "trainer", interval_seconds=beat.every)
        # Silence is counted from our start, because no beat could be received before.
        silent = now - max(last if last is not None else self._since, self._since)
        if silent <= beat.every:
            return ingest.push_health(target, last, now)
        text = "no heartbeat received" if last is None else f"no heartbeat for {silent:.0f} s"
        return ingest.failure(target, ScrapeError("silent", f"{text}; expected every {beat.every:.0f} s"), now, 0.0)
