"""Faults on a timeline: a scenario's own, and those of `rollscope demo --inject KIND@TIME`.

A fault begins at its time and lasts. Before that nothing differs, because the random draws are the same.
"""

import heapq
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

# ---- events
# Tools of the simulation: an agenda of future actions, and the integral of a step function.

Action = Callable[[float], None]


class Agenda:
    """Actions at event times (seconds since the run began).

    Actions at equal times run in the order in which they were planned.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._planned = 0

    def plan(self, at: float, action: Action) -> None:
        # The serial number orders equal times; otherwise the heap would compare actions and fail.
        self._planned += 1
        heapq.heappush(self._heap, (at, self._planned, action))

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def run_next(self) -> None:
        at, _, action = heapq.heappop(self._heap)
        action(at)


class Level:
    """A piecewise constant number, and its integral over time (number x seconds)."""

    __slots__ = ("_since", "_sum", "value")

    def __init__(self) -> None:
        self.value = 0
        self._since = 0.0
        self._sum = 0.0

    def set(self, now: float, value: int) -> None:
        self._sum += self.value * (now - self._since)
        self._since = now
        self.value = value

    def add(self, now: float, change: int) -> None:
        self.set(now, self.value + change)

    def integral(self, now: float) -> float:
        return self._sum + self.value * (now - self._since)


KINDS = {
    "engine-crash": "one more engine dies: its page is gone, its requests start again on other engines",
    "engine-freeze": "one more engine hangs: its page answers, its requests generate no tokens",
    "sandbox-outage": "the provider starts no more sandboxes; requests stay pending",
    "scoring-slow": "the verifier takes 30 times as long",
    "trainer-hang": "the trainer never ends its current step",
    "weight-sync-slow": "sending the weights takes 15 times as long",
    "length-drift": "responses grow to 2.5 times their length within half an hour",
    "easy-tasks": "nearly every task is solved in nearly every attempt",
}
SANDBOX_KINDS = frozenset({"sandbox-outage"})

# A math verifier takes 12 s instead of 0.4 s: longer than the answer itself.
_SCORING_FACTOR = 30.0
# A broadcast over the wrong network takes most of half a minute instead of seconds.
_SYNC_FACTOR = 15.0
_DRIFT_FACTOR, _DRIFT_SECONDS = 2.5, 1_800.0
# A solve probability of a half becomes 0.98; then a group of eight is all solved in 85 % of cases.
_EASE = 0.03
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0}
_TEXT = re.compile(r"([a-z-]{1,40})@(\d{1,9}(?:\.\d{1,6})?)([smh]?)")


@dataclass(frozen=True)
class Fault:
    """`at`: seconds since the demo's clock began."""

    kind: str
    at: float


def kinds_of(sandboxes: bool) -> list[str]:
    """The kinds of faults that a scenario with or without sandboxes can have."""
    return [kind for kind in KINDS if sandboxes or kind not in SANDBOX_KINDS]


def read(text: str, sandboxes: bool = True) -> Fault:
    """Parses `KIND@TIME`, the time in seconds or with the unit s, m or h.

    Raises:
        ValueError: unknown kind, invalid time, or a kind impossible in this scenario; lists the valid ones.
    """
    match = _TEXT.fullmatch(text)
    kinds = kinds_of(sandboxes)
    if match is None or match[1] not in KINDS:
        raise ValueError(
            f"{text!r} is not KIND@TIME with a time such as 90, 10m or 1.5h since the start and a kind of "
            + ", ".join(kinds)
        )
    if match[1] not in kinds:
        raise ValueError(f"{match[1]}: this scenario has no sandboxes; it can have " + ", ".join(kinds))
    return Fault(match[1], float(match[2]) * _UNITS[match[3]])


@dataclass(slots=True)
class Conditions:
    """Current conditions for random draws of lengths, probabilities and times. Factors are 1 without a fault."""

    scoring: float = 1.0
    sync: float = 1.0
    is_easy: bool = False
    # Seconds since the run began.
    drifts_since: float = math.inf

    def length(self, now: float) -> float:
        """Returns the factor of response lengths."""
        share = min(1.0, max(0.0, (now - self.drifts_since) / _DRIFT_SECONDS))
        return 1.0 + (_DRIFT_FACTOR - 1.0) * share

    def chance(self, drawn: float) -> float:
        """Returns a task's solve probability."""
        return drawn**_EASE if self.is_easy else drawn

    def befall(self, kind: str, now: float) -> None:
        """Applies a fault of the whole cluster."""
        if kind == "scoring-slow":
            self.scoring = _SCORING_FACTOR
        elif kind == "weight-sync-slow":
            self.sync = _SYNC_FACTOR
        elif kind == "easy-tasks":
            self.is_easy = True
        elif kind == "length-drift":
            self.drifts_since = min(self.drifts_since, now)


def timeline(faults: Iterable[Fault], agenda: Agenda, befall: Callable[[str, float], None], age: float) -> None:
    """Plans all faults. `age`: seconds from the run's start to the start of the demo's clock."""
    for fault in faults:
        agenda.plan(fault.at + age, partial(befall, fault.kind))
