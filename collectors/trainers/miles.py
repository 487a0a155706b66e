"""miles runs (31f1ca961, 2026-08): the dashboard's metrics, the event log, its Prometheus page, and slime's sinks.

Axis ``trainer`` is the rollout, as for slime, of which miles is a fork. Rows of the dashboard and the event log have
the time of the log call; a page has only the last values. The group's size comes from the arguments (wandb, MLflow,
the dashboard's meta.json, the printed command), for a page from the target's ``group_size``.

Not available: the prompt buffer (data_buffer.jsonl counts prompts to generate, not ready samples), the steps of single
adapters in multi-LoRA runs, the dashboard's timeline of phases.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from collectors.formats import console, exposition, jsonl, mlflow, tensorboard, wandb
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits, Reading, Sample, ScrapeError, State
from collectors.trainers import slime
from collectors.trainers.slime import (
    BUSY,
    DROPPED,
    GENERATED,
    GRADED,
    NONFINITE,
    NORM,
    ROLLOUT_STEP,
    ZERO,
    counted,
    groups,
)
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts
from collectors.training_logs.tail import collector_of
from collectors.transport import bytetail, http

# ---- events
# miles' event log as a sink: one JSONL file per process of the run, read together in the order of their times.

# A process of every node writes one; two or three of them have metrics.
MAX_FILES = 64


@dataclass(slots=True)
class _Part:
    """The part of one file read by one call: per line a row (None: another event, or a broken line) and its time."""

    path: Path
    chunk: bytetail.Lines
    lines: list[tuple[float, Logged | None]]
    broken: int = 0


def find(path: Path) -> list[Path]:
    """Folders with event files below a run directory: those called `events` first, then the last written ones."""
    if path.is_file():
        return [path] if path.suffix == ".jsonl" else []
    folders = dict.fromkeys(file.parent for file in walk(path, lambda file: file.suffix == ".jsonl"))
    # The dashboard's streams are JSON lines, too, in their own folders.
    return sorted(folders, key=lambda folder: folder.name != "events")


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows of all files since ``cursor``, by time; an unread rest of one file delays later rows of the others.

    Raises:
        ScrapeError: ``missing``.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))[:MAX_FILES]
    if not files:
        raise ScrapeError("missing", f"no event file (*.jsonl) in {path.name}")
    file_cursors: Mapping[str, Any] = cursor.get("files", {})
    share = replace(
        limits, tail_bytes=limits.tail_bytes // len(files), tail_rows=max(1, limits.tail_rows // len(files))
    )
    parts = [_part(file, file_cursors, share) for file in files]
    until = min((part.lines[-1][0] for part in parts if part.chunk.more and part.lines), default=float("inf"))
    parts = [_until(part, file_cursors, share, until) for part in parts]
    logs = Logs(more=any(part.chunk.more for part in parts), restarted=any(part.chunk.restarted for part in parts))
    logs.cursor = {"files": {part.path.name: part.chunk.cursor for part in parts}}
    rows = [(ts, row) for part in parts for ts, row in part.lines if row is not None]
    logs.rows = [row for _, row in sorted(rows, key=lambda dated_row: dated_row[0])]
    logs.dropped = sum(part.chunk.dropped + part.broken for part in parts)
    logs.why = next(
        (part.chunk.why for part in parts if part.chunk.why), "a line is not an event" if logs.dropped else ""
    )
    return logs


def _part(file: Path, file_cursors: Mapping[str, Any], limits: Limits) -> _Part:
    part = _Part(file, bytetail.read(file, file_cursors.get(file.name, {}), limits), [])
    last = 0.0
    for _, line in part.chunk.lines:
        event = jsonl.parse(line)
        ts = _seconds(event.get("timestamp")) if event is not None else None
        part.broken += ts is None
        last = ts if ts is not None else last
        part.lines.append((last, _row(event, last, file.stem) if event is not None and ts is not None else None))
    return part


def _until(part: _Part, file_cursors: Mapping[str, Any], limits: Limits, until: float) -> _Part:
    """The same part, read again up to a time if it reaches beyond it."""
    count = next((index for index, (ts, _) in enumerate(part.lines) if ts > until), len(part.lines))
    if count == len(part.lines):
        return part
    return _part(part.path, file_cursors, replace(limits, tail_rows=count))


def _row(event: dict[str, Any], ts: float, origin: str) -> Logged | None:
    metrics = event.get("metrics")
    if event.get("type") != "metric" or not isinstance(metrics, dict):
        return None
    return Logged(metrics, None, ts, origin)


def _seconds(value: object) -> float | None:
    """Epoch seconds of a time in pydantic's form: UTC, with a Z."""
    try:
        return datetime.fromisoformat(str(value)).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


SINK = Sink("events", "events/*.jsonl", find, read, writers=True)


# ---- keys
# Keys of miles (31f1ca961) in addition to slime's: the fully asynchronous buffer, versions, equal groups, MFU.

_BUFFER = "rollout/fully_async/"
# A run with several adapters has another kind of buffer with its own keys.
_ADAPTERS = "perf/fully_async/"
QUEUE = (f"{_BUFFER}queue_size", f"{_ADAPTERS}queue_length")
STALE = (f"{_BUFFER}stale_groups_filtered", f"{_ADAPTERS}stale_dropped")
FULLY_ASYNC = (*QUEUE, *STALE, f"{_BUFFER}avg_staleness", f"{_BUFFER}max_staleness")
# Shares of all groups, 0 to 1 in spite of the name (miles/ray/rollout/metrics.py:185).
ALL_ZERO, ALL_ONE = "rollout/zero_std/all_zero_percentage", "rollout/zero_std/all_one_percentage"
NONE_EQUAL = ("rollout/zero_std/count_0.0", "rollout/zero_std/count_1.0")

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    **slime.KEYS,
    "perf/actor_train_mfu": Key("trainer_mfu_ratio", labels=BUSY),
    # Versions: current - oldest of the group, over all groups taken out, including those dropped as stale.
    f"{_BUFFER}avg_staleness": Key("staleness_versions_mean"),
    f"{_BUFFER}max_staleness": Key("staleness_versions_max"),
    f"{_BUFFER}aborted_groups_filtered": Key("rollout_errors", labels=(("type", "aborted_group"),)),
    "rollout/weight_version/max": Key("policy_version"),
    "rollout/weight_version/mixed_version_ratio": Key("mixed_version_ratio"),
    f"{_ADAPTERS}batch_n_samples": Key("trainer_samples"),
    f"{_ADAPTERS}batch_n_groups": Key("trainer_groups"),
    "train/train_rollout_kl": Key("mismatch_kl_mean"),
}

NEEDS = slime.NEEDS | {*FULLY_ASYNC, ALL_ZERO, ALL_ONE, *NONE_EQUAL}

IGNORED = re.compile(
    rf"{slime.IGNORED.pattern}|rollout/(?:weight_version|fully_async|tito_session_mismatch_rate)/.*"
    r"|eval/.*|(?:rollout|train)/step|[^/]+/perf/.*"
)


def derive(piece: Piece, context: Context) -> Iterable[Out]:
    values = piece.values
    queue = next((values[key] for key in QUEUE if key in values), None)
    if any(key in values for key in FULLY_ASYNC):
        # Only fully asynchronous rollouts have such a buffer.
        context.memory["mode"] = "async"
    # slime's share needs the batch size; miles logs the number of groups indirectly.
    equal_groups = list(_equal(values, context))
    yield from (
        output for output in slime.derive(piece, context) if output[0] not in {metric for metric, _, _ in equal_groups}
    )
    yield from equal_groups
    if queue is not None:
        yield groups(queue, context)
    stale, size = next((values[key] for key in STALE if key in values), None), context.facts.get("group_size")
    if stale is not None and isinstance(size, float):
        yield "stale_dropped_rollouts", (), stale * size


def _equal(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Groups of equal rewards in the batch: their share, and the two causes if these explain all of them."""
    if ALL_ZERO not in values or ALL_ONE not in values:
        return
    if values.get(GRADED, 0.0) > 0:
        context.memory["graded"] = True
    if DROPPED not in values:
        group_count = _group_count(values, context)
        share = values[ALL_ZERO] + values[ALL_ONE]
        if values.get(GRADED, 0.0) > 0 and group_count is not None:
            share = values[ZERO] / group_count
        if values.get(GRADED, 0.0) == 0 or group_count is not None:
            yield "groups_zero_advantage_ratio", (), share
    if not context.memory.get("graded") and not values.get(DROPPED):
        yield "groups_none_solved_ratio", (), values[ALL_ZERO]
        yield "groups_all_solved_ratio", (), values[ALL_ONE]


def _group_count(values: Mapping[str, float], context: Context) -> float | None:
    """Groups in the batch: from a count and its share, else from the configuration."""
    for count, share in zip(NONE_EQUAL, (ALL_ZERO, ALL_ONE), strict=True):
        if values.get(count) and values[share] > 0:
            return values[count] / values[share]
    batch, size = context.facts.get("batch_samples"), context.facts.get("group_size")
    return batch / size if isinstance(batch, float) and isinstance(size, float) else None


# ---- page
# miles' own metrics page (31f1ca961: miles/utils/tracking_utils/prometheus_utils.py): the last value of every key.

PREFIX = "miles_metric_"
_HELP = re.compile(r"^# HELP (miles_metric_\S+) (.+)$", re.MULTILINE)
# Keys that the trainer logs when it has finished or prepares a rollout; the others are the rollout manager's.
_TRAINER = re.compile(
    r"perf/(?!rollout_time|fully_async/|request/|decode/|prefill/)\w+_time|perf/.*(?:tflops|mfu|tok_per_s)"
)


def parse_page(framework: Framework, body: bytes, state: State, limits: Limits) -> Reading:
    """One page: what changed since the previous page, under the rollout's step.

    Args:
        state: ``options["group_size"]``, rollouts per group, turns groups into samples.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page without miles' gauges, or a truncated one.
    """
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    names = dict(_HELP.findall(body.decode(errors="replace")))
    raw = {names.get(series.name, ""): value for series, value in page.samples if series.name.startswith(PREFIX)}
    raw.pop("", None)
    if not raw:
        raise ScrapeError("garbage", f"not a page of miles: it has no {PREFIX}* series")
    page_memory = state.setdefault("miles", {})
    context = Context({"framework": framework.name, **_options(state)}, page_memory.setdefault("own", {}), "page")
    unmapped: dict[str, int] = {}
    samples = tuple(_samples(framework, _changed(raw, page_memory), raw.get(ROLLOUT_STEP), context, unmapped))
    if "mode" not in context.facts:
        context.facts["usual_mode"] = framework.mode
    return Reading(
        samples=samples, facts=context.facts, unmapped=unmapped, dropped=page.dropped, why_dropped=page.why,
        samples_scraped=len(raw),
    )  # fmt: skip


def matches(body: bytes) -> bool:
    """Returns whether a line begins with one of miles' gauges."""
    return re.search(rb"^miles_metric_\w+[{ ]", body, re.MULTILINE) is not None


def _options(state: State) -> dict[str, str | float]:
    text = str(state.get("options", {}).get("group_size", ""))
    return {"group_size": float(text)} if text.isascii() and text.isdecimal() and int(text) > 0 else {}


def _group(key: str) -> str:
    if key.startswith("train/"):
        return "train"
    return "trainer" if _TRAINER.fullmatch(key) else "rollout"


def _changed(raw: Mapping[str, float], page_memory: dict[str, Any]) -> dict[str, float]:
    """Values of the groups in which any value differs from the previous page."""
    before: dict[str, float] = page_memory.get("values", {})
    # Compared as text, because NaN is equal to nothing.
    changed_groups = {
        _group(key) for key, value in raw.items() if key != ROLLOUT_STEP and str(before.get(key)) != str(value)
    }
    page_memory["values"] = dict(raw)
    return {key: value for key, value in raw.items() if _group(key) in changed_groups}


def _samples(
    framework: Framework, values: dict[str, float], step: float | None, context: Context, unmapped: dict[str, int]
) -> Iterator[Sample]:
    if step is None or not math.isfinite(step):
        return
    finite_values = {key: value for key, value in values.items() if math.isfinite(value)}
    if NORM in values:
        finite_values[NONFINITE] = float(NORM not in finite_values)
    if any(key in finite_values for key in GENERATED):
        finite_values |= counted(finite_values, context.memory)
    needed = context.memory.setdefault("needs", {})
    if needed.get("step") != step:
        needed |= {"step": step, "values": {}}
    needed["values"].update({key: value for key, value in finite_values.items() if key in NEEDS})
    for key, value in finite_values.items():
        keys = framework.keys.get(key)
        if keys is None and (framework.ignored is None or not framework.ignored.fullmatch(key)) and key not in NEEDS:
            unmapped[key] = 1
        for key_of_metric in () if keys is None else (keys,) if isinstance(keys, Key) else keys:
            yield Sample(
                key_of_metric.metric,
                value * key_of_metric.scale + key_of_metric.offset,
                key_of_metric.labels,
                None,
                int(step),
                TRAINER,
            )
    if finite_values and framework.derive is not None:
        for metric, labels, value in framework.derive(Piece(TRAINER, int(step), 0.0, needed["values"]), context):
            yield Sample(metric, value, labels, None, int(step), TRAINER)


META = ("dashboard/meta.json", "meta.json")
META_BYTES = 256 << 10


def unpack(row: jsonl.Row) -> Logged | None:
    """A line of `dashboard/metrics.jsonl`: ``{ts, step_key, step, metrics}`` (miles/dashboard/store.py:79)."""
    metrics, key, step = row.get("metrics"), row.get("step_key"), row.get("step")
    if not isinstance(metrics, dict) or "step_key" not in row:
        return None
    steps = {key: step} if isinstance(key, str) and isinstance(step, int) else {}
    return Logged({**metrics, **steps}, None, jsonl.number(row.get("ts")))


def folder_facts(path: Path) -> Facts:
    """Facts from the dashboard's meta.json: a part of the arguments, and the run's name."""
    for name_of_file in META:
        meta = _meta(path / name_of_file)
        arguments = meta.get("args")
        if isinstance(arguments, dict):
            name = meta.get("run_name")
            return {**slime.facts(arguments), **({"run_name": name} if isinstance(name, str) else {})}
    return {}


def _meta(path: Path) -> jsonl.Row:
    try:
        with path.open("rb") as file:
            return jsonl.parse(file.read(META_BYTES)) or {}
    except OSError:
        return {}


def on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, and evaluations as events."""
    slime.live(row, values, context)
    slime.evaluated(row, values, context)


FRAMEWORK = Framework(
    name="miles",
    reads="miles runs (dashboard and event log of --dump-details, MLflow, wandb, TensorBoard, console) and their page",
    versions="31f1ca961 (2026-08) by source",
    sinks=(
        jsonl.sink(("metrics.jsonl",), unpack, name="dashboard"),
        SINK,
        mlflow.SINK,
        wandb.SINK,
        tensorboard.SINK,
        console.sink(slime.parse),
    ),
    keys=KEYS,
    ignored=IGNORED,
    evaluations=slime.EVALUATIONS,
    evaluation_step="eval/step",
    marks=slime.MILES,
    config_marks=("use_miles_dashboard", "use_miles_router"),
    split=slime.pieces,
    needs=NEEDS,
    derive=derive,
    facts=slime.facts,
    folder_facts=folder_facts,
    on_row=on_row,
    seconds=("perf/step_time",),
    first_step=0,
    report_seconds=30.0,
    derives=(
        "generation_seconds",
        "groups_all_solved_ratio",
        "groups_none_solved_ratio",
        "groups_zero_advantage_ratio",
        "in_flight_rollouts",
        "prompt_tokens_mean",
        "queue_groups",
        "queue_samples",
        "rollout_tokens_per_second",
        "stale_dropped_rollouts",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_phase_active",
        "trainer_wait_seconds",
    ),
    hints={
        "turns_mean": "`--log-multi-turn`",
        "queue_samples": "add the job's printed log, or the fact `group_size` if its page is read",
    },
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page of miles' own exporter."""
    return parse_page(FRAMEWORK, body, state, limits)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """One page over HTTP.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return parse(await http.metrics_page(client, limits), state, limits)


COLLECTOR = collector_of(FRAMEWORK, parse=parse, poll=poll, matches_page=matches, options=("group_size",))
