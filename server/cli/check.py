"""`rollscope check`: validates the configuration and reads each target once."""

import asyncio
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import click

import collectors
from collectors.model import Event, Limits, Reading, Rollout, Sample, Target
from server import signals
from server.cli import FAILED, OK
from server.cli import program as colour
from server.cli.options import SOURCE, Options, common, settings
from server.cli.program import Command
from server.derive.deriver import Deriver, Emission
from server.ingest.rollouts import RolloutIngest, versions
from server.push.readings import Outcome
from server.query.types import mode_words
from server.scrape.target_reader import TargetReader
from server.signals.availability import inputs
from server.signals.model import TICK_WINDOW_SECONDS
from server.targets.discovery import TargetDiscovery
from server.targets.model import Attached, RunSettings
from server.targets.resolve import detect_listed


@click.command(cls=Command)
@common
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", help=SOURCE)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def command(options: Options, sources: tuple[str, ...], as_json: bool) -> int:
    chosen = settings(options)
    from server.cli import check_report  # noqa: PLC0415 - takes a second, and a usage error does not need it
    from server.targets.resolve import run_name, source_of  # noqa: PLC0415 - takes a second, and a usage error does not need it

    # A configuration at a default path is not checked when the command line names sources.
    runs = [] if sources and options.config_is_default else list(chosen.runs)
    if sources:
        targets = tuple(map(source_of, sources))
        runs.append(RunSettings(run_name(target.source for target in targets), targets))
    report = check_report.probe(runs, chosen.alerts)
    if as_json:
        print(check_report.dump(report))
    else:
        colour.show(check_report.text(report))
    return OK if report.fine else FAILED


# ---- probe
# Reads a target once, for `check` and for the first lines of `watch`.

# Reads of one target. A history of months needs more, but its beginning identifies it.
MAX_CALLS = 40
# Of a long history only the end is retained.
KEPT_SAMPLES = 200_000
KEPT_ROLLOUTS = 20_000
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
    """The result of reading a target. ``error``: why it failed; "" if the target is up."""

    target: Target
    error: str = ""
    seconds: float = 0.0
    more: bool = False
    reader: str = ""
    facts: dict[str, str | float] = field(default_factory=dict)
    count: int = 0
    records: int = 0
    metrics: set[str] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    dropped: int = 0
    why_dropped: str = ""
    gaps: tuple[str, ...] = ()
    unseen: list[str] = field(default_factory=list)

    @property
    def up(self) -> bool:
        return not self.error

    def take(self, reading: Reading, seconds: float) -> None:
        self.facts.update(reading.facts)
        self.count += len(reading.samples)
        self.records += len(reading.rollouts)
        self.metrics |= {sample.metric for sample in reading.samples}
        self.samples = [*self.samples, *reading.samples][-KEPT_SAMPLES:]
        self.rollouts = [*self.rollouts, *reading.rollouts][-KEPT_ROLLOUTS:]
        self.events = [*self.events, *reading.events][-KEPT_ROLLOUTS:]
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
            seen.error = str(outcome.error)
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


def feed_records(deriver: Deriver, seen: ProbeResult, now: float) -> None:
    """Feed a source's rollouts and published versions to the deriver, as the collecting server does."""
    for ts, version in versions(seen.events, now):
        deriver.rollouts.publish(version, ts)
    ingest = RolloutIngest(clock=deriver.rollouts.clock, facts=deriver.facts)
    for arrival in sorted(ingest.take(seen.target, seen.rollouts, now).arrivals, key=lambda arrival: arrival.ts):
        deriver.rollout(arrival)
    deriver.rollouts.changed = False


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
