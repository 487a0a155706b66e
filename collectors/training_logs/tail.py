"""Reads any trainer framework's log by its `model.Framework`.

A framework module defines a `Framework` and makes its `Collector` with `collector_of`. This module has what all
frameworks share: selection of the sink, rows of one step that come separately, totals since the start of the process,
times for sinks without times, resumed runs.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs
from collectors.model import Collector, Cursor, Event, Labels, Limits, Position, Reading, Sample, ScrapeError
from collectors.training_logs import clocks, sources
from collectors.training_logs.model import (
    EVALUATION,
    FOLDS,
    ONLY,
    TRAINER,
    Context,
    Framework,
    Key,
    Memory,
    Origins,
    Piece,
    copied,
    gives,
    mark,
    whole_steps,
)
from collectors.transport import bytetail

# For rows without the duration of their step. Any estimate keeps the order; one second does not look precise.
UNKNOWN_STEP_SECONDS = 1.0
# Smallest distance of two rows of the same moment.
MIN_GAP_SECONDS = 0.001
# Steps cached per axis. The keys logged for a step distinguish a late row from a rewind.
CACHED_STEPS = 4
UNMAPPED_LENGTH = 120


def collector_of(framework: Framework, **more: Any) -> Collector:
    """Makes the collector of a framework; ``more``: further fields of `Collector`."""
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
    """Facts of the configuration from a target's options; numbers become floats, as in logs."""
    facts: dict[str, str | int | float] = json.loads(options.get("facts", "{}"))
    return {name: value if isinstance(value, str) else float(value) for name, value in facts.items()}


def matches(framework: Framework, path: Path) -> str | None:
    """Returns why this file or directory is a run of the framework, or None.

    Raises:
        ScrapeError: ``locked``: there is a log, but its framework cannot be detected now.
    """
    try:
        reason = framework.extra_path(path) if framework.extra_path is not None else None
        if reason is not None:
            return reason
        source = sources.choose(framework.sinks, path, lambda peek: recognised(framework, peek) is not None)
    except ScrapeError as error:
        if error.kind == "locked":
            raise
        return None
    except OSError:
        return None
    if source is None:
        return None
    return f"{source.sink.name} {source.path.name} with {recognised(framework, source.peek)}"


def recognised(framework: Framework, peek: sources.Peek) -> str | None:
    """The key or configuration that identifies the framework, or None."""
    keys = {_stripped(framework, key) for key in peek.keys}
    if any(re.fullmatch(marks_of_key, key) for marks_of_key in framework.not_marks for key in keys):
        return None
    for marks_of_key in framework.marks:
        parts = (marks_of_key,) if isinstance(marks_of_key, str) else marks_of_key
        matched_keys = [next((key for key in sorted(keys) if re.fullmatch(part, key)), None) for part in parts]
        if None not in matched_keys:
            return matched_keys[0]
    return next(
        (f"the setting {marks_of_key}" for marks_of_key in framework.config_marks if marks_of_key in peek.config), None
    )


def tail(framework: Framework, path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Steps, facts and events since ``cursor``, oldest first.

    Args:
        path: a run directory, or one log of a kind the framework writes.

    Raises:
        ScrapeError: ``missing``, ``not_a_run``, ``locked``, ``garbage``, ``too_large``.
    """
    with bytetail.readable("the run"):
        return _Tail(framework, path, cursor, limits, now).reading()


def position(path: Path, cursor: Cursor) -> Position | None:
    """How far the log of a cursor of `tail` has been read; None if the sink does not count bytes."""
    log, at = Path(cursor.get("source", {}).get("path", path)), cursor.get("at", {})
    offset = at.get("offset", at.get("at", {}).get("offset") if isinstance(at.get("at"), Mapping) else None)
    try:
        return Position(log.name, int(offset), log.stat().st_size) if offset is not None else None
    except OSError:
        return None


# Bytes at the start of a console log with the configuration that is printed first.
HEAD_BYTES = 1 << 18
# Rows with the keys of the first steps.
HEAD_ROWS = 100


def recent(framework: Framework, path: Path, limits: Limits, now: float, size: int) -> Cursor | None:
    """A cursor of `tail` near the end of the log; None if the log is short or its sink is read from the start only."""
    head = tail(framework, path, {}, replace(limits, tail_bytes=HEAD_BYTES, tail_rows=HEAD_ROWS), now)
    memory: Memory = copied(head.cursor or {})
    sink = next((candidate for candidate in framework.sinks if candidate.name == memory["source"]["sink"]), None)
    # Of a resumed run, the log of the newest start.
    log = Path(memory["source"].pop("later", [memory["source"]["path"]])[-1])
    memory["source"]["path"] = str(log)
    if sink is None or sink.near_end is None or log.stat().st_size <= size + HEAD_BYTES:
        return None
    kept_memory = {name: value for name, value in memory.items() if name not in ("axes", "totals", "ts", "finished")}
    return {**kept_memory, "at": sink.near_end(log, size)}


@dataclass(frozen=True, slots=True)
class _Layout:
    """The meaning of a row's keys. A log has a few layouts, and a row of a cached layout costs a third.

    Attributes:
        marks: of all keys. needs: keys that `Framework.derive` reads. unmapped: keys without a meaning.
    """

    marks: frozenset[int]
    mapped: tuple[tuple[str, Key], ...]
    needs: tuple[str, ...]
    unmapped: tuple[str, ...]


class _Tail:
    """One call of `tail`. The cursor is ``{source, at, facts, own, axes, totals, ts, clock, fault, finished}``."""

    def __init__(self, framework: Framework, path: Path, cursor: Cursor, limits: Limits, now: float) -> None:
        self.framework, self.path, self.limits, self.now = framework, path, limits, now
        self.memory: Memory = copied(cursor)
        self.samples: list[Sample] = []
        self.unmapped: dict[str, int] = {}
        self.origins, self.folds = Origins(), Folds()
        self._layouts: dict[tuple[str, ...], _Layout] = {}
        self._derived: dict[tuple[str, Labels], str] = {}
        # Scores by the keys of a row; not among `samples`, because an evaluation after the end is no new step.
        self._scored: dict[tuple[str, ...], tuple[tuple[str, str, Labels], ...]] = {}
        self.scores: list[Sample] = []
        self.source = sources.follow(framework.sinks, path, self.memory.get("source", {}), self._recognises)
        self.context = self._context()

    def _context(self) -> Context:
        reported, stated = {**self.memory.get("facts", {})}, self.framework.stated
        if "mode" in stated:
            reported.pop("usual_mode", None)
        overridden = {name: reported[name] for name in stated if name in reported}
        function_memory = self.memory.setdefault("own", {})
        sink = self.source.sink.name
        return Context({**reported, **stated}, function_memory, sink, stated=stated, overridden=overridden)

    def _recognises(self, peek: sources.Peek) -> bool:
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
        self._clock(logs, moved)
        self._fault(logs)
        self._facts(logs)
        estimated = estimate_times(logs, self._seconds, memory.get("ts"), self.now)
        if estimated:
            context.facts["times_estimated"] = 1.0
        for row in logs.rows:
            self._row(row)
        if self.framework.run_files is not None and self.path.is_dir():
            self.framework.run_files(self.path, context)
        self._lifecycle(logs)
        reported = {
            key: value for key, value in context.facts.items() if key not in context.stated
        } | context.overridden
        memory["facts"] = {key: value for key, value in reported.items() if not key.startswith("lifecycle")}
        context.facts |= context.stated
        return self._reading(logs)

    def _clock(self, logs: Logs, moved: bool) -> None:
        """Corrects all times of a log whose clock is wrong, by the same offset in all of its parts."""
        memory, sink = self.memory, self.source.sink
        if moved or logs.restarted:
            memory.pop("clock", None)
        end = logs
        if logs.more and "clock" not in memory:
            if sink.near_end is None:
                # Its end cannot be read first, so its parts would get different offsets.
                memory["clock"] = None
            else:
                end = sink.read(self.source.path, sink.near_end(self.source.path, clocks.END_BYTES), self.limits)
        clock = memory.setdefault("clock", 0.0)
        if clock is None:
            return
        newest = end.newest
        if not sink.local_times:
            newest = max((row.ts for row in end.rows if row.ts is not None and not row.estimated), default=None)
        # Before its end a log has only older times.
        if newest is not None and (end is not logs or not logs.more):
            modified = end.modified if end.modified is not None else self.now
            # Undated lines of a fault come long after the last dated line.
            late = end.fault is not None and not end.fault.dated
            clock += clocks.offset(newest - clock, modified, self.now, sink.local_times and not late)
        memory["clock"] = clock
        if clock:
            for row in logs.rows:
                row.ts = row.ts - clock if row.ts is not None and not row.estimated else row.ts
            logs.fault = logs.fault.shifted(-clock) if logs.fault is not None else None
        if clock or "clock_offset_seconds" in self.context.facts:
            self.context.facts["clock_offset_seconds"] = clock

    def _fault(self, logs: Logs) -> None:
        """Reports the fault after the newest row as facts and, once, as an event; a new row clears it."""
        fault, facts = logs.fault, self.context.facts
        if fault is not None:
            facts |= {"fault": fault.text, "fault_kind": fault.kind, "fault_since": fault.since}
            if self.memory.get("fault") != fault.at:
                event = Event("fault", f"fault:{fault.kind}:{fault.at:.3f}", fault.at, fault.text)
                self.context.events.append(event)
        elif "fault" in facts:
            facts |= {"fault": "", "fault_kind": "", "fault_since": 0.0}
        self.memory["fault"] = fault.at if fault is not None else None

    def _new_file(self) -> None:
        # Totals begin again. Steps may begin again, too: the store distinguishes a rewind from a continued run.
        self.memory["totals"] = {}
        self.memory.pop("elapsed", None)
        self.memory["axes"] = {}

    def _facts(self, logs: Logs) -> None:
        facts, framework = self.context.facts, self.framework
        facts["framework"] = framework.name
        if "mode" not in facts:
            facts.setdefault("mode" if framework.only_mode else "usual_mode", framework.mode)
        if framework.folder_facts is not None and self.path.is_dir():
            self.context.take(framework.folder_facts(self.path))
        if framework.facts is not None and logs.config:
            self.context.take(framework.facts(logs.config))
        if logs.run_name:
            facts["run_name"] = logs.run_name

    def _seconds(self, row: Logged) -> float | None:
        """The duration of the row's step, or the time since the previous row."""
        before, elapsed = self.memory.get("elapsed"), number(row.values.get(self.framework.elapsed))
        if elapsed is not None:
            self.memory["elapsed"] = elapsed
            if before is not None and elapsed > before:
                return elapsed - float(before)
        values = (number(row.values.get(key)) for key in self.framework.seconds)
        return next((value for value in values if value is not None), None)

    def _row(self, row: Logged) -> None:
        framework, context = self.framework, self.context
        values = finite(framework, row.values)
        assert row.ts is not None
        if framework.on_row is not None:
            framework.on_row(row, values, context)
        if framework.evaluations:
            self._evaluated(row, values)
        split = framework.split or _one_piece
        for piece in split(row, values, context):
            self._piece(piece)

    def _evaluated(self, row: Logged, values: Mapping[str, float]) -> None:
        """Adds the results of evaluations in a row."""
        keys = tuple(values)
        if keys not in self._scored:
            found = ((key, metric, pattern.fullmatch(key)) for key in keys
                     for metric, pattern in self.framework.evaluations.items())  # fmt: skip
            self._scored[keys] = tuple(
                (key, metric, (("task", match.groupdict().get("task") or EVALUATION),)) for key, metric, match in found
                if match is not None
            )  # fmt: skip
        step = values.get(self.framework.evaluation_step, row.step)
        for key, metric, labels in self._scored[keys] if step is not None else ():
            self.origins.add(metric, key)
            self.scores.append(Sample(metric, values[key], labels, row.ts, int(step), EVALUATION))  # type: ignore[arg-type]

    def _piece(self, piece: Piece) -> None:
        """Adds samples of one piece; late values of an earlier step get the time of that step."""
        axis = self.memory.setdefault("axes", {}).setdefault(piece.axis, {})
        steps: dict[str, Memory] = axis.setdefault("steps", {})
        stored = self._same_step(steps, piece)
        if stored is None:
            # Ascending within an axis; otherwise the store would take a step of the same moment for an old one.
            ts = max(piece.ts, axis.get("ts", piece.ts) + MIN_GAP_SECONDS) if steps else piece.ts
            stored = {"ts": ts, "keys": [], "values": {}}
            if str(piece.step) in steps or any(int(step) > piece.step for step in steps):
                steps.clear()
                self.memory.setdefault("rewound", []).append(piece.axis)
            steps[str(piece.step)] = stored
            axis["ts"] = ts
        layout = self._layout(piece.values)
        stored["keys"] = sorted(layout.marks.union(stored["keys"]))
        stored["values"].update({key: piece.values[key] for key in layout.needs})
        while len(steps) > CACHED_STEPS:
            del steps[min(steps, key=int)]
        self._samples(Piece(piece.axis, piece.step, stored["ts"], piece.values), layout, stored)
        self.memory["ts"] = max(self.memory.get("ts", piece.ts), stored["ts"])

    def _same_step(self, steps: Mapping[str, Memory], piece: Piece) -> Memory | None:
        """The memory of the step, unless the step belongs to another incarnation: then the same keys come again."""
        stored = steps.get(str(piece.step))
        if stored is None:
            return None
        newest = max(steps, key=int) == str(piece.step)
        # Rows of the newest step may repeat a key (a correction, a step logged twice): the later value counts.
        return stored if newest or self._layout(piece.values).marks.isdisjoint(stored["keys"]) else None

    def _layout(self, values: Mapping[str, float]) -> _Layout:
        keys = tuple(values)
        layout = self._layouts.get(keys)
        if layout is None:
            mapped = {key: self._mapped(key) for key in keys}
            layout = self._layouts[keys] = _Layout(
                frozenset(map(mark, keys)),
                tuple((key, metric_key) for key, metric_keys in mapped.items() for metric_key in metric_keys or ()),
                tuple(key for key in keys if key in self.framework.needs),
                tuple(key[:UNMAPPED_LENGTH] for key, metric_keys in mapped.items() if metric_keys is None),
            )
            for key, metric_key in layout.mapped:
                if not metric_key.fold:
                    self.origins.add(metric_key.metric, key)
        return layout

    def _samples(self, piece: Piece, layout: _Layout, stored: Memory) -> None:
        values, ts, step, axis = piece.values, piece.ts, piece.step, piece.axis
        for key, metric_key in layout.mapped:
            value: float | None = values[key]
            if metric_key.reduction == "total":
                value = self._delta(key, values[key], axis)
                if value is None:
                    continue
            assert value is not None
            if metric_key.fold:
                self.folds.add(stored, metric_key, key, value * metric_key.scale + metric_key.offset)
            else:
                value = value * metric_key.scale + metric_key.offset
                self.samples.append(Sample(metric_key.metric, value, metric_key.labels, ts, step, axis))
        for name in layout.unmapped:
            self.unmapped[name] = self.unmapped.get(name, 0) + 1
        for metric_key, keys, folded in self.folds.take():
            self.samples.append(Sample(metric_key.metric, folded, metric_key.labels, ts, step, axis))
            for key in keys:
                self.origins.add(metric_key.metric, key)
        if self.framework.derive is not None:
            self._derive(piece, stored)

    def _derive(self, piece: Piece, stored: Memory) -> None:
        """Adds metrics that are computed from several keys of the step so far."""
        assert self.framework.derive is not None
        merged, previous = Piece(piece.axis, piece.step, piece.ts, stored["values"]), stored.setdefault("told", {})
        for metric, labels, derived in self.framework.derive(merged, self.context):
            # Each row of a step computes them again; only new or changed values are emitted.
            if previous.get(derived_key := self._derived_key(metric, labels)) != derived:
                self.samples.append(Sample(metric, derived, labels, piece.ts, piece.step, piece.axis))
            previous[derived_key] = derived

    def _derived_key(self, metric: str, labels: Labels) -> str:
        """The key of a derived metric in the memory of a step."""
        derived_key = self._derived.get((metric, labels))
        if derived_key is None:
            self.origins.add(metric, "of several keys")
            derived_key = self._derived[(metric, labels)] = str(mark(f"{metric}{labels}"))
        return derived_key

    def _delta(self, key: str, value: float, axis: str) -> float | None:
        """The increase of a total since the previous row. None for the first value, whose begin is unknown."""
        totals = self.memory.setdefault("totals", {})
        before, totals[key] = totals.get(key), value
        if before is None:
            return None
        if value >= before:
            return float(value - before)
        # The total began again, at a restart of the process. When the steps went back too, they are counted again.
        return 0.0 if axis in self.memory.get("rewound", ()) else value

    def _mapped(self, key: str) -> tuple[Key, ...] | None:
        """Our keys for a source key: empty for a known but unused key, None for an unknown key."""
        framework = self.framework
        mapped = framework.keys.get(key)
        if mapped is not None:
            return mapped if isinstance(mapped, tuple) else (mapped,)
        if framework.find is not None and (found_keys := framework.find(key)) is not None:
            return found_keys
        for pattern, make in framework.patterns:
            if (match := pattern.fullmatch(key)) is not None:
                metric_key = make(match)
                return (metric_key,) if metric_key is not None else ()
        if key in framework.needs or (framework.ignored is not None and framework.ignored.fullmatch(key)):
            return ()
        return None

    def _lifecycle(self, logs: Logs) -> None:
        memory, facts = self.memory, self.context.facts
        max_steps = facts.get("max_steps")
        steps = memory.get("axes", {}).get(TRAINER, {}).get("steps", {})
        last = max(map(int, steps), default=None)
        evidence = logs.finished or self.context.finished
        if (
            not evidence
            and isinstance(max_steps, float)
            and last is not None
            and last >= max_steps - 1 + self.framework.first_step
        ):
            evidence = f"step {last} is the last of {max_steps:.0f}"
        if evidence:
            facts |= {"lifecycle": "crashed" if logs.failed else "finished", "lifecycle_why": evidence}
            memory["finished"] = True
        elif self.samples and memory.pop("finished", False):
            facts |= {"lifecycle": "running", "lifecycle_why": "new rows after the end"}

    def _reading(self, logs: Logs) -> Reading:
        self.memory.pop("rewound", None)
        for sample in self.context.samples:
            self.origins.add(sample.metric, "between steps")
        return Reading(
            samples=(*self.samples, *self.scores, *self.context.samples),
            events=tuple(self.context.events),
            facts=dict(self.context.facts),
            unmapped=self.unmapped,
            cursor=self.memory,
            more=logs.more or bool(self.source.later),
            dropped=logs.dropped + self.folds.dropped,
            why_dropped=logs.why or self.folds.why,
            samples_scraped=len(logs.rows),
            origins=self.origins.as_text(),
            reader=self.source.log_label(self.path),
        )


def finite(framework: Framework, values: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers by key without prefixes; texts and flags are left out."""
    # Nearly all values are floats: calling `number` for each took a fifth of the time of reading a long log.
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


def estimate_times(logs: Logs, seconds: Callable[[Logged], float | None], last: float | None, now: float) -> bool:
    """Gives every row a time, ascending. Returns True if some times were estimated.

    A file without times ends at its modification time, or at the beginning of the collective that timed out after its
    last row: the last row gets that time, and the rows before it follow backwards step by step. The unread rest of a
    long file is assumed to take as long per byte as the part read.

    Args:
        seconds: returns the duration of the row's step, if the row has one.
        last: time of the last row of the previous call.
    """
    if all(row.ts is not None for row in logs.rows):
        return False
    end = min(logs.modified if logs.modified is not None else now, now)
    end = min(end, logs.fault.since) if logs.fault is not None else end
    _spread(logs.rows, [_length(seconds(row)) for row in logs.rows], end, logs.ahead, last)
    return True


def _spread(rows: Sequence[Logged], lengths: list[float], end: float, ahead: float, last: float | None) -> None:
    total = sum(lengths)
    end -= total * ahead
    start = end - total
    if last is not None and start < last:
        # The estimate overlaps rows that have a time already: divide the remaining time evenly, in order.
        start = last
        total = max(end - start, len(rows) * MIN_GAP_SECONDS)
        lengths = [total / len(rows)] * len(rows)
    for row, passed in zip(rows, accumulate(lengths), strict=True):
        if row.ts is None:
            row.ts, row.estimated = start + passed, True


def _length(seconds: float | None) -> float:
    return max(seconds, MIN_GAP_SECONDS) if seconds is not None else UNKNOWN_STEP_SECONDS


class Folds:
    """Folded values of one call of `tail`. ``dropped``, ``why``: keys left out because the map states no fold."""

    def __init__(self) -> None:
        self.dropped, self.why = 0, ""
        self._added: dict[str, tuple[Key, dict[str, float]]] = {}

    def add(self, step: Memory, metric_key: Key, key: str, value: float) -> None:
        """Adds one key of a step. ``step``: the memory of the step, because its keys may come in several rows."""
        name = f"{metric_key.metric}{metric_key.labels}"
        parts: dict[str, float] = step.setdefault("parts", {}).setdefault(name, {})
        if metric_key.fold == ONLY and parts and key not in parts:
            first, second = sorted((min(parts), key))
            self.dropped += 1
            self.why = self.why or (
                f"two keys for one metric ({metric_key.metric}): {first}, {second}: write a narrower pattern, "
                f"or fold = {', '.join(FOLDS)} in the map"
            )
        parts[key] = value
        self._added[name] = metric_key, parts

    def take(self) -> Iterator[tuple[Key, list[str], float]]:
        """Yields (our key, source keys, value) of each metric added to since the last call."""
        for metric_key, parts in self._added.values():
            keys = sorted(parts)
            used = keys[:1] if metric_key.fold in (ONLY, "first") else keys
            yield metric_key, used, FOLDS.get(metric_key.fold, FOLDS["first"])([parts[key] for key in used])
        self._added.clear()


# ---- pipeline versions
# Policy versions of PipelineRL.

Runs = list[list[int]]
"""``[samples of the first, samples between two, count, version of the first]``, oldest first. Updates are regular, so
a long run has few entries. JSON-able."""

# More entries are another writer's; rollouts are of the newest versions.
RUNS_MAX = 4_096


def add(runs: Runs, published: Iterable[int]) -> None:
    """Adds updates in the order they were published."""
    for samples in published:
        _add(runs, samples)
        del runs[:-RUNS_MAX]


def _add(runs: Runs, samples: int) -> None:
    if not runs:
        runs.append([samples, 0, 1, 0])
        return
    start, interval, count, version = last = runs[-1]
    newest = start + interval * (count - 1)
    if samples > newest and (count == 1 or samples - newest == interval):
        last[1], last[2] = samples - newest, count + 1
    elif samples != newest:
        same = version_of(runs, samples)
        runs.append([samples, 0, 1, same if same is not None else version + count])


def version_of(runs: Runs, samples: int) -> int | None:
    """The version whose weights had seen this number of samples, by the newest incarnation; None: not published."""
    for start, interval, count, version in reversed(runs):
        if samples == start:
            return version
        if interval and 0 < samples - start <= interval * (count - 1) and (samples - start) % interval == 0:
            return version + (samples - start) // interval
    return None


def published(row: dict[str, Any]) -> int | None:
    """The published number of samples in a record of the stream; None for other records."""
    version = row.get("version")
    valid = row.get("kind") == "weight_update_success" and isinstance(version, int) and not isinstance(version, bool)
    return version if valid and isinstance(version, int) and version >= 0 else None
