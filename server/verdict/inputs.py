"""What the rules see of a run at one instant: the newest answers of its signals, with their age, and its targets."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collectors.model import Labels
from server.signals.model import SYNC_MODES, TargetHealth
from server.signals.window import Step


class ReportedValue(Protocol):
    """A signal series' newest answer: ``value`` None is a gap, and ``why`` its words."""

    @property
    def ts(self) -> float: ...
    @property
    def value(self) -> float | None: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True, slots=True)
class VerdictInput:
    """Everything a rule may look at.

    Attributes:
        signals: signal -> labels -> newest answer; counters are not among them.
        stale: (signal, time of its answer) -> why a step signal's answer is too old to be judged now, or "".
        running_since: when the run last began to run; None while it never did.
        instants: counts of requests, rollouts and sandboxes by instant (`server.verdict.facts.instants`), oldest first.
        recent: their means over the steps that are judged.
        steps: the trainer's last steps, oldest first: a change of limiter is older in them than in their mean.
        first: (incarnation, number) of the first of them that is not of another time, as found before; None: of none.
        hung_since: since when half of the engines and more run requests without a token; None: they do not.
        down_since: since when no engine answers; None: some do, or it is not known since when.
    """

    now: float
    mode: str = ""
    lifecycle: str = "running"
    facts: Mapping[str, str | float] = field(default_factory=dict)
    signals: Mapping[str, Mapping[Labels, ReportedValue]] = field(default_factory=dict)
    targets: Collection[TargetHealth] = ()
    stale: Callable[[str, float], str] = lambda name, ts: ""
    running_since: float | None = None
    steps: Sequence[Step] = ()
    recent: Mapping[str, float] = field(default_factory=dict)
    instants: Sequence[tuple[float, Mapping[str, float]]] = ()
    first: tuple[int, int] | None = None
    hung_since: float | None = None
    down_since: float | None = None

    @property
    def synchronous(self) -> bool:
        return self.mode in SYNC_MODES

    def get(self, signal: str, **labels: str) -> float | None:
        """The value of the one series with these labels, if it is known and not too old."""
        found = list(self.rows(signal, **labels))
        return found[0][1] if len(found) == 1 else None

    def rows(self, signal: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """(labels, value) of every series of a signal that has these labels and is known now."""
        wanted = tuple(labels.items())
        for key, told in self.signals.get(signal, {}).items():
            # Asked a hundred times a tick: no dictionary is made of labels that are not wanted.
            if told.value is None or any(pair not in key for pair in wanted) or self._old(signal, told.ts):
                continue
            yield dict(key), told.value

    def total(self, signal: str, **labels: str) -> float | None:
        """Their sum; None where there is none."""
        found = [value for _, value in self.rows(signal, **labels)]
        return sum(found) if found else None

    def age(self, signal: str) -> float | None:
        """Seconds since the newest answer of a signal."""
        times = [told.ts for told in self.signals.get(signal, {}).values() if told.value is not None]
        return self.now - max(times) if times else None

    def why(self, signal: str) -> str:
        """Why a signal has no value that counts now, in its own words."""
        found = self.signals.get(signal, {}).values()
        gaps = (self.stale(signal, told.ts) if told.value is not None else told.why for told in found)
        return next((words for words in gaps if words), "")

    def fact(self, name: str) -> float | None:
        value = self.facts.get(name)
        return value if isinstance(value, (int, float)) else None

    def _old(self, signal: str, ts: float) -> bool:
        return bool(self.stale(signal, ts))
