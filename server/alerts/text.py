"""Texts of alerts: annotations with values, a rule's condition in one line, durations. Pure.

Annotations are `string.Template` texts: names are replaced, nothing is executed. An unknown name is refused
when the configuration is read (`problems`); at run time it stays as written, since an alert must go out.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from string import Template
from urllib.parse import urlencode

from collectors import catalog
from collectors.catalog import METRICS
from server import signals
from server.alerts.inputs import TARGET_UP
from server.alerts.model import Alert, Condition, Rule

NAMES: Mapping[str, str] = {
    "value": "the value with its unit: 64%, 41.2 s; of a forecast: in 4.2 h, or now",
    "raw_value": "the value as a number",
    "threshold": "the threshold with its unit",
    "signal": "name of the signal or metric",
    "unit": "its unit",
    "run": "name of the run",
    "alertname": "name of the rule",
    "severity": "critical, warning or info",
    "class": "liveness, infrastructure, tuning or cost",
    "since": "when the condition became true: 2026-11-21 12:30:05 UTC",
    "for": "how long it must hold: 5m",
    "lasting": "for more than 5 min; of a pending alert: for less than 5 min so far",
    "expression": "the condition: trainer_wait_ratio > 0.4 for 5m",
    "verdict": "of a rule about verdicts the one that holds: generator-bound",
    "target": "of a series with a target: its name and address: engine-0 (http://10.0.0.3:8000)",
    "reason": "of a series with a target: why the target cannot be read",
}
"""Name in an annotation -> its value. In addition ``label_NAME``, which is empty if there is no such label."""

LABEL = "label_"
EVIDENCE = "evidence"
UNKNOWN = "unknown"
NO_REASON = "see the Sources page for the reason"

_UNITS = (("y", 31_536_000.0), ("w", 604_800.0), ("d", 86_400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001))
_DURATION = re.compile("".join(f"(?:([0-9]+){unit})?" for unit, _ in _UNITS), re.ASCII)
# Prometheus' own limit (an int64 of nanoseconds); longer ones are typing errors.
MAX_SECONDS = 292 * 31_536_000.0
# (least seconds, seconds of the unit, unit) of a value in a text.
_SHOWN = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"))
# Years and weeks are parsed but not written, because Prometheus writes only whole ones.
_WRITTEN = _UNITS[2:]


def parse_duration(value: str | float) -> float:
    """Parses ``1h30m``, ``5s``, ``250ms`` (units y w d h m s ms, in this order), or a number of seconds.

    Raises:
        ValueError: not a duration, negative, not finite or beyond 292 years; the message is for a user.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("a duration is a number of seconds or a text such as 5m or 1h30m")
    seconds = _parsed(value) if isinstance(value, str) else float(value)
    if not 0 <= seconds <= MAX_SECONDS:  # NaN too
        raise ValueError(f"a duration is between 0 and 292y, not {value}")
    return seconds


def _parsed(text: str) -> float:
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text) if len(text) <= 60 else None
    if match is None or not text:
        raise ValueError(f"{text[:40]!r} is not a duration such as 30s, 5m or 1h30m")
    # Milliseconds are added up as integers: 0.1 s and 100ms must be the same number.
    return sum(int(n) * round(size * 1000) for n, (_, size) in zip(match.groups("0"), _UNITS, strict=True)) / 1000


def duration(seconds: float) -> str:
    """Formats a duration as Prometheus does: ``5m``, ``1h30m``, ``250ms``, ``0s``. Rounded to milliseconds."""
    left = round(seconds * 1000)
    if left <= 0:
        return "0s"
    parts = []
    for unit, size in _WRITTEN:
        count, left = divmod(left, round(size * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


@cache
def _signal_units() -> Mapping[str, str]:
    return {item.name: item.unit for item in signals.load()}


def unit_of(condition: Condition) -> str:
    """Returns the unit of a condition's value; "" for an unknown name."""
    if condition.source == "signal":
        return _signal_units().get(condition.name, "")
    row = catalog.METRICS.get(condition.name)
    return row.unit if row is not None else ""


def formatted(value: float | None, unit: str) -> str:
    """Formats a value as the dashboard does: ``64%``, ``41.2 s``, ``12.5 min``, ``$4.70/h``; None is ``unknown``."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return _raw(value)
    if unit == "ratio":
        share = 100 * value
        return f"{share:.0f}%" if abs(share) >= 9.95 else f"{share:.1f}".removesuffix(".0") + "%"
    if unit == "seconds":
        size, word = next(((size, word) for least, size, word in _SHOWN if abs(value) >= least), (1.0, "s"))
        return f"{_number(value / size)} {word}"
    if unit in ("usd", "usd/h"):
        return f"${value:,.2f}{unit.removeprefix('usd')}"
    if unit == "x":
        return f"{value:.2g} times"
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    if abs(value) >= 999.5:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:.3g}"


def _raw(value: float) -> str:
    """Formats a number as Prometheus does: NaN, +Inf, 0.5, 12."""
    if value != value:  # NaN
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else repr(value)


def utc(ts: float) -> str:
    """Formats epoch seconds: ``2026-11-21 12:30:05 UTC``."""
    try:
        return f"{datetime.fromtimestamp(ts, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def condition_text(condition: Condition) -> str:
    """Formats a condition: ``trainer_wait_ratio{stat="mean"} > 0.4``, ``increase(preemptions_total[5m]) > 0``."""
    text = condition.name
    if condition.matchers:
        text += f"{{{','.join(map(str, condition.matchers))}}}"
    if condition.kind == "absence":
        return f"absent({text})"
    if condition.of == "increase":
        text = f"increase({text}[{duration(condition.window)}])"
    if condition.summed:
        text = f"sum({text})"
    return f"{text} {condition.op} {_raw(condition.threshold)}"


def expression(rule: Rule) -> str:
    """Formats a rule in one line: ``trainer_wait_ratio > 0.4 and queue_batches < 1 for 5m``."""
    text = " and ".join(condition_text(condition) for condition in rule.conditions)
    return f"{text} for {duration(rule.for_seconds)}" if rule.for_seconds else text


def problems(text: str) -> list[str]:
    """Returns the errors of an annotation, one sentence each."""
    problem_texts = []
    for match in Template.pattern.finditer(text):
        name = match["named"] or match["braced"]
        if match["invalid"] is not None:
            problem_texts.append(
                f"{text[match.start() : match.start() + 20]!r}: a $ must be followed by a name; write $$ for $"
            )
        elif name is not None and name not in NAMES and not _is_label(name):
            known_names = ", ".join(f"${known_name}" for known_name in NAMES)
            problem_texts.append(f"${name} is not known; known: {known_names}, ${LABEL}NAME")
    return problem_texts


def _is_label(name: str) -> bool:
    return name.startswith(LABEL) and name != LABEL


class _Names(Mapping[str, str]):
    """Values of names in an alert's texts; only those that are used are formatted."""

    def __init__(self, rule: Rule, alert: Alert, reason: str, address: str) -> None:
        self._rule, self._alert, self._reason, self._address = rule, alert, reason, address
        self._labels = dict(alert.labels)

    def __getitem__(self, name: str) -> str:
        if name == "verdict":
            return self._labels.get(name, "").replace("_", "-")
        if name in NAMES:
            return self._labels.get(name, "") if name in _FROM_LABELS else self._of_rule(name)
        if _is_label(name):
            # Empty if missing, as Prometheus' {{ $labels.NAME }}, because a rule may apply with and without the label.
            return self._labels.get(name.removeprefix(LABEL), "")
        raise KeyError(name)

    def _of_rule(self, name: str) -> str:
        rule, value, condition = self._rule, self._alert.value, self._rule.condition
        if name in ("value", "raw_value", "threshold", "unit"):
            return self._number(name, value, condition)
        if name == "signal":
            return condition.name
        if name == "target":
            target = self._labels.get(name, "")
            return f"{target} ({self._address})" if self._address else target
        if name == "reason":
            return self._reason or NO_REASON
        if name == "since":
            return utc(self._alert.active_at)
        if name == "lasting":
            return lasting(rule, pending=self._alert.state == "pending")
        return duration(rule.for_seconds) if name == "for" else expression(rule)

    def _number(self, name: str, value: float | None, condition: Condition) -> str:
        if name == "raw_value":
            return UNKNOWN if value is None else _raw(value)
        unit = unit_of(condition)
        if name == "value" and condition.kind == "forecast" and value is not None:
            return f"in {formatted(value, unit)}" if value > 0 else "now"
        return unit if name == "unit" else formatted(value if name == "value" else condition.threshold, unit)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


def lasting(rule: Rule, *, pending: bool) -> str:
    """Returns how long an alert's condition has held: longer than the rule's ``for`` once it fires."""
    limit = formatted(rule.for_seconds, "seconds")
    return f"for less than {limit} so far" if pending else f"for more than {limit}"


_FROM_LABELS = frozenset({"run", "alertname", "severity", "class"})


@lru_cache(maxsize=1024)
def _template(text: str) -> Template:
    return Template(text)


def expand(rule: Rule, alert: Alert, reason: str = "", address: str = "") -> dict[str, str]:
    """Returns a rule's annotations for one alert. Never raises: unknown names stay as written.

    ``reason``, ``address``: why the target of the alert's series cannot be read, and where it is.

    Two are always there: a summary, and the numbers behind it, so that the on-call engineer need not look them up.
    """
    names = _Names(rule, alert, reason, address)
    texts = {key: _template(text).safe_substitute(names) for key, text in rule.annotations.items()}
    found = {"summary": _template(_summary(rule)).safe_substitute(names), **texts}
    return {EVIDENCE: _template(_evidence(rule, alert)).safe_substitute(names), **found}


# Comparisons as words, because on-call engineers read them.
_LIMITS: Mapping[str, str] = {
    ">": "above", ">=": "at least", "<": "below", "<=": "at most", "!=": "other than",
}  # fmt: skip


@cache
def _titles() -> Mapping[str, str]:
    return {item.name: item.title for item in signals.load()}


def _title(condition: Condition) -> str:
    """Returns what the condition is about, as the dashboard names it; braces and dollars cannot occur in it."""
    return _titles().get(condition.name) or condition.name.replace("_", " ").capitalize()


def _limit(rule: Rule) -> str:
    """Returns ``, limit above 40% for 5 min``; a state that equals a number has no limit."""
    lasting = f" for {formatted(rule.for_seconds, 'seconds')}" if rule.for_seconds else ""
    return lasting if rule.condition.op == "==" else f", limit {_LIMITS[rule.condition.op]} $threshold{lasting}"


def _summary(rule: Rule) -> str:
    """Returns the template of a rule without a summary: ``Trainer wait of run a: 62%, limit above 40% for 5 min``."""
    condition = rule.condition
    if condition.name == TARGET_UP and condition.op == "==" and condition.threshold == 0:
        return "$target of run $run cannot be read: $reason"
    if condition.kind == "verdict":
        return "Run $run has been $verdict $lasting"
    if condition.kind == "absence":
        return f"{_title(condition)} of run $run is missing"
    within = f" within {formatted(condition.window, 'seconds')}" if condition.of == "increase" else ""
    return f"{_title(condition)} of run $run: $value{within}{_limit(rule)}"


def _evidence(rule: Rule, alert: Alert) -> str:
    """Returns the template of the numbers: ``Trainer wait: 62%, limit above 40% for 5 min``."""
    condition = rule.condition
    if condition.name == TARGET_UP:
        return "$target: $reason"
    if condition.kind == "absence" or alert.value is None:
        return f"{_title(condition)}: no value"
    if condition.kind == "verdict":
        return "$verdict $lasting"
    return f"{_title(condition)}: $value{_limit(rule)}"


# ---- links
# URLs of the charts at an alert's moment.

# Time shown before the alert, s: long enough to see it develop. The charts have a point per tick at this width.
BEFORE_SECONDS = 1800.0
# Time shown after the alert, s.
AFTER_SECONDS = 900.0

_ACTORS = {item.name: item.actor for item in signals.load()} | {name: one.actor for name, one in METRICS.items()}


def moment(run: str, rule: Rule | None, active_at: float, resolved_at: float | None = None) -> str:
    """Returns the URL of the page around an alert, with absolute times, so that the view is always the same.

    ``rule``: None for a rule that is no longer configured, which leads to the overview.
    """
    until = resolved_at if resolved_at is not None else active_at
    span = {"run": run, "start": f"{active_at - BEFORE_SECONDS:.0f}", "end": f"{until + AFTER_SECONDS:.0f}"}
    return f"/{_page(rule)}?" + urlencode(span)


def _page(rule: Rule | None) -> str:
    """Returns the page of a signal's charts: the sandboxes' page for sandboxes, else the overview."""
    return "sandboxes" if rule is not None and _ACTORS.get(rule.condition.name) == "sandbox" else ""
