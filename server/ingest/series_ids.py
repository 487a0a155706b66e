"""Series ids of a run's targets, as often as they are asked for: the store is asked once."""

from collections.abc import Sequence

from collectors.model import Labels
from server.store import Store
from server.store.types import SeriesKey

# A target that invents labels is told anew now and then rather than remembered for ever.
KEPT = 20_000
# Questions remembered of a target, and how long each may be: 80 B a key.
LENGTHS, LONGEST = 4, 2_000


class SeriesIdCache:
    """By target, so that a look-up hashes no more than a metric and its labels. Not thread-safe."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._ids: dict[str, dict[tuple[str, Labels], int]] = {}
        # What was asked for last, by target and length: a page's samples, its histograms, our own series of it.
        self._last: dict[str, dict[int, tuple[list[tuple[str, Labels]], list[int]]]] = {}

    def numbers(self, target: str, keys: list[tuple[str, Labels]]) -> list[int]:
        """One id per (metric, labels) of a target, made where new. Neither list is to be changed."""
        last = self._last.setdefault(target, {})
        before = last.get(len(keys))
        # Pages of one layout have the very same labels: comparing those is a tenth of hashing them.
        if before is not None and before[0] == keys:
            return before[1]
        ids = self._numbers(target, keys)
        if len(last) >= LENGTHS:
            last.clear()
        if len(keys) <= LONGEST:
            last[len(keys)] = (keys, ids)
        return ids

    def _numbers(self, target: str, keys: Sequence[tuple[str, Labels]]) -> list[int]:
        known = self._ids.setdefault(target, {})
        try:
            return [known[key] for key in keys]
        except KeyError:
            pass
        ids = self.intern([SeriesKey(target, *key) for key in keys])
        if len(known) > KEPT:
            known.clear()
        known.update(zip(keys, ids, strict=True))
        return ids

    def intern(self, keys: Sequence[SeriesKey]) -> list[int]:
        """One id per key of whatever kind."""
        return self._store.intern(self._run, keys) if keys else []
