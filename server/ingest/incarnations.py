"""Which life of its trainer a run was in, and when."""

from bisect import bisect_right, insort
from collections.abc import Iterable

BEGINS = ("restart", "resume")
"""Kinds of pushed events that begin a life of the trainer."""


class Incarnations:
    """Incarnations of one run by the times at which they began (epoch seconds), in whatever order those are told.

    The life that began last is the newest; each restart after an instant takes one off. What was numbered before an
    older restart was told of keeps its number: only whether a restart lies between two instants is asked of those.

    Args:
        newest: number of the newest life; of the first it is 0.
        begun: when the lives after the first began, as far as known.
    """

    def __init__(self, newest: int, begun: Iterable[float] = ()) -> None:
        self.newest = newest
        self._begun = sorted(begun)

    @property
    def last(self) -> float | None:
        """When the newest began; None where no restart is known."""
        return self._begun[-1] if self._begun else None

    @property
    def oldest(self) -> int:
        """The life before the first restart that is known."""
        return self.newest - len(self._begun)

    def begin(self, ts: float) -> int:
        """A restart; the number of the newest life."""
        insort(self._begun, ts)
        self.newest += 1
        return self.newest

    def at(self, ts: float | None) -> int:
        """The life at an instant; now for None."""
        return self.newest if ts is None else self.newest - (len(self._begun) - bisect_right(self._begun, ts))

    def next(self, ts: float) -> float | None:
        """The first restart after an instant."""
        place = bisect_right(self._begun, ts)
        return self._begun[place] if place < len(self._begun) else None

    def used_in(self, at: float | None, begun: float | None, life: int) -> int:
        """The life in which a rollout of ``life`` that began then was used then; `life` where no restart lies between.

        A number that was given before an older restart was told of lags behind: what is compared are the two instants.
        """
        used = self.at(at)
        if begun is None:
            return used
        if used == self.at(begun):
            return life
        return used if used != life else life - 1
