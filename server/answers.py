"""What every signal answered last, and how an answer becomes rows: points, the newest value, a break in a line.

No clock of its own; the ids of series are the only thing it asks the store for.
"""

from collections.abc import Iterable, Mapping

from collectors.model import Labels
from server.alerts.frame import Now
from server.derive import Deriver, Emission, is_gap, why
from server.signals import Counter, Signal
from server.signals._model import Answer, NotApplicable, Value
from server.signals._steps import row_limit
from server.store import Store
from server.store.types import Batch, LatestRow, PointState, SeriesKey

# A label set of a signal that is answered without it now: it left, nothing failed.
NO_LONGER = "no longer reported"


class Answers:
    """The newest answers of one run's signals.

    Attributes:
        known: signal -> series -> state of its newest answer.
        now: the same answers as alert rules see them.
    """

    def __init__(self, store: Store, run: str, items: Mapping[str, Signal | Counter], deriver: Deriver) -> None:
        self._store, self._run, self._items, self._deriver = store, run, items, deriver
        self.known: dict[str, dict[Labels, PointState]] = {}
        self.now: dict[str, dict[Labels, Now]] = {}
        self._words: dict[tuple[str, Labels], tuple[str, str]] = {}
        self._newest: dict[tuple[str, Labels], int] = {}
        self._ids: dict[tuple[str, Labels], int] = {}

    def recover(self, rows: Iterable[tuple[SeriesKey, LatestRow]]) -> None:
        """Go on from what is stored."""
        for key, latest in rows:
            self.known.setdefault(key.metric, {})[key.labels] = latest.state
            self._words[(key.metric, key.labels)] = (latest.why, latest.source)
            self._newest[(key.metric, key.labels)] = latest.ts
            self._remember(key.metric, key.labels, latest.ts, latest.value, latest.state, latest.why)

    def write(self, emissions: list[Emission], batch: Batch) -> None:
        for name, ts, answer in emissions:
            if is_gap(answer):
                self._write_gap(name, ts, answer, batch)
            else:
                self._write_values(name, ts, answer, batch)  # type: ignore[arg-type]

    def _write_values(self, name: str, ts: float, values: list[Value], batch: Batch) -> None:
        known = self.known.setdefault(name, {})
        source = self._deriver.source(self._items[name])
        for value in values:
            # After a restart a step's target is known again with its next row; until then the stored word stands.
            told = source or self._words.get((name, value.labels), ("", ""))[1]
            self._point(name, value.labels, ts, value.value, PointState.VALUE, ("", told), batch)
        named = {value.labels for value in values}
        for labels in [labels for labels, state in known.items() if labels not in named and state is PointState.VALUE]:
            self._point(name, labels, ts, None, PointState.UNKNOWN, (NO_LONGER, source), batch)

    def _write_gap(self, name: str, ts: float, answer: Answer, batch: Batch) -> None:
        """A gap breaks a line once, and only where there is one; its words are always the newest."""
        state = PointState.NOT_APPLICABLE if isinstance(answer, NotApplicable) else PointState.UNKNOWN
        words = (why(answer), self._deriver.source(self._items[name]))
        known = self.known.setdefault(name, {})
        for labels in list(known) or [()]:
            if known.get(labels) is PointState.VALUE:
                self._point(name, labels, ts, None, state, words, batch)
            elif known.get(labels) is not state or self._words.get((name, labels)) != words:
                self._latest(name, labels, ts, None, state, words, batch)

    def _point(
        self, name: str, labels: Labels, ts: float, value: float | None, state: PointState, words: tuple[str, str],
        batch: Batch,
    ) -> None:  # fmt: skip
        batch.points.append((self.series(name, labels), round(ts * 1000), value, int(state)))
        self._latest(name, labels, ts, value, state, words, batch)

    def _latest(
        self, name: str, labels: Labels, ts: float, value: float | None, state: PointState, words: tuple[str, str],
        batch: Batch,
    ) -> None:  # fmt: skip
        newest = round(self._deriver.data_time(name, ts) * 1000) if value is not None else round(ts * 1000)
        self.known.setdefault(name, {})[labels] = state
        if newest < self._newest.get((name, labels), newest):
            return  # a late step is a point of its own time; "now" does not go back
        self._newest[(name, labels)] = newest
        self._words[(name, labels)] = words
        self._remember(name, labels, newest, value, state, words[0])
        batch.latest.append(LatestRow(self.series(name, labels), newest, value, state, *words))

    def _remember(self, name: str, labels: Labels, ts: int, value: float | None, state: PointState, told: str) -> None:
        """What alert rules see. A series that left, or that cannot be, is not one that nobody knows of."""
        ended = state is PointState.NOT_APPLICABLE or told == NO_LONGER
        self.now.setdefault(name, {})[labels] = Now(ts / 1000, value, told, ended)

    def stale(self, now: float, name: str, ts: float) -> str:
        """Why a step signal's newest answer is too old to be judged at `now`, or ""."""
        item = self._items.get(name)
        if not isinstance(item, Signal) or item.cadence != "step":
            return ""
        limit = row_limit(self._deriver.book)
        return f"no step for more than {limit:.0f} s" if now - ts > limit else ""

    def series(self, name: str, labels: Labels) -> int:
        known = self._ids.get((name, labels))
        if known is None:
            known = self._ids[(name, labels)] = self._store.intern(self._run, [SeriesKey("", name, labels)])[0]
        return known
