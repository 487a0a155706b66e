"""Evaluates a rule's conditions for every series at one instant: true, unknown, or false (all others). Pure.

The three-valued logic of `also` is here: false and unknown is false, true and unknown is unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.model import Labels
from server.alerts.model import Alert, Condition, Frame, Rule, Table
from server.lib.matchers import all_match

Truth = bool | str
"""True, False, or why it is unknown."""

NO_SOURCE = "nothing reports {name}"
NO_DATA = "no data"

Pairs = Iterable[tuple[int, float]]

# One comprehension per operator: a call per series would make a million comparisons cost 100 ms more.
# A comparison with NaN is false for all operators but `!=`.
_SCAN: Mapping[str, Callable[[Pairs, float], list[int]]] = {
    ">": lambda pairs, level: [i for i, v in pairs if v > level],
    ">=": lambda pairs, level: [i for i, v in pairs if v >= level],
    "<": lambda pairs, level: [i for i, v in pairs if v < level],
    "<=": lambda pairs, level: [i for i, v in pairs if v <= level],
    "==": lambda pairs, level: [i for i, v in pairs if v == level],
    "!=": lambda pairs, level: [i for i, v in pairs if v != level and v == v],
}


@dataclass(slots=True)
class Judgement:
    """Series not named here are false.

    Attributes:
        true: series -> the value it is true of; None for an absence.
        unknown: series -> reason; for series with an alert and, under ``no_data = "alert"``, for those without data.
    """

    true: dict[Labels, float | None] = field(default_factory=dict)
    unknown: dict[Labels, str] = field(default_factory=dict)


class Positions:
    """Positions of series in a table; shared by all rules, so that a hundred rules use one index per table."""

    def __init__(self) -> None:
        self._indexes: dict[tuple[str, str, str, float], tuple[int, dict[Labels, int]]] = {}

    def of(self, condition: Condition, table: Table) -> Mapping[Labels, int]:
        """Series -> index."""
        key = (condition.source, condition.name, condition.of, condition.window)
        cached = self._indexes.get(key)
        if cached is None or cached[0] != table.shape:
            cached = self._indexes[key] = (table.shape, {labels: i for i, labels in enumerate(table.labels)})
        return cached[1]


class Judge:
    """One rule's conditions, with caches that are valid while the tables' shapes are unchanged."""

    def __init__(self, rule: Rule, positions: Positions) -> None:
        self._rule, self._positions = rule, positions
        self._main, *self._also = [_View(condition) for condition in rule.conditions]
        self._seen: set[Labels] = set()
        self._seen_of: tuple[int, frozenset[int]] | None = None

    def judge(self, frame: Frame, active: Mapping[Labels, Alert]) -> Judgement:
        """Evaluates the conditions. ``active``: series with an alert, whose unknowns are reported too."""
        absence = self._rule.condition.kind == "absence"
        judgement = self._absence(frame) if absence else self._main_condition(frame, active)
        for view in self._also:
            self._apply_condition(judgement, view, frame, active)
        return judgement

    def _absence(self, frame: Frame) -> Judgement:
        view, table = self._main, frame.table(self._main.condition)
        if table is not None and any(table.values[i] == table.values[i] for i in view.indexes(table)):
            return Judgement()
        # An absent series has no labels; the labels that matchers name with "=" are used.
        named = tuple(sorted((m.name, m.value) for m in view.condition.matchers if m.op == "=" and m.value))
        return Judgement(true={named: None})

    def _main_condition(self, frame: Frame, active: Mapping[Labels, Alert]) -> Judgement:
        view, table = self._main, frame.table(self._main.condition)
        if table is None:
            return Judgement(unknown=dict.fromkeys(active, NO_SOURCE.format(name=view.condition.name)))
        labels, values = table.labels, table.values
        judgement = Judgement(true={labels[i]: values[i] for i in view.hits(table)})
        if active:
            self._evaluate_active(judgement, table, frame, active)
        if self._rule.no_data == "alert":
            self._add_silent_series(judgement, table)
        return judgement

    def _evaluate_active(
        self, judgement: Judgement, table: Table, frame: Frame, active: Mapping[Labels, Alert]
    ) -> None:
        """Evaluates series with an alert that are not over the threshold: held by `recover`, unknown, or false."""
        condition, positions = self._main.condition, self._positions.of(self._main.condition, table)
        for series, alert in active.items():
            if series in judgement.true:
                continue
            i = positions.get(series)
            # After a restart the rule may have other matchers than when the alert began.
            if condition.matchers and not all_match(condition.matchers, dict(series)):
                continue
            if i is None:
                if reason := frame.missing(condition, series):
                    judgement.unknown[series] = reason
                continue
            truth = self._main.truth(table, i, firing=alert.state == "firing")
            if truth is True:
                judgement.true[series] = table.values[i]
            elif truth is not False:
                judgement.unknown[series] = truth

    def _add_silent_series(self, judgement: Judgement, table: Table) -> None:
        """Adds series that had a value earlier and have none now."""
        gaps = frozenset(table.gaps)
        if self._seen_of != (table.shape, gaps):
            self._seen_of = (table.shape, gaps)
            indexes, seen = self._main.indexes(table), self._seen
            # Built from scratch, so that ended series are forgotten.
            self._seen = {table.labels[i] for i in indexes if i not in gaps or table.labels[i] in seen}
        for i in gaps:
            if table.labels[i] in self._seen:
                judgement.unknown.setdefault(table.labels[i], table.gaps[i])

    def _apply_condition(
        self, judgement: Judgement, view: "_View", frame: Frame, active: Mapping[Labels, Alert]
    ) -> None:
        table = frame.table(view.condition)
        agreeing = view.agreeing(table)
        for series in [*judgement.true, *judgement.unknown]:
            alert = active.get(series)
            truth = agreeing(series, alert is not None and alert.state == "firing")
            if truth is True:
                continue
            was_true = judgement.true.pop(series, NO_DATA) != NO_DATA
            # A condition without a source creates no alert; two gaps at once are one failed target.
            if truth is False or (alert is None and table is None):
                judgement.unknown.pop(series, None)
            elif was_true and alert is not None:
                judgement.unknown[series] = truth


class _View:
    """One condition over its table."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self._shape: int | None = None
        self._selected: Sequence[int] | None = None
        self._by_names: dict[tuple[str, ...], dict[tuple[str, ...], dict[tuple[str, ...], list[int]]]] = {}

    def indexes(self, table: Table) -> Sequence[int]:
        """Returns series that the matchers accept."""
        if self._shape != table.shape:
            matchers, labels = self.condition.matchers, table.labels
            self._shape = table.shape
            self._by_names = {}
            self._selected = (
                [i for i, series in enumerate(labels) if all_match(matchers, dict(series))] if matchers else None
            )
        return range(len(table.labels)) if self._selected is None else self._selected

    def hits(self, table: Table) -> list[int]:
        """Returns series beyond the threshold."""
        indexes, values = self.indexes(table), table.values
        pairs: Pairs = (
            enumerate(values) if self._selected is None else zip(indexes, [values[i] for i in indexes], strict=True)
        )
        return _SCAN[self.condition.op](pairs, self.condition.threshold)

    def truth(self, table: Table, i: int, firing: bool) -> Truth:
        """Evaluates one series; a firing alert is compared with `recover`."""
        condition, value = self.condition, table.values[i]
        if value != value:  # NaN
            return table.gaps.get(i) or NO_DATA
        level = condition.recover if firing and condition.recover is not None else condition.threshold
        return bool(_SCAN[condition.op]([(i, value)], level))

    def agreeing(self, table: Table | None) -> Callable[[Labels, bool], Truth]:
        """Does the condition hold for a series that agrees with the given one in all labels both have?

        Each set of agreeing series is evaluated once per instant, because ten thousand alerts may share one.
        """
        cached: dict[tuple[tuple[str, ...], tuple[str, ...], bool], Truth] = {}

        def evaluated(shared: tuple[str, ...], key: tuple[str, ...], rows: list[int], firing: bool) -> Truth:
            assert table is not None
            cache_key = (shared, key, firing)
            if cache_key not in cached:
                cached[cache_key] = self._any(table, rows, firing)
            return cached[cache_key]

        def evaluate(series: Labels, firing: bool) -> Truth:
            if table is None:
                absent = self.condition.kind == "absence"
                return True if absent else NO_SOURCE.format(name=self.condition.name)
            truths = [evaluated(*rows, firing) for rows in self._sets(table, series)]
            return self._joined(truths)

        return evaluate

    def _any(self, table: Table, rows: list[int], firing: bool) -> Truth:
        if self.condition.kind == "absence":
            return all(table.values[i] != table.values[i] for i in rows)
        return self._joined([self.truth(table, i, firing) for i in rows])

    def _joined(self, truths: list[Truth]) -> Truth:
        """For a threshold one true series is enough; an absence must hold for all."""
        if self.condition.kind == "absence":
            return all(truths)
        if True in truths:
            return True
        return next((truth for truth in truths if truth is not False), False)

    def _sets(self, table: Table, series: Labels) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], list[int]]]:
        """Returns (common label names, their values, indexes) of the series that agree with this one."""
        indexes = self.indexes(table)
        series_labels = dict(series)
        names = tuple(series_labels)
        # Cached by label names, because nearly all series of a table have the same ones.
        if names not in self._by_names:
            self._by_names[names] = _by_shared(names, table, indexes)
        for shared, by_values in self._by_names[names].items():
            key = tuple(series_labels[name] for name in shared)
            if key in by_values:
                yield shared, key, by_values[key]


def _by_shared(
    names: tuple[str, ...], table: Table, indexes: Sequence[int]
) -> dict[tuple[str, ...], dict[tuple[str, ...], list[int]]]:
    """Names both have -> their values -> indexes."""
    indexes_by_values: dict[tuple[str, ...], dict[tuple[str, ...], list[int]]] = {}
    for i in indexes:
        table_labels = dict(table.labels[i])
        shared = tuple(name for name in names if name in table_labels)
        indexes_by_values.setdefault(shared, {}).setdefault(tuple(table_labels[name] for name in shared), []).append(i)
    return indexes_by_values
