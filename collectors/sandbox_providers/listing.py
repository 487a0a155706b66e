"""Completeness of a listing, and the rows and values of a poll that could not be used."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from collectors.formats.shapes import mapping as mapping
from collectors.formats.shapes import objects as objects
from collectors.model import Reading, Sample, Sandbox

# A listing that takes longer is reported as incomplete, because the numbers derived from it are that old.
SLOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a listing a poll returned.

    Attributes:
        listed: the poll's records contain every live sandbox.
        more: the listing continues with the next poll.
        partial: message for the user about an incomplete listing.
    """

    listed: bool
    more: bool = False
    partial: str = ""

    def and_(self, other: "Extent") -> "Extent":
        """The extent of two listings that are used as one."""
        return Extent(self.listed and other.listed, self.more or other.more, self.partial or other.partial)


def under_way(count: int, seconds: float) -> Extent:
    """Extent of a listing that has returned ``count`` rows in ``seconds`` and continues."""
    return Extent(False, True, f"listing incomplete: {count} so far" if seconds > SLOW_SECONDS else "")


def ended(count: int, unread: int, *, cut: bool, lost: int = 0) -> Extent:
    """Extent of a listing of ``count`` rows that was read to its end, or to the maximum that is read (``cut``).

    Args:
        unread: rows that could not be parsed: each may be a live sandbox.
        lost: live sandboxes of earlier listings that are missing.
    """
    doubts = (
        (cut, f"it continues after {count} rows, the maximum that is read"),
        (unread, f"{unread} rows could not be read"),
        (lost, f"{lost} live sandboxes are missing from it"),
    )
    reason = next((text for doubt, text in doubts if doubt), "")
    return Extent(not reason, partial=f"listing incomplete: {reason}" if reason else "")


@dataclass(slots=True)
class Tally:
    """Counts what a poll could not use: unmapped values, dropped rows with the first reason, and failed requests."""

    unmapped: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    why: str = ""
    gaps: list[str] = field(default_factory=list)

    def drop(self, why: str) -> None:
        """Counts a dropped row."""
        self.dropped += 1
        self.why = self.why or why

    def gap(self, why: str) -> None:
        """Records that a request in addition to the listing failed."""
        self.gaps.append(why)

    def reading(
        self, provider: str, sandboxes: Iterable[Sandbox], extent: Extent, samples: Iterable[Sample] = ()
    ) -> Reading:
        """The reading of the poll, with the counts of this tally."""
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

    def unknown(self, kind: str, value: str) -> None:
        """Counts a provider's value without a canonical one. The number of different values is bounded."""
        key = f"{kind}={value[:64]}"
        self.unmapped[key if key in self.unmapped or len(self.unmapped) < 100 else f"{kind}=..."] += 1
