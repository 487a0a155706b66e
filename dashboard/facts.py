"""A run's status as questions: `value("trainer_wait_ratio")`, `fact("trainer_gpus")`."""

from collections.abc import Iterable
from dataclasses import replace

from dashboard.format import text
from dashboard.panels import Want
from server.query.types import SignalNow, Status

Cell = str | float | None | list[str | float | None]
View = dict[str, Cell]


class Facts:
    """Read-only look at one `Status`; absent, unknown and not applicable all answer None, never zero."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.signals = tuple(_honest(signal) for signal in status.signals)

    def find(self, signal: str, **labels: str) -> SignalNow | None:
        return Want(signal, tuple(labels.items())).explain(self.signals)

    def value(self, signal: str, **labels: str) -> float | None:
        found = self.find(signal, **labels)
        return found.value if found else None

    def say(self, signal: str, **labels: str) -> str:
        """The value with its unit, or nothing."""
        found = self.find(signal, **labels)
        return text(found.value, found.unit) if found and found.value is not None else ""

    def state(self, signal: str, **labels: str) -> str:
        found = self.find(signal, **labels)
        return found.state if found else "unknown"

    def number(self, fact: str) -> float | None:
        found = self.status.facts.get(fact)
        return float(found) if isinstance(found, (int, float)) else None

    def gpus(self, actor: str) -> str:
        """``16 × H200`` as far as it is known."""
        count, kind = self.number(f"{actor}_gpus"), str(self.status.facts.get("gpu_type", ""))
        return f"{count:.0f} × {kind or 'GPU'}" if count else kind

    def kinds(self, actor: str) -> str:
        """The systems that play this actor, as the targets name them."""
        return " + ".join(sorted({t.kind for t in self.status.trust if t.actor == actor}))

    def newest(self) -> float | None:
        """When the youngest number on the page was true: what "updated" honestly means."""
        return max((s.ts for s in self.signals if s.ts is not None), default=None)


def _honest(signal: SignalNow) -> SignalNow:
    """No value has no health: whatever judged it before, it is unknown now."""
    if signal.value is not None or signal.state in ("unknown", "not_applicable"):
        return signal
    return replace(signal, state="unknown")


def joined(*words: str) -> str:
    """Words with dots between, the missing ones left out."""
    return " · ".join(word for word in words if word)


def worst(states: Iterable[str]) -> str:
    """The state an actor deserves: its worst known one; unknown only when nothing is known."""
    order = ("critical", "watch", "ok", "not_applicable")
    found = set(states)
    return next((state for state in order if state in found), "unknown")
