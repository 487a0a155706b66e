"""`rollscope export`: Prometheus rules equal to ours, or a Grafana dashboard over /metrics.

The rules fire when ours would, but for two things Prometheus has no word for: a series that vanished because a
scrape failed is false there, and a window nobody saw counts toward `for`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

import click
import yaml

from server import signals
from server.alerts import text
from server.alerts.model import Condition, Rule
from server.api.metrics import PREFIX
from server.cli import OK
from server.cli.options import Options, common
from server.cli.program import Choice, Command
from server.config import alerts as alerts_config
from server.config.settings import read
from server.matchers import Matcher
from server.signals import Counter, Signal

# Labels of an alert that its series does not have.
ADDED = ("alertname", "alertstate", "severity", "class")
_FORMATS = {"ratio": "humanizePercentage", "seconds": "humanizeDuration"}


# ---- rules


def rules(found: Sequence[Rule]) -> str:
    """A Prometheus rule file. What is on a metric that `/metrics` does not show is named in a comment."""
    hidden = [rule for rule in found if not rule.promql and any(one.source == "metric" for one in rule.conditions)]
    groups = [{"name": "rollscope", "rules": [_rule(rule) for rule in found if rule not in hidden]}]
    head = "# Made by `rollscope export rules`; put it under rule_files of prometheus.yml.\n"
    for rule in hidden:
        head += f"# {rule.name}: left out, /metrics shows signals only; give it a promql key of your own.\n"
    return head + yaml.safe_dump({"groups": groups}, sort_keys=False, width=120, allow_unicode=True)


def _rule(rule: Rule) -> dict[str, Any]:
    made: dict[str, Any] = {"alert": rule.name, "expr": expression(rule)}
    if rule.for_seconds:
        made["for"] = text.duration(rule.for_seconds)
    if rule.keep_firing_seconds:
        made["keep_firing_for"] = text.duration(rule.keep_firing_seconds)
    made["labels"] = {"severity": rule.severity, "class": rule.class_, **dict(rule.labels)}
    made["annotations"] = {name: annotation(words, rule) for name, words in rule.annotations.items()}
    return made


def expression(rule: Rule) -> str:
    """PromQL that is true where the rule is: condition, hysteresis, further conditions, lifecycle."""
    main = rule.promql or _with_recovery(rule)
    parts = [main, *(f"and on (run) ({_compare(one, one.threshold)})" for one in rule.also if not rule.promql)]
    if rule.condition.kind != "absence":
        states = "|".join(sorted(rule.lifecycle))
        parts.append(f'and on (run) ({PREFIX}run_state{{state=~"{states}"}} == 1)')
    return " ".join(parts)


def _with_recovery(rule: Rule) -> str:
    condition = rule.condition
    if condition.kind == "absence":
        return f"absent({_series(condition)})"
    plain = _compare(condition, condition.threshold)
    if condition.recover is None or condition.recover == condition.threshold:
        return f"({plain})"
    ignored = ", ".join((*ADDED, *(name for name, _ in rule.labels)))
    firing = f'ALERTS{{alertname="{rule.name}", alertstate="firing"}}'
    return f"({plain} or ({_compare(condition, condition.recover)} and ignoring ({ignored}) {firing}))"


def _compare(condition: Condition, level: float) -> str:
    series = _series(condition)
    if condition.of == "increase":
        series = f"increase({series}[{text.duration(condition.window)}])"
    if condition.summed:
        series = f"sum by (run) ({series})"
    return f"{series} {condition.op} {level:g}"


def _series(condition: Condition) -> str:
    matchers = ",".join(_matcher(one) for one in condition.matchers)
    return f"{PREFIX}{condition.name}" + (f"{{{matchers}}}" if matchers else "")


def _matcher(one: Matcher) -> str:
    return str(one)


class _Names(Mapping[str, str]):
    """What stands for our names in Prometheus' templates."""

    def __init__(self, rule: Rule) -> None:
        condition = rule.condition
        unit = text.unit_of(condition)
        shown = f"{{{{ $value | {_FORMATS[unit]} }}}}" if unit in _FORMATS else '{{ $value | printf "%.3g" }}'
        self._known = {
            "value": f"{shown} {unit}".strip() if unit not in _FORMATS else shown,
            "raw_value": "{{ $value }}",
            "threshold": text.formatted(condition.threshold, unit),
            "signal": condition.name,
            "unit": unit,
            "alertname": rule.name,
            "severity": rule.severity,
            "class": rule.class_,
            "since": "the start of this alert",
            "for": text.duration(rule.for_seconds),
            # Prometheus expands texts of pending alerts as well, and its templates do not know the state.
            "lasting": text.lasting(rule, pending=False),
            "expression": text.expression(rule),
        }

    def __getitem__(self, name: str) -> str:
        if name in self._known:
            return self._known[name]
        return "{{ $labels.%s }}" % name.removeprefix(text.LABEL)  # noqa: UP031 - four braces would hide the two

    def __iter__(self) -> Any:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def annotation(words: str, rule: Rule) -> str:
    """One of our texts in Prometheus' template language; its own braces in ours stay text."""
    # The actor's possessive and the like need no care: only names are replaced.
    return Template(re.sub(r"\{\{", '{{ "{{" }}', words)).safe_substitute(_Names(rule))


# ---- grafana

_UNITS = {"ratio": "percentunit", "seconds": "s", "tokens/s": "short", "usd": "currencyUSD", "usd/h": "currencyUSD"}
_ACTORS = ("queue", "trainer", "generator", "sandbox")
_WIDTH, _HEIGHT = 8, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def grafana() -> str:
    """A dashboard as Grafana imports it: a row per actor, a panel per signal, alerts on top."""
    panels: list[dict[str, Any]] = []
    y = _row(panels, "Now", [_alerts_panel(), _state_panel(), _targets_panel()], 0)
    for actor in _ACTORS:
        y = _row(panels, actor.capitalize(), [_panel(item) for item in signals.load() if item.actor == actor], y)
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    board = {
        "title": "Rollscope", "uid": "rollscope", "schemaVersion": 39, "version": 1, "editable": True, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "tags": ["rollscope", "rl"], "timezone": "browser",
        "templating": {"list": _variables()}, "panels": panels, "annotations": {"list": [_alert_marks()]},
    }  # fmt: skip
    return json.dumps(board, indent=1)


def _variables() -> list[dict[str, Any]]:
    query = f"label_values({PREFIX}run_info, run)"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {"name": "run", "type": "query", "label": "Run", "datasource": _SOURCE, "refresh": 2, "sort": 1,
         "query": {"query": query, "refId": "run"}, "definition": query},
    ]  # fmt: skip


def _alert_marks() -> dict[str, Any]:
    return {
        "name": "Alerts", "enable": True, "datasource": _SOURCE, "iconColor": "red", "titleFormat": "{{alertname}}",
        "expr": f'{PREFIX}alerts{{run="$run", alertstate="firing"}}', "step": "15s",
    }  # fmt: skip


def _row(panels: list[dict[str, Any]], title: str, own: list[dict[str, Any]], y: int) -> int:
    """A heading and its panels, three abreast; where the next row begins."""
    panels.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, y, 24, 1)})
    for at, panel in enumerate(own):
        panels.append(panel | {"gridPos": _place(_WIDTH * (at % 3), y + 1 + _HEIGHT * (at // 3), _WIDTH, _HEIGHT)})
    return y + 1 + _HEIGHT * -(-len(own) // 3)


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(item: Signal | Counter) -> dict[str, Any]:
    counter = isinstance(item, Counter)
    expr = f'{PREFIX}{item.name}{{run="$run"}}'
    defaults: dict[str, Any] = {"unit": _UNITS.get(item.unit, "short"), "custom": {"spanNulls": False, "lineWidth": 1}}
    if isinstance(item, Signal) and item.higher_is_worse:
        defaults |= _limits(item)
    title = f"{item.title}, per second" if counter else item.title
    expr = f"rate({expr}[5m])" if counter else expr
    return _board_panel("timeseries", title, item.help, expr, {"defaults": defaults, "overrides": []})


def _limits(item: Signal) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": "orange", "value": item.watch}] if item.watch is not None else []
    steps += [{"color": "red", "value": item.critical}] if item.critical is not None else []
    shown = {"thresholdsStyle": {"mode": "dashed" if len(steps) > 1 else "off"}, "spanNulls": False, "lineWidth": 1}
    return {"thresholds": {"mode": "absolute", "steps": steps}, "custom": shown}


def _board_panel(
    kind: str, title: str, words: str, expr: str, config: dict[str, Any], legend: str = "__auto"
) -> dict[str, Any]:
    line = kind == "timeseries"
    target = {"refId": "A", "datasource": _SOURCE, "expr": expr, "range": line, "instant": not line}
    panel = {"type": kind, "title": title, "description": words, "datasource": _SOURCE, "fieldConfig": config}
    # A stat without a legend of its own shows a 1 where the word matters.
    options = {} if line else {"options": {"textMode": "value_and_name" if legend == "__auto" else "name"}}
    return panel | options | {"targets": [target | {"legendFormat": legend}]}


def _alerts_panel() -> dict[str, Any]:
    expr = f'sum by (alertname, severity) ({PREFIX}alerts{{run="$run", alertstate="firing"}})'
    return _board_panel("stat", "Firing alerts", "Alerts of Rollscope that fire now.", expr, _plain("red", 1))


def _state_panel() -> dict[str, Any]:
    expr = f'{PREFIX}run_state{{run="$run"}} == 1'
    return _board_panel("stat", "Lifecycle", "State of the run.", expr, _plain("green", 0), "{{state}}")


def _targets_panel() -> dict[str, Any]:
    expr = f'{PREFIX}target_up{{run="$run"}} == 0'
    return _board_panel("stat", "Targets down", "Whose last scrape failed.", expr, _plain("red", 0), "{{target}}")


def _plain(colour: str, level: float) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}, {"color": colour, "value": level}]
    return {"defaults": {"thresholds": {"mode": "absolute", "steps": steps}}, "overrides": []}


@click.command(cls=Command)
@common
@click.argument("what", type=Choice(("rules", "grafana")), metavar="WHAT", help="one of rules, grafana")
def command(options: Options, what: str) -> int:
    if what == "grafana":
        print(grafana())
    else:
        print(rules(alerts_config.rules_of(read(options.config))), end="")
    return OK
