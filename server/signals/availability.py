"""Derives from the registries which signal is available with which framework.

Each signal is computed over an artificial window with everything a collector can report; its result is the cell.
`python -m bench.docs` writes docs/reference/coverage.md from it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal

import collectors
from collectors import catalog
from collectors.catalog import METRICS
from collectors.model import Collector
from server import signals
from server.signals import recorded
from server.signals.model import STEP_WINDOW, NotApplicable, View, is_gap
from server.signals.window import TRAINER, Gauge, StepBook, StepKey

Cell = Literal["native", "derived", "-", "n/a"]
LETTERS: Mapping[Cell, str] = {"native": "N", "derived": "d", "-": "", "n/a": "/"}

# Metrics of a training loop's log; the others are of engines and sandboxes.
TRAINED = frozenset(row.name for row in (*catalog.TRAINER_ROWS, *catalog.ROLLOUT_ROWS))
NOW, STEP_SECONDS = 1_000_000.0, 30.0
PRICED = frozenset({"cost_target_ratio", "cost_usd_per_million_tokens", "idle_usd_per_hour"})
# A configuration with every setting.
FACTS: Mapping[str, str | float] = {
    "group_size": 8.0,
    "batch_samples": 64.0,
    "max_staleness_versions": 4.0,
    "max_reward": 1.0,
    "max_in_flight": 64.0,
}


def frameworks() -> list[Collector]:
    """The collectors of trainers whose keys are known here, by name."""
    found = [one for one in collectors.load().values() if one.actor == "trainer" and one.gives]
    return sorted(found, key=lambda collector: collector.name)


def items() -> list[signals.Signal | signals.Counter]:
    """The signals that come from trainers.

    Left out are costs (no framework reports prices) and signals with a memory (they watch a signal with its own row).
    """
    found = (one for one in signals.load() if not (TRAINED.isdisjoint(inputs(one)) or one.name in PRICED))
    return [item for item in found if isinstance(item, signals.Counter) or item.remember is None]


def inputs(item: signals.Signal | signals.Counter) -> Sequence[str]:
    """The metrics an item reads."""
    return item.inputs if isinstance(item, signals.Signal) else (item.metric,)


def missing_metrics(item: signals.Signal, words: str, reports: Callable[[str], bool], kinds: Iterable[str]) -> str:
    """Explains why a signal has no value: the framework that does not report its input, and the setting for it.

    Args:
        words: the signal's own reason; extended only where it is that the inputs are missing.
        reports: whether any target of the run reports this metric.
        kinds: the run's framework first, then the collectors of its targets.
    """
    absent = [metric for metric in inputs(item) if metric in TRAINED and not reports(metric)]
    # Before the first row no metric is known to be missing.
    if words != item.hint or not absent or not any(map(reports, TRAINED)):
        return words
    catalogue = collectors.load()
    trainers = [
        catalogue[name] for name in dict.fromkeys(kinds) if name in catalogue and catalogue[name].actor == "trainer"
    ]
    for one in trainers:
        if how := next((one.hints[name] for name in absent if name in one.hints), ""):
            return f"not reported by {one.name}: {how}"
    if not trainers:
        return words
    # `custom` and `mlflow` read the logs of any framework, so that examples from other frameworks help there.
    return f"not reported by {trainers[0].name}; {plain(words) if trainers[0].gives else words}"


def of_records(collector: Collector) -> Iterator[str]:
    """Lists the signals that the rollout records of a collector give, and the others with the fields they lack."""
    yield f"gives, where the run logs it: {', '.join(recorded.available_signals(collector.record_fields))}"
    lacking: dict[tuple[str, ...], list[str]] = {}
    for signal in recorded.REQUIRED:
        if missing := recorded.missing_fields(signal, collector.record_fields):
            lacking.setdefault(missing, []).append(signal)
    for missing, names in lacking.items():
        yield f"does not give {', '.join(names)}: its records do not contain {' or '.join(missing)}"


def plain(reason: str) -> str:
    """A signal's reason without its examples from frameworks, because the keys of another framework do not help."""
    shortened = re.sub(r" \(([^()]*)\)", lambda match: "" if _framework().search(match[1]) else match[0], reason)
    named = _framework().search(shortened)
    return shortened if named is None else shortened[: named.start()].rpartition(":")[0] or shortened


@cache
def _framework() -> re.Pattern[str]:
    """A pattern for any framework's name as written in prose."""
    names = "|".join(one.name.replace("_", "[-_ ]?") for one in frameworks())
    return re.compile(rf"\b(?:{names})\b", re.IGNORECASE)


@cache
def cells(name: str) -> dict[str, Cell]:
    """Signal -> cell of a collector; ``-``: unknown, ``n/a``: its runs have no such thing."""
    collector = collectors.load()[name]
    return {item.name: _cell(item, collector) for item in items()}


def _cell(item: signals.Signal | signals.Counter, collector: Collector) -> Cell:
    own = [key for key, basis in collector.gives.items() if basis == "native"]
    if isinstance(item, signals.Counter):
        is_given = (item.metric, ()) in collector.gives
        return "-" if not is_given else collector.gives[item.metric, ()]
    answers: list[Cell] = [_of_mode(item, mode, own, list(collector.gives)) for mode in modes(collector)]
    order: tuple[Cell, ...] = ("native", "derived", "-", "n/a")
    return min(answers, key=order.index)


def modes(collector: Collector) -> list[str]:
    """Modes that its keys imply: only synchronous steps contain their generation, only other modes wait."""
    given = {metric for metric, _ in collector.gives}
    synchronous = ["sync_colocated"] if "generation_seconds" in given else []
    return synchronous + (["async"] if not synchronous or "trainer_wait_seconds" in given else [])


def _of_mode(item: signals.Signal, mode: str, own: list[StepKey], every: list[StepKey]) -> Cell:
    if isinstance(item.compute(_view(mode, every, FACTS)), NotApplicable):
        return "n/a"
    # A value without a number comes from the topology, not from a key.
    is_missing = is_gap(item.compute(_view(mode, [], {}))) and item.inputs[0] in {metric for metric, _ in own}
    if is_missing and not is_gap(item.compute(_view(mode, own, {}))):
        return "native"
    return "-" if is_gap(item.compute(_view(mode, every, FACTS))) else "derived"


def _view(mode: str, keys: Sequence[StepKey], facts: Mapping[str, str | float]) -> View:
    """A window of steps that all report ``keys``, and gauges with a current sample."""
    book = StepBook()
    moments = {key for key in keys if METRICS[key[0]].reduction in ("instant", "cumulative")}
    values = {key: STEP_SECONDS if key[0] == "trainer_step_seconds" else 1.0 for key in keys if key not in moments}
    for number in range(1, STEP_WINDOW + 3) if values else ():
        book.put(TRAINER, 0, number, NOW - (STEP_WINDOW + 2 - number) * STEP_SECONDS, values)
    gauges: dict[str, list[Gauge]] = {}
    for metric, labels in sorted(moments):
        gauge = Gauge("target", metric, labels, carry=60.0)
        gauge.add(NOW - 5.0, 1.0)
        gauges.setdefault(metric, []).append(gauge)
    return View(NOW, mode, "running", facts, gauges, book)


# ---- the documents


def table() -> str:
    """Signals by frameworks."""
    columns = frameworks()
    head = ["signal", *(f"`{collector.name}`" for collector in columns)]
    lines = [head, ["---"] + [":-:"] * len(columns)]
    for item in items():
        lines.append([f"`{item.name}`", *(LETTERS[cells(collector.name)[item.name]] for collector in columns)])
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def hints() -> Iterator[str]:
    """What to set in each framework for what it does not report by itself."""
    for collector in frameworks():
        if collector.hints:
            yield f"### {collector.name}\n"
            for metric, how in sorted(collector.hints.items()):
                wanted = ", ".join(f"`{item.name}`" for item in items() if metric in inputs(item))
                yield f"- {wanted or f'`{metric}`'}: {how}"
            yield ""
