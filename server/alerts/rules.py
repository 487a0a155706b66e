"""The state machine of alerts: Prometheus' pending, firing and resolved, but missing data resolves nothing. Pure.

An alert exists per rule and series. With data it behaves as in Prometheus (`for`, `keep_firing_for`, absent from
the result is false). Without data its state is held and its timers stop, until `no_data_after` has passed; then the
rule's `no_data` decides. Receivers and silences are handled elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from collectors.model import Labels
from server.alerts.model import RESOLVED_SECONDS, Alert, Condition, Frame, Rule, Table, fingerprint
from server.alerts.text import expand
from server.lib.matchers import all_match

# ---- conditions
# Evaluates a rule's conditions for every series at one instant: true, unknown, or false (all others).

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


# Alerts written per tick if only their value changed. Ten thousand rows per tick would be the store's largest write,
# for a number that the signal's own points contain anyway.
VALUE_ROWS = 1_000

REMOVED = "the rule was removed"
FALSE = "the condition is no longer true"
SAME_LABELS = "two of its alerts have the same labels: {labels}"


@dataclass(slots=True)
class _State:
    """A rule with its pending and firing alerts by series, and the value last written for each."""

    rule: Rule
    judge: Judge
    alerts: dict[Labels, Alert] = field(default_factory=dict)
    written: dict[Labels, float | None] = field(default_factory=dict)


class Evaluator:
    """Evaluates all rules of one run over event time. Not thread-safe.

    Attributes:
        errors: rule name -> why its last evaluation failed; its alerts are held, none begins.
    """

    def __init__(self, rules: Sequence[Rule], run: str) -> None:
        positions = Positions()
        self._run = run
        self._states = [_State(rule, Judge(rule, positions)) for rule in rules]
        self._orphans: list[Alert] = []
        self._resolved: dict[str, Alert] = {}
        self._stale: dict[tuple[int, Labels], None] = {}
        self.errors: dict[str, str] = {}

    # ---- alerts

    @property
    def firing(self) -> list[Alert]:
        return [alert for alert in self._open() if alert.state == "firing"]

    @property
    def active(self) -> list[Alert]:
        """Returns pending alerts, then those resolved less than `RESOLVED_SECONDS` ago, then firing ones.

        A resolved alert and a pending one may have equal labels. While the new episode does not fire, the end of the
        old one is still reported.
        """
        open_alerts = list(self._open())
        pending = [alert for alert in open_alerts if alert.state == "pending"]
        return [*pending, *self._resolved.values(), *(alert for alert in open_alerts if alert.state == "firing")]

    def _open(self) -> Iterator[Alert]:
        for state in self._states:
            yield from state.alerts.values()
        yield from self._orphans

    # ---- surviving a restart

    def restore(self, alerts: Iterable[Alert]) -> None:
        """Loads stored alerts. Those that no rule creates any more end at the next evaluation."""
        by_name: dict[str, list[_State]] = {}
        for state in self._states:
            by_name.setdefault(state.rule.name, []).append(state)
        for alert in sorted(alerts, key=lambda alert_row: (alert_row.resolved_at or 0.0, alert_row.active_at)):
            if alert.state == "resolved":
                self._remember(replace(alert))
            elif alert.state != "inactive":
                self._attach(replace(alert), by_name.get(alert.rule, []))
        for alert in self.firing:
            self._resolved.pop(alert.fingerprint, None)

    def _attach(self, alert: Alert, states: list[_State]) -> None:
        for state in states:
            if alert.series not in state.alerts and label_set(state.rule, self._run, alert.series) == alert.labels:
                state.alerts[alert.series] = alert
                state.written[alert.series] = alert.value
                return
        self._orphans.append(alert)

    # ---- evaluation

    def evaluate(self, frame: Frame) -> list[Alert]:
        """Evaluates every rule at the frame's instant; returns alerts whose stored form changed.

        The result has the live objects of `active`; the state ``inactive`` means that the episode is to be
        forgotten. Frames must come in order of time.
        """
        self._drop_expired(frame.now)
        self.errors.clear()
        changed = [self._end(alert, frame.now, REMOVED) for alert in self._orphans]
        self._orphans = []
        for number, state in enumerate(self._states):
            if frame.lifecycle in state.rule.lifecycle:
                changed += self._rule(number, state, frame)
            elif state.alerts:
                changed += self._end_all(state, frame.now, f"the run is {frame.lifecycle}")
        return changed + self._values(frame)

    def _rule(self, number: int, state: _State, frame: Frame) -> list[Alert]:
        judgement = state.judge.judge(frame, state.alerts)
        if not (judgement.true or judgement.unknown or state.alerts):
            return []
        new = self._new_labels(state, judgement)
        if (duplicate := _duplicate_labels(state, judgement, new)) is not None:
            text = SAME_LABELS.format(labels=", ".join(f"{name}={value}" for name, value in duplicate))
            self.errors[state.rule.name] = text
            # The rule's `no_data` is not applied, because an error of a rule is no information about its series.
            judgement, new = Judgement(unknown=dict.fromkeys(state.alerts, text)), {}
            return self._advance_all(number, state, frame, judgement, "hold")
        changed = self._advance_all(number, state, frame, judgement, state.rule.no_data)
        return changed + [self._begin(state, series, labels, judgement, frame) for series, labels in new.items()]

    def _new_labels(self, state: _State, judgement: Judgement) -> dict[Labels, Labels]:
        return {
            series: label_set(state.rule, self._run, series)
            for series in (*judgement.true, *judgement.unknown)
            if series not in state.alerts
        }

    def _advance_all(self, number: int, state: _State, frame: Frame, judgement: Judgement, policy: str) -> list[Alert]:
        """Advances existing alerts by one step each."""
        changed: list[Alert] = []
        for series, alert in list(state.alerts.items()):
            before = _form(alert)
            if series in judgement.true:
                self._true(state.rule, alert, judgement.true[series], frame.now)
            elif series in judgement.unknown:
                self._unknown(state.rule, alert, judgement.unknown[series], frame.now, policy)
            else:
                self._false(state.rule, alert, FALSE, frame.now)
            if _form(alert) != before:
                changed += self._update_indexes(state, series, alert, before[1], frame)
            elif alert.value != state.written[series]:
                self._stale[(number, series)] = None
        return changed

    def _update_indexes(
        self, state: _State, series: Labels, alert: Alert, active_at: float, frame: Frame
    ) -> list[Alert]:
        """Updates the indexes for an alert that changed."""
        if alert.state == "firing" and alert.fired_at == frame.now:
            self._resolved.pop(alert.fingerprint, None)
            alert.replayed = frame.replayed
        if alert.state in ("inactive", "resolved"):
            del state.alerts[series], state.written[series]
        else:
            state.written[series] = alert.value
            alert.annotations = expand(state.rule, alert, frame.reason(series), frame.address(series))
        # The start time is part of the key in the store, so a changed start time is another row.
        moved = alert.active_at != active_at and alert.state != "inactive"
        return [replace(alert, state="inactive", active_at=active_at), alert] if moved else [alert]

    def _begin(self, state: _State, series: Labels, labels: Labels, judgement: Judgement, frame: Frame) -> Alert:
        """Creates an episode. With ``no_data = "alert"`` an episode without data waits until it counts as true."""
        rule, now = state.rule, frame.now
        alert = Alert(rule.name, series, labels, fingerprint(labels), "pending", now)
        if series in judgement.true:
            self._true(rule, alert, judgement.true[series], now)
        else:
            self._unknown(rule, alert, judgement.unknown[series], now, rule.no_data)
        state.alerts[series], state.written[series] = alert, alert.value
        self._update_indexes(state, series, alert, alert.active_at, frame)
        return alert

    # ---- one step of one alert

    def _true(self, rule: Rule, alert: Alert, value: float | None, now: float) -> None:
        if alert.state == "pending" and alert.held_since is not None and not _counted(rule, alert):
            alert.active_at += now - alert.held_since  # time without data does not count toward `for`
        alert.held_since = alert.keep_since = None
        alert.reason = ""
        alert.value = value
        self._promote(rule, alert, now)

    def _promote(self, rule: Rule, alert: Alert, now: float) -> None:
        if alert.state == "pending" and now - alert.active_at >= rule.for_seconds:
            alert.state, alert.fired_at = "firing", now

    def _false(self, rule: Rule, alert: Alert, why: str, now: float) -> None:
        if alert.keep_since is not None and alert.held_since is not None and alert.keep_since < alert.held_since:
            alert.keep_since += now - alert.held_since
        alert.held_since, alert.reason = None, ""
        self._keep_or_end(rule, alert, why, now)

    def _keep_or_end(self, rule: Rule, alert: Alert, why: str, now: float) -> None:
        if alert.state == "firing" and rule.keep_firing_seconds > 0:
            alert.keep_since = now if alert.keep_since is None else alert.keep_since
            if now - alert.keep_since < rule.keep_firing_seconds:
                alert.reason = why
                return
        self._end(alert, now, why)

    def _unknown(self, rule: Rule, alert: Alert, why: str, now: float, policy: str) -> None:
        if alert.held_since is None:
            # The first reason is kept, because a text with a duration would change at every tick.
            alert.held_since, alert.reason = now, why
        expired = now - alert.held_since >= rule.no_data_after
        if not expired:
            return
        if policy == "alert":
            self._missing_data_is_true(rule, alert, now)
        elif policy == "ok":
            if alert.keep_since is None or alert.keep_since < alert.held_since + rule.no_data_after:
                alert.keep_since = now
            self._keep_or_end(rule, alert, f"no data counts as ok: {why}", now)
        elif alert.state == "pending":
            self._end(alert, now, f"no data: {why}")

    def _missing_data_is_true(self, rule: Rule, alert: Alert, now: float) -> None:
        if alert.state == "pending" and not _counted(rule, alert):
            alert.active_at = now
        alert.keep_since = None
        self._promote(rule, alert, now)

    def _end(self, alert: Alert, now: float, why: str) -> Alert:
        if alert.state == "firing":
            alert.state, alert.resolved_at = "resolved", now
            self._remember(alert)
        else:
            alert.state = "inactive"
        alert.reason, alert.held_since = why, None
        return alert

    def _end_all(self, state: _State, now: float, why: str) -> list[Alert]:
        ended = [self._end(alert, now, why) for alert in state.alerts.values()]
        state.alerts.clear()
        state.written.clear()
        return ended

    # ---- memory

    def _remember(self, alert: Alert) -> None:
        self._resolved.pop(alert.fingerprint, None)  # the newest end, at the end: they are in order of time
        self._resolved[alert.fingerprint] = alert

    def _drop_expired(self, now: float) -> None:
        while self._resolved:
            oldest = next(iter(self._resolved))
            if now - (self._resolved[oldest].resolved_at or 0.0) < RESOLVED_SECONDS:
                return
            del self._resolved[oldest]

    def _values(self, frame: Frame) -> list[Alert]:
        """Returns the next alerts of which only the value changed."""
        changed: list[Alert] = []
        while self._stale and len(changed) < VALUE_ROWS:
            number, series = next(iter(self._stale))
            del self._stale[(number, series)]
            state = self._states[number]
            alert = state.alerts.get(series)
            if alert is not None and alert.value != state.written[series]:
                state.written[series] = alert.value
                alert.annotations = expand(state.rule, alert, frame.reason(series), frame.address(series))
                changed.append(alert)
        return changed


def label_set(rule: Rule, run: str, series: Labels) -> Labels:
    """Returns the labels of a series' alert for receivers, without empty ones, as in Alertmanager."""
    fixed = {"alertname": rule.name, "run": run, "severity": rule.severity, "class": rule.class_}
    labels: Mapping[str, str] = {**dict(series), **dict(rule.labels), **fixed}
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def _form(alert: Alert) -> tuple[str, float, float | None, float | None, str]:
    """Returns the fields whose change is written at once; a changed value is written in turns."""
    return alert.state, alert.active_at, alert.keep_since, alert.held_since, alert.reason


def _counted(rule: Rule, alert: Alert) -> bool:
    """Did ongoing missing data already count as true? Derived from the times, which survive a restart."""
    return alert.held_since is not None and alert.active_at >= alert.held_since + rule.no_data_after


def _duplicate_labels(state: _State, judgement: Judgement, new: Mapping[Labels, Labels]) -> Labels | None:
    """Returns labels that a new alert would share with an existing one."""
    if not new:
        return None
    used_labels = {
        alert.labels
        for series, alert in state.alerts.items()
        if series in judgement.true or series in judgement.unknown or alert.keep_since is not None
    }
    for labels in new.values():
        if labels in used_labels:
            return labels
        used_labels.add(labels)
    return None
