"""One trainer framework as data: its keys, what they mean, and how its steps are told; and the tail that reads it.

A framework module holds a `Framework` and makes its `Collector` of it with `collector_of`. Everything that is the
same for all of them is here: which sink is read, rows of one step that come apart, totals since the start of the
process, times where the sink has none, resumed runs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from collectors.model import Actor, Basis, Collector, Cursor, Event, Labels, Limits, Mode, Reading, Sample, ScrapeError
from collectors.readers.jsonl import number
from collectors.readers.rows import Logged, Logs, Sink
from collectors.trainers import _dating, _sources
from collectors.trainers._memory import Memory, Origins, copied, mark, whole_steps

TRAINER = "trainer"
# A late row of a step is told from a rewind by what was logged for it before; older ones than this are not kept.
KEPT_STEPS = 4
UNMAPPED_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Key:
    """What one key of theirs is for us: value * scale + offset, in the catalogue's unit.

    Attributes:
        reduction: ``value``: the step's own; ``total``: since the process began, so the step gets the difference.
    """

    metric: str
    scale: float = 1.0
    labels: Labels = ()
    offset: float = 0.0
    reduction: Literal["value", "total"] = "value"


@dataclass(frozen=True, slots=True)
class Piece:
    """What one row says of one step of one axis. ``values``: finite numbers by key, prefixes taken off."""

    axis: str
    step: int
    ts: float
    values: Mapping[str, float]


Out = tuple[str, Labels, float]
"""(metric, labels, value) of a step, in the catalogue's unit."""


@dataclass(slots=True)
class Context:
    """What the functions of a framework may look at and keep.

    Attributes:
        own: JSON-able memory of theirs.
        restarted: the rows of this call begin a log (or a run in it) other than the one read before.
        finished: theirs to set: the evidence among the rows that the run is over, in words.
    """

    facts: dict[str, str | float]
    own: Memory
    sink: str
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    restarted: bool = False
    finished: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """A trainer framework.

    Attributes:
        name, reads, versions: as of `Collector`.
        sinks: what it can be read from, the best first (live, with times, complete).
        keys: their key -> ours; several ours for one of theirs are allowed.
        patterns: for families of keys; the first that matches wholly answers, None: known and not used.
        ignored: keys known and not used (bookkeeping, extremes of what is read anyway, evaluation).
        marks: keys that only it logs; one is enough to know it, of several in a tuple all. Patterns match wholly.
        not_marks: keys that speak against it (a sibling with the same keys and more).
        config_marks: (flat) configuration keys that only it has, for sinks with a configuration.
        strip: prefixes taken off every key, the first that fits.
        split: a row -> pieces; the default is one piece of axis `trainer` at the sink's step.
        needs: keys of which `derive` sees what was logged for the step so far, in this row or an earlier one.
        derive: (piece with the values of `needs`, context) -> what follows from several keys together.
        facts: a configuration (nested or flat, as the sink has it) -> facts.
        folder_facts: facts from other files of the run directory (configs on disk).
        seen: every row, before it is split: for events, and for gauges of the moment (`context.samples`).
        beside: after the rows: what other files of the run directory say now (facts, `context.finished`).
        seconds: keys that tell how long a step took, for rows without a time.
        mode: where neither facts nor rows say it.
        first_step: the number of a run's first step on axis `trainer`: with fact `max_steps` it tells the last one.
        extra_path: does this path give it away by something else than a log? The reason, or None.
        derives: metrics that `patterns`, `derive`, `seen` and `beside` can give beside those of `keys`.
        hints: metric -> what to set in the framework so that it is logged.
    """

    name: str
    reads: str
    versions: str
    sinks: tuple[Sink, ...]
    keys: Mapping[str, Key | tuple[Key, ...]]
    patterns: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Key | None]], ...] = ()
    ignored: re.Pattern[str] | None = None
    marks: tuple[str | tuple[str, ...], ...] = ()
    not_marks: tuple[str, ...] = ()
    config_marks: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()
    split: Callable[[Logged, Mapping[str, float], Context], Iterable[Piece]] | None = None
    needs: frozenset[str] = frozenset()
    derive: Callable[[Piece, Context], Iterable[Out]] | None = None
    facts: Callable[[Mapping[str, Any]], Mapping[str, str | float]] | None = None
    folder_facts: Callable[[Path], Mapping[str, str | float]] | None = None
    seen: Callable[[Logged, Mapping[str, float], Context], None] | None = None
    beside: Callable[[Path, Context], None] | None = None
    seconds: tuple[str, ...] = ()
    mode: Mode = "sync_colocated"
    first_step: int = 1
    extra_path: Callable[[Path], str | None] | None = None
    actor: Actor = "trainer"
    report_seconds: float = 10.0
    derives: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)


def gives(framework: Framework) -> dict[tuple[str, Labels], Basis]:
    """Every series the framework can report, as `Collector.gives`."""
    found: dict[tuple[str, Labels], Basis] = {(metric, ()): "derived" for metric in framework.derives}
    for ours in framework.keys.values():
        found |= {(key.metric, key.labels): "native" for key in (ours if isinstance(ours, tuple) else (ours,))}
    return found


def collector_of(framework: Framework, **more: Any) -> Collector:
    """The collector that tails a framework's runs; ``more``: further fields of `Collector`."""
    return Collector(
        name=framework.name,
        actor=framework.actor,
        reads=framework.reads,
        versions=framework.versions,
        tail=lambda path, cursor, limits, now: tail(framework, path, cursor, limits, now),
        matches_path=lambda path: matches(framework, path),
        report_seconds=framework.report_seconds,
        looks_for=tuple(sink.looks_for for sink in framework.sinks),
        gives=gives(framework),
        hints=framework.hints,
        **more,
    )


def matches(framework: Framework, path: Path) -> str | None:
    """Why this file or directory is one of the framework's runs, or None."""
    try:
        said = framework.extra_path(path) if framework.extra_path is not None else None
        if said is not None:
            return said
        found = _sources.choose(framework.sinks, path, lambda peek: recognised(framework, peek) is not None)
    except (ScrapeError, OSError):
        return None
    if found is None:
        return None
    return f"{found.sink.name} {found.path.name} with {recognised(framework, found.peek)}"


def recognised(framework: Framework, peek: _sources.Peek) -> str | None:
    """The key or configuration that gives the framework away, or None."""
    keys = {_stripped(framework, key) for key in peek.keys}
    if any(re.fullmatch(one, key) for one in framework.not_marks for key in keys):
        return None
    for one in framework.marks:
        parts = (one,) if isinstance(one, str) else one
        found = [next((key for key in sorted(keys) if re.fullmatch(part, key)), None) for part in parts]
        if None not in found:
            return found[0]
    return next((f"the setting {one}" for one in framework.config_marks if one in peek.config), None)


def tail(framework: Framework, path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Steps, facts and events since ``cursor``, oldest first.

    Args:
        path: a run directory, or one log of a kind the framework writes.

    Raises:
        ScrapeError: ``missing``, ``not_a_run``, ``locked``, ``garbage``, ``too_large``.
    """
    try:
        return _Tail(framework, path, cursor, limits, now).reading()
    except OSError as error:
        # A folder that may not be entered, or went away between two looks at it.
        raise ScrapeError("missing", f"the run cannot be read: {type(error).__name__}") from None


class _Tail:
    """One call of `tail`. The cursor is ``{source, at, facts, own, axes, totals, ts, life, finished}``."""

    def __init__(self, framework: Framework, path: Path, cursor: Cursor, limits: Limits, now: float) -> None:
        self.framework, self.path, self.limits, self.now = framework, path, limits, now
        self.memory: Memory = copied(cursor)
        self.samples: list[Sample] = []
        self.unmapped: dict[str, int] = {}
        self.origins = Origins()
        self.source = _sources.follow(framework.sinks, path, self.memory.get("source", {}), self._known)
        self.context = Context(
            {**self.memory.get("facts", {})}, self.memory.setdefault("own", {}), self.source.sink.name
        )

    def _known(self, peek: _sources.Peek) -> bool:
        return recognised(self.framework, peek) is not None

    def reading(self) -> Reading:
        memory, context = self.memory, self.context
        before = memory.get("source") or {}
        moved = bool(before) and before.get("path") != str(self.source.path)
        logs = self.source.sink.read(self.source.path, {} if moved else memory.get("at", {}), self.limits)
        whole_steps(logs)
        memory["source"], memory["at"] = _sources.remembered(self.source, before, logs.more), logs.cursor
        context.restarted = moved or logs.restarted
        if context.restarted:
            self._new_file()
        self._facts(logs)
        estimated = _dating.date(logs, self._seconds, memory.get("ts"), self.now)
        if estimated:
            context.facts["times_estimated"] = 1.0
        for row in logs.rows:
            self._row(row)
        if self.framework.beside is not None and self.path.is_dir():
            self.framework.beside(self.path, context)
        self._lifecycle(logs)
        memory["facts"] = {key: value for key, value in context.facts.items() if not key.startswith("lifecycle")}
        return self._reading(logs)

    def _new_file(self) -> None:
        # Its totals begin anew; its steps may, and the store tells a rewind from going on.
        self.memory["totals"] = {}
        self.memory["axes"] = {}

    def _facts(self, logs: Logs) -> None:
        facts, framework = self.context.facts, self.framework
        facts["framework"] = framework.name
        facts.setdefault("mode", framework.mode)
        if framework.folder_facts is not None and self.path.is_dir():
            facts.update(framework.folder_facts(self.path))
        if framework.facts is not None and logs.config:
            facts.update(framework.facts(logs.config))
        if logs.run_name:
            facts["run_name"] = logs.run_name

    def _seconds(self, row: Logged) -> float | None:
        values = (number(row.values.get(key)) for key in self.framework.seconds)
        return next((value for value in values if value is not None), None)

    def _row(self, row: Logged) -> None:
        framework, context = self.framework, self.context
        values = finite(framework, row.values)
        assert row.ts is not None
        if framework.seen is not None:
            framework.seen(row, values, context)
        split = framework.split or _one_piece
        for piece in split(row, values, context):
            self._piece(piece)

    def _piece(self, piece: Piece) -> None:
        """Samples of one piece; what comes late for an earlier step keeps that step's time."""
        axis = self.memory.setdefault("axes", {}).setdefault(piece.axis, {})
        steps: dict[str, Memory] = axis.setdefault("steps", {})
        known = self._same_step(steps, piece)
        if known is None:
            # Ascending within an axis, or the store would take a step of the same moment for an old one.
            ts = max(piece.ts, axis.get("ts", piece.ts) + _dating.APART_SECONDS) if steps else piece.ts
            known = {"ts": ts, "keys": [], "values": {}}
            if str(piece.step) in steps or any(int(step) > piece.step for step in steps):
                steps.clear()
                self.memory.setdefault("rewound", []).append(piece.axis)
            steps[str(piece.step)] = known
            axis["ts"] = ts
        known["keys"] = sorted({*known["keys"], *map(mark, piece.values)})
        known["values"].update({key: piece.values[key] for key in piece.values if key in self.framework.needs})
        while len(steps) > KEPT_STEPS:
            del steps[min(steps, key=int)]
        self._samples(replace(piece, ts=known["ts"]), known)
        self.memory["ts"] = max(self.memory.get("ts", piece.ts), known["ts"])

    def _same_step(self, steps: Mapping[str, Memory], piece: Piece) -> Memory | None:
        """What is known of the step, unless this is another life's: then the same keys come once more."""
        known = steps.get(str(piece.step))
        if known is None:
            return None
        newest = max(steps, key=int) == str(piece.step)
        again = not set(map(mark, piece.values)).isdisjoint(known["keys"])
        # Rows of the newest step may repeat a key (a correction, a step logged twice): the later word wins.
        return known if newest or not again else None

    def _samples(self, piece: Piece, known: Memory) -> None:
        step = (piece.ts, piece.step, piece.axis)
        for key, value in piece.values.items():
            found = self._mapped(key)
            for ours in found or ():
                self._sample(ours, key, value, *step)
                self.origins.add(ours.metric, key)
            if found is None:
                name = key[:UNMAPPED_LENGTH]
                self.unmapped[name] = self.unmapped.get(name, 0) + 1
        if self.framework.derive is not None:
            merged, told = replace(piece, values=known["values"]), known.setdefault("told", {})
            for metric, labels, value in self.framework.derive(merged, self.context):
                # Each row of a step derives anew; only what is new, or other than before, is said.
                if told.get(told_as := str(mark(f"{metric}{labels}"))) != value:
                    self.samples.append(Sample(metric, value, labels, *step))
                    self.origins.add(metric, "of several keys")
                told[told_as] = value

    def _sample(self, ours: Key, key: str, value: float, ts: float, step: int, axis: str) -> None:
        if ours.reduction == "total":
            delta = self._delta(key, value, axis)
            if delta is None:
                return
            value = delta
        self.samples.append(Sample(ours.metric, value * ours.scale + ours.offset, ours.labels, ts, step, axis))

    def _delta(self, key: str, value: float, axis: str) -> float | None:
        """What a total grew by since the row before. None for the first one met: when that was counted is not known."""
        totals = self.memory.setdefault("totals", {})
        before, totals[key] = totals.get(key), value
        if before is None:
            return None
        if value >= before:
            return float(value - before)
        # It began anew: at a restart of the process. When the steps went back too, they are counted again.
        return 0.0 if axis in self.memory.get("rewound", ()) else value

    def _mapped(self, key: str) -> tuple[Key, ...] | None:
        """Ours for a key of theirs: empty when it is known and not used, None when nobody knows it."""
        framework = self.framework
        found = framework.keys.get(key)
        if found is not None:
            return found if isinstance(found, tuple) else (found,)
        for pattern, make in framework.patterns:
            if (match := pattern.fullmatch(key)) is not None:
                ours = make(match)
                return (ours,) if ours is not None else ()
        if key in framework.needs or (framework.ignored is not None and framework.ignored.fullmatch(key)):
            return ()
        return None

    def _lifecycle(self, logs: Logs) -> None:
        memory, facts = self.memory, self.context.facts
        most = facts.get("max_steps")
        steps = memory.get("axes", {}).get(TRAINER, {}).get("steps", {})
        last = max(map(int, steps), default=None)
        why = logs.finished or self.context.finished
        if not why and isinstance(most, float) and last is not None and last >= most - 1 + self.framework.first_step:
            why = f"step {last} is the last of {most:.0f}"
        if why:
            facts |= {"lifecycle": "crashed" if logs.failed else "finished", "lifecycle_why": why}
            memory["finished"] = True
        elif self.samples and memory.pop("finished", False):
            facts |= {"lifecycle": "running", "lifecycle_why": "new rows after the end"}

    def _reading(self, logs: Logs) -> Reading:
        self.memory.pop("rewound", None)
        for sample in self.context.samples:
            self.origins.add(sample.metric, "between steps")
        return Reading(
            samples=(*self.samples, *self.context.samples),
            events=tuple(self.context.events),
            facts=dict(self.context.facts),
            unmapped=self.unmapped,
            cursor=self.memory,
            more=logs.more,
            dropped=logs.dropped,
            why_dropped=logs.why,
            samples_scraped=len(logs.rows),
            origins=self.origins.said(),
            reader=self.source.seen_from(self.path),
        )


def finite(framework: Framework, values: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers by key, prefixes taken off; texts and flags are none."""
    figures = ((key, number(value)) for key, value in values.items())
    return {_stripped(framework, key): figure for key, figure in figures if figure is not None}


def _one_piece(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    if row.step is not None and row.ts is not None and values:
        yield Piece(TRAINER, row.step, row.ts, values)


def _stripped(framework: Framework, key: str) -> str:
    for prefix in framework.strip:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return key
