"""Series ids of a run's targets, as often as they are asked for: the store is asked once."""

from collections.abc import Sequence

from collectors.model import Labels
from server.store import Store
from server.store.types import SeriesKey

# A target that invents labels is told anew now and then rather than remembered for ever.
KEPT = 20_000


class Known:
    """By target, so that a look-up hashes no more than a metric and its labels. Not thread-safe."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._ids: dict[str, dict[tuple[str, Labels], int]] = {}

    def numbers(self, target: str, keys: Sequence[tuple[str, Labels]]) -> list[int]:
        """One id per (metric, labels) of a target, made where new."""
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
