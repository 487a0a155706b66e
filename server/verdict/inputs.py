"""The input of the rules at one instant: the newest values of all signals with their age, and the targets."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collectors.model import Labels
from server.signals.model import SYNC_MODES, TargetHealth
from server.signals.window import Step


class ReportedValue(Protocol):
    """The newest value of a signal series. ``value`` None is a gap, and ``why`` its reason."""

    @property
    def ts(self) -> float: ...
    @property
    def value(self) -> float | None: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True, slots=True)
class VerdictInput:
    """The data that the rules may use.

    Attributes:
        signals: signal -> labels -> newest value; without counters.
        stale: (signal, time of its value) -> why the value of a step signal is too old to use, or "".
        running_since: when the run last began to run; None if it never did.
        instants: counts of requests, rollouts and sandboxes by instant (`server.verdict.facts.instants`), oldest first.
        recent: means of the instants over the judged steps.
        steps: the trainer's last steps, oldest first; they show a change of limiter before their mean does.
        first: (incarnation, number) of the first step that belongs to the present, as found before; None: not found.
        hung_since: since when at least half of the engines run requests without a token; None: they do not.
        down_since: since when no engine answers; None: some engines answer, or the time is not recorded.
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
        """Returns the value of the only series with these labels, if it is reported and not too old."""
        series = self._current(signal, labels)
        return series[0][1] if len(series) == 1 else None

    def rows(self, signal: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yields (labels, value) of every series of a signal with these labels that has a current value."""
        for key, value in self._current(signal, labels):
            yield dict(key), value

    def total(self, signal: str, **labels: str) -> float | None:
        """Returns the sum of these series; None without any."""
        series = self._current(signal, labels)
        return sum(value for _, value in series) if series else None

    def _current(self, signal: str, labels: Mapping[str, str]) -> list[tuple[Labels, float]]:
        """Returns the current series of a signal with these labels. Called a hundred times per tick."""
        series, required = self.signals.get(signal), labels.items()
        return [
            (key, newest.value)
            for key, newest in (series.items() if series else ())
            if newest.value is not None
            and (not required or all(pair in key for pair in required))
            and not self.stale(signal, newest.ts)
        ]

    def age(self, signal: str) -> float | None:
        """Returns the seconds since the newest value of a signal."""
        times = [newest.ts for newest in self.signals.get(signal, {}).values() if newest.value is not None]
        return self.now - max(times) if times else None

    def why(self, signal: str) -> str:
        """Returns why a signal has no current value."""
        series = self.signals.get(signal, {}).values()
        gaps = (self.stale(signal, newest.ts) if newest.value is not None else newest.why for newest in series)
        return next((reason for reason in gaps if reason), "")

    @property
    def fault_since(self) -> float | None:
        """Since when the fault lasts that the trainer's log reports after its newest step; None: it reports none."""
        since = self.fact("fault_since")
        return since if self.facts.get("fault_kind") and since is not None and since <= self.now else None

    def fact(self, name: str) -> float | None:
        value = self.facts.get(name)
        return value if isinstance(value, (int, float)) else None
