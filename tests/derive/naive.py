"""What the windows and the answers mean, written down without a thought for speed: the reference of test_incremental.

Nothing is kept between two questions but the steps themselves and the newest answer of every series.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from collectors.model import Labels
from server.derive.deriver import Deriver, Emission
from server.derive.results import NO_LONGER
from server.signals import Signal
from server.signals.model import NotApplicable, is_gap, unknown_reason
from server.signals.window import EVALUATION, TRAINER, Step, StepBook, StepKey
from server.store.types import PointState

Point = tuple[str, Labels, int, float | None, PointState]
Newest = tuple[PointState, int, float | None, str, str]


class NaiveBook(StepBook):
    """Every step ever put, and every question answered by looking at all of them."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._lives: dict[str, tuple[int, dict[int, Step]]] = {}
        super().__init__()

    def put(self, axis: str, incarnation: int, number: int, ts: float, values: Mapping[StepKey, float]) -> Step:
        life, steps = self._lives.get(axis, (-1, {}))
        if life < incarnation:
            life, steps = self._lives[axis] = incarnation, {}
        if life > incarnation:
            return Step(axis, incarnation, number, ts, dict(values))
        step = steps.get(number) or Step(axis, incarnation, number, ts, {})
        step.values.update(values)
        if number in steps or len(steps) < self._kept or number > min(steps):
            steps[number] = step
        if len(steps) > self._kept:
            del steps[min(steps)]
        return step

    def get(self, axis: str, incarnation: int, number: int) -> Step | None:
        life, steps = self._lives.get(axis, (-1, {}))
        return steps.get(number) if life == incarnation else None

    def newest(self, axis: str, until: float = math.inf) -> Step | None:
        return next(self._newest_first(axis, until), None)

    def rows(self, *keys: StepKey, count: int, until: float = math.inf) -> list[Step]:
        trained = self.newest(TRAINER, until)
        best: list[Step] = []
        for axis, (life, _) in self._lives.items():
            found = [step for step in self._newest_first(axis, until) if set(keys) <= step.values.keys()]
            if trained is not None:
                found = [step for step in found if step.number <= trained.number and life >= trained.incarnation]
            if found and (not best or found[0].ts > best[0].ts):
                best = found[:count]
        return best[::-1]

    def among_last(self, rows: list[Step], count: int, least: int) -> list[Step]:
        if not rows:
            return rows
        numbers = sorted(self._lives[rows[-1].axis][1])
        begin = [number for number in numbers if number <= rows[-1].number][-count:][0]
        found = [step for step in rows if step.number >= begin]
        return found if len(found) >= least else rows

    def last(self, count: int) -> list[Step]:
        newest = self.newest_of_all()
        return list(self._newest_first(newest.axis, math.inf))[:count][::-1] if newest is not None else []

    def newest_of_all(self) -> Step | None:
        found = [step for axis in self._lives if axis != EVALUATION and (step := self.newest(axis)) is not None]
        return self.newest(TRAINER) or max(found, key=lambda step: step.ts, default=None)

    def last_of(self, metric: str, count: int, until: float) -> Iterator[tuple[Labels, list[Step]]]:
        for axis in self._lives:
            rows = list(self._newest_first(axis, until))
            for key in sorted({key for row in rows for key in row.values if key[0] == metric}):
                yield key[1], [row for row in rows if key in row.values][:count]

    def once(self, name: str, make: Callable[[StepBook], float]) -> float:
        return make(self)

    def _newest_first(self, axis: str, until: float) -> Iterator[Step]:
        _, steps = self._lives.get(axis, (-1, {}))
        return (steps[number] for number in sorted(steps, reverse=True) if steps[number].ts <= until)


class NaiveDeriver(Deriver):
    """Selects the step signals of each row without a cache."""

    def _signals_reading(self, metrics: set[str]) -> list[Signal]:
        return [signal for signal in self._steps if not metrics.isdisjoint(signal.inputs)]


class NaiveAnswers:
    """Points and newest answers, series by series, emission by emission."""

    def __init__(self, words: Callable[[str, Emission], tuple[str, str]]) -> None:
        self.points: list[Point] = []
        self.newest: dict[tuple[str, Labels], Newest] = {}
        self._words = words

    def write(self, emission: Emission) -> None:
        name, ts, answer = emission
        words = self._words(name, emission)
        known = [labels for of, labels in self.newest if of == name]
        if not is_gap(answer):
            told = {value.labels: value.value for value in answer}  # type: ignore[union-attr]
            for labels, value in told.items():
                self._say(name, labels, ts, value, PointState.VALUE, ("", words[1]), point=True)
            for labels in known:
                before = self.newest[(name, labels)]
                if labels not in told and before[3] != NO_LONGER:
                    had = before[0] is PointState.VALUE
                    self._say(name, labels, ts, None, PointState.UNKNOWN, (NO_LONGER, words[1]), point=had)
            return
        state = PointState.NOT_APPLICABLE if isinstance(answer, NotApplicable) else PointState.UNKNOWN
        for labels in known or [()]:
            before = self.newest.get((name, labels))
            breaks = before is not None and before[0] is PointState.VALUE
            if breaks or before is None or before[0] is not state or before[3:] != words:
                self._say(name, labels, ts, None, state, words, point=breaks)

    def _say(
        self, name: str, labels: Labels, ts: float, value: float | None, state: PointState, words: tuple[str, str],
        *, point: bool,
    ) -> None:  # fmt: skip
        stamp = round(ts * 1000)
        if point:
            self.points.append((name, labels, stamp, value, state))
        before = self.newest.get((name, labels))
        late = before is not None and stamp < before[1]
        self.newest[(name, labels)] = (state, *before[1:]) if late and before else (state, stamp, value, *words)


def words_of(deriver: Deriver) -> Callable[[str, Emission], tuple[str, str]]:
    """The words beside an answer, without what a framework's collector adds to them."""
    items = {signal.name: signal for signal in deriver._steps}

    def words(name: str, emission: Emission) -> tuple[str, str]:
        targets = {target for metric in items[name].inputs for target in deriver.sources.get(metric, ())}
        return unknown_reason(emission[2]), ", ".join(sorted(targets))

    return words
