"""Faults that torch and Ray print into the log of any trainer: a collective that timed out, a worker that died.

Texts: torch 2.1 to 2.8 (ProcessGroupNCCL.cpp), Ray 2.9 to 2.49 (raylet: worker_pool, gcs).
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple

FaultKind = Literal["collective_timeout", "watchdog", "worker_died"]
# A line without one of these is no fault. Every line of a log is compared, so the test must be cheap.
_HINTS = ("atchdog", "died or was killed")
_TIMEOUT = re.compile(r"ollective operation timeout")
_OPERATION = re.compile(r"OpType=(\w+)")
_RAN = re.compile(r"ran for (\d+) milliseconds")
_STUCK = re.compile(r"watchdog got stuck for (\d+) seconds")
_WATCHDOG = re.compile(r"detected by watchdog|watchdog thread terminated with exception")
_DIED = re.compile(r"worker died or was killed")
_RANK = re.compile(r"\[(?:[^\[\]]* )?[Rr]ank ?(\d+)\]")
# glog: severity, month, day, time of day, without a year and a zone.
_GLOG = re.compile(r"(?:^|[\[:\s])[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s", re.ASCII)
# Characters. Torch prints "[rank0]:" before the time.
_GLOG_WITHIN = 48
# Seconds. A line may be this much later than the last change of its file, because its clock may be in another zone.
_LATEST = 86_400.0
_RANKS: tuple[FaultKind, ...] = ("collective_timeout", "watchdog", "worker_died")
"""Of several lines the first of these names the fault: a timeout is the cause of what follows it."""


class Fault(NamedTuple):
    """One fault, from one or more lines. JSON keeps it as a list.

    Attributes:
        at: epoch seconds of its first line. since: when the collective began, or `at`.
        operations: the collectives, in the order of their lines. seconds: how long the longest one ran; 0: unknown.
        dated: the time is that of a line, not of the file.
    """

    kind: FaultKind
    at: float
    since: float
    operations: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    dated: bool = True

    def with_line(self, line: "Fault") -> "Fault":
        """The fault with one more of its lines."""
        return Fault(
            min(self.kind, line.kind, key=_RANKS.index),
            self.at,
            min(self.since, line.since),
            (*self.operations, *(operation for operation in line.operations if operation not in self.operations)),
            tuple(sorted({*self.ranks, *line.ranks})),
            max(self.seconds, line.seconds),
            self.dated and line.dated,
        )

    def shifted(self, seconds: float) -> "Fault":
        """The fault at other times, if the times are those of lines."""
        return self._replace(at=self.at + seconds, since=self.since + seconds) if self.dated else self

    @property
    def text(self) -> str:
        """E.g. ``a collective timed out: ALLREDUCE, ranks 0 to 3, after 600 s``."""
        after = f"after {self.seconds:.0f} s" if self.seconds else ""
        details = ", ".join(part for part in (", ".join(self.operations), _ranks(self.ranks), after) if part)
        return _TEXTS[self.kind] + (f": {details}" if details else "")


_TEXTS = {
    "collective_timeout": "a collective timed out",
    "watchdog": "the watchdog of the collectives reports a hang or an error",
    "worker_died": "a worker died or was killed",
}


def loaded(saved: Iterable[Any] | None) -> Fault | None:
    """The fault of a cursor, which JSON made a list."""
    if saved is None:
        return None
    fault = Fault(*saved)
    return fault._replace(operations=tuple(fault.operations), ranks=tuple(fault.ranks))


def find(text: str, ts: float | None, modified: float) -> Fault | None:
    """The fault that a message reports, or None. ``ts``: its own time; ``modified``: last change of the file."""
    if not any(hint in text for hint in _HINTS):
        return None
    ts = ts if ts is not None else glog_time(text, modified)
    at, dated = (modified, False) if ts is None else (ts, True)
    ranks = tuple(sorted({int(rank) for rank in _RANK.findall(text)}))
    if _TIMEOUT.search(text):
        operation, ran = _OPERATION.search(text), _RAN.search(text)
        seconds = int(ran[1]) / 1000 if ran is not None else 0.0
        operations = (operation[1],) if operation is not None else ()
        return Fault("collective_timeout", at, at - seconds, operations, ranks, seconds, dated)
    if (stuck := _STUCK.search(text)) is not None:
        seconds = float(stuck[1])
        return Fault("watchdog", at, at - seconds, (), ranks, seconds, dated)
    if _WATCHDOG.search(text):
        return Fault("watchdog", at, at, (), ranks, dated=dated)
    return Fault("worker_died", at, at, dated=dated) if _DIED.search(text) else None


def glog_time(text: str, modified: float) -> float | None:
    """Epoch seconds of a glog prefix (``[E1125 10:42:28.858931807``), local time; the year is that of the file."""
    match = _GLOG.search(text, 0, _GLOG_WITHIN)
    if match is None:
        return None
    year = datetime.fromtimestamp(modified).astimezone().year
    for candidate in (year + 1, year, year - 1):
        try:
            whole = datetime.fromisoformat(f"{candidate}-{match[1]}-{match[2]} {match[3]}").timestamp()
        except (OverflowError, ValueError):
            continue
        if whole <= modified + _LATEST:
            return whole + float(f"0.{match[4] or 0}")
    return None


def _ranks(ranks: tuple[int, ...]) -> str:
    """E.g. ``rank 2``, ``ranks 0 to 3``, ``ranks 0, 2, 5``."""
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))
