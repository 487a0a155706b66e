"""Parses one rule's TOML table into a `Rule`; every error is reported with its fix.

The kinds of conditions differ in notation only: each becomes a comparison of a named series with a number.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from collectors.catalog import METRICS
from collectors.model import Labels
from server import signals
from server.alerts import matchers, text
from server.alerts.inputs import TARGET_UP
from server.alerts.matchers import Matcher
from server.alerts.model import CLASSES, Condition, Operator, Rule
from server.config.errors import Problems, suggestion
from server.notify.model import SEVERITIES
from server.verdict.model import VERDICT_OUTCOMES

COMPARISONS: Mapping[str, Operator] = {
    "above": ">", "at_least": ">=", "below": "<", "at_most": "<=", "equals": "==", "not_equals": "!=",
}  # fmt: skip
SOURCES = ("signal", "metric", "drift", "verdict", "forecast", "burn_usd")
CONDITION_KEYS = frozenset(
    {*SOURCES, *COMPARISONS, "match", "recover", "increase_over", "factor", "within", "over", "absent"}
)
RULE_KEYS = CONDITION_KEYS | {
    "name", "for", "keep_firing_for", "severity", "class", "labels", "annotations", "no_data", "no_data_after",
    "lifecycle", "also", "promql",
}  # fmt: skip
LIFECYCLES = ("starting", "running", "paused", "finished", "crashed")
# Receivers identify alerts by these labels, so a rule must not set them.
RESERVED = frozenset({"alertname", "run", "severity", "class"})
HEALTH = frozenset({"up", "scrape_duration_seconds", "scrape_samples_scraped"})
# Seconds. Samples of a metric are retained for five minutes; our counters longer.
METRIC_WINDOW = 300.0
DEFAULT_NO_DATA_AFTER = 300.0


def known_signals() -> frozenset[str]:
    """Every name a rule may use as a signal."""
    return frozenset(item.name for item in signals.load()) | {TARGET_UP}


def parse(table: Mapping[str, Any], problems: Problems, where: str, *, builtin: bool = False) -> Rule | None:
    """A rule, or None if it has errors, which are then in ``problems``."""
    before = len(problems.messages)
    problems.unknown(table, set(RULE_KEYS), where)
    name = problems.take(table, "name", str, "", where)
    if not name:
        problems.add(f"{where}.name", "is missing")
    _check_promql(table, problems, where)
    rule = Rule(
        name=name,
        condition=_condition(table, problems, where),
        also=tuple(_also(table, problems, where)),
        for_seconds=seconds(table, "for", 0.0, problems, where),
        keep_firing_seconds=seconds(table, "keep_firing_for", 0.0, problems, where),
        severity=_choice(table, "severity", SEVERITIES, "warning", problems, where),
        class_=_choice(table, "class", CLASSES, "tuning", problems, where),
        labels=_labels(table, problems, where),
        annotations=_annotations(table, problems, where),
        no_data=_choice(table, "no_data", ("hold", "alert", "ok"), "hold", problems, where),  # type: ignore[arg-type]
        no_data_after=seconds(table, "no_data_after", DEFAULT_NO_DATA_AFTER, problems, where),
        lifecycle=frozenset(_lifecycle(table, problems, where)),
        builtin=builtin,
        promql=problems.take(table, "promql", str, "", where),
    )
    return rule if len(problems.messages) == before else None


def seconds(table: Mapping[str, Any], key: str, default: float, problems: Problems, where: str) -> float:
    """A duration: "5m", "1h30m" or a number of seconds."""
    try:
        return text.parse_duration(table[key]) if key in table else default
    except ValueError as error:
        problems.add(f"{where}.{key}", str(error))
        return default


def match_list(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> tuple[Matcher, ...]:
    """Matchers as strings, each checked."""
    found = []
    for index, item in enumerate(problems.take(table, key, list, [], where)):
        try:
            found.append(matchers.parse(str(item)))
        except ValueError as error:
            problems.add(f"{where}.{key}[{index}]", str(error))
    return tuple(found)


# ---- conditions


def _also(rule: Mapping[str, Any], problems: Problems, where: str) -> Iterable[Condition]:
    for index, table in enumerate(problems.take(rule, "also", list, [], where)):
        where_also = f"{where}.also[{index}]"
        if isinstance(table, dict):
            problems.unknown(table, set(CONDITION_KEYS), where_also)
            yield _condition(table, problems, where_also)
        else:
            problems.add(where_also, 'must be a table such as { metric = "generator_requests_running", above = 0 }')


def _condition(table: Mapping[str, Any], problems: Problems, where: str) -> Condition:
    given = [key for key in SOURCES if key in table]
    if len(given) != 1:
        problems.add(
            where, f"needs exactly one of {', '.join(SOURCES)}" + (f", has {' and '.join(given)}" if given else "")
        )
        return Condition("threshold", "signal", "")
    match = match_list(table, "match", problems, where)
    parse_condition = {"drift": _drift, "verdict": _verdict, "forecast": _forecast, "burn_usd": _burn}.get(
        given[0], _threshold
    )
    condition = parse_condition(table, match, problems, where)
    _check_name(condition, problems, f"{where}.{given[0]}")
    return condition


def _threshold(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """A threshold on a signal or metric, or its absence."""
    source = "signal" if "signal" in table else "metric"
    name = problems.take(table, source, str, "", where)
    if problems.take(table, "absent", bool, False, where):
        if any(key in table for key in COMPARISONS):
            problems.add(where, "absent cannot be combined with a comparison")
        return Condition("absence", source, name, matchers=match)  # type: ignore[arg-type]
    op, level = _comparison(table, problems, where)
    window = seconds(table, "increase_over", 0.0, problems, where)
    if source == "metric" and window > METRIC_WINDOW:
        problems.add(f"{where}.increase_over", f"samples are retained for {METRIC_WINDOW:.0f} s only; use a signal")
    of = "increase" if window > 0 else "value"
    recover = _recover(table, op, level, problems, where)
    return Condition("threshold", source, name, op, level, recover, match, of, window)  # type: ignore[arg-type]


def _drift(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """A signal's factor relative to the run's first steps."""
    name = problems.take(table, "drift", str, "", where)
    factor = _number(table, "factor", problems, where)
    recover = _recover(table, ">", factor, problems, where)
    return Condition("drift", "signal", f"{name}_drift_ratio", ">", factor, recover, match)


def _verdict(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """The verdict is one of the listed outcomes."""
    outcomes = problems.take(table, "verdict", list, [], where)
    wrong = [outcome for outcome in outcomes if not isinstance(outcome, str) or not outcome.isidentifier()]
    if wrong or not outcomes:
        problems.add(f"{where}.verdict", 'must be a list of outcomes such as ["generator_bound", "sandbox_bound"]')
        return Condition("verdict", "signal", "bottleneck")
    for unknown in [outcome for outcome in outcomes if outcome not in VERDICT_OUTCOMES]:
        problems.add(f"{where}.verdict", f"no outcome is named {unknown!r}; {suggestion(unknown, VERDICT_OUTCOMES)}")
    is_one = Matcher("verdict", "=~", "|".join(outcomes))
    return Condition("verdict", "signal", "bottleneck", "==", 1.0, None, (is_one, *match))


def _forecast(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """A signal will cross its limit within a time."""
    name = problems.take(table, "forecast", str, "", where)
    within = seconds(table, "within", 0.0, problems, where)
    if within <= 0:
        problems.add(f"{where}.within", 'is missing: how far ahead, such as "6h"')
    return Condition("forecast", "signal", f"{name}_forecast_seconds", "<", within, None, match)


def _burn(table: Mapping[str, Any], match: tuple[Matcher, ...], problems: Problems, where: str) -> Condition:
    """Cost of idle time within a window, in USD."""
    dollars = _number(table, "burn_usd", problems, where)
    window = seconds(table, "over", 3600.0, problems, where)
    return Condition("burn", "signal", "idle_usd_total", ">", dollars, None, match, "increase", window)


def _check_promql(table: Mapping[str, Any], problems: Problems, where: str) -> None:
    """Check brackets and quotes: one broken expression makes Prometheus refuse the whole exported file."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(table.get("promql", "")))
    open_ = [bare.count(char) for char in "({["]
    if open_ != [bare.count(char) for char in ")}]"] or '"' in bare or "{{" in bare:
        problems.add(f"{where}.promql", "its brackets or quotes do not match")


def _check_name(condition: Condition, problems: Problems, where: str) -> None:
    known_names = known_signals() if condition.source == "signal" else METRICS.keys() | HEALTH
    if condition.name in known_names or not condition.name:
        return
    near = difflib.get_close_matches(condition.name, known_names, 2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    problems.add(where, f"no {condition.source} is named {condition.name!r}{hint}")


def _comparison(table: Mapping[str, Any], problems: Problems, where: str) -> tuple[Operator, float]:
    given = [key for key in COMPARISONS if key in table]
    if len(given) != 1:
        problems.add(where, f"needs exactly one of {', '.join(COMPARISONS)} (or absent = true)")
        return ">", 0.0
    return COMPARISONS[given[0]], _number(table, given[0], problems, where)


def _recover(table: Mapping[str, Any], op: Operator, level: float, problems: Problems, where: str) -> float | None:
    if "recover" not in table:
        return None
    recover = _number(table, "recover", problems, where)
    up, down = op in (">", ">="), op in ("<", "<=")
    if (up and recover > level) or (down and recover < level) or not (up or down):
        problems.add(f"{where}.recover", "must be on the healthy side of the above, at_least, below or at_most level")
    return recover


def _number(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> float:
    value = problems.take(table, key, (int, float), None, where)
    if value is None and key not in table:
        problems.add(f"{where}.{key}", "is missing")
    if value is not None and not abs(value) <= 1e300:
        problems.add(f"{where}.{key}", "must be a finite number")
    return float(value) if value is not None else 0.0


# ---- other keys


def _choice(
    table: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str, problems: Problems, where: str
) -> str:
    value: str = problems.take(table, key, str, default, where)
    if value not in choices:
        problems.add(f"{where}.{key}", f"must be one of {', '.join(choices)}")
    return value


def _labels(table: Mapping[str, Any], problems: Problems, where: str) -> Labels:
    labels = problems.take(table, "labels", dict, {}, where)
    for name, value in labels.items():
        if name in RESERVED or not name.isidentifier() or not isinstance(value, str):
            problems.add(f"{where}.labels.{name}", f"must be a string, and not one of {', '.join(sorted(RESERVED))}")
    return tuple(sorted((name, str(value)) for name, value in labels.items()))


def _annotations(table: Mapping[str, Any], problems: Problems, where: str) -> dict[str, str]:
    annotations = problems.take(table, "annotations", dict, {}, where)
    for name, value in annotations.items():
        errors = text.problems(value) if isinstance(value, str) else ["must be a string"]
        for problem in errors:
            problems.add(f"{where}.annotations.{name}", problem)
    return {str(name): str(value) for name, value in annotations.items()}


def _lifecycle(table: Mapping[str, Any], problems: Problems, where: str) -> list[str]:
    states = problems.take(table, "lifecycle", list, ["running"], where)
    if not states or any(state not in LIFECYCLES for state in states):
        problems.add(f"{where}.lifecycle", f"must be a list of {', '.join(LIFECYCLES)}")
    return [str(state) for state in states]
