"""What a counter of ours remembers between two samples. Pure."""

import json
from dataclasses import dataclass, field
from functools import lru_cache

from collectors.model import Labels

# Engines have five finish reasons; one that invents them without end is added up as "other".
MAX_LABELS = 100


@dataclass(slots=True)
class CounterState:
    """A counter's memory: totals by kept labels, and what was last seen of each source (a series, or an axis)."""

    totals: dict[str, float] = field(default_factory=dict)
    seen: dict[str | tuple[str, Labels], list[float]] = field(default_factory=dict)

    def add(self, labels: Labels, amount: float) -> None:
        key = _as_text(labels)
        if key not in self.totals and len(self.totals) >= MAX_LABELS:
            key = json.dumps([(name, "other") for name, _ in labels])
        self.totals[key] = self.totals.get(key, 0.0) + amount

    def total(self, labels: Labels) -> float:
        return self.totals.get(_as_text(labels), 0.0)


@lru_cache(maxsize=1024)
def _as_text(labels: Labels) -> str:
    return json.dumps(labels)
