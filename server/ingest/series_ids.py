"""Caches series ids per target, so that the store is queried once per series."""

from collections.abc import Sequence

from collectors.model import Labels
from server.store import Store
from server.store.types import SeriesKey

# Series ids cached per target; the cache is cleared when it is full, because some targets create labels without end.
MAX_IDS = 20_000
# Key lists cached per target: samples, histograms, health and one spare.
MAX_LISTS = 4
# Longest key list cached, keys (80 B each).
MAX_LIST_LENGTH = 2_000


class SeriesIdCache:
    """Series ids by target, so that a look-up hashes only a metric and its labels. Not thread-safe."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._ids: dict[str, dict[tuple[str, Labels], int]] = {}
        # The last key list per target and length (samples of a page, its histograms, health series), with its ids.
        self._last: dict[str, dict[int, tuple[list[tuple[str, Labels]], list[int]]]] = {}

    def numbers(self, target: str, keys: list[tuple[str, Labels]]) -> list[int]:
        """Returns one id per (metric, labels) of a target; creates missing ids. Callers must not change the lists."""
        last = self._last.setdefault(target, {})
        before = last.get(len(keys))
        # Pages of one layout have identical labels: comparing lists costs a tenth of hashing them.
        if before is not None and before[0] == keys:
            return before[1]
        ids = self._numbers(target, keys)
        if len(last) >= MAX_LISTS:
            last.clear()
        if len(keys) <= MAX_LIST_LENGTH:
            last[len(keys)] = (keys, ids)
        return ids

    def _numbers(self, target: str, keys: Sequence[tuple[str, Labels]]) -> list[int]:
        cached = self._ids.setdefault(target, {})
        try:
            return [cached[key] for key in keys]
        except KeyError:
            pass
        ids = self.intern([SeriesKey(target, *key) for key in keys])
        if len(cached) > MAX_IDS:
            cached.clear()
        cached.update(zip(keys, ids, strict=True))
        return ids

    def intern(self, keys: Sequence[SeriesKey]) -> list[int]:
        """Returns one id per key of any kind."""
        return self._store.series.intern(self._run, keys) if keys else []
