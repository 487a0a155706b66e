"""`rollscope alerts test` and `rollscope alerts send-test`: tests rules and receivers."""

import asyncio
import math
import os
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import click
import yaml

from collectors.model import Labels, Lifecycle
from server import notify, store
from server.alerts import series_notation
from server.alerts.model import Alert, Condition, Rule, Table, fingerprint
from server.alerts.rules import Evaluator
from server.alerts.series_notation import Mark
from server.alerts.text import EVIDENCE, duration, parse_duration
from server.cli import FAILED, OK
from server.cli.options import Options, common
from server.cli.program import Command, Group, describe
from server.config import alerts as alerts_config
from server.config.settings import load, read, store_of
from server.lib.clock import WallClock
from server.lib.errors import ConfigError, Problems
from server.notify.model import AlertItem, DeliveryAnswer, Notification, Receiver, ReceiverSettings
from server.notify.outbound import send
from server.query.types import parse_name


@click.group(cls=Group)
def command() -> None:
    pass


@click.command(cls=Command)
@common
@click.argument(
    "file", required=False, type=click.Path(path_type=Path), metavar="[FILE]", help="tests in promtool's layout (YAML)"
)
@click.option("--replay", metavar="RUN", default=None, help="evaluate the rules over a stored run")
@click.option("--json", "as_json", is_flag=True, help="print the replay's result as JSON")
def test(options: Options, file: Path | None, replay: str | None, as_json: bool) -> int:
    if (file is None) == (replay is None):
        raise ConfigError(["alerts test: name a FILE or --replay RUN"])
    if file is not None:
        report, passed = run_cases(file, alerts_config.load_rules)
        print(report)
        return OK if passed else FAILED
    assert replay is not None
    raw = read(options.config)
    from server.cli import alerts_replay  # noqa: PLC0415 - loads the database library

    rules = alerts_config.rules_of(raw)
    try:
        with closing(store.Store.open(options.store or store_of(raw, os.environ), read_only=True)) as opened:
            result = alerts_replay.run(opened, replay, rules)
    except store.StoreError as error:
        raise ConfigError([f"store: {error}"]) from None
    print(alerts_replay.dump(result) if as_json else alerts_replay.text(result, rules))
    return OK


@click.command(cls=Command)
@common
@click.argument("receiver", metavar="RECEIVER", help="name of a receiver of the configuration")
def send_test(options: Options, receiver: str) -> int:
    settings = load(options.config, os.environ)
    receivers = {item.name: item for item in settings.alerts.receivers}
    if receiver not in receivers:
        names = ", ".join(receivers) or "none; add [[alerts.receiver]] to the configuration (-c FILE)"
        raise ConfigError([f"no receiver is named {receiver!r}; configured: {names}"])
    url = settings.alerts.external_url or f"http://{settings.host}:{settings.port}"
    report, accepted = send_one(receivers[receiver], url, WallClock().now())
    print(report)
    return OK if accepted else FAILED


describe(test, "run unit tests of rules, or replay a stored run", "rollscope alerts test --replay my-run")
describe(send_test, "send a test notification to a receiver", "rollscope alerts send-test oncall -c rollscope.toml")
command.add_command(test, "test")
command.add_command(send_test, "send-test")


# ---- alerts file
# Reads the file of `rollscope alerts test`: promtool's unit test layout, with limits; errors are collected.

LoadRules = Callable[[Mapping[str, Any], Problems], tuple[Rule, ...]]
"""An ``[alerts]`` table -> its rules with the default pack; see `server.config.alerts.load_rules`."""

MAX_BYTES = 4 << 20
# Values in one file: two million take 16 MB and are more than a handwritten file has.
MAX_VALUES = 2_000_000
# Two weeks on the 5 s grid.
MAX_EVALUATIONS = 250_000
LIFECYCLES = get_args(Lifecycle)
# promtool allows blanks between labels; inside quotes they are part of the value.
_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


@dataclass(frozen=True, slots=True)
class InputSeries:
    """A series' name, labels, and one item per interval from 0 on."""

    name: str
    labels: Labels
    items: list[series_notation.Item]


@dataclass(frozen=True, slots=True)
class Expectation:
    """Alerts of one rule that must fire after the last evaluation at or before ``at`` (seconds from the start)."""

    at: float
    alertname: str
    alerts: tuple[tuple[Mapping[str, str], Mapping[str, str] | None], ...]


@dataclass(frozen=True, slots=True)
class RuleTestCase:
    """One test. ``lifecycle``: (start, state), in order of time."""

    name: str
    run: str
    interval: float
    series: tuple[InputSeries, ...]
    lifecycle: tuple[tuple[float, str], ...]
    expected: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A whole file with the rules it tests."""

    rules: tuple[Rule, ...]
    evaluation_interval: float
    tests: tuple[RuleTestCase, ...]


def read_cases(path: Path, load_rules: LoadRules) -> CaseFile:
    """Read and check the file.

    Raises:
        ConfigError: the file is unreadable, is not YAML or does not have the layout.
    """
    problems = Problems()
    raw = _yaml(path)
    problems.unknown(raw, {"rule_files", "default_pack", "evaluation_interval", "tests"}, path.name)
    rules = _rules(raw, path, load_rules, problems)
    interval = _seconds(raw, "evaluation_interval", 5.0, problems, path.name)
    reader = _Reader(problems, interval)
    listed = problems.take(raw, "tests", list, [], path.name)
    tests = tuple(reader.test(table, f"tests[{n}]") for n, table in enumerate(listed))
    if not tests:
        problems.add(f"{path.name}.tests", "has no test")
    # Names are checked only if every rule was read, because the series of a broken rule would be unknown, too.
    if not problems.messages:
        _known_names(tests, rules, problems)
    if problems.messages:
        raise ConfigError(problems.messages)
    return CaseFile(rules, interval, tests)


def _yaml(path: Path) -> dict[str, Any]:
    try:
        # One byte more than allowed proves the file is too large, even if the path is an endless device.
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise ConfigError([f"{path.name}: larger than {MAX_BYTES >> 20} MiB"])
        raw = yaml.safe_load(body)
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or type(error).__name__}"]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([f"{path.name}: not YAML: {' '.join(str(error).split())[:200]}"]) from None
    if not isinstance(raw, dict):
        raise ConfigError([f"{path.name}: must be a table with the key tests"])
    return {str(key): value for key, value in raw.items()}


def _rules(raw: Mapping[str, Any], path: Path, load_rules: LoadRules, problems: Problems) -> tuple[Rule, ...]:
    """Rules of all files, as in one configuration."""
    # Merged as tables, not as rules, because a rule may change one of the pack.
    alerts: dict[str, Any] = {"rule": [], "disable": []}
    if not problems.take(raw, "default_pack", bool, True, path.name):
        alerts["default_pack"] = False
    for number, name in enumerate(problems.take(raw, "rule_files", list, [], path.name)):
        table = _toml(path.parent / str(name), f"rule_files[{number}]", problems)
        if "default_pack" in table:
            alerts["default_pack"] = table["default_pack"]
        for key in ("rule", "disable"):
            alerts[key] += problems.take(table, key, list, [], f"{name}: alerts")
    return load_rules(alerts, problems)


def _toml(path: Path, where: str, problems: Problems) -> Mapping[str, Any]:
    """A file's ``[alerts]`` table; a file with rules only may use ``[[rule]]``, as the default pack does."""
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problems.add(where, f"{path}: {error.strerror or type(error).__name__}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.add(where, f"{path.name}: not TOML: {error}")
        return {}
    alerts: Mapping[str, Any] = problems.take(raw, "alerts", dict, {}, path.name)
    return {**alerts, "rule": [*alerts.get("rule", []), *raw["rule"]]} if isinstance(raw.get("rule"), list) else alerts


def _known_names(tests: tuple[RuleTestCase, ...], rules: tuple[Rule, ...], problems: Problems) -> None:
    """Refuse series that no rule reads and expectations without a rule: they would test nothing."""
    read_names = {condition.name for rule in rules for condition in rule.conditions}
    names = {rule.name for rule in rules}
    for number, test in enumerate(tests):
        for series in test.series:
            if series.name not in read_names:
                problems.add(f"tests[{number}].input_series", f"no rule reads {series.name!r}")
        for expectation in test.expected:
            if expectation.alertname not in names:
                problems.add(f"tests[{number}].alert_rule_test", f"there is no rule {expectation.alertname!r}")


def _seconds(table: Mapping[str, Any], key: str, default: float, problems: Problems, where: str) -> float:
    """A duration above zero."""
    seconds = _time(table, key, default, problems, where)
    if seconds <= 0:
        problems.add(f"{where}.{key}", "must be longer than 0")
    return seconds or default


def _time(table: Mapping[str, Any], key: str, default: float, problems: Problems, where: str) -> float:
    try:
        return parse_duration(table.get(key, default))
    except ValueError as error:
        problems.add(f"{where}.{key}", str(error))
        return default


class _Reader:
    """Reads the tests of one file; counts values over all of them."""

    def __init__(self, problems: Problems, evaluation_interval: float) -> None:
        self._problems = problems
        self._evaluation_interval = evaluation_interval
        self._remaining = MAX_VALUES

    def _table(self, table: Any, allowed: set[str], where: str) -> dict[str, Any]:
        if not isinstance(table, dict):
            self._problems.add(where, f"must be a table with the keys {', '.join(sorted(allowed))}")
            return {}
        result = {str(key): value for key, value in table.items()}
        self._problems.unknown(result, allowed, where)
        return result

    def _list(self, table: Mapping[str, Any], key: str, where: str) -> list[Any]:
        items: list[Any] = self._problems.take(table, key, list, [], where)
        return items

    def test(self, raw: Any, where: str) -> RuleTestCase:
        keys = {"name", "run", "interval", "lifecycle", "input_series", "alert_rule_test"}
        table = self._table(raw, keys, where)
        return RuleTestCase(
            name=str(table.get("name", where)),
            run=str(table.get("run", "test")),
            interval=_seconds(table, "interval", self._evaluation_interval, self._problems, where),
            series=tuple(
                self._series(item, f"{where}.input_series[{n}]")
                for n, item in enumerate(self._list(table, "input_series", where))
            ),
            lifecycle=self._lifecycle(table.get("lifecycle", "running"), f"{where}.lifecycle"),
            expected=tuple(
                self._expectation(item, f"{where}.alert_rule_test[{n}]")
                for n, item in enumerate(self._list(table, "alert_rule_test", where))
            ),
        )

    def _series(self, raw: Any, where: str) -> InputSeries:
        table = self._table(raw, {"series", "values"}, where)
        try:
            name, labels = parse_name(_SPACE.sub(lambda match: match[1] or "", str(table.get("series", ""))))
            items = series_notation.parse(str(table.get("values", ""))) if self._remaining > 0 else []
        except ValueError as error:
            self._problems.add(where, str(error))
            return InputSeries("", (), [])
        # A YAML alias may repeat one series a million times, so parsing stops at the limit.
        self._remaining -= len(items)
        if self._remaining <= 0:
            self._problems.add(where, f"more than {MAX_VALUES:,} values in one file")
        return InputSeries(name, labels, items)

    def _lifecycle(self, raw: Any, where: str) -> tuple[tuple[float, str], ...]:
        listed = raw if isinstance(raw, list) else [{"at": 0, "state": raw}]
        changes = []
        for number, item in enumerate(listed):
            table = self._table(item, {"at", "state"}, f"{where}[{number}]")
            if table.get("state") not in LIFECYCLES:
                self._problems.add(f"{where}[{number}].state", f"must be one of {', '.join(LIFECYCLES)}")
            at = _time(table, "at", 0.0, self._problems, f"{where}[{number}]")
            changes.append((at, str(table.get("state"))))
        return tuple(sorted(changes, key=lambda pair: pair[0]))

    def _expectation(self, raw: Any, where: str) -> Expectation:
        table = self._table(raw, {"eval_time", "alertname", "exp_alerts"}, where)
        at = _time(table, "eval_time", 0.0, self._problems, where)
        if at / self._evaluation_interval > MAX_EVALUATIONS:
            self._problems.add(f"{where}.eval_time", f"is more than {MAX_EVALUATIONS:,} evaluations away")
        alerts = self._list(table, "exp_alerts", where) if table.get("exp_alerts") is not None else []
        expected = tuple(self._alert(alert, f"{where}.exp_alerts[{n}]") for n, alert in enumerate(alerts))
        return Expectation(at, str(table.get("alertname", "")), expected)

    def _alert(self, raw: Any, where: str) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
        table = self._table(raw, {"exp_labels", "exp_annotations"}, where)
        texts = self._texts(table.get("exp_annotations"), f"{where}.exp_annotations")
        return self._texts(table.get("exp_labels"), f"{where}.exp_labels") or {}, texts

    def _texts(self, raw: Any, where: str) -> dict[str, str] | None:
        if raw is None:
            return None
        if not isinstance(raw, dict):
            self._problems.add(where, "must be a table of texts")
            return None
        return {str(key): str(value) for key, value in raw.items()}


# ---- alerts send
# `rollscope alerts send-test RECEIVER`: sends one marked notification on the same path as alerts.

NAME, RUN = "RollscopeTest", "rollscope-test"
# Receivers that keep an alert or incident open until a resolved notification arrives.
STAYS_OPEN = frozenset({"alertmanager", "pagerduty"})


def send_one(settings: ReceiverSettings, external_url: str, now: float) -> tuple[str, bool]:
    """Send the test notification and report the receiver's answer.

    Args:
        now: epoch seconds; the alert began one second earlier, and its resolution is now.

    Returns:
        text for the terminal, without secrets, and whether the receiver accepted everything.
    """
    lines, fine = [], True
    receiver = notify.load()[settings.kind]
    statuses = ("firing", "resolved") if settings.kind in STAYS_OPEN else ("firing",)
    for status in statuses:
        answer = _send(receiver, notification(settings, external_url, now, status), settings, now)
        lines.append(f"{settings.name} ({settings.kind}), {status}: {'ok' if answer.ok else 'FAILED'}, {answer.text}")
        fine = fine and answer.ok
        if not answer.ok:
            break
    return "\n".join(lines), fine


def notification(settings: ReceiverSettings, external_url: str, now: float, status: str) -> Notification:
    """The test notification, as a group of one alert."""
    labels = {"alertname": NAME, "run": RUN, "severity": "info", "class": "liveness"}
    annotations = {
        "summary": f"Test of receiver {settings.name}: nothing is wrong",
        "description": "Sent by hand with `rollscope alerts send-test`; no action is needed.",
    }
    alert = AlertItem(status, labels, annotations, now - 1.0, None, fingerprint(tuple(labels.items())), external_url)
    if status == "resolved":
        alert = replace(alert, ends_at=now)
    return Notification(
        receiver=settings.name,
        run=RUN,
        group_key=f'{{}}:{{alertname="{NAME}", run="{RUN}"}}',
        group_labels={"alertname": NAME, "run": RUN},
        status=status,
        alerts=(alert,),
        reason="test",
        external_url=external_url,
    )


def _send(receiver: Receiver, notification: Notification, settings: ReceiverSettings, now: float) -> DeliveryAnswer:
    if receiver.render is None:
        assert receiver.deliver is not None
        return receiver.deliver(notification, settings)
    return asyncio.run(send(receiver.render(notification, settings, now)))


# ---- alerts test
# `rollscope alerts test FILE`: unit tests of alerting rules on written series, as `promtool test rules` does it.

NO_DATA = float("nan")
# Labels that an expectation may omit, because the test and the rule determine them.
LEFT_OUT = ("run", "class")


ENDED = None
"""A value of a track: the series has ended. NaN is a gap: the value is unknown."""


@dataclass(slots=True)
class Track:
    """One written series: (time, value) in order of time; a value holds until the next one."""

    labels: Labels
    times: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    increases: list[float] = field(default_factory=list)

    def add(self, ts: float, value: float | None) -> None:
        """Append an item, unless it is not newer than the last one."""
        if self.times and ts <= self.times[-1]:
            return
        total = self.increases[-1] if self.increases else 0.0
        before = next((v for v in reversed(self.values) if v is not None and v == v), None)
        if value is not None and before is not None and value == value:
            # Prometheus' rule: a decrease is a reset, the new value is the increase.
            total += value - before if value >= before else value
        self.times.append(ts)
        self.values.append(value)
        self.increases.append(total)

    def at(self, now: float) -> float | None:
        """Returns the value at a time; before its first item a series counts as ended."""
        i = bisect_right(self.times, now) - 1
        return ENDED if i < 0 else self.values[i]

    def increase(self, now: float, window: float) -> float:
        """Returns the growth over the window, or since the first item if the series is younger."""
        i = bisect_right(self.times, now) - 1
        begin = max(0, bisect_right(self.times, now - window) - 1)
        return self.increases[i] - self.increases[begin]

    def young(self, now: float, window: float) -> bool:
        """Did the series begin within the window?"""
        return not self.times or self.times[0] > now - window


@dataclass(frozen=True, slots=True)
class WrittenFrame:
    """See `server.alerts.model.Frame`. ``tracks``: series by the name of their signal or metric."""

    now: float
    run: str
    lifecycle: str
    tracks: Mapping[str, Sequence[Track]]
    replayed: bool = False

    def reason(self, series: Labels) -> str:
        return ""

    def address(self, series: Labels) -> str:
        return ""

    def missing(self, condition: Condition, series: Labels) -> str:
        """Nothing is missing: a file holds every series that exists."""
        return ""

    def table(self, condition: Condition) -> Table | None:
        tracks = self.tracks.get(condition.name)
        if tracks is None:
            return None
        labels: list[Labels] = []
        values: list[float] = []
        gaps: dict[int, str] = {}
        for track in tracks:
            value, why = self._value(track, condition)
            if value is None:
                continue
            if value != value:
                gaps[len(values)] = why
            labels.append(track.labels)
            values.append(value)
        table = Table(labels, values, gaps, hash(tuple(labels)))
        return table.summed() if condition.summed else table

    def _value(self, track: Track, condition: Condition) -> tuple[float | None, str]:
        value = track.at(self.now)
        if value is None or value != value or condition.of == "value":
            return value, "no data"
        if condition.source == "metric" and track.young(self.now, condition.window):
            return math.nan, "younger than the window"
        return track.increase(self.now, condition.window), ""


def run_cases(path: Path, load_rules: LoadRules) -> tuple[str, bool]:
    """A report for the terminal, and whether every expectation was met.

    Raises:
        ConfigError: the file, or a rule file it names, is broken; all problems at once.
    """
    file = read_cases(path, load_rules)
    failures = [failure for case in file.tests for failure in _failures(file, case)]
    result = "\n".join(["  FAILED:", *failures]) if failures else "  SUCCESS"
    return f"Unit Testing:  {path}\n{result}", not failures


def _failures(file: CaseFile, case: RuleTestCase) -> Iterator[str]:
    evaluator = Evaluator(file.rules, case.run)
    pending = sorted(case.expected, key=lambda expectation: expectation.at)
    tracks: dict[str, list[Track]] = {}
    for series in case.series:
        tracks.setdefault(series.name, []).append(_track(series, case.interval))
    last = pending[-1].at if pending else 0.0
    tick = 0
    while (now := tick * file.evaluation_interval) <= last:
        evaluator.evaluate(WrittenFrame(now, case.run, _lifecycle(case, now), tracks))
        yield from (
            f"    name: {case.name}, time: {duration(now)}, {rule}: {why}" for rule, why in evaluator.errors.items()
        )
        tick += 1
        # As in promtool, an expectation between two evaluations is compared with the earlier one.
        while pending and pending[0].at < tick * file.evaluation_interval:
            yield from _compare(case, pending.pop(0), evaluator.firing)


def _track(series: InputSeries, interval: float) -> Track:
    """A series begins with its first value; after the last one its value is unknown."""
    track = Track(series.labels)
    # Products, not sums: after a day of 0.1 s steps the error of a sum would exceed a step.
    for number, item in enumerate([*series.items, Mark.NO_SAMPLE]):
        if item is Mark.STALE:
            track.add(number * interval, ENDED)
        elif item is not Mark.NO_SAMPLE or (track.values and track.values[-1] is not ENDED):
            track.add(number * interval, item if isinstance(item, float) else NO_DATA)
    return track


def _lifecycle(case: RuleTestCase, now: float) -> str:
    return next((state for at, state in reversed(case.lifecycle) if at <= now), "starting")


def _compare(case: RuleTestCase, expected: Expectation, firing: list[Alert]) -> Iterator[str]:
    """Match expected with found alerts; an unmatched alert on either side is a failure."""
    left = [alert for alert in firing if alert.rule == expected.alertname]
    alerts = list(left)
    missing = []
    for labels, annotations in expected.alerts:
        match = next((alert for alert in left if _matches(alert, labels, annotations, expected.alertname)), None)
        if match is None:
            missing.append((labels, annotations))
        else:
            left.remove(match)
    if missing or left:
        exp = "".join(_shown({"alertname": expected.alertname, **labels}, texts) for labels, texts in expected.alerts)
        got = "".join(_shown(dict(alert.labels), _texts(alert, {})) for alert in alerts)
        head = f"    name: {case.name}, alertname: {expected.alertname}, time: {duration(expected.at)},"
        yield f"{head}\n        exp:[{exp or 'nothing'}]\n        got:[{got or 'nothing'}]"


def _matches(alert: Alert, labels: Mapping[str, str], annotations: Mapping[str, str] | None, name: str) -> bool:
    actual = dict(alert.labels)
    required = {"alertname": name, **labels}
    optional = {label: actual[label] for label in LEFT_OUT if label in actual}
    return actual == {**optional, **required} and (
        annotations is None or _texts(alert, annotations) == dict(annotations)
    )


def _texts(alert: Alert, expected: Mapping[str, str]) -> dict[str, str]:
    """Annotations; the evidence, which every alert has, only if it is expected."""
    return {name: text for name, text in alert.annotations.items() if name != EVIDENCE or name in expected}


def _shown(labels: Mapping[str, str], annotations: Mapping[str, str] | None) -> str:
    texts = "" if annotations is None else f" Annotations:{_set(annotations)}"
    return f"\n            Labels:{_set(labels)}{texts}"


def _set(pairs: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(pairs.items())) + "}"
