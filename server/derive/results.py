"""What every signal answered last, and how an answer becomes rows: points, the newest value, a break in a line.

No clock of its own; the ids of series are the only thing it asks the store for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collectors.model import Labels
from server.alerts.inputs import SignalState
from server.derive.deriver import Deriver, Emission
from server.signals import Counter, Signal
from server.signals.availability import missing_metrics
from server.signals.model import Answer, NotApplicable, Value, is_gap, unknown_reason
from server.signals.step_windows import row_limit
from server.store import Store
from server.store.types import Batch, LatestRow, PointState, SeriesKey

# A label set of a signal that is answered without it now: it left, nothing failed.
NO_LONGER = "no longer reported"


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
        """As alert rules see it. A series that left, or that cannot be, is not one that nobody knows of."""
        ended = self.state is PointState.NOT_APPLICABLE or self.why == NO_LONGER
        return SignalState(self.ts / 1000, self.value, self.why, ended)

    def row(self) -> LatestRow:
        return LatestRow(self.id, self.ts, self.value, self.state, self.why, self.source)


class SignalResults:
    """The newest answers of one run's signals.

    Attributes:
        known: signal -> series -> its newest answer.
    """

    def __init__(self, store: Store, run: str, items: Mapping[str, Signal | Counter], deriver: Deriver) -> None:
        self._store, self._run, self._items, self._deriver = store, run, items, deriver
        self.known: dict[str, dict[Labels, _Series]] = {}
        self._ids: dict[tuple[str, Labels], int] = {}
        # History answers thousands of times between two looks of an alert, or two commits: only the newest is told.
        self._now: dict[str, dict[Labels, SignalState]] = {}
        self._unseen: dict[int, _Series] = {}
        self._unsaved: dict[int, _Series] = {}
        # Labels and series of a signal's newest answer, where all its other series have left. A step's answer as a
        # rule has the same labels as the one before.
        self._same: dict[str, tuple[list[Labels], list[_Series]]] = {}
        # Signals of which every series already stands at this gap.
        self._silent: dict[str, tuple[PointState, str, str]] = {}
        # What the words of gaps follow from, and those words. Bounded: a count of steps is the only number in them.
        self._context: tuple[tuple[int, int], tuple[str, ...]] = ((-1, -1), ())
        self._lacking: dict[tuple[str, str], str] = {}

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
        """Go on from what is stored."""
        for key, latest in rows:
            series = _Series(
                key.metric, key.labels, latest.series, latest.state, latest.ts, latest.value, latest.why, latest.source
            )
            self.known.setdefault(key.metric, {})[key.labels] = self._unseen[series.id] = series

    def now(self) -> Mapping[str, Mapping[Labels, SignalState]]:
        """The same answers as alert rules see them."""
        for series in self._unseen.values():
            self._now.setdefault(series.name, {})[series.labels] = series.now()
        self._unseen.clear()
        return self._now

    @property
    def fresh(self) -> bool:
        """Is there an answer that `save` has to say?"""
        return bool(self._unsaved)

    def save(self, batch: Batch) -> None:
        """The newest answers since the last call."""
        batch.latest += [series.row() for series in self._unsaved.values()]
        self._unsaved.clear()

    def silent(self) -> set[str]:
        """Signals that were never answered."""
        asked = {name for name, item in self._items.items() if isinstance(item, Signal) and not item.judged}
        return asked - self.known.keys()

    def lacking(self) -> set[str]:
        """Signals without a value, whenever a metric is met for the first time: why they have none may change."""
        if not self._deriver.grown():
            return set()
        return {
            name
            for name, found in self.known.items()
            if all(one.state is not PointState.VALUE for one in found.values())
        }

    def write(self, emissions: Iterable[Emission], batch: Batch) -> None:
        self._look_around()
        emissions = list(emissions)
        self._number(emissions)
        for name, ts, answer in emissions:
            if is_gap(answer):
                self._write_gap(name, ts, answer, batch)
            else:
                self._write_values(name, ts, answer, batch)  # type: ignore[arg-type]

    def stand(self, name: str, ts: float) -> None:
        """The newest values of a signal hold at `ts` too: they are as young, and no point is made of it."""
        for series in self.known.get(name, {}).values():
            series.ts = max(series.ts, round(ts * 1000))
            self._unseen[series.id] = self._unsaved[series.id] = series

    def _write_values(self, name: str, ts: float, values: Sequence[Value], batch: Batch) -> None:
        known = self.known.setdefault(name, {})
        self._silent.pop(name, None)
        source = self._deriver.source(self._items[name])
        stamp, newest = round(ts * 1000), round(self._deriver.data_time(name, ts) * 1000)
        labels_now = [value.labels for value in values]
        before = self._same.pop(name, None)
        if before is None or before[0] != labels_now:
            self._write_each(name, values, stamp, newest, source, batch)
            self._end_others(name, values, stamp, source, batch)
            before = labels_now, [known[labels] for labels in labels_now]
        else:
            points, as_value = batch.points, int(PointState.VALUE)
            for value, series in zip(values, before[1], strict=True):
                if value.value != value.value:
                    self._write_missing(name, value, stamp, (value.why, source), batch)
                else:
                    self._set(series, newest, value.value, PointState.VALUE, (value.why, source))
                    points.append((series.id, stamp, value.value, as_value))
        self._same[name] = before

    def _write_each(
        self, name: str, values: Sequence[Value], stamp: int, newest: int, source: str, batch: Batch
    ) -> None:
        for value in values:
            words = (value.why, source)
            if value.value != value.value:
                self._write_missing(name, value, stamp, words, batch)
                continue
            number = self._latest(name, value.labels, newest, value.value, PointState.VALUE, words)
            batch.points.append((number, stamp, value.value, int(PointState.VALUE)))

    def _end_others(self, name: str, values: Sequence[Value], stamp: int, source: str, batch: Batch) -> None:
        """End the lines of label sets that the answer does not have."""
        known = self.known[name]
        if len(values) == len(known) == 1:
            return
        named = {value.labels for value in values}
        for labels, at in list(known.items()):
            if labels in named or at.why == NO_LONGER:
                continue
            if at.state is PointState.VALUE:
                self._break(name, labels, stamp, PointState.UNKNOWN, (NO_LONGER, source), batch)
            else:
                # The reason of an earlier gap does not hold any more: other label sets have values now.
                self._latest(name, labels, stamp, None, PointState.UNKNOWN, (NO_LONGER, source))

    def _write_missing(self, name: str, value: Value, stamp: int, words: tuple[str, str], batch: Batch) -> None:
        """One label set of several is not known: its line breaks where there was one."""
        series = self.known[name].get(value.labels)
        if series is not None and series.state is PointState.VALUE:
            self._break(name, value.labels, stamp, PointState.UNKNOWN, words, batch)
        elif series is None or (series.state, series.why) != (PointState.UNKNOWN, value.why):
            self._latest(name, value.labels, stamp, None, PointState.UNKNOWN, words)

    def _write_gap(self, name: str, ts: float, answer: Answer, batch: Batch) -> None:
        """A gap breaks a line once, and only where there is one; its words are always the newest."""
        state = PointState.NOT_APPLICABLE if isinstance(answer, NotApplicable) else PointState.UNKNOWN
        words = (self._why(name, answer), self._deriver.source(self._items[name]))
        if self._silent.get(name) == (state, *words):
            return
        self._same.pop(name, None)
        known, stamp = self.known.setdefault(name, {}), round(ts * 1000)
        for labels in list(known) or [()]:
            series = known.get(labels)
            if series is not None and series.state is PointState.VALUE:
                self._break(name, labels, stamp, state, words, batch)
            elif series is None or series.state is not state or (series.why, series.source) != words:
                self._latest(name, labels, stamp, None, state, words)
        if all(one.state is state and (one.why, one.source) == words for one in known.values()):
            self._silent[name] = (state, *words)

    def _why(self, name: str, answer: Answer) -> str:
        """The words of a gap; made again only when other metrics are told, or by others."""
        words = unknown_reason(answer)
        if isinstance(answer, NotApplicable):
            return words
        if (name, words) not in self._lacking:
            item = self._items[name]
            found = (
                missing_metrics(item, words, self._deriver.reports, self._context[1])
                if isinstance(item, Signal)
                else words
            )
            self._lacking[(name, words)] = found
        return self._lacking[(name, words)]

    def _look_around(self) -> None:
        deriver = self._deriver
        kinds = (str(deriver.facts.get("framework", "")), *[one.kind for one in deriver.health.values()])
        if self._context != (deriver.reported, kinds):
            self._context = (deriver.reported, kinds)
            self._lacking.clear()

    def _break(
        self, name: str, labels: Labels, stamp: int, state: PointState, words: tuple[str, str], batch: Batch
    ) -> None:
        batch.points.append((self._latest(name, labels, stamp, None, state, words), stamp, None, int(state)))

    def _latest(
        self, name: str, labels: Labels, newest: int, value: float | None, state: PointState, words: tuple[str, str]
    ) -> int:
        """Note the newest answer of a series, of data up to ``newest`` (ms); the series' id."""
        series = self.known[name].get(labels)
        if series is None:
            series = _Series(name, labels, self.series(name, labels), state, newest, value, *words)
            self.known[name][labels] = series
        self._set(series, newest, value, state, words)
        return series.id

    def _set(
        self, series: _Series, newest: int, value: float | None, state: PointState, words: tuple[str, str]
    ) -> None:
        series.state = state
        # A late step is a point of its own time: "now" does not go back. What a tick says is always the newest, though
        # the source that reported last may be one that just fell silent.
        if newest >= series.ts or self._ticks(series.name):
            # After a restart a step's target is known again with its next row; until then the stored word stands.
            told = words[1] or (series.source if state is PointState.VALUE else "")
            series.ts, series.value, series.why, series.source = newest, value, words[0], told
            self._unseen[series.id] = self._unsaved[series.id] = series

    def _ticks(self, name: str) -> bool:
        item = self._items.get(name)
        return isinstance(item, Signal) and item.cadence == "tick"

    def stale(self, now: float, name: str, ts: float) -> str:
        """Why a step signal's newest answer is too old to be judged at `now`, or ""."""
        item = self._items.get(name)
        if not isinstance(item, Signal) or item.cadence != "step":
            return ""
        limit = row_limit(self._deriver.book)
        return f"no step for more than {limit:.0f} s" if now - ts > limit else ""

    def _number(self, emissions: Iterable[Emission]) -> None:
        """Ids for series that are met for the first time, of all of them at once: each alone is a transaction."""
        ids, known, new = self._ids, self.known, dict[tuple[str, Labels], None]()
        for name, _, answer in emissions:
            if isinstance(answer, (list, tuple)):
                if name in self._same and len(answer) == 1 and answer[0].labels == self._same[name][0][0]:
                    continue
                new.update({(name, one.labels): None for one in answer if (name, one.labels) not in ids})
            elif not known.get(name) and (name, ()) not in ids:
                new[(name, ())] = None
        if new:
            self._ids.update(zip(new, self._store.intern(self._run, [SeriesKey("", *key) for key in new]), strict=True))

    def series(self, name: str, labels: Labels) -> int:
        known = self._ids.get((name, labels))
        if known is None:
            known = self._ids[(name, labels)] = self._store.intern(self._run, [SeriesKey("", name, labels)])[0]
        return known
