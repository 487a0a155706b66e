"""Any trainer, with the user's map of keys (`[[run.NAME.target.map]]`), over any log format of the other collectors.

For in-house frameworks and unknown keys. The log is a file or a run directory. Keys without a map are counted and shown
as unmapped, so `rollscope check` lists the keys that can be mapped.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from collectors.formats import jsonl, mlflow, tensorboard, trackio, wandb
from collectors.formats.rows import Logged, Sink, flat
from collectors.model import Collector, Cursor, Limits, Reading
from collectors.training_logs import maps as training_logs_maps
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Piece
from collectors.training_logs.tail import stated_facts, tail

# Names of the step, the most certain first.
STEPS = ("train/global_step", "global_step", "training_step", "train_step", "step", "iteration", "_step")
TIMES = ("ts", "time", "timestamp", "_timestamp", "wall_time")
OPTIONS = ("map", "format", "step_key", "time_key")
# A key mapped to the norm also gives `gradient_nonfinite`, as in the tables of frameworks.
NORM, NONFINITE = "gradient_norm", "gradient_nonfinite"
# Suffix of a key derived from the norm; not a key of the source.
NONFINITE_SUFFIX = " is not finite"
NONFINITE_TEXTS = frozenset({"nan", "inf", "infinity"})
# Names of unread logs shown to the user.
SHOWN = 3


def unpack(row: jsonl.Row, time_key: str = "") -> Logged:
    """A line's object with dotted keys for nested objects; its time from a field with a usual name."""
    values = dict(flat(row))
    names = (time_key,) if time_key else TIMES
    times = (_epoch(values.get(name)) for name in names)
    return Logged(values, ts=next((ts for ts in times if ts is not None), None))


def _epoch(value: object) -> float | None:
    """Epoch seconds of a number (a large one is in milliseconds) or an ISO-8601 text; without a zone it is UTC."""
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
    lines = jsonl.sink(("*.jsonl", "*.ndjson"), lambda row: unpack(row, time_key))
    every = (lines, trackio.SINK, mlflow.SINK, tensorboard.SINK, wandb.SINK)
    wanted_format = options.get("format", "")
    return tuple(sink for sink in every if wanted_format in ("", sink.name))


FORMATS = tuple(sink.name for sink in _sinks({}))


def configured(options: Mapping[str, str]) -> Collector:
    """The collector of one target. ``options``: `OPTIONS`, all texts; ``map`` is a JSON list (see `maps.check`)."""
    maps = training_logs_maps.parse(options.get("map", ""))
    mapped = training_logs_maps.lookup(maps)
    step_key, time_key = options.get("step_key", ""), options.get("time_key", "")
    reported = any(entry.key is not None and entry.key.metric == NONFINITE for entry in maps)

    def split(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
        # A value that the log reports itself is preferred.
        derived = {} if reported else _nonfinite(mapped, row)
        yield from _pieces(mapped, step_key, row, {**values, **derived})

    framework = Framework(
        name="custom", reads=READS, versions=VERSIONS, sinks=_sinks(options), keys={},
        find=lambda key: _keys_for(mapped, key),
        ignored=re.compile("|".join(map(re.escape, (*STEPS, *TIMES, step_key or "step", time_key or "ts")))),
        marks=(".*",), split=split, mode="async", stated=stated_facts(options),
    )  # fmt: skip

    def read(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        return _without_assumed_facts(framework, path, tail(framework, path, cursor, limits, now))

    return Collector(**{**_FIELDS, "tail": read})  # type: ignore[arg-type]


def _keys_for(mapped: Callable[[str], training_logs_maps.Map | None], key: str) -> tuple[Key, ...] | None:
    if (
        key.endswith(NONFINITE_SUFFIX)
        and (norm := mapped(key.removesuffix(NONFINITE_SUFFIX))) is not None
        and _is_norm(norm)
    ):
        return (Key(NONFINITE, fold="max"),)
    entry = mapped(key)
    return None if entry is None else (entry.key,) if entry.key is not None else ()


def _is_norm(entry: training_logs_maps.Map | None) -> bool:
    return entry is not None and entry.key is not None and entry.key.metric == NORM


def _nonfinite(mapped: Callable[[str], training_logs_maps.Map | None], row: Logged) -> dict[str, float]:
    """1 or 0 for each gradient norm of a row; values that are no numbers (null, a text) give nothing."""
    norms = {key: _is_finite(value) for key, value in row.values.items() if _is_norm(mapped(key))}
    return {f"{key}{NONFINITE_SUFFIX}": float(not finite) for key, finite in norms.items() if finite is not None}


def _is_finite(value: object) -> bool | None:
    """None: neither a number nor a text that loggers write for one that is not finite."""
    if isinstance(value, str):
        return False if value.strip().lower().lstrip("+-") in NONFINITE_TEXTS else None
    if jsonl.number(value) is not None:
        return True
    return False if isinstance(value, float) and not math.isfinite(value) else None


def _pieces(
    mapped: Callable[[str], training_logs_maps.Map | None], step_key: str, row: Logged, values: Mapping[str, float]
) -> Iterator[Piece]:
    names = (step_key,) if step_key else STEPS
    step = next((values[name] for name in names if name in values), row.step)
    if step is None or row.ts is None:
        return
    by_axis: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        entry = mapped(key) or mapped(key.removesuffix(NONFINITE_SUFFIX))
        axis = entry.axis if entry is not None else ""
        by_axis.setdefault(axis or TRAINER, {})[key] = value
    for axis, values_of_axis in by_axis.items():
        yield Piece(axis, int(step), row.ts, values_of_axis)


def _without_assumed_facts(framework: Framework, path: Path, reading: Reading) -> Reading:
    """Removes framework and mode, which only the user can state for this collector."""
    assumed = {"framework", "usual_mode"} - framework.stated.keys()
    facts = {key: value for key, value in reading.facts.items() if key not in assumed}
    return structs.replace(
        reading, facts=facts, reader=f"{reading.reader}{_unread_logs(framework, path, reading.cursor or {})}"
    )


def _unread_logs(framework: Framework, path: Path, cursor: Cursor) -> str:
    """A text about logs of the same kind that are not read, because they may belong to another run."""
    source = cursor["source"]
    sink = next(candidate for candidate in framework.sinks if candidate.name == source["sink"])
    read = {source["path"], *source["left"]}
    others = [log for log in sink.find(path) if str(log) not in read]
    if not others:
        return ""
    names = [str(log.relative_to(path)) for log in others[:SHOWN]]
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    return f" (the newest; not read: {', '.join(names)}{more}: give the file itself as the path)"


READS = "any JSON lines, trackio, MLflow, TensorBoard or wandb log, by a map in the configuration"
VERSIONS = "as for each log format"
_FIELDS = {"name": "custom", "actor": "trainer", "reads": READS, "versions": VERSIONS, "options": OPTIONS}

COLLECTOR = Collector(
    **_FIELDS,  # type: ignore[arg-type]
    tail=configured({}).tail,
    # Named in the configuration, never detected.
    matches_path=lambda path: None,
    option_values={"format": FORMATS},
    takes_map=True,
    configured=configured,
)
