"""Rules, tables and frames for alert tests, written as one would say them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.model import Labels
from server.alerts.model import Alert, Condition, Rule, Table
from server.alerts.rules import Evaluator
from server.lib.matchers import parse

T0 = 1_800_000_000.0
STEP = 5.0
GAP = math.nan

Row = Mapping[str, float]
"""Series (written ``a=1,b=2``) -> value; NaN is a gap, a series left out has ended."""


@dataclass(frozen=True)
class OneFrame:
    """A frame whose tables are given by source name; a name left out has no source."""

    now: float
    tables: Mapping[str, Table] = field(default_factory=dict)
    run: str = "r"
    lifecycle: str = "running"
    replayed: bool = False

    unseen: frozenset[Any] = frozenset()

    def reason(self, series: Labels) -> str:
        return ""

    def address(self, series: Labels) -> str:
        return ""

    def missing(self, condition: Condition, series: Labels) -> str:
        return "scrape failed" if series in self.unseen else ""

    def table(self, condition: Condition) -> Table | None:
        return self.tables.get(condition.name)


def labels(text: str) -> Labels:
    """``a=1,b=2`` as labels."""
    pairs = (pair.split("=", 1) for pair in text.split(",") if pair)
    return tuple(sorted((name, value) for name, value in pairs))


def table(row: Row, why: str = "scrape failed") -> Table:
    """A table whose shape follows its series."""
    keys = tuple(labels(name) for name in row)
    gaps = {i: why for i, value in enumerate(row.values()) if value != value}
    return Table(keys, tuple(row.values()), gaps, hash(keys))


def frame(at: float, row: Row | None = None, name: str = "x", **more: Any) -> OneFrame:
    """One source, `at` seconds after T0; None is a source that is not there."""
    return OneFrame(T0 + at, {} if row is None else {name: table(row)}, **more)


def rule(name: str = "A", on: str = "x", threshold: float = 1.0, **more: Any) -> Rule:
    """``on > threshold``; keys of `Condition` and of `Rule` alike, matchers as text."""
    own = {key: more.pop(key) for key in ("op", "recover", "kind", "source", "of", "window") if key in more}
    found = tuple(parse(text) for text in more.pop("match", ()))
    kind, source = own.pop("kind", "threshold"), own.pop("source", "signal")
    condition = Condition(kind, source, on, threshold=threshold, matchers=found, **own)
    return Rule(name, condition, **more)


def states(evaluator: Evaluator) -> dict[str, str]:
    """Series (as written) -> state of its pending or firing alert."""
    found = [alert for alert in evaluator.active if alert.state in ("pending", "firing")]
    return {",".join(f"{name}={value}" for name, value in alert.series): alert.state for alert in found}


def frames(text: str, every: float = STEP, name: str = "x") -> list[OneFrame]:
    """One series over time, one word per frame: a number, ``_`` a gap, ``-`` ended, ``x`` no source at all."""
    words: Mapping[str, Row | None] = {"_": {"": GAP}, "-": {}, "x": None}
    rows = [words[word] if word in words else {"": float(word)} for word in text.split()]
    return [frame(number * every, row, name) for number, row in enumerate(rows)]


def timeline(evaluator: Evaluator, given: Iterable[OneFrame]) -> str:
    """The one alert after each frame: ``.`` none, ``p`` pending, ``F`` firing, ``K`` kept; held: ``h``, ``H``."""
    return " ".join(letter(evaluator, one) for one in given)


def letter(evaluator: Evaluator, one: OneFrame) -> str:
    evaluator.evaluate(one)
    found = [alert for alert in evaluator.active if alert.state in ("pending", "firing")]
    assert len(found) <= 1
    return _letter(found[0]) if found else "."


def _letter(alert: Alert) -> str:
    if alert.held_since is not None:
        return "h" if alert.state == "pending" else "H"
    return "p" if alert.state == "pending" else "F" if alert.keep_since is None else "K"
