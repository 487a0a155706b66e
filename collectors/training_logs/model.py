"""A trainer framework as data: its keys, their meaning, and how its steps are numbered. `tail` reads by it."""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs, Sink
from collectors.model import Actor, Basis, Cursor, Event, Labels, Mode, Sample

# ---- memory
# The cursor of a tail between calls (small, JSON-able), and the source keys that one call read.

Memory = dict[str, Any]
# Source keys shown per metric. Every reward function has a key of its own; a few are enough.
MAX_ORIGINS = 3


def mark(key: str) -> int:
    """Shortens a key to a number, because the cursor is written at every poll."""
    return zlib.crc32(key.encode())


def copied(cursor: Cursor) -> Memory:
    """Returns a deep copy of a cursor: the caller keeps the old cursor until the new one is committed."""
    return {key: _deep(value) for key, value in cursor.items()}


def _deep(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep(item) for key, item in value.items()}
    return [_deep(item) for item in value] if isinstance(value, list) else value


def whole_steps(logs: Logs) -> None:
    """Removes, and counts, rows whose step is not a whole number (a flag, a text, 2.5, NaN); 3.0 is 3."""
    rows = [row for row in logs.rows if _counted(row)]
    if len(rows) < len(logs.rows):
        logs.why = logs.why or "a step that is not a whole number"
    logs.dropped += len(logs.rows) - len(rows)
    logs.rows = rows


def _counted(row: Logged) -> bool:
    if row.step is None:
        return True
    step = number(row.step)
    if step is None or not step.is_integer():
        return False
    # An int stays: beyond 2^53 the conversion through float would change it.
    row.step = row.step if isinstance(row.step, int) else int(step)
    return True


class Origins:
    """Which raw keys each metric was read from."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, None]] = {}

    def add(self, metric: str, key: str) -> None:
        """Adds a key of a metric, up to `MAX_ORIGINS`."""
        keys = self._keys.setdefault(metric, {})
        if len(keys) < MAX_ORIGINS:
            keys[key] = None

    def as_text(self) -> dict[str, str]:
        """Metric -> its keys, as in `Reading.origins`."""
        return {metric: ", ".join(keys) for metric, keys in self._keys.items()}


TRAINER = "trainer"
EVALUATION = "eval"
"""Axis of evaluations: their results come in rows of their own, often with the number of a step that is done."""
SYNC_MODES = ("sync_colocated", "sync_split")

# Values come sorted by key, so that a step gives the same number for any order of its rows.
FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "first": lambda values: values[0],
}
# The map states no fold: the first key is used, and the others are counted as dropped.
ONLY = "only"


@dataclass(frozen=True, slots=True)
class Key:
    """The meaning of one source key: value * scale + offset, in the catalogue's unit.

    Attributes:
        reduction: ``value``: the step's own value; ``total``: since the process began, so the step gets the difference.
        fold: how several keys of one metric become one value (`folds`); "": all of them hold the same number.
    """

    metric: str
    scale: float = 1.0
    labels: Labels = ()
    offset: float = 0.0
    reduction: Literal["value", "total"] = "value"
    fold: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """The values of one row for one step of one axis: finite numbers by key, without prefixes."""

    axis: str
    step: int
    ts: float
    values: Mapping[str, float]


Out = tuple[str, Labels, float]
"""(metric, labels, value) of a step, in the catalogue's unit."""


@dataclass(slots=True)
class Context:
    """What the functions of a framework may read and write.

    Attributes:
        memory: JSON-able memory of the framework's functions.
        restarted: the rows of this call begin another log (or another run in it) than the previous call read.
        finished: set by the functions: the evidence among the rows that the run is over, as text.
        stated: facts of the configuration, also in ``facts``. No log overrides them.
        overridden: reported values of stated facts; they count when the configuration no longer states them.
    """

    facts: dict[str, str | float]
    memory: Memory
    sink: str
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    restarted: bool = False
    finished: str = ""
    stated: Mapping[str, str | float] = field(default_factory=dict)
    overridden: dict[str, str | float] = field(default_factory=dict)

    def take(self, facts: Mapping[str, str | float]) -> None:
        """Adds facts that the run reports."""
        for name, value in facts.items():
            (self.overridden if name in self.stated else self.facts)[name] = value
        if "mode" in facts:
            self.facts.pop("usual_mode", None)

    @property
    def mode(self) -> str:
        """The mode that a source reports or the user states; "" if it is unknown."""
        return str(self.facts.get("mode", ""))

    @property
    def synchronous(self) -> bool:
        """Whether the run is known to be synchronous."""
        return self.mode in SYNC_MODES


@dataclass(frozen=True, slots=True)
class Framework:
    """A trainer framework.

    Attributes:
        name, reads, versions: as in `Collector`.
        sinks: the logs the framework writes, the best first (live, with times, complete).
        keys: source key -> our key or keys.
        find: as `patterns`, for frameworks with a lookup of their own: our keys, () for an unused key, or None.
        patterns: for families of keys; the first full match counts. Its function returns None for an unused key.
        ignored: known keys that are not used (bookkeeping, extremes of values that are read anyway, evaluation).
        evaluations: our metric -> pattern of the keys with its value; group ``task`` is the label, "eval" without it.
        evaluation_step: key with the step of an evaluation; "": the sink's step is it.
        marks: keys that only this framework logs, as full matches; one is enough; of a tuple all are needed.
        not_marks: keys that exclude it (a related framework with the same keys and more).
        config_marks: (flat) configuration keys that only it has, for sinks with a configuration.
        strip: prefixes removed from every key; the first that fits.
        split: a row -> pieces; the default is one piece of axis `trainer` at the sink's step.
        needs: keys that `derive` reads, logged for the step in this row or an earlier one.
        derive: (piece with the values of `needs`, context) -> metrics computed from several keys.
        facts: a configuration (nested or flat, as the sink has it) -> facts.
        folder_facts: facts from other files of the run directory (configs on disk).
        on_row: called with every row before the split: for events, and for gauges of the moment (`context.samples`).
        run_files: called after the rows: facts and `context.finished` from other files of the run directory.
        elapsed: key with the seconds since the process began, for rows without a time; preferred to `seconds`.
        seconds: keys with the duration of a step, for rows without a time.
        mode: what most runs have. A guess for runs that do not report theirs: no number follows from it.
        only_mode: the framework has no other mode, so it is known.
        first_step: number of a run's first step on axis `trainer`; with fact `max_steps` it gives the last step.
        extra_path: detects the framework at a path by something else than a log; returns the reason, or None.
        derives: metrics that `patterns`, `derive`, `on_row` and `run_files` can give in addition to those of `keys`.
        hints: metric -> what to set in the framework so that the metric is logged.
        stated: facts of the configuration of one target's run; they override the facts of its logs.
    """

    name: str
    reads: str
    versions: str
    sinks: tuple[Sink, ...]
    keys: Mapping[str, Key | tuple[Key, ...]]
    patterns: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Key | None]], ...] = ()
    find: Callable[[str], tuple[Key, ...] | None] | None = None
    ignored: re.Pattern[str] | None = None
    evaluations: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    evaluation_step: str = ""
    marks: tuple[str | tuple[str, ...], ...] = ()
    not_marks: tuple[str, ...] = ()
    config_marks: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()
    split: Callable[[Logged, Mapping[str, float], Context], Iterable[Piece]] | None = None
    needs: frozenset[str] = frozenset()
    derive: Callable[[Piece, Context], Iterable[Out]] | None = None
    facts: Callable[[Mapping[str, Any]], Mapping[str, str | float]] | None = None
    folder_facts: Callable[[Path], Mapping[str, str | float]] | None = None
    on_row: Callable[[Logged, Mapping[str, float], Context], None] | None = None
    run_files: Callable[[Path, Context], None] | None = None
    elapsed: str = ""
    seconds: tuple[str, ...] = ()
    mode: Mode = "sync_colocated"
    only_mode: bool = False
    first_step: int = 1
    extra_path: Callable[[Path], str | None] | None = None
    actor: Actor = "trainer"
    report_seconds: float = 10.0
    derives: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, str | float] = field(default_factory=dict)


def gives(framework: Framework) -> dict[tuple[str, Labels], Basis]:
    """Every series the framework can report, as `Collector.gives`."""
    series: dict[tuple[str, Labels], Basis] = {(metric, ()): "derived" for metric in framework.derives}
    series |= {(metric, ()): "native" for metric in framework.evaluations}
    for mapped in framework.keys.values():
        series |= {(key.metric, key.labels): "native" for key in (mapped if isinstance(mapped, tuple) else (mapped,))}
    return series
