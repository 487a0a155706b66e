"""The tail that reads any trainer framework by its `model.Framework`.

A framework module holds a `Framework` and makes its `Collector` of it with `collector_of`. Everything that is the
same for all of them is here: which sink is read, rows of one step that come apart, totals since the start of the
process, times where the sink has none, resumed runs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs
from collectors.model import Collector, Cursor, Labels, Limits, Position, Reading, Sample, ScrapeError
from collectors.training_logs import dating, sources
from collectors.training_logs.folds import Folds
from collectors.training_logs.memory import Memory, Origins, copied, mark, whole_steps
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Piece, gives

# A late row of a step is told from a rewind by what was logged for it before; older ones than this are not kept.
KEPT_STEPS = 4
UNMAPPED_LENGTH = 120


def collector_of(framework: Framework, **more: Any) -> Collector:
    """The collector that tails a framework's runs; ``more``: further fields of `Collector`."""
    return Collector(
        name=framework.name,
        configured=lambda options: collector_of(replace(framework, stated=stated_facts(options)), **more),
        actor=framework.actor,
        reads=framework.reads,
        versions=framework.versions,
        tail=lambda path, cursor, limits, now: tail(framework, path, cursor, limits, now),
        matches_path=lambda path: matches(framework, path),
        position=position,
        recent=lambda path, limits, now, size: recent(framework, path, limits, now, size),
        report_seconds=framework.report_seconds,
        looks_for=tuple(sink.looks_for for sink in framework.sinks),
        gives=gives(framework),
        hints=framework.hints,
        **more,
    )


def stated_facts(options: Mapping[str, str]) -> dict[str, str | float]:
    """Facts of the configuration, as they come with a target's options; numbers as those that logs tell."""
    facts: dict[str, str | int | float] = json.loads(options.get("facts", "{}"))
    return {name: value if isinstance(value, str) else float(value) for name, value in facts.items()}


def matches(framework: Framework, path: Path) -> str | None:
    """Why this file or directory is one of the framework's runs, or None.

    Raises:
        ScrapeError: ``locked``: there is a log, and nobody can tell whose.
    """
    try:
        said = framework.extra_path(path) if framework.extra_path is not None else None
        if said is not None:
            return said
        found = sources.choose(framework.sinks, path, lambda peek: recognised(framework, peek) is not None)
    except ScrapeError as error:
        if error.kind == "locked":
            raise
        return None
    except OSError:
        return None
    if found is None:
        return None
    return f"{found.sink.name} {found.path.name} with {recognised(framework, found.peek)}"


def recognised(framework: Framework, peek: sources.Peek) -> str | None:
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


def position(path: Path, cursor: Cursor) -> Position | None:
    """How far the log that a cursor of `tail` is about has been read; None where bytes are not counted."""
    log, at = Path(cursor.get("source", {}).get("path", path)), cursor.get("at", {})
    offset = at.get("offset", at.get("at", {}).get("offset") if isinstance(at.get("at"), Mapping) else None)
    try:
        return Position(log.name, int(offset), log.stat().st_size) if offset is not None else None
    except OSError:
        return None


# The configuration that a console log prints first, and the keys of the first steps.
HEAD_BYTES, HEAD_ROWS = 1 << 18, 100


def recent(framework: Framework, path: Path, limits: Limits, now: float, size: int) -> Cursor | None:
    """A cursor of `tail` near the end of the log; None: it is too short, or its sink is read from the start only."""
    head = tail(framework, path, {}, replace(limits, tail_bytes=HEAD_BYTES, tail_rows=HEAD_ROWS), now)
    memory: Memory = copied(head.cursor or {})
    sink = next((one for one in framework.sinks if one.name == memory["source"]["sink"]), None)
    log = Path(memory["source"]["path"])
    if sink is None or sink.near_end is None or log.stat().st_size <= size + HEAD_BYTES:
        return None
    own = {name: value for name, value in memory.items() if name not in ("axes", "totals", "ts", "finished")}
    return {**own, "at": sink.near_end(log, size)}


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the keys of a row mean. A log has a few layouts, and a row of a known one costs a third.

    Attributes:
        marks: of all its keys. needs: those that `Framework.derive` sees. unmapped: those without a meaning.
    """

    marks: frozenset[int]
    mapped: tuple[tuple[str, Key], ...]
    needs: tuple[str, ...]
    unmapped: tuple[str, ...]


class _Tail:
    """One call of `tail`. The cursor is ``{source, at, facts, own, axes, totals, ts, life, finished}``."""

    def __init__(self, framework: Framework, path: Path, cursor: Cursor, limits: Limits, now: float) -> None:
        self.framework, self.path, self.limits, self.now = framework, path, limits, now
        self.memory: Memory = copied(cursor)
        self.samples: list[Sample] = []
        self.unmapped: dict[str, int] = {}
        self.origins, self.folds = Origins(), Folds()
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._derived: dict[tuple[str, Labels], str] = {}
        self.source = sources.follow(framework.sinks, path, self.memory.get("source", {}), self._known)
        self.context = self._context()

    def _context(self) -> Context:
        known, stated = {**self.memory.get("facts", {})}, self.framework.stated
        if "mode" in stated and known.pop("mode_assumed", None):
            del known["mode"]
        found = {name: known[name] for name in stated if name in known}
        own = self.memory.setdefault("own", {})
        return Context({**known, **stated}, own, self.source.sink.name, stated=stated, found=found)

    def _known(self, peek: sources.Peek) -> bool:
        return recognised(self.framework, peek) is not None

    def reading(self) -> Reading:
        memory, context = self.memory, self.context
        before = memory.get("source") or {}
        moved = bool(before) and before.get("path") != str(self.source.path)
        logs = self.source.sink.read(self.source.path, {} if moved else memory.get("at", {}), self.limits)
        whole_steps(logs)
        memory["source"] = sources.remembered(self.source, before, logs.more, bool(logs.rows))
        memory["at"] = logs.cursor
        upgraded = moved and sources.is_upgrade(self.framework.sinks, self.source, before)
        context.restarted = (moved and not upgraded) or logs.restarted
        if context.restarted or upgraded:
            self._new_file()
        self._facts(logs)
        estimated = dating.date(logs, self._seconds, memory.get("ts"), self.now)
        if estimated:
            context.facts["times_estimated"] = 1.0
        for row in logs.rows:
            self._row(row)
        if self.framework.beside is not None and self.path.is_dir():
            self.framework.beside(self.path, context)
        self._lifecycle(logs)
        told = {key: value for key, value in context.facts.items() if key not in context.stated} | context.found
        memory["facts"] = {key: value for key, value in told.items() if not key.startswith("lifecycle")}
        context.facts |= context.stated
        return self._reading(logs)

    def _new_file(self) -> None:
        # Its totals begin anew; its steps may, and the store tells a rewind from going on.
        self.memory["totals"] = {}
        self.memory["axes"] = {}

    def _facts(self, logs: Logs) -> None:
        facts, framework = self.context.facts, self.framework
        facts["framework"] = framework.name
        if "mode" not in facts:
            facts |= {"mode": framework.mode} | ({} if framework.only_mode else {"mode_assumed": 1.0})
        if framework.folder_facts is not None and self.path.is_dir():
            self.context.take(framework.folder_facts(self.path))
        if framework.facts is not None and logs.config:
            self.context.take(framework.facts(logs.config))
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
            ts = max(piece.ts, axis.get("ts", piece.ts) + dating.APART_SECONDS) if steps else piece.ts
            known = {"ts": ts, "keys": [], "values": {}}
            if str(piece.step) in steps or any(int(step) > piece.step for step in steps):
                steps.clear()
                self.memory.setdefault("rewound", []).append(piece.axis)
            steps[str(piece.step)] = known
            axis["ts"] = ts
        layout = self._layout(piece.values)
        known["keys"] = sorted(layout.marks.union(known["keys"]))
        known["values"].update({key: piece.values[key] for key in layout.needs})
        while len(steps) > KEPT_STEPS:
            del steps[min(steps, key=int)]
        self._samples(Piece(piece.axis, piece.step, known["ts"], piece.values), layout, known)
        self.memory["ts"] = max(self.memory.get("ts", piece.ts), known["ts"])

    def _same_step(self, steps: Mapping[str, Memory], piece: Piece) -> Memory | None:
        """What is known of the step, unless this is another life's: then the same keys come once more."""
        known = steps.get(str(piece.step))
        if known is None:
            return None
        newest = max(steps, key=int) == str(piece.step)
        # Rows of the newest step may repeat a key (a correction, a step logged twice): the later word wins.
        return known if newest or self._layout(piece.values).marks.isdisjoint(known["keys"]) else None

    def _layout(self, values: Mapping[str, float]) -> _Layout:
        keys = tuple(values)
        layout = self._layouts.get(keys)
        if layout is None:
            mapped = {key: self._mapped(key) for key in keys}
            layout = self._layouts[keys] = _Layout(
                frozenset(map(mark, keys)),
                tuple((key, ours) for key, found in mapped.items() for ours in found or ()),
                tuple(key for key in keys if key in self.framework.needs),
                tuple(key[:UNMAPPED_LENGTH] for key, found in mapped.items() if found is None),
            )
            for key, ours in layout.mapped:
                if not ours.fold:
                    self.origins.add(ours.metric, key)
        return layout

    def _samples(self, piece: Piece, layout: _Layout, known: Memory) -> None:
        values, ts, step, axis = piece.values, piece.ts, piece.step, piece.axis
        for key, ours in layout.mapped:
            value: float | None = values[key]
            if ours.reduction == "total":
                value = self._delta(key, values[key], axis)
                if value is None:
                    continue
            assert value is not None
            if ours.fold:
                self.folds.add(known, ours, key, value * ours.scale + ours.offset)
            else:
                value = value * ours.scale + ours.offset
                self.samples.append(Sample(ours.metric, value, ours.labels, ts, step, axis))
        for name in layout.unmapped:
            self.unmapped[name] = self.unmapped.get(name, 0) + 1
        for ours, keys, folded in self.folds.told():
            self.samples.append(Sample(ours.metric, folded, ours.labels, ts, step, axis))
            for key in keys:
                self.origins.add(ours.metric, key)
        if self.framework.derive is not None:
            self._derive(piece, known)

    def _derive(self, piece: Piece, known: Memory) -> None:
        """Metrics that follow from several keys of the step so far."""
        assert self.framework.derive is not None
        merged, told = Piece(piece.axis, piece.step, piece.ts, known["values"]), known.setdefault("told", {})
        for metric, labels, derived in self.framework.derive(merged, self.context):
            # Each row of a step derives anew; only what is new, or other than before, is said.
            if told.get(told_as := self._told_as(metric, labels)) != derived:
                self.samples.append(Sample(metric, derived, labels, piece.ts, piece.step, piece.axis))
            told[told_as] = derived

    def _told_as(self, metric: str, labels: Labels) -> str:
        """A derived metric's name in the memory of a step."""
        found = self._derived.get((metric, labels))
        if found is None:
            self.origins.add(metric, "of several keys")
            found = self._derived[(metric, labels)] = str(mark(f"{metric}{labels}"))
        return found

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
        if framework.find is not None and (answer := framework.find(key)) is not None:
            return answer
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
            dropped=logs.dropped + self.folds.dropped,
            why_dropped=logs.why or self.folds.why,
            samples_scraped=len(logs.rows),
            origins=self.origins.said(),
            reader=self.source.seen_from(self.path),
        )


def finite(framework: Framework, values: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers by key, prefixes taken off; texts and flags are none."""
    # Nearly all values are floats: to ask `number` about each was a fifth of reading a long log.
    figures = {
        key: value
        for key, given in values.items()
        if (value := (given if isfinite(given) else None) if type(given) is float else number(given)) is not None
    }
    return {_stripped(framework, key): value for key, value in figures.items()} if framework.strip else figures


def _one_piece(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    if row.step is not None and row.ts is not None and values:
        yield Piece(TRAINER, row.step, row.ts, values)


def _stripped(framework: Framework, key: str) -> str:
    for prefix in framework.strip:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return key
