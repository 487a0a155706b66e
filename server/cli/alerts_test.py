"""`rollscope alerts test FILE`: unit tests of alerting rules on written series, as `promtool test rules` does it.

Differences from promtool: ``_``, NaN and everything after the last value are gaps (the value is unknown and the
state is held); ``stale`` ends a series. Alerts also have the labels ``run`` and ``class``, which may be omitted.
Annotations are compared only if the expectation has some.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from server.alerts.model import Alert
from server.alerts.rules import Evaluator
from server.alerts.series_notation import Mark
from server.alerts.text import EVIDENCE, duration
from server.cli.alerts_file import CaseFile, Expectation, InputSeries, LoadRules, RuleTestCase, read
from server.cli.alerts_frames import ENDED, HistoryFrame, Track, by_name

NO_DATA = float("nan")
# Labels that an expectation may omit, because the test and the rule determine them.
LEFT_OUT = ("run", "class")


def run(path: Path, load_rules: LoadRules) -> tuple[str, bool]:
    """A report for the terminal, and whether every expectation was met.

    Raises:
        ConfigError: the file, or a rule file it names, is broken; all problems at once.
    """
    file = read(path, load_rules)
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
        evaluator.evaluate(HistoryFrame(now, case.run, _lifecycle(case, now), by_name(tracks), replayed=False))
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
