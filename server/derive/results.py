"""Turns answers of signals, and the verdict, into rows: points, newest values, breaks in lines, history.

Keeps each signal's newest answer.

`SignalResults` is pure except for the ids of series, which come from the store.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor
from typing import Any

import msgspec

from collectors.model import Labels
from server.alerts.inputs import SignalState
from server.derive.deriver import Deriver, Emission
from server.signals import Counter, Signal
from server.signals.aggregates import row_limit
from server.signals.availability import missing_metrics
from server.signals.model import (
    LAST_VALUE,
    NO_CURRENT_REPORT,
    STEP_WINDOW,
    Answer,
    NotApplicable,
    Unknown,
    Value,
    lapsed,
    unknown_reason,
)
from server.store import Store
from server.store.types import Batch, LatestRow, PointState, SeriesKey, VerdictRow
from server.verdict.model import RULES_VERSION, VERDICT_OUTCOMES, Verdict, VerdictInput
from server.verdict.rules import Memory, remember

# Reason of a label set that the signal's newest answer does not have. Nothing failed.
NO_LONGER = "no longer reported"
_VALUE = int(PointState.VALUE)


@dataclass(slots=True)
class _Series:
    """One series of a signal and its newest answer. ``why``, ``source``: the text and the targets of the answer."""

    name: str
    labels: Labels
    id: int
    state: PointState
    ts: int
    value: float | None
    why: str
    source: str

    def now(self) -> SignalState:
        """The state for alert rules. An ended or inapplicable series is not an unknown one."""
        ended = self.state is PointState.NOT_APPLICABLE or self.why == NO_LONGER
        return SignalState(self.ts / 1000, self.value, self.why, ended)

    def row(self) -> LatestRow:
        return LatestRow(self.id, self.ts, self.value, self.state, self.why, self.source)


class SignalResults:
    """The newest answers of one run's signals.

    Attributes:
        known: newest answer by signal and labels.
    """

    def __init__(self, store: Store, run: str, items: Mapping[str, Signal | Counter], deriver: Deriver) -> None:
        self._store, self._run, self._items, self._deriver = store, run, items, deriver
        self.known: dict[str, dict[Labels, _Series]] = {}
        self._ids: dict[tuple[str, Labels], int] = {}
        self._ticks = {name for name, item in items.items() if isinstance(item, Signal) and item.cadence == "tick"}
        # The emissions that `write` works on: series that are missing are created for all of them at once.
        self._emissions: list[Emission] = []
        # In history a signal has thousands of answers between two commits. Only series changed since then are listed.
        self._now: dict[str, dict[Labels, SignalState]] = {}
        self._new_states: dict[int, _Series] = {}
        self._unsaved: dict[int, _Series] = {}
        # Signals whose every series already has this gap: type and reason of the answer, context version, source.
        self._silent: dict[str, tuple[type, str, int, str]] = {}
        # Cached reasons of gaps, and what they depend on. Bounded: a count of steps is the only number in a reason.
        self._context: tuple[tuple[int, int], tuple[str, ...]] = ((-1, -1), ())
        self._context_version = 0
        self._reasons: dict[tuple[str, str], str] = {}

    def rows(self) -> list[tuple[SeriesKey, LatestRow]]:
        """The newest answer of every series."""
        return [
            (SeriesKey("", name, labels), series.row())
            for name, found in self.known.items()
            for labels, series in found.items()
        ]

    def forget_saved(self) -> None:
        """Let the next `save` write every answer."""
        self._unsaved = {series.id: series for found in self.known.values() for series in found.values()}

    def recover(self, rows: Iterable[tuple[SeriesKey, LatestRow]]) -> None:
        """Load the stored newest answers."""
        for key, latest in rows:
            series = _Series(
                key.metric, key.labels, latest.series, latest.state, latest.ts, latest.value, latest.why, latest.source
            )
            self.known.setdefault(key.metric, {})[key.labels] = self._new_states[series.id] = series

    def now(self) -> Mapping[str, Mapping[Labels, SignalState]]:
        """The newest answers as states for alert rules."""
        for series in self._new_states.values():
            self._now.setdefault(series.name, {})[series.labels] = series.now()
        self._new_states.clear()
        return self._now

    @property
    def fresh(self) -> bool:
        """Is there an answer for `save` to write?"""
        return bool(self._unsaved)

    def save(self, batch: Batch) -> None:
        """Add the newest answers since the last call to the batch."""
        batch.latest += [series.row() for series in self._unsaved.values()]
        self._unsaved.clear()

    def silent(self) -> set[str]:
        """Signals without any answer so far."""
        evaluated = {name for name, item in self._items.items() if isinstance(item, Signal) and not item.judged}
        return evaluated - self.known.keys()

    def lacking(self) -> set[str]:
        """Signals without a value, when a metric was seen for the first time; their reasons may change."""
        if not self._deriver.has_new_metrics():
            return set()
        return {
            name
            for name, found in self.known.items()
            if all(series.state is not PointState.VALUE for series in found.values())
        }

    def write(self, emissions: Iterable[Emission], batch: Batch) -> None:
        self._update_context()
        self._emissions = list(emissions)
        for name, ts, answer in self._emissions:
            if isinstance(answer, (Unknown, NotApplicable)):
                self._write_gap(name, ts, answer, batch)
            else:
                self._write_values(name, ts, answer, batch)
        self._emissions = []

    def stand(self, name: str, ts: float) -> None:
        """Extend the newest values of a signal to `ts` without a point."""
        for series in self.known.get(name, {}).values():
            series.ts = max(series.ts, round(ts * 1000))
            self._new_states[series.id] = self._unsaved[series.id] = series

    def _write_values(self, name: str, ts: float, values: Sequence[Value], batch: Batch) -> None:
        stored, is_tick = self.known.setdefault(name, {}), name in self._ticks
        self._silent.pop(name, None)
        source, stamp = self._deriver.source(self._items[name]), round(ts * 1000)
        newest = round(self._deriver.data_time(name, ts) * 1000) if is_tick else stamp
        for value in values:
            number, labels = value.value, value.labels
            if number != number:
                self._write_missing(name, value, stamp, (value.why, source), batch)
                continue
            series = stored.get(labels)
            if series is None:
                self._latest(name, labels, newest, number, PointState.VALUE, (value.why, source))
                series = stored[labels]
            else:
                # As `_set`, without a call: a long log has a million values.
                series.state = PointState.VALUE
                if newest >= series.ts or is_tick:
                    series.ts, series.value, series.why = newest, number, value.why
                    series.source = source or series.source
                    self._new_states[series.id] = self._unsaved[series.id] = series
            batch.points.append((series.id, stamp, number, _VALUE))
        if not len(values) == len(stored) == 1:
            self._end_others(name, values, stamp, source, batch)

    def _end_others(self, name: str, values: Sequence[Value], stamp: int, source: str, batch: Batch) -> None:
        """End the lines of label sets that the answer does not have."""
        stored = self.known[name]
        named = {value.labels for value in values}
        if len(named) == len(stored):
            return
        for labels, at in list(stored.items()):
            if labels in named or at.why == NO_LONGER:
                continue
            if at.state is PointState.VALUE:
                self._break(name, labels, stamp, PointState.UNKNOWN, (NO_LONGER, source), batch)
            else:
                # The reason of an earlier gap is outdated, because other label sets have values now.
                self._latest(name, labels, stamp, None, PointState.UNKNOWN, (NO_LONGER, source))

    def _write_missing(self, name: str, value: Value, stamp: int, texts: tuple[str, str], batch: Batch) -> None:
        """Write a missing value of one label set: its line breaks where there was one."""
        series = self.known[name].get(value.labels)
        if series is not None and series.state is PointState.VALUE:
            self._break(name, value.labels, stamp, PointState.UNKNOWN, texts, batch)
        elif series is None or (series.state, series.why) != (PointState.UNKNOWN, value.why):
            self._latest(name, value.labels, stamp, None, PointState.UNKNOWN, texts)

    def _write_gap(self, name: str, ts: float, answer: Unknown | NotApplicable, batch: Batch) -> None:
        """Write a gap. It breaks an existing line once; its reason is always the newest."""
        source = self._deriver.source(self._items[name])
        gap = (type(answer), unknown_reason(answer), self._context_version, source)
        if self._silent.get(name) == gap:
            return
        state = PointState.NOT_APPLICABLE if isinstance(answer, NotApplicable) else PointState.UNKNOWN
        stored, stamp, reason = self.known.setdefault(name, {}), round(ts * 1000), (self._why(name, answer), source)
        for labels in list(stored) or [()]:
            series = stored.get(labels)
            texts = (self._lapsed(series, answer) or reason[0], reason[1])
            if series is not None and series.state is PointState.VALUE:
                self._break(name, labels, stamp, state, texts, batch)
            elif series is None or series.state is not state or (series.why, series.source) != texts:
                self._latest(name, labels, stamp, None, state, texts)
        if all(
            series.state is state
            and (series.why, series.source) == (self._lapsed(series, answer) or reason[0], reason[1])
            for series in stored.values()
        ):
            self._silent[name] = gap

    def _lapsed(self, series: _Series | None, answer: Answer) -> str:
        """The reason of a series whose inputs were reported earlier: "not reported" would contradict its chart."""
        item = None if series is None else self._items[series.name]
        if series is None or not isinstance(item, Signal) or unknown_reason(answer) != item.hint:
            return ""
        if series.state is PointState.VALUE:
            return lapsed(NO_CURRENT_REPORT, series.value, item.unit)
        return series.why if series.why.startswith(NO_CURRENT_REPORT + LAST_VALUE) else ""

    def _why(self, name: str, answer: Answer) -> str:
        """The reason of a gap; cached until other metrics or other targets report."""
        texts = unknown_reason(answer)
        if isinstance(answer, NotApplicable):
            return texts
        if (name, texts) not in self._reasons:
            item = self._items[name]
            found = (
                missing_metrics(item, texts, self._deriver.reports, self._context[1])
                if isinstance(item, Signal)
                else texts
            )
            self._reasons[(name, texts)] = found
        return self._reasons[(name, texts)]

    def _update_context(self) -> None:
        deriver = self._deriver
        kinds = (str(deriver.facts.get("framework", "")), *[health.collector for health in deriver.health.values()])
        if self._context != (deriver.reported, kinds):
            self._context = (deriver.reported, kinds)
            self._context_version += 1
            self._reasons.clear()

    def _break(
        self, name: str, labels: Labels, stamp: int, state: PointState, texts: tuple[str, str], batch: Batch
    ) -> None:
        batch.points.append((self._latest(name, labels, stamp, None, state, texts), stamp, None, int(state)))

    def _latest(
        self, name: str, labels: Labels, newest: int, value: float | None, state: PointState, texts: tuple[str, str]
    ) -> int:
        """Set the newest answer of a series from data up to ``newest`` (ms); returns the series' id."""
        series = self.known[name].get(labels)
        if series is None:
            series = _Series(name, labels, self.series(name, labels), state, newest, value, *texts)
            self.known[name][labels] = series
        self._set(series, newest, value, state, texts)
        return series.id

    def _set(
        self, series: _Series, newest: int, value: float | None, state: PointState, texts: tuple[str, str]
    ) -> None:
        series.state = state
        # A late step is a point of its own time and does not become the newest answer. A tick's answer always does,
        # although its data may be older because a source just stopped reporting.
        if newest >= series.ts or series.name in self._ticks:
            # After a restart the target of a step is missing until its next row; the stored source is shown until then.
            source = texts[1] or (series.source if state is PointState.VALUE else "")
            series.ts, series.value, series.why, series.source = newest, value, texts[0], source
            self._new_states[series.id] = self._unsaved[series.id] = series

    def stale(self, now: float, name: str, ts: float) -> str:
        """Why a step signal's newest answer is too old to be judged at `now`, or ""."""
        item = self._items.get(name)
        if not isinstance(item, Signal) or item.cadence != "step":
            return ""
        limit = row_limit(self._deriver.book)
        return f"no step for more than {limit:.0f} s" if now - ts > limit else ""

    def series(self, name: str, labels: Labels) -> int:
        """Returns the id of a series, which is created if it is missing."""
        if (name, labels) not in self._ids:
            self._create_ids([(name, labels), *self._missing()])
        return self._ids[(name, labels)]

    def _missing(self) -> Iterator[tuple[str, Labels]]:
        """Yields the series of the emissions that `write` works on and that are not there yet."""
        for name, _, answer in self._emissions:
            stored = self.known.get(name, {})
            if not isinstance(answer, (Unknown, NotApplicable)):
                yield from ((name, value.labels) for value in answer if value.labels not in stored)
            elif not stored:
                yield name, ()

    def _create_ids(self, keys: Iterable[tuple[str, Labels]]) -> None:
        """Creates the ids of all new series in one transaction."""
        new = [key for key in dict.fromkeys(keys) if key not in self._ids]
        ids = self._store.series.intern(self._run, [SeriesKey("", *key) for key in new])
        self._ids.update(zip(new, ids, strict=True))


# ---- the verdict
# Judged at every tick, written in the tick's own batch. What the rules remember, and the newest verdict whole, are a
# state of the run; a change of outcome or cause is a row of its history; the outcome is the signal `bottleneck`. All
# three go with the points that led to them.

log = logging.getLogger("rollscope.verdict")

VERDICT_STATE = "verdict"
# The same while history is worked off and readers are shown the present (`server.scrape.recent_first`).
HISTORY = "history:"
VERDICT_SIGNAL = "bottleneck"
# A verdict that stays is a point a minute, not twelve: it is as old as a tick's number may be (`TICK_STALE_SECONDS`).
BEAT_SECONDS = 60.0
# Memory and verdict together are some kB; more than this shows that something grows without a bound.
STATE_BYTES = 262_144
# The verdict of a run that is over stands as of its end.
OVER = ("finished", "crashed")

Judge = Callable[[Memory | None, VerdictInput], tuple[Memory, Verdict]]


class VerdictTracker:
    """The verdict of one run over time. Single-threaded, like the driver that owns it.

    Args:
        judge: (memory, what is seen) -> (memory, verdict); it may raise, and is then unknown.
    """

    def __init__(self, run: str, judge: Judge | None = None) -> None:
        self._run, self._judge = run, judge or remember
        self._memory: Memory | None = None
        # Of the newest verdict: what a rule that fails again and again goes on from.
        self._said: tuple[str, float | None] = ("", None)
        self._key: tuple[str, str] | None = None
        self._as_of: float | None = None
        self._text = ""
        # What `_text` is not made of yet: while history is worked off, only the newest is stored.
        self._unsaved: tuple[Memory | None, Verdict, float] | None = None
        self._told: set[str] = set()

    # ---- at every tick

    def tick(self, now: float, deriver: Deriver, answers: SignalResults, batch: Batch, *, replayed: bool) -> None:
        """Judge at `now`, what the signals answered is known; what changed goes into the batch."""
        before = self._as_of
        if before is not None and (now <= before or deriver.lifecycle in OVER):
            return
        if before is not None and now - before > row_limit(deriver.book):
            self._gap(before + row_limit(deriver.book), answers, batch, replayed)
        verdict = self._ask(_verdict_input(now, deriver, answers), replayed)
        self._as_of, self._said = now, (verdict.summary, verdict.since)
        changed = self._note(now, verdict, batch, replayed)
        if changed or before is None or floor(now / BEAT_SECONDS) != floor(before / BEAT_SECONDS):
            answers.write([(VERDICT_SIGNAL, now, list(_outcomes(verdict)))], batch)
        else:
            answers.stand(VERDICT_SIGNAL, now)

    def _gap(self, ts: float, answers: SignalResults, batch: Batch, replayed: bool) -> None:
        """Nothing was judged for longer than a step may take: the verdict before did not hold all that time."""
        words = "nothing was collected for this run"
        self._note(ts, Verdict("unknown", "incomplete", since=ts, summary=words), batch, replayed)
        answers.write([(VERDICT_SIGNAL, ts, Unknown(words))], batch)

    def _note(self, ts: float, verdict: Verdict, batch: Batch, replayed: bool) -> bool:
        """A row when it is another outcome or cause than before."""
        if verdict.key == self._key:
            return False
        self._key = verdict.key
        since = ts if verdict.since is None else verdict.since
        row = VerdictRow(
            round(ts * 1000), round(since * 1000), *verdict.key, verdict.rule, verdict.confidence,
            verdict.rules_version, replayed, msgspec.json.encode(verdict).decode(),
        )  # fmt: skip
        batch.verdicts.append(row)
        return True

    # ---- asking

    def _ask(self, seen: VerdictInput, replayed: bool) -> Verdict:
        try:
            memory, verdict = self._judge(self._memory, seen)
            if replayed and verdict.outcome in VERDICT_OUTCOMES:
                # Of thousands of verdicts in history only the newest is stored: a quarter of their cost was JSON.
                self._memory, self._unsaved = memory, (memory, verdict, seen.now)
                return verdict
            text = _verdict_text(memory, verdict, seen.now)
        except Exception as error:  # noqa: BLE001 - the same tick would fail at every retry; the run goes on without it
            return self._fault(type(error).__name__, error, seen.now)
        if len(text) > STATE_BYTES:
            return self._fault(f"more than {STATE_BYTES:,} bytes of state", None, seen.now)
        self._memory, self._text, self._unsaved = memory, text, None
        return verdict

    def _fault(self, what: str, error: Exception | None, now: float) -> Verdict:
        """Unknown, with what failed; what was remembered before stays."""
        if what not in self._told:
            self._told.add(what)
            log.error("run %s: the verdict could not be computed: %s", self._run, error or what, exc_info=error)
        words = f"the verdict could not be computed ({what}); the server's log has the full error"
        since = self._said[1] if self._said[0] == words else now
        verdict = Verdict("unknown", "incomplete", since=since, summary=words)
        self._text, self._unsaved = _verdict_text(self._memory, verdict, now), None
        return verdict

    # ---- surviving a restart

    def states(self) -> Mapping[str, tuple[int, str]]:
        """Memory and newest verdict as JSON, under the rules' version."""
        if self._unsaved is not None:
            unsaved, self._unsaved = self._unsaved, None
            try:
                self._text = _verdict_text(*unsaved)
            except ValueError as error:  # a number that is not finite: the stored verdict stays
                self._fault(type(error).__name__, error, unsaved[2])
        return {VERDICT_STATE: (RULES_VERSION, self._text)} if self._text else {}

    def restore(self, states: Mapping[str, tuple[int, str]]) -> None:
        """Restores the memory; that of other rules starts empty, and their first verdict is a row of its own."""
        version, text = states.get(VERDICT_STATE, (0, ""))
        if version != RULES_VERSION:
            return
        stored: dict[str, Any] = json.loads(text)
        verdict, self._text = stored["verdict"], text
        self._memory, self._as_of = stored["memory"], stored["as_of"]
        self._key = verdict["outcome"], verdict["cause"] or ""
        self._said = verdict["summary"], verdict["since"]


def _verdict_input(now: float, deriver: Deriver, answers: SignalResults) -> VerdictInput:
    return VerdictInput(
        now=now,
        mode=deriver.mode,
        lifecycle=deriver.lifecycle,
        facts=deriver.facts,
        signals=answers.now(),
        targets=tuple(deriver.health.values()),
        stale=partial(answers.stale, now),
        running_since=deriver.running_since,
        steps=tuple(deriver.book.last(STEP_WINDOW)),
    )


def _verdict_text(memory: Memory | None, verdict: Verdict, now: float) -> str:
    """What is kept, as JSON; `ValueError` for what is no verdict, or no JSON (a number that is not finite)."""
    if verdict.outcome not in VERDICT_OUTCOMES:
        raise ValueError(f"no outcome is named {verdict.outcome!r}")
    return json.dumps({"memory": memory, "verdict": msgspec.to_builtins(verdict), "as_of": now}, allow_nan=False)


def _outcomes(verdict: Verdict) -> Iterator[Value]:
    for outcome in VERDICT_OUTCOMES:
        yield Value(float(outcome == verdict.outcome), (("verdict", outcome),))
