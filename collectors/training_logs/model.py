"""What a trainer framework is, as data: its keys, what they mean, how its steps are told. `tail` reads by it."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from collectors.formats.rows import Logged, Sink
from collectors.model import Actor, Basis, Event, Labels, Mode, Sample
from collectors.training_logs.memory import Memory

TRAINER = "trainer"


@dataclass(frozen=True, slots=True)
class Key:
    """What one key of theirs is for us: value * scale + offset, in the catalogue's unit.

    Attributes:
        reduction: ``value``: the step's own; ``total``: since the process began, so the step gets the difference.
        fold: how several keys of one metric become one value (`folds`); "": they are the same number twice.
    """

    metric: str
    scale: float = 1.0
    labels: Labels = ()
    offset: float = 0.0
    reduction: Literal["value", "total"] = "value"
    fold: str = ""


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
        stated: facts of the configuration, also in ``facts``: no log overrules them.
        found: what the run tells of those itself, for the day nobody states them any more.
    """

    facts: dict[str, str | float]
    own: Memory
    sink: str
    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    restarted: bool = False
    finished: str = ""
    stated: Mapping[str, str | float] = field(default_factory=dict)
    found: dict[str, str | float] = field(default_factory=dict)

    def take(self, facts: Mapping[str, str | float]) -> None:
        """Facts that the run tells of itself. A mode among them is assumed no longer."""
        for name, value in facts.items():
            (self.found if name in self.stated else self.facts)[name] = value
        if "mode" in facts:
            self.facts.pop("mode_assumed", None)


@dataclass(frozen=True, slots=True)
class Framework:
    """A trainer framework.

    Attributes:
        name, reads, versions: as of `Collector`.
        sinks: what it can be read from, the best first (live, with times, complete).
        keys: their key -> ours; several ours for one of theirs are allowed.
        find: as `patterns`, for whoever looks keys up in a way of its own: ours, () for known and not used, or None.
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
        mode: where neither facts nor rows say it: assumed then, and shown as that.
        only_mode: its runs have no other one: nothing is assumed.
        first_step: the number of a run's first step on axis `trainer`: with fact `max_steps` it tells the last one.
        extra_path: does this path give it away by something else than a log? The reason, or None.
        derives: metrics that `patterns`, `derive`, `seen` and `beside` can give beside those of `keys`.
        hints: metric -> what to set in the framework so that it is logged.
        stated: facts of the configuration of one target's run: they win over what its logs tell.
    """

    name: str
    reads: str
    versions: str
    sinks: tuple[Sink, ...]
    keys: Mapping[str, Key | tuple[Key, ...]]
    patterns: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Key | None]], ...] = ()
    find: Callable[[str], tuple[Key, ...] | None] | None = None
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
    found: dict[tuple[str, Labels], Basis] = {(metric, ()): "derived" for metric in framework.derives}
    for ours in framework.keys.values():
        found |= {(key.metric, key.labels): "native" for key in (ours if isinstance(ours, tuple) else (ours,))}
    return found
