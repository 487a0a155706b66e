"""Reading JSON of whatever shape: what is not of the expected type counts as absent, never as an error."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.model import Reading, Sample, Sandbox

NOTHING: Mapping[str, Any] = {}


@dataclass(slots=True)
class Tally:
    """What one poll met and could not use: words nobody maps, rows refused with the first reason."""

    unmapped: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    why: str = ""

    def drop(self, why: str) -> None:
        """One row was refused."""
        self.dropped += 1
        self.why = self.why or why

    def reading(
        self, provider: str, sandboxes: Iterable[Sandbox], *, listed: bool, samples: Iterable[Sample] = ()
    ) -> Reading:
        """What the poll brought, with what it could not use. ``listed``: every live sandbox is among them."""
        records = tuple(sandboxes)
        return Reading(
            samples=tuple(samples),
            sandboxes=records,
            listed=(provider,) if listed else (),
            unmapped=dict(self.unmapped),
            dropped=self.dropped,
            why_dropped=self.why,
            samples_scraped=len(records),
        )

    def unknown(self, kind: str, word: str) -> None:
        """One word of the provider's that has no canonical one. Bounded, for words may be anything."""
        key = f"{kind}={word[:64]}"
        self.unmapped[key if key in self.unmapped or len(self.unmapped) < 100 else f"{kind}=..."] += 1


def mapping(value: Any, *path: str) -> Mapping[str, Any]:
    """The object at ``path`` under ``value``; empty when there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else NOTHING


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, in order; anything else in it is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
