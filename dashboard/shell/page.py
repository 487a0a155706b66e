"""The interface of a page, and the elements that all pages use.

A page is one file of `dashboard.pages` with a constant ``PAGE``, and one entry in the list there. Header, navigation,
run menu, live state and theme are the shell's (`dashboard.shell.layout`); loading and ticking are the same for all.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dashboard.state.cache import TimedCache
from dashboard.state.past import status_at
from dashboard.state.url import Address, Span
from dashboard.widgets.base import html
from dashboard.widgets.status import StatusFacts, View
from server.query import Reader
from server.query.run_state import RunState
from server.query.types import AlertInfo, Delta, RuleInfo, RunInfo, SilenceInfo, Status

Json = dict[str, Any]


# Seconds. The rules that can fire change with the targets; evaluating them reads every series of the run.
_RULES_SECONDS = 30.0
# Seconds. Caches the status per run and tick, so that ten browsers cost one read. Changes without new points appear
# within a tick (5 s), and at once for the user who made them (`Scope.fresh`).
STATUS_SECONDS = 4.0
_BLIND_SECONDS = 0.9
PRESENT_SECONDS = 10.0
"""A range that ended less than this long ago shows the present: two ticks."""
_PAST_SECONDS = 60.0
"""How long a status of the past is cached."""


class RuleCache:
    """The rules as last read, per run, for all browsers together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._read: dict[str | None, tuple[float, list[RuleInfo]]] = {}

    def get(self, reader: Reader, run: str | None) -> list[RuleInfo]:
        # Under the lock, so that one of many concurrent requests reads.
        with self._lock:
            at, found = self._read.get(run, (0.0, None))
            if found is None or self._clock() - at > _RULES_SECONDS:
                found = reader.alerts.rules(None if run is None else reader.status(run))
                self._read[run] = (self._clock(), found)
            return found


@dataclass
class Scope:
    """The data of a page: one run, or all of them. Everything is read at most once."""

    reader: Reader
    run: str
    everything: bool = False
    # None: unknown in this process; an empty list: there is none.
    receivers: Sequence[str] | None = None
    rule_cache: RuleCache = field(default_factory=RuleCache)
    shared: TimedCache = field(default_factory=TimedCache)
    # For a page whose cells depend on it (`Page.timed`).
    span: Span | None = None
    # The past instant that the texts describe, epoch seconds; None: the present.
    at: float | None = None
    # Position up to which points were read; texts are at least as new.
    cursor: str = ""
    # True after a change by the user: caches are bypassed.
    fresh: bool = False
    # The address's query, for a page with own parameters (`Page.asks`).
    search: str = ""

    @cached_property
    def status(self) -> Status:
        # At a page's first load there is no cursor to detect new data.
        seconds = 0.0 if self.fresh else STATUS_SECONDS if self.cursor else _BLIND_SECONDS
        return self.shared.get(("status", self.run, self.cursor), seconds, lambda: self.reader.status(self.run))

    @cached_property
    def facts(self) -> StatusFacts:
        if self.at is None or self.at > self.status.now - PRESENT_SECONDS:
            return StatusFacts(self.status)
        status, at = self.status, self.at
        past = self.shared.get(("past", self.run, round(at)), _PAST_SECONDS, lambda: status_at(self.reader, status, at))
        return StatusFacts(past, at)

    @cached_property
    def states(self) -> Mapping[str, RunState]:
        """The states of the runs that `alerts` are of."""
        if not self.everything and self.run:
            return {self.run: self.status.state}
        return self.shared.get("states", STATUS_SECONDS, self.reader.runs.states)

    @cached_property
    def alerts(self) -> list[AlertInfo]:
        return self.reader.alerts.active(self.about)

    def resolved(self, most: int) -> list[AlertInfo]:
        """Alerts that are over, the newest first: shared like the status."""
        key = ("resolved", self.about, most, self.cursor)
        return self.shared.get(key, STATUS_SECONDS, lambda: self.reader.alerts.history(self.about, most))

    @cached_property
    def silences(self) -> list[SilenceInfo]:
        return self.reader.alerts.silences()

    @property
    def rules(self) -> list[RuleInfo]:
        return self.rule_cache.get(self.reader, self.about)

    @property
    def about(self) -> str | None:
        """As the `Reader` has it: a run's name, None for all."""
        return None if self.everything else self.run


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a page: its time range, and the browser's properties (``tz`` seconds, ``touch``)."""

    scope: Scope
    address: Address
    info: RunInfo
    span: Span
    wanted: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard.

    Attributes:
        path: its address below the dashboard's own prefix, without slashes; "" is the front page.
        tree: its elements, static; texts come by key (`t`), the charts' figures with a load.
        cells: all its texts for a scope; a tick sends those that changed.
        charts: what a page with charts adds to a load (``figures``, ``drawn``, ``sparks``); None: it has none.
        points: new points by slot, for a page with charts.
        timed: its cells depend on the time shown: a tick sends it.
        asks: its own parameters of the address; a tick sends their values.
        whole: it is about all runs, and opens without one; its own cell ``newest`` is the time of its newest data.
        kind: "page" of the navigation; "tool", opened from the header; "drawer", over the page that is shown, or a page
            of its own where it is opened directly.
    """

    key: str
    path: str
    title: str
    tree: Callable[[], list[Any]]
    cells: Callable[[Scope], View]
    charts: Callable[[Load], Json] | None = None
    points: Callable[[Delta, Status], Json] | None = None
    timed: bool = False
    asks: tuple[str, ...] = ()
    whole: bool = False
    kind: str = "page"


def t(tag: Any, key: str, name: str = "", **data: str) -> Any:
    """An element whose text is the cell ``key``, or the field of a struct: ``answer.text``.

    `data-t` names what becomes the element's text, `data-s` its `data-state`, `data-p` a share shown as its width,
    `data-h` its tip, `data-n` a quantity, `data-f` and `data-u` its figure and its unit, `data-a` a time shown as an
    age, `data-c` one shown as the reader's clock has it, `data-q` the changes that a link to What-if carries. React
    never owns those texts, so a live update cannot fight with a re-render.
    """
    return tag(className=name or None, **{"data-t": key, **{f"data-{k}": v for k, v in data.items()}})


def simulate(key: str) -> Any:
    """A link to What-if with the changes of the cell ``key``, hidden where there are none."""
    return html.A(
        "Simulate", href="what-if", className="simulate", hidden=True, **{"data-goto": "what-if", "data-q": key}
    )
