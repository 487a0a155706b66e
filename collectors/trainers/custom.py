"""Any trainer: the user says what its keys mean (`[[run.NAME.target.map]]`), over any log we can read.

For in-house frameworks and for keys nobody has met yet. The log is a file or a run directory in any of the formats
the other collectors read; what is not mapped is counted and shown as unmapped, so `rollscope check` lists the keys
there are to map.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from collectors.model import Collector, Cursor, Limits, Reading
from collectors.readers import jsonl, jsonl_log, mlflow_db, tensorboard, trackio_log, wandb_log
from collectors.readers.rows import Logged, Sink, flat
from collectors.trainers import _maps
from collectors.trainers._framework import TRAINER, Context, Framework, Piece, tail

# Words that trainers use for the same thing, in the order of how sure they are.
STEPS = ("train/global_step", "global_step", "training_step", "train_step", "step", "iteration", "_step")
TIMES = ("ts", "time", "timestamp", "_timestamp", "wall_time")
OPTIONS = ("map", "format", "step_key", "time_key")


def unpack(row: jsonl.Row, time_key: str = "") -> Logged:
    """A line's object, groups inside it as dotted keys; its time from a field of a usual name."""
    values = dict(flat(row))
    names = (time_key,) if time_key else TIMES
    times = (_epoch(values.get(name)) for name in names)
    return Logged(values, ts=next((ts for ts in times if ts is not None), None))


def _epoch(value: object) -> float | None:
    """Epoch seconds of a number (milliseconds are told by their size) or an ISO-8601 text; without a zone it is UTC."""
    figure = jsonl.number(value)
    if figure is not None:
        return figure / 1000 if figure > 1e11 else figure
    if not isinstance(value, str):
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _sinks(options: Mapping[str, str]) -> tuple[Sink, ...]:
    time_key = options.get("time_key", "")
    lines = jsonl_log.sink(("*.jsonl", "*.ndjson"), lambda row: unpack(row, time_key))
    every = (lines, trackio_log.SINK, mlflow_db.SINK, tensorboard.SINK, wandb_log.SINK)
    wanted = options.get("format", "")
    return tuple(sink for sink in every if wanted in ("", sink.name))


FORMATS = tuple(sink.name for sink in _sinks({}))


def configured(options: Mapping[str, str]) -> Collector:
    """The collector of one target. ``options``: `OPTIONS`, all texts; ``map`` is a JSON list (see `_maps.check`)."""
    maps = _maps.parse(options.get("map", ""))
    step_key = options.get("step_key", "")

    def split(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
        yield from _pieces(maps, step_key, row, values)

    framework = Framework(
        name="custom", reads=READS, versions=VERSIONS, sinks=_sinks(options), keys={},
        patterns=tuple((one.pattern, lambda _, ours=one.ours: ours) for one in maps),  # type: ignore[misc]
        ignored=re.compile("|".join(map(re.escape, (*STEPS, *TIMES, step_key or "step")))),
        marks=(".*",), split=split, mode="async",
    )  # fmt: skip

    def read(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        return _own_words(tail(framework, path, cursor, limits, now))

    return Collector(**{**_FIELDS, "tail": read})  # type: ignore[arg-type]


def _pieces(maps: tuple[_maps.Map, ...], step_key: str, row: Logged, values: Mapping[str, float]) -> Iterator[Piece]:
    names = (step_key,) if step_key else STEPS
    step = next((values[name] for name in names if name in values), row.step)
    if step is None or row.ts is None:
        return
    by_axis: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        axis = next((one.axis for one in maps if one.pattern.fullmatch(key)), "") or TRAINER
        by_axis.setdefault(axis, {})[key] = value
    for axis, found in by_axis.items():
        yield Piece(axis, int(step), row.ts, found)


def _own_words(reading: Reading) -> Reading:
    """Its mode and name are the user's to state: facts of the configuration."""
    facts = {key: value for key, value in reading.facts.items() if key not in ("framework", "mode")}
    return Reading(
        reading.samples, reading.histograms, reading.events, facts, reading.unmapped, reading.cursor, reading.more,
        reading.dropped, reading.why_dropped, reading.samples_scraped, origins=reading.origins, reader=reading.reader,
    )  # fmt: skip


READS = "any log of the formats above, by a table of the user's own"
VERSIONS = "the readers' own"
_FIELDS = {"name": "custom", "actor": "trainer", "reads": READS, "versions": VERSIONS, "options": OPTIONS}

COLLECTOR = Collector(
    **_FIELDS,  # type: ignore[arg-type]
    tail=configured({}).tail,
    # Named in the configuration, never guessed.
    matches_path=lambda path: None,
    configured=configured,
)
