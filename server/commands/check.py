"""`rollscope check`: validates the configuration and reads every target once. Nothing is stored."""

import asyncio
import math
from collections.abc import Mapping, Sequence

import collectors
from collectors.model import Limits, Reading, Target
from server import signals
from server.alerts.config import AlertSettings
from server.alerts.frame import TARGET_UP
from server.alerts.matchers import Matcher, all_match
from server.alerts.model import Condition, Rule
from server.attach import Attached, attach
from server.clock import WallClock
from server.config import RunSettings
from server.derive import Deriver, is_gap, why
from server.problems import ConfigError
from server.query.alerts import missing
from server.query.names import format_name
from server.scrape import TargetReader
from server.signals._model import Answer, NotApplicable, TargetHealth, Unknown
from server.signals._window import StepKey


def probe(runs: Sequence[RunSettings], alerts: AlertSettings) -> tuple[str, bool]:
    """A report for the terminal and whether everything answered."""
    lines, fine = _alerting(alerts), True
    if not runs:
        return "\n".join(["the configuration is valid; it names no run", *lines]), True
    for run in runs:
        try:
            found = attach(run)
        except ConfigError as error:
            lines += [f"{run.name}: {problem}" for problem in error.problems]
            fine = False
            continue
        text, good = _run(found, alerts.rules)
        lines += text
        fine = fine and good
    return "\n".join(lines), fine


def _alerting(alerts: AlertSettings) -> list[str]:
    told = ", ".join(f"{one.name} ({one.kind})" for one in alerts.receivers) or "nobody: add [[alerts.receiver]]"
    lines = [f"{len(alerts.rules)} alert rules; alerts go to {told}"]
    for one in alerts.receivers:
        if not any(_may_match(one.match, rule) for rule in alerts.rules):
            lines.append(f"receiver {one.name}: no rule's alerts can match {', '.join(map(str, one.match))}")
    return lines


def _may_match(matchers: Sequence[Matcher], rule: Rule) -> bool:
    """By what every alert of a rule has; labels of its series are not known before there are any."""
    fixed = {**dict(rule.labels), "alertname": rule.name, "severity": rule.severity, "class": rule.class_}
    return all(one.matches(fixed) for one in matchers if one.name in ("alertname", "severity", "class"))


def _run(run: Attached, rules: Sequence[Rule]) -> tuple[list[str], bool]:
    lines, fine = [f"run {run.name}"], True
    now = WallClock().now()
    named = {one.name for rule in rules for one in rule.conditions if one.source == "metric"}
    deriver = Deriver(signals.load(), carry=lambda _: math.inf, watched=named)
    for target in run.targets:
        reading, words = asyncio.run(_read(target, now))
        lines.append(f"  {target.name} ({target.collector}): {words}")
        fine = fine and reading is not None
        deriver.health[target.name] = TargetHealth(
            target.name, target.collector, target.actor, reading is not None, now, now, target.interval_seconds
        )
        if reading is not None:
            lines += [f"    fact {name} = {value}" for name, value in sorted(reading.facts.items())]
            _feed(deriver, target, reading, now)
    deriver.facts.update(run.facts)
    return lines + _coverage(deriver, now) + _firing(deriver, now, rules), fine


def _feed(deriver: Deriver, target: Target, reading: Reading, now: float) -> None:
    deriver.facts.update(reading.facts)
    deriver.mode = str(deriver.facts.get("mode", deriver.mode))
    steps: dict[tuple[str, int], tuple[float, dict[StepKey, float]]] = {}
    for sample in reading.samples:
        ts = sample.ts if sample.ts is not None else now
        if sample.step is None:
            deriver.sample(ts, target.name, sample.metric, sample.labels, sample.value)
        else:
            _, values = steps.setdefault((sample.axis, sample.step), (ts, {}))
            values[(sample.metric, sample.labels)] = sample.value
    for (axis, number), (ts, values) in steps.items():
        deriver.recall(axis, 0, number, ts, target.name, values)


async def _read(target: Target, now: float) -> tuple[Reading | None, str]:
    reader = TargetReader(target, collectors.load()[target.collector], limits=Limits())
    outcome = await reader.read(now)
    await reader.close()
    if outcome.reading is None:
        return None, f"DOWN, {outcome.error}"
    reading = outcome.reading
    names = {sample.metric for sample in reading.samples}
    more = ", more to read" if reading.more else ""
    unmapped = f", {len(reading.unmapped)} unmapped keys" if reading.unmapped else ""
    return (
        reading,
        f"up, {len(reading.samples)} samples of {len(names)} metrics{unmapped}{more}, {outcome.seconds:.2f} s",
    )


def _coverage(deriver: Deriver, now: float) -> list[str]:
    """What every signal would say from what was read: its values, or what it lacks."""
    lines = []
    for name, _, answer in deriver.steps_now(now) + deriver.tick(now):
        if is_gap(answer):
            lines.append(f"  {name}: none: {why(answer)}")
        else:
            values = ", ".join(f"{format_name(name, value.labels)} = {value.value:.4g}" for value in answer)  # type: ignore[union-attr]
            lines.append(f"  {values}")
    return lines


def _firing(deriver: Deriver, now: float, rules: Sequence[Rule]) -> list[str]:
    """Which rules can ever fire with what was read, and what the others lack."""
    answers = {name: answer for name, _, answer in deriver.steps_now(now) + deriver.tick(now)}
    lacking = {}
    for rule in rules:
        reasons = (_lacks(deriver, answers, condition) for condition in rule.conditions)
        lacking[rule.name] = next(filter(None, reasons), "")
    able = [name for name, why_not in lacking.items() if not why_not]
    lines = [f"  rules that can fire: {len(able)} of {len(rules)}: {', '.join(able) or 'none'}"]
    return lines + [f"  rule {name}: {why_not}" for name, why_not in lacking.items() if why_not]


def _lacks(deriver: Deriver, answers: Mapping[str, Answer], condition: Condition) -> str:
    """What is missing for a condition to be ever true; "" when nothing is."""
    if never := missing(condition, None, frozenset()):
        return never
    if condition.kind == "absence" or condition.name == TARGET_UP:
        return ""
    if condition.source == "metric":
        known = condition.name in deriver.gauges or any(deriver.book.newest_of(condition.name))
        return "" if known else f"no source: no target reports {condition.name}"
    answer = answers.get(condition.name)
    if isinstance(answer, (list, tuple)) and not any(all_match(condition.matchers, dict(v.labels)) for v in answer):
        names = sorted({name for value in answer for name, _ in value.labels})
        wanted = ", ".join(map(str, condition.matchers))
        return f"no series of {condition.name} matches {wanted}; its labels: {', '.join(names) or 'none'}"
    if isinstance(answer, NotApplicable):
        return f"not applicable: {answer.why}"
    hints = {item.name: item.hint for item in signals.load() if isinstance(item, signals.Signal)}
    # Other words than the hint are a matter of time: a rate needs two pages, a window three steps.
    return f"no source: {answer.why}" if isinstance(answer, Unknown) and answer.why == hints[condition.name] else ""
