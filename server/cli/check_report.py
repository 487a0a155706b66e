"""What `rollscope check` does once its options are valid: read each target once, through the pipeline, and report.

For each target the report holds the detected collector and log; for each signal its value with raw key and age, or the
reason for a missing value and how to get one.
"""

import asyncio
import json
import math
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import collectors
from collectors.detect import detect_path
from collectors.formats import unreadable
from collectors.model import Limits, Reading, ScrapeError, Target
from server import signals
from server.alerts.inputs import TARGET_UP
from server.alerts.model import Condition, Rule
from server.alerts.settings import AlertSettings
from server.derive.deriver import Deriver, Emission
from server.derive.driver import PipelineSettings, RunPipeline, RunTargets
from server.lib.clock import WallClock
from server.lib.errors import ConfigError
from server.lib.matchers import Matcher, all_match
from server.push.inbox import Outcome
from server.query.alerts import missing
from server.query.types import format_name, mode_words
from server.scrape.target_reader import TargetReader
from server.signals.availability import TRAINED, inputs, missing_metrics, of_records
from server.signals.model import TICK_WINDOW_SECONDS, Answer, NotApplicable, Unknown, unknown_reason
from server.store import Store, migrate
from server.targets import lists as targets_lists
from server.targets.discovery import TargetDiscovery
from server.targets.model import Attached, RunSettings
from server.targets.resolve import attach, detect_listed

# ---- probe
# Reads a target once, for `check` and for the first lines of `watch`.

# Reads of one target. A history of months needs more, but its beginning identifies it.
MAX_CALLS = 40
# Of a long history only the end is retained.
KEPT_ROWS = 200_000
# Parallel reads: a list may name thousands of engines, and each read holds a connection and a page.
AT_ONCE = 64
# Targets of a list that are printed.
SHOWN = 3
# A page whose gauges appear once per report is blank in between, so a blank page is read a second time.
PAUSE_SECONDS = 3.0
# The first lines of `watch` must not wait for a long history.
FIRST = Limits(tail_bytes=1 << 20, tail_rows=400)

# Between two progress lines while a file is read.
SLOW_SECONDS = 5.0

Print = Callable[[str], None]


def print_progress(line: str) -> None:
    """Prints a line of progress to standard error, apart from the result."""
    sys.stderr.write(f"{line}\n")


@dataclass(slots=True)
class ProbeResult:
    """The result of reading a target. ``readings``: the newest; ``failure``: why it is down, if it is."""

    target: Target
    failure: ScrapeError | None = None
    seconds: float = 0.0
    more: bool = False
    reader: str = ""
    facts: dict[str, str | float] = field(default_factory=dict)
    count: int = 0
    records: int = 0
    metrics: set[str] = field(default_factory=set)
    readings: deque[Reading] = field(default_factory=deque)
    unmapped: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    why_dropped: str = ""
    gaps: tuple[str, ...] = ()
    unseen: list[str] = field(default_factory=list)

    @property
    def up(self) -> bool:
        return self.failure is None

    @property
    def error(self) -> str:
        return str(self.failure or "")

    def take(self, reading: Reading, seconds: float) -> None:
        self.facts.update(reading.facts)
        self.count += len(reading.samples)
        self.records += len(reading.rollouts)
        self.metrics |= {sample.metric for sample in reading.samples}
        self.readings.append(reading)
        while sum(map(_rows, self.readings)) - _rows(self.readings[0]) >= KEPT_ROWS:
            self.readings.popleft()
        self.unmapped.update(reading.unmapped)
        self.dropped, self.why_dropped = self.dropped + reading.dropped, self.why_dropped or reading.why_dropped
        self.gaps = tuple(dict.fromkeys((*self.gaps, *reading.gaps)))
        self.origins = {**reading.origins, **self.origins}
        self.reader, self.more, self.seconds = reading.reader or self.reader, reading.more, self.seconds + seconds

    def identity(self) -> dict[str, str]:
        """Framework, version, mode, run and reader that were reported; a trainer's mode is always included."""
        facts = {key: str(self.facts.get(key, "")) for key in ("framework", "framework_version", "mode", "run_name")}
        mode = mode_words(facts["mode"], self.facts) if facts["mode"] or self.target.actor == "trainer" else ""
        names = {"framework": facts["framework"], "version": facts["framework_version"], "mode": mode}
        names |= {"run": facts["run_name"], "reader": self.reader}
        return {key: value for key, value in names.items() if value}


def _rows(reading: Reading) -> int:
    return len(reading.samples) + len(reading.rollouts)


def probe_targets(
    targets: Sequence[Target],
    now: float,
    limits: Limits | None = None,
    calls: int = MAX_CALLS,
    progress: Print = print_progress,
) -> list[ProbeResult]:  # fmt: skip
    """Read each target from its beginning, with at most ``calls`` reads. Nothing is stored.

    Pages have a time limit, files have none, so that the result for a file does not depend on the machine's speed.

    Args:
        progress: called every `SLOW_SECONDS` with a line while a file is read.
    """
    return asyncio.run(_probe_all(targets, now, limits or Limits(), calls, progress))


async def _probe_all(
    targets: Sequence[Target], now: float, limits: Limits, calls: int, progress: Print
) -> list[ProbeResult]:
    room = asyncio.Semaphore(AT_ONCE)

    async def bounded_probe(target: Target) -> ProbeResult:
        async with room:
            return await _probe_target(target, now, limits, calls, progress)

    pages = [target for target in targets if not target.path]
    results = dict(zip((id(target) for target in pages), await asyncio.gather(*map(bounded_probe, pages)), strict=True))
    # Files are read after the pages and one by one, because parsing them would use up the time limit of the pages.
    for target in targets:
        if target.path:
            results[id(target)] = await bounded_probe(target)
    return [results[id(target)] for target in targets]


async def _probe_target(target: Target, now: float, limits: Limits, calls: int, progress: Print) -> ProbeResult:
    seen = ProbeResult(target)
    limits = replace(limits, timeout_seconds=math.inf) if target.path else limits
    reader = TargetReader(target, collectors.load()[target.collector], limits=limits)
    for call in range(calls):
        outcome = await _read(reader, now, seen, progress)
        if outcome.reading is None:
            seen.failure = outcome.error
            break
        reader.committed(outcome)
        seen.take(outcome.reading, outcome.seconds)
        if not seen.more:
            if call > 0 or calls == 1 or not _is_blank(seen):
                break
            await asyncio.sleep(PAUSE_SECONDS)
    await reader.close()
    return seen


async def _read(reader: TargetReader, now: float, seen: ProbeResult, progress: Print) -> Outcome:
    """One read. Progress is printed while a file is read, because it may be long or its file system may hang."""
    if not reader.target.path:
        return await reader.read(now)
    task = asyncio.create_task(reader.read(now))
    while not (await asyncio.wait({task}, timeout=SLOW_SECONDS))[0]:
        progress(f"reading {seen.target.path} ({seen.target.collector}): {seen.count + seen.records} records so far")
    return task.result()


def _is_blank(seen: ProbeResult) -> bool:
    """Whether a trainer's page has no numbers; it may be between two reports."""
    return seen.count == 0 and bool(seen.target.url) and seen.target.actor == "trainer"


@dataclass(frozen=True, slots=True)
class Listed:
    """The result of reading one list. ``names``: its targets; ``unknown``: target -> why it was not recognised."""

    name: str
    kind: str
    error: str
    note: str
    names: tuple[str, ...]
    unknown: Mapping[str, str]

    @property
    def fine(self) -> bool:
        return not self.error and not self.unknown

    def describe(self) -> str:
        """In one line: ``discovery engines (file_sd): 12 targets``."""
        count = f"{len(self.names)} target{'' if len(self.names) == 1 else 's'}"
        silent = [f"{name}: {why}" for name, why in self.unknown.items()]
        more = f" and {len(silent) - SHOWN} more" if len(silent) > SHOWN else ""
        unrecognised = f"not recognised: {'; '.join(silent[:SHOWN])}{more}" if silent else ""
        parts = (self.error, self.note, unrecognised)
        return ", ".join([f"discovery {self.name} ({self.kind}): {count}", *filter(None, parts)])


def listed(run: Attached, now: float, limits: Limits | None = None) -> tuple[list[Listed], list[Target]]:
    """Read every list of a run once and detect its targets. Returns the lists, and the targets that can be read."""
    return asyncio.run(_listed(run, now, limits or Limits())) if run.discover else ([], [])


async def _listed(run: Attached, now: float, limits: Limits) -> tuple[list[Listed], list[Target]]:
    names = {target.name for target in run.targets}
    roster = TargetDiscovery(
        run.name, run.discover, detect_listed, by_hand=run.targets, taken=names.__contains__, limits=limits
    )  # fmt: skip
    change = await roster.look(now, patient=True)
    unknown = {target_row.name: (target_row.source, error) for target_row, _, error in roster.unknown()}
    lists = [
        Listed(
            source.name, source.settings.kind, roster.error(source), roster.note(source),
            tuple(target_row.name for target_row in roster.held.values() if target_row.source is source),
            {name: error for name, (of, error) in unknown.items() if of is source},
        )
        for source in roster.sources
    ]  # fmt: skip
    await roster.close()
    return lists, list(change.started.values())


def introduce(run: Attached, now: float) -> Iterator[str]:
    """A line for each list and target: what it holds, and the detected collector and log."""
    yield from run.notes
    lists, more = listed(run, now)
    yield from (entry.describe() for entry in lists)
    targets = [*run.targets, *more[:SHOWN]]
    if len(more) > SHOWN:
        yield f"{len(more) - SHOWN} more targets are not listed here"
    for seen in probe_targets(targets, now, FIRST, calls=1):
        description = "; ".join((describe(seen), *seen.gaps)) if seen.up else f"DOWN, {seen.error}"
        yield f"{seen.target.name} ({seen.target.collector}): {description}"


def describe(seen: ProbeResult) -> str:
    """The target in one line: ``trl 1.16.0, mode async, run grpo-tiny, read from trackio async-grpo.db``."""
    identity = seen.identity()
    checked = f"(checked against {collectors.load()[seen.target.collector].versions})"
    name = f"{identity.get('framework', seen.target.collector)} {identity.get('version', checked)}"
    named = {"mode": "mode", "run": "run", "reader": "read from"}
    return ", ".join([name, *(f"{label} {identity[key]}" for key, label in named.items() if key in identity)])


# ---- as of
# For `check`: applies stated facts, and evaluates tick signals of a finished run as of its end.


def apply_stated(seen: ProbeResult, stated: Mapping[str, str | float]) -> None:
    """Replace facts of a trainer by those that the user states."""
    shown = {"mode"} if seen.target.actor == "trainer" and seen.up else set()
    seen.facts.update({name: value for name, value in stated.items() if name in seen.facts or name in shown})


def ticks(deriver: Deriver, now: float) -> list[Emission]:
    """Answers of the tick signals; of a log that ended long ago, as of its end.

    Otherwise the last value would fill the whole window, and the mean would be that of one instant.
    """
    answers = {name: (name, ts, answer) for name, ts, answer in deriver.tick(now)}
    for end in {end for item in signals.load() if (end := _ended(item, deriver)) < now - TICK_WINDOW_SECONDS}:
        then = {name: answer for name, _, answer in deriver.tick(end)}
        for item in signals.load():
            if item.name in then and _ended(item, deriver) == end:
                answers[item.name] = (item.name, now, then[item.name])
    return list(answers.values())


def _ended(item: signals.Signal | signals.Counter, deriver: Deriver) -> float:
    """Time of the newest sample of a tick signal's inputs, epoch seconds; inf if there is none."""
    gauges = (gauge for metric in inputs(item) for gauge in deriver.gauges.get(metric, {}).values())
    return max((gauge.last_ts for gauge in gauges), default=math.inf)


# ---- report

# Raw keys in the line of a signal.
KEYS_SHOWN = 3
MINUTE = 60.0
HOUR = 3600.0
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class CheckLine:
    """A signal: value, unit, raw keys and age (seconds), or the reason for a missing value."""

    name: str
    state: str
    value: float | None = None
    unit: str = ""
    keys: str = ""
    age: float | None = None
    why: str = ""


@dataclass(slots=True)
class RunReport:
    """The findings for one run."""

    name: str
    problems: list[str] = field(default_factory=list)
    looked_for: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lists: list[Listed] = field(default_factory=list)
    seen: list[ProbeResult] = field(default_factory=list)
    lines: list[CheckLine] = field(default_factory=list)
    disputes: list[str] = field(default_factory=list)
    able: list[str] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)

    @property
    def fine(self) -> bool:
        return not self.problems and all(item.up for item in self.seen) and all(item.fine for item in self.lists)


@dataclass(slots=True)
class Report:
    """The findings for all runs."""

    alerting: list[str]
    runs: list[RunReport]

    @property
    def fine(self) -> bool:
        return all(run.fine for run in self.runs)


def probe(runs: Sequence[RunSettings], alerts: AlertSettings) -> Report:
    """Attach to every run and read it once."""
    return Report(_alerting(alerts), [_probe(run, alerts.rules) for run in runs])


def _probe(run: RunSettings, rules: Sequence[Rule]) -> RunReport:
    try:
        return _run(attach(run, hint=" (`up` and `watch --wait` wait for it)"), rules)
    except ConfigError as error:
        return RunReport(run.name, list(error.problems), _looked_for(run))


def _looked_for(run: RunSettings) -> list[str]:
    """The file names that each collector looks for, if no collector recognises a path."""
    paths = [Path(target.source).expanduser() for target in run.targets if not target.is_url and not target.collector]
    if not any(map(_unknown, paths)):
        return []
    file_collectors = [collector for _, collector in sorted(collectors.load().items()) if collector.looks_for]
    return [f"{collector.name}: {', '.join(dict.fromkeys(collector.looks_for))}" for collector in file_collectors]


def _unknown(path: Path) -> bool:
    try:
        return os.access(path, os.R_OK) and not detect_path(path) and not targets_lists.broken(path)
    except (ScrapeError, OSError):
        return False  # the path exists but cannot be read


def _alerting(alerts: AlertSettings) -> list[str]:
    receivers = ", ".join(f"{receiver.name} ({receiver.kind})" for receiver in alerts.receivers)
    goal = f"alerts go to {receivers}" if receivers else "no receiver is configured: add [[alerts.receiver]]"
    lines = [f"{len(alerts.rules)} alert rules; {goal}"]
    for receiver in alerts.receivers:
        if not any(_may_match(receiver.match, rule) for rule in alerts.rules):
            lines.append(f"receiver {receiver.name}: no rule's alerts can match {', '.join(map(str, receiver.match))}")
    return lines


def _may_match(matchers: Sequence[Matcher], rule: Rule) -> bool:
    """Compares only labels that every alert of a rule has; labels of its series appear later."""
    fixed = {**dict(rule.labels), "alertname": rule.name, "severity": rule.severity, "class": rule.class_}
    return all(matcher.matches(fixed) for matcher in matchers if matcher.name in ("alertname", "severity", "class"))


# ---- a run


def _run(run: Attached, rules: Sequence[Rule]) -> RunReport:
    now = WallClock().now()
    lists, listed_targets = listed(run, now)
    targets = [*run.targets, *listed_targets]
    report = RunReport(run.name, notes=list(run.notes), lists=lists, seen=probe_targets(targets, now))
    with tempfile.TemporaryDirectory(prefix="rollscope-check-") as folder, _store(folder) as store:
        # What was reported once holds, because each target is read once.
        settings = PipelineSettings(run.facts, AlertSettings(tuple(rules)), now, carry=lambda _: math.inf)
        pipeline = RunPipeline(store, run.name, RunTargets.of(targets), settings)
        for seen in report.seen:
            apply_stated(seen, run.facts)
            seen.unseen = unreadable.problems(Path(seen.target.path)) if seen.target.path and seen.up else []
            for reading in seen.readings:
                pipeline.feed(seen.target, reading, now)
            if seen.failure is not None:
                pipeline.feed(seen.target, seen.failure, now)
        pipeline.driver.recall()
    _evaluate(report, pipeline, rules, now)
    return report


@contextmanager
def _store(folder: str) -> Iterator[Store]:
    url = f"sqlite:///{folder}/check.db"
    migrate(url)
    with closing(Store.open(url)) as store:
        yield store


def _evaluate(report: RunReport, pipeline: RunPipeline, rules: Sequence[Rule], now: float) -> None:
    deriver, trust = pipeline.driver.deriver, pipeline.targets.trust
    answers = deriver.steps_now(now) + ticks(deriver, now)
    for name, _, answer in answers:
        report.lines += _lines(name, answer, deriver, report.seen, now)
    complaints = ((seen.target.name, trust.complaint(seen.target.name)) for seen in report.seen)
    report.disputes = [f"{name} {text}" for name, text in complaints if text]
    _firing(report, deriver, {name: answer for name, _, answer in answers}, rules)


# ---- its signals


def _lines(name: str, answer: Answer, deriver: Deriver, seen: Sequence[ProbeResult], now: float) -> Iterator[CheckLine]:
    item = next(signal for signal in signals.load() if signal.name == name)
    if isinstance(answer, (list, tuple)):
        keys, age = _keys(item, seen), _age(item, deriver, now)
        for value in answer:
            if math.isnan(value.value):
                yield CheckLine(format_name(name, value.labels), "unknown", why=value.why)
            else:
                yield CheckLine(format_name(name, value.labels), "value", value.value, item.unit, keys, age)
    elif isinstance(answer, NotApplicable):
        yield CheckLine(name, "not_applicable", why=answer.why)
    else:
        yield CheckLine(name, "unknown", why=_lacking(item, unknown_reason(answer), deriver, seen))


def _lacking(item: signals.Signal | signals.Counter, reason: str, deriver: Deriver, seen: Sequence[ProbeResult]) -> str:
    reported = {metric for result in seen for metric in result.metrics}
    kinds = (str(deriver.facts.get("framework", "")), *(result.target.collector for result in seen))
    return missing_metrics(item, reason, reported.__contains__, kinds) if isinstance(item, signals.Signal) else reason


def _keys(item: signals.Signal | signals.Counter, seen: Sequence[ProbeResult]) -> str:
    """The raw keys behind a signal, by target."""
    texts = []
    for result in seen:
        origins = [result.origins.get(metric, "") for metric in inputs(item) if metric in result.metrics]
        keys = list(dict.fromkeys(filter(None, origins)))
        more = f" and {len(keys) - KEYS_SHOWN} more" if len(keys) > KEYS_SHOWN else ""
        if origins:
            texts.append(f"{', '.join(keys[:KEYS_SHOWN])}{more} ({result.target.name})".strip())
    return "; ".join(texts)


def _age(item: signals.Signal | signals.Counter, deriver: Deriver, now: float) -> float | None:
    if not isinstance(item, signals.Signal):
        return None
    if item.cadence == "tick" and any(deriver.gauges.get(metric) for metric in item.inputs):
        return now - deriver.data_time(item.name, now)
    times = [step.ts for metric in item.inputs for _, step in deriver.book.newest_of(metric)]
    newest = deriver.book.newest_of_all()
    # A value that follows from the mode or from row times has no sample of its own: it is as old as the newest step.
    times += [newest.ts] if not times and newest is not None and not TRAINED.isdisjoint(item.inputs) else []
    return now - max(times) if times else None


# ---- its rules


def _firing(report: RunReport, deriver: Deriver, answers: Mapping[str, Answer], rules: Sequence[Rule]) -> None:
    """Which rules can fire with the metrics that were read, and what the others lack."""
    for rule in rules:
        reasons = (_lacks(deriver, answers, condition, report.seen) for condition in rule.conditions)
        lacks = next(filter(None, reasons), "")
        if lacks:
            report.lacking[rule.name] = lacks
        else:
            report.able.append(rule.name)


def _lacks(deriver: Deriver, answers: Mapping[str, Answer], condition: Condition, seen: Sequence[ProbeResult]) -> str:
    """What is missing for a condition to become true; "" if nothing is."""
    if never := missing(condition, None, frozenset()):
        return never
    if condition.kind == "absence" or condition.name == TARGET_UP:
        return ""
    if condition.source == "metric":
        is_reported = condition.name in deriver.gauges or any(deriver.book.newest_of(condition.name))
        return "" if is_reported else f"no source: no target reports {condition.name}"
    answer = answers.get(condition.name)
    if isinstance(answer, (list, tuple)) and not any(all_match(condition.matchers, dict(v.labels)) for v in answer):
        names = sorted({name for value in answer for name, _ in value.labels})
        matchers = ", ".join(map(str, condition.matchers))
        return f"no series of {condition.name} matches {matchers}; its labels: {', '.join(names) or 'none'}"
    if isinstance(answer, NotApplicable):
        return f"not applicable: {answer.why}"
    items = {item.name: item for item in signals.load() if isinstance(item, signals.Signal)}
    # Any other reason than the hint passes with time: a rate needs two pages, a window three steps.
    if not isinstance(answer, Unknown) or answer.why != items[condition.name].hint:
        return ""
    return f"no source: {_lacking(items[condition.name], answer.why, deriver, seen)}"


# ---- as text and as JSON


def text(report: Report) -> str:
    """The report for the terminal: a table of signals for each run."""
    if not report.runs:
        return "\n".join(["the configuration is valid; it names no run", *report.alerting])
    return "\n".join([*report.alerting, *(line for run in report.runs for line in _run_text(run))])


def _run_text(run: RunReport) -> Iterator[str]:
    yield from (f"{run.name}: {problem}" for problem in run.problems)
    if run.looked_for:
        yield "  for the log of another trainer, map its keys to metrics: docs/how-to/custom-logs.md"
        yield "  what was looked for:"
        yield from (f"    {line}" for line in run.looked_for)
    if run.problems:
        return
    yield f"run {run.name}"
    yield from (f"  {note}" for note in run.notes)
    yield from (f"  {entry.describe()}" for entry in run.lists)
    for seen in run.seen:
        yield from _target_text(seen)
    yield from (f"  data trust: {line}" for line in run.disputes)
    yield from _table([line for line in run.lines if line.state == "value"])
    width = max((len(line.name) for line in run.lines if line.state != "value"), default=0)
    for line in run.lines:
        if line.state != "value":
            state = "not applicable: " if line.state == "not_applicable" else ""
            yield f"  {line.name:<{width}}  {state}{line.why}"
    yield f"  rules that can fire: {len(run.able)} of {len(run.able) + len(run.lacking)}: {_list_lines(run.able)}"
    yield from (f"  rule {name}: {lacks}" for name, lacks in run.lacking.items())


def _list_lines(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _reported(seen: ProbeResult) -> str:
    """What a target reported: samples, or rollout records."""
    rollouts = [rollout for reading in seen.readings for rollout in reading.rollouts]
    if rollouts and not seen.metrics:
        return f"{len(rollouts)} records of {len({rollout.rollout_id for rollout in rollouts})} rollouts"
    return f"{seen.count} samples of {len(seen.metrics)} metrics"


def _target_text(seen: ProbeResult) -> Iterator[str]:
    head = f"  {seen.target.name} ({seen.target.collector})"
    if not seen.up:
        yield f"{head}: DOWN, {seen.error}"
        return
    more = ", more to read" if seen.more else ""
    yield f"{head}: up, {_reported(seen)}{more}, {seen.seconds:.2f} s"
    yield f"    {describe(seen)}"
    identity_facts = ("framework", "framework_version", "mode", "usual_mode", "run_name")
    yield from (
        f"    fact {name} = {value}" for name, value in sorted(seen.facts.items()) if name not in identity_facts
    )
    if seen.unmapped:
        yield f"    {len(seen.unmapped)} unmapped keys: {', '.join(sorted(seen.unmapped)[:20])}"
    if seen.dropped:
        yield f"    dropped {seen.dropped} ({seen.why_dropped or 'no reason given'})"
    yield from (f"    incomplete: {line}" for line in seen.gaps)
    yield from (f"    not read: {line}" for line in seen.unseen)
    if seen.target.collector in collectors.record_formats():
        yield from (f"    {line}" for line in of_records(collectors.load()[seen.target.collector]))


def _table(lines: Sequence[CheckLine]) -> Iterator[str]:
    cells = [(line.name, f"{line.value:.4g} {line.unit}".rstrip(), age(line.age), line.keys) for line in lines]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(3)]
    for name, value, old, keys in cells:
        yield f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {old:>{widths[2]}}  {keys}".rstrip()


def age(seconds: float | None) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``9 d``."""
    if seconds is None:
        return ""
    for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def dump(report: Report) -> str:
    """The same as JSON."""
    runs = [_run_json(run) for run in report.runs]
    return json.dumps({"fine": report.fine, "alerting": report.alerting, "runs": runs}, indent=2)


def _run_json(run: RunReport) -> dict[str, object]:
    targets = [
        {
            "target": seen.target.name, "collector": seen.target.collector, "up": seen.up, "error": seen.error,
            **seen.identity(), "facts": seen.facts,
            "metrics": sorted(seen.metrics), "origins": seen.origins, "unmapped": seen.unmapped, "more": seen.more,
            "dropped": seen.dropped, "why_dropped": seen.why_dropped, "unseen": seen.unseen,
            "gaps": list(seen.gaps),
        }
        for seen in run.seen
    ]  # fmt: skip
    lines = [
        {
            "signal": line.name, "state": line.state, "value": line.value, "unit": line.unit, "keys": line.keys,
            "age_seconds": line.age, "why": line.why,
        }
        for line in run.lines
    ]  # fmt: skip
    lists = [
        {
            "list": entry.name, "kind": entry.kind, "error": entry.error, "note": entry.note, "targets": entry.names,
            "unknown": dict(entry.unknown),
        }
        for entry in run.lists
    ]  # fmt: skip
    return {
        "run": run.name, "fine": run.fine, "problems": run.problems, "looked_for": run.looked_for, "notes": run.notes,
        "lists": lists, "targets": targets, "signals": lines, "trust": run.disputes,
        "rules": {"able": run.able, "lacking": run.lacking},
    }  # fmt: skip
