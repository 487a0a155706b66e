"""What a poll of a provider brought: how much of its listing, and what of it could not be used."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from collectors.formats.shapes import mapping as mapping
from collectors.formats.shapes import objects as objects
from collectors.model import Reading, Sample, Sandbox

# A listing that takes longer is told to be under way: numbers made from it are that old.
SLOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a listing a poll brought.

    Attributes:
        listed: every live sandbox is among the poll's records.
        more: the listing goes on with the next poll.
        partial: what a user should know of one that is not whole.
    """

    listed: bool
    more: bool = False
    partial: str = ""

    def and_(self, other: "Extent") -> "Extent":
        """Of two listings that are read as one."""
        return Extent(self.listed and other.listed, self.more or other.more, self.partial or other.partial)


def under_way(count: int, seconds: float) -> Extent:
    """A listing that has brought ``count`` rows in ``seconds`` and goes on."""
    return Extent(False, True, f"listing incomplete: {count} so far" if seconds > SLOW_SECONDS else "")


def ended(count: int, unread: int, *, cut: bool, lost: int = 0) -> Extent:
    """A listing of ``count`` rows that came to its end, or to the most that is read (``cut``).

    Args:
        unread: rows that nobody could read: each may be a live sandbox.
        lost: sandboxes known to live that are not in it.
    """
    doubts = (
        (cut, f"it goes on after {count}, the most that is read"),
        (unread, f"{unread} rows could not be read"),
        (lost, f"{lost} known to live are not in it"),
    )
    why = next((words for doubt, words in doubts if doubt), "")
    return Extent(not why, partial=f"listing incomplete: {why}" if why else "")


@dataclass(slots=True)
class Tally:
    """What one poll met and could not use: words nobody maps, rows refused with the first reason, other answers."""

    unmapped: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    why: str = ""
    gaps: list[str] = field(default_factory=list)

    def drop(self, why: str) -> None:
        """One row was refused."""
        self.dropped += 1
        self.why = self.why or why

    def gap(self, why: str) -> None:
        """What was asked beside the rows was not told."""
        self.gaps.append(why)

    def reading(
        self, provider: str, sandboxes: Iterable[Sandbox], extent: Extent, samples: Iterable[Sample] = ()
    ) -> Reading:
        """What the poll brought, with what it could not use."""
        records = tuple(sandboxes)
        return Reading(
            samples=tuple(samples),
            sandboxes=records,
            listed=(provider,) if extent.listed else (),
            more=extent.more,
            partial=extent.partial,
            gaps=tuple(self.gaps),
            unmapped=dict(self.unmapped),
            dropped=self.dropped,
            why_dropped=self.why,
            samples_scraped=len(records),
        )

    def unknown(self, kind: str, word: str) -> None:
        """One word of the provider's that has no canonical one. Bounded, for words may be anything."""
        key = f"{kind}={word[:64]}"
        self.unmapped[key if key in self.unmapped or len(self.unmapped) < 100 else f"{kind}=..."] += 1
