"""PipelineRL runs: its own streams and log, without wandb; or the trainer's wandb log.

Read from 58d393458 (2026-06-19). `stats/lag` was renamed to `stats/lag_{min,mean,max}` on 2026-07-15: both are read.

wandb has one run per process. The trainer's run does not define what a version is, so its staleness is unknown.

Not available: when weights were sent (their `timestamp` is the import's), the number of rollouts in flight, MFU.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from collectors.formats import console, jsonl, wandb
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Event, Limits, Sample, ScrapeError
from collectors.training_logs import tail
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- streams
# PipelineRL's own files as one sink: streams/*/0/0/0.jsonl of actor and preprocessor, and the trainer's log.

STATS, PREPROCESSOR, WEIGHTS, TRAINER_LOG = "stats", "preprocessor_stats", "weights", "finetune"
_FILES: Mapping[str, tuple[str, ...]] = {
    STATS: ("streams", "stats", "0", "0", "0.jsonl"),
    PREPROCESSOR: ("streams", "preprocessor_stats", "0", "0", "0.jsonl"),
    WEIGHTS: ("streams", "weight_update_request", "0", "0", "0.jsonl"),
    TRAINER_LOG: ("finetune", "log", "info_0.log"),
}
# "[finetune]: 06/19/2026 10:00:05.250 - INFO - pipelinerl... - Completed steps 3: {'stats/lr': '1.000e-06', ...}"
_LINE_TIME = re.compile(rb"^\[finetune\]: (\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)\.(\d{3}) - ", re.MULTILINE)
# Bytes at the end of the trainer's log, in which its newest time is searched.
END_BYTES = 64 << 10
# Seconds. The trainer's log was last changed this much later than its newest line: its files are copies.
COPIED_SECONDS = 300.0
_STEP = re.compile(
    r"\[finetune\]: (\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)\.(\d{3}) - INFO - \S+ - Completed steps (\d{1,15}): (\{.*\})"
)


def sink() -> Sink:
    """The sink. Its path is the `stats` stream, or else the trainer's log; the other files are in the same run."""
    looks_for = "streams/stats/0/0/0.jsonl or finetune/log/info_0.log"
    return Sink("streams", looks_for, _find, _read, writers=True)


def _find(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _root(path) is not None else []
    for name in (STATS, TRAINER_LOG):
        parts = _FILES[name]
        if files := walk(path, partial(_ends_with, parts)):
            return files
    return []


def _ends_with(parts: tuple[str, ...], path: Path) -> bool:
    return path.parts[-len(parts) :] == parts


def _root(path: Path) -> Path | None:
    for parts in _FILES.values():
        if _ends_with(parts, path):
            return path.parents[len(parts) - 1]
    return None


def _read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    root = _root(path)
    if root is None or not path.exists():
        raise ScrapeError("missing", f"{path.name} is not a file of a PipelineRL run")
    logs = Logs(modified=path.stat().st_mtime)
    late = _copied_later(root.joinpath(*_FILES[TRAINER_LOG]))
    for name, read in ((WEIGHTS, _weights), (TRAINER_LOG, _trainer), (STATS, _stats), (PREPROCESSOR, _preprocessor)):
        file = root.joinpath(*_FILES[name])
        rest = replace(limits, tail_rows=limits.tail_rows - len(logs.rows))
        if rest.tail_rows <= 0:
            logs.cursor[name], logs.more = cursor.get(name, {}), True
        elif file.is_file():
            read(file, cursor.get(name, {}), rest, logs)
        elif name in cursor:
            logs.cursor[name] = cursor[name]
    for row in logs.rows:
        if row.ts is not None and row.origin in (STATS, PREPROCESSOR):
            row.ts -= late
    # By time: rows of the trainer come before rows of the actor with the same time.
    logs.rows.sort(key=lambda row: row.ts or 0.0)
    return logs


def _copied_later(log: Path) -> float:
    """Seconds between the newest line of the trainer's log and its last change, if that is the time of a copy; else 0.

    The other streams have no times. A copy of the run changes all its files at the same time.
    """
    if not log.is_file():
        return 0.0
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        times = _LINE_TIME.findall(file.read())
    newest = _time(times[-1][0].decode(), times[-1][1].decode()) if times else None
    late = log.stat().st_mtime - newest if newest is not None else 0.0
    return late if late > COPIED_SECONDS else 0.0


def _add_read(name: str, read: jsonl.Rows | jsonl.Text, logs: Logs) -> None:
    logs.cursor[name] = read.cursor
    logs.more |= read.more
    logs.restarted |= read.restarted and name == TRAINER_LOG
    logs.dropped += read.dropped
    logs.why = logs.why or read.why


def _stats(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    """Rows are dated backwards from the file's last change, because every row is flushed at once."""
    read = jsonl.read_jsonl(file, cursor, limits)
    _add_read(STATS, read, logs)
    later, at = None, file.stat().st_mtime
    dated_rows = []
    for row in reversed(read.rows):
        since = number(row.get("time_since_start"))
        if since is not None and later is not None:
            # A larger number before a smaller one: another incarnation of the actor, which ended before this one began.
            at -= later - since if since <= later else later
        later = since if since is not None else later
        version = number(row.get("trainer_model_version"))
        dated_rows.append(Logged(row, None if version is None else int(version), at, STATS))
    logs.rows += reversed(dated_rows)


def _preprocessor(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    read = jsonl.read_jsonl(file, cursor, limits)
    _add_read(PREPROCESSOR, read, logs)
    if read.rows and not read.more:
        logs.rows.append(Logged(read.rows[-1], None, file.stat().st_mtime, PREPROCESSOR))


def _weights(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    """Published versions, in order; read first, because the other rows need them."""
    read = jsonl.read_jsonl(file, cursor, limits)
    _add_read(WEIGHTS, read, logs)
    versions = [row.get("version") for row in read.rows if row.get("kind") == "weight_update_success"]
    numbers = [int(version) for version in map(number, versions) if version is not None]
    if numbers:
        logs.rows.append(Logged({"versions": numbers}, None, 0.0, WEIGHTS))
    if any(row.get("kind") == "training_done" for row in read.rows):
        logs.finished = "the trainer wrote training_done"


def _trainer(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    read = jsonl.read_text(file, cursor, limits)
    _add_read(TRAINER_LOG, read, logs)
    for line in read.lines:
        if (match := _STEP.fullmatch(line)) is not None:
            logs.rows.append(Logged(_numbers(match[4]), int(match[3]), _time(match[1], match[2]), TRAINER_LOG))


def _numbers(text: str) -> dict[str, Any]:
    """A printed dict whose numbers are texts, converted to numbers; empty for other texts."""
    literal = console.literal(text) or {}
    return {key: console.figure(value) if isinstance(value, str) else value for key, value in literal.items()}


def _time(text: str, milliseconds: str) -> float | None:
    """The log has no zone: it is the machine's own, which is also that of this process."""
    try:
        return time.mktime(time.strptime(text, "%m/%d/%Y %H:%M:%S")) + int(milliseconds) / 1000
    except (ValueError, OverflowError):
        return None


# ---- keys
# PipelineRL's metric keys -> ours (58d393458: actor.py, finetune_loop.py, finetune/rl/__init__.py).

ACTOR = "orchestrator"
WAITED = "stats/time_waiting_for_data"
NORM, NONFINITE = "stats/grad_norm", "stats/grad_norm is not finite"
_BUSY = (("basis", "busy"),)
# Logged steps that may still be followed by an update.
STEPS_WAITING = 16

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    # The trainer. A step ends before the optimizer and the weight update; it includes the wait for data.
    "throughput/sec_per_step": Key("trainer_step_seconds"),
    "throughput/tokens_per_sec": Key("trainer_tokens_per_second", labels=_BUSY),
    "throughput/tokens_per_step": Key("processed_tokens"),
    "stats/lr": Key("learning_rate"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    "stats/samples_too_old_to_queue": Key("stale_dropped_rollouts", reduction="total"),
    "rl/loss": Key("loss_mean"),
    "rl/entropy": Key("entropy_mean"),
    "rl/kl": Key("reference_kl_mean"),
    "rl/kl_new_old": Key("mismatch_kl_mean"),
    "rl/mean_abs_log_ratio_new_old": Key("mismatch_logprob_difference_mean"),
    "rl/ratio_new_old": Key("importance_ratio_mean"),
    "rl/ess": Key("effective_sample_ratio"),
    "rl/num_output_tokens_sum": Key("trained_tokens"),
    # The actor: over the groups it finished since the previous version.
    "reward_mean": Key("reward_mean"),
    "success_mean": Key("solve_ratio"),
    "always_success": Key("groups_all_solved_ratio"),
    "never_success": Key("groups_none_solved_ratio"),
    "sometimes_success": Key("groups_mixed_ratio"),
    "overflow_mean": Key("truncation_ratio"),
    "no_error_mean": Key("rollout_error_ratio", scale=-1.0, offset=1.0),
    "num_turns_mean": Key("turns_mean"),
    "latency_mean": Key("rollout_seconds_mean"),
    "latency_max": Key("rollout_seconds_max"),
    "output_tokens_per_second": Key("rollout_tokens_per_second"),
}

NEEDS = frozenset(
    (
        "stats/completed_steps",
        "stats/samples",
        "stats/lag",
        "stats/lag_mean",
        "stats/lag_max",
        "stats/time_waiting_for_data",
        "throughput/sec_per_step",
        "throughput/sec_per_pass",
        "throughput/micro_batches_per_step",
        "throughput/tokens_per_step",
        "reward_mean",
        "reward_var",
        "num_turns_mean",
        "num_turns_max",
        "trainer_model_version",
        "output_tokens_mean",
        "output_tokens_max",
        "output_tokens_min",
        "prompt_tokens_mean",
    )
)

# Counted but not dropped samples (samples_too_old_to_train), micro batches, one rank's share, other statistics, the
# same per dataset and domain, the actor's bookkeeping, the test set.
IGNORED = re.compile(
    r"stats/(?:tokens|samples_too_old_to_train|passes|epoch|(?:min|max)_actor_version|queue/batches|lag_min)"
    r"|throughput/.*|rl/.*|(?:test_)?(?:reward|success|no_error|no_answer|overflow|num_turns|prompt_tokens|output_tokens"
    r"|penalty_delta|overlong|latency|model_version)_(?:mean|max|min|var)|test_.*|overlong_.*|success_given_overlong"
    r"|published_samples|(?:problem|result)_queue_size|finished_groups|time_since_start|domain_mix_.*|[^/]+/[^/]+_(?:mean"
    r"|max|min|var)|[^/]+/success_given_overlong|(?:samples|prompt_tokens|total_tokens)_per_second|actor/.*"
)


def facts(config: Mapping[str, Any]) -> Facts:
    """From conf/exp_config.yaml or wandb (flat, dotted)."""
    settings = Settings(config)
    stop = settings.number("finetune.interrupt_train_steps") or settings.number("interrupt_train_steps")
    max_steps = settings.number("finetune.max_train_steps") or settings.number("max_train_steps")
    return facts_of(
        mode="async",
        # In the saved file `attempts` is a reference to the other key.
        group_size=settings.number("finetune.attempts") or settings.number("attempts"),
        batch_samples=product(
            settings.number("finetune.gradient_accumulation_passes") or settings.number("gradient_accumulation_passes"),
            settings.number("finetune.train_batch_size") or settings.number("train_batch_size"),
        ),
        max_steps=stop if stop is not None and stop > 0 else max_steps,
        max_response_tokens=settings.number("llm.parameters.max_tokens"),
        model=settings.text("model_path"),
    )


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """The trainer's steps; the actor's rows by the step after which their version was published; queues as gauges."""
    if row.origin == WEIGHTS:
        _published(row.values.get("versions", ()), context)
    elif row.origin == PREPROCESSOR:
        _queue(row, values, context)
    elif row.step is not None and row.ts is not None and values:
        remaining = dict(values)
        if NORM in row.values:
            remaining[NONFINITE] = float(NORM not in values)
        version = values.get("trainer_model_version")
        if version is not None:
            step = _step_of(version, context)
            if step is not None:
                yield Piece(ACTOR, step, row.ts, remaining)
        elif "throughput/sec_per_step" in values:
            _update(row.ts, values, context)
            yield Piece(TRAINER, row.step, row.ts, remaining)


def _update(ts: float, values: Mapping[str, float], context: Context) -> None:
    """The update that follows this step, if any: it is published after the step is logged, and has no time."""
    if (samples := values.get("stats/samples")) is not None:
        context.memory["steps"] = [*context.memory.get("steps", []), [int(samples), ts]][-STEPS_WAITING:]
        _emit_updates(context)


def _emit_updates(context: Context) -> None:
    """Adds events for steps whose update has been published by now."""
    waiting = []
    for samples, ts in context.memory.get("steps", []):
        version = tail.version_of(context.memory.get("updates", []), samples)
        if version is None:
            waiting.append([samples, ts])
        else:
            detail, key = f"{samples} samples processed", f"weights:{samples}:{ts:.0f}"
            context.events.append(Event("weights_published", key, ts, detail, version))
    context.memory["steps"] = waiting


def _step_of(version: float, context: Context) -> int | None:
    """The trainer's step after which a version (in samples) was published: both axes then count the same."""
    memory = context.memory
    samples_per_step = (
        memory.get("samples_per_step") or context.facts.get("batch_samples") or memory.get("samples_per_version")
    )
    if version <= 0:
        return 0
    return (
        round(version / samples_per_step)
        if isinstance(samples_per_step, int | float) and samples_per_step > 0
        else None
    )


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """Phases, the wait of this step, lags in versions; lengths per rollout."""
    if piece.axis == ACTOR:
        yield from _production(piece.values)
    elif "throughput/sec_per_step" in piece.values:
        yield from _samples(piece.values, context)
        yield from _phases(piece, context)
        yield from _staleness(piece.values, context)


def _samples(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    steps, samples = values.get("stats/completed_steps"), values.get("stats/samples")
    if steps and samples is not None:
        # Every step takes the same number (finetune_loop.py: samples_per_step).
        context.memory["samples_per_step"] = samples / steps
        yield "trainer_samples", (), samples / steps


def _phases(piece: Piece, context: Context) -> Iterator[Out]:
    values, step_seconds = piece.values, piece.values["throughput/sec_per_step"]
    wait = _waited(piece, context)
    passes, pass_seconds = values.get("throughput/micro_batches_per_step"), values.get("throughput/sec_per_pass")
    compute = passes * pass_seconds if passes is not None and pass_seconds is not None else None
    if wait is not None:
        yield "trainer_wait_seconds", (), wait
    if compute is not None:
        yield "trainer_compute_seconds", (), compute
    if wait is not None and compute is not None:
        yield "trainer_other_seconds", (), max(0.0, step_seconds - wait - compute)
    if (tokens := values.get("throughput/tokens_per_step")) is not None and step_seconds > 0:
        # `real_tokens_per_sec` is one rank's.
        yield "trainer_tokens_per_second", (("basis", "wall"),), tokens / step_seconds


def _waited(piece: Piece, context: Context) -> float | None:
    """Seconds this step waited, from the total; None if the previous row is not the previous step."""
    total = piece.values.get(WAITED)
    if total is None:
        return None
    totals: dict[str, float] = context.memory.setdefault("waited", {})
    before = 0.0 if piece.step == 1 else totals.get(str(piece.step - 1))
    totals[str(piece.step)] = total
    # A step of an earlier incarnation may not be the previous one; a few steps are enough to correct a late row.
    context.memory["waited"] = {step: totals[step] for step in totals if piece.step - 4 <= int(step) <= piece.step}
    return total - before if before is not None and total >= before else None


def _staleness(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    samples_per_version = context.memory.get("samples_per_version")
    if not isinstance(samples_per_version, int | float) or samples_per_version <= 0:
        return
    # `stats/lag` (before 2026-07-15) is that of the oldest rollout of the step: the largest.
    for keys, statistic in ((("stats/lag_max", "stats/lag"), "max"), (("stats/lag_mean",), "mean")):
        if (lag := next((values[key] for key in keys if key in values), None)) is not None:
            yield f"staleness_versions_{statistic}", (), lag / samples_per_version


def _production(values: Mapping[str, float]) -> Iterator[Out]:
    if "reward_mean" in values:
        # `calculate_stats` leaves out var, max and min if var is zero (utils.py:424).
        yield "reward_std", (), values.get("reward_var", 0.0) ** 0.5
    turns, mean = values.get("num_turns_mean"), values.get("output_tokens_mean")
    if turns is None or mean is None:
        return
    # Tokens are counted per turn: mean per turn x turns per rollout is the mean per rollout.
    yield "response_tokens_mean", (), mean * turns
    yield "turns_max", (), values.get("num_turns_max", turns)
    if turns == 1 and "num_turns_max" not in values:
        yield "response_tokens_max", (), values.get("output_tokens_max", mean)
        yield "response_tokens_min", (), values.get("output_tokens_min", mean)
        if (prompt := values.get("prompt_tokens_mean")) is not None:
            yield "prompt_tokens_mean", (), prompt


def _published(versions: Any, context: Context) -> None:
    """The samples of one version: the difference of the last two published ones."""
    runs = [list(run) for run in context.memory.get("updates", [])]
    tail.add(runs, versions)
    context.memory["updates"] = runs
    _emit_updates(context)
    for version in versions:
        before = context.memory.get("version")
        if isinstance(before, int) and version > before:
            context.memory["samples_per_version"] = version - before
        context.memory["version"] = version


def _queue(row: Logged, values: Mapping[str, float], context: Context) -> None:
    if (samples := number(values.get("preprocessor/queue/output_samples"))) is not None:
        context.samples.append(Sample("queue_samples", samples, (), row.ts))


# Bytes. Hydra's resolved configuration has 15 kB.
CONFIG_BYTES = 1 << 20


def _folder_facts(folder: Path) -> Mapping[str, str | float]:
    """Facts of conf/exp_config.yaml; an unreadable or broken file counts as absent."""
    try:
        with (folder / "conf" / "exp_config.yaml").open("rb") as file:
            config: Any = yaml.safe_load(file.read(CONFIG_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return facts(config) if isinstance(config, dict) else {}


FRAMEWORK = Framework(
    name="pipeline_rl",
    reads="PipelineRL runs (streams/*.jsonl with the trainer's log; wandb)",
    versions="58d393458 (2026-06) by source",
    sinks=(sink(), wandb.SINK),
    keys=KEYS,
    needs=NEEDS,
    ignored=IGNORED,
    marks=("stats/time_waiting_for_data", "throughput/sec_per_pass", "never_success"),
    strip=("actor/",),
    split=pieces,
    derive=derive,
    facts=facts,
    folder_facts=_folder_facts,
    mode="async",
    only_mode=True,
    derives=(
        "prompt_tokens_mean",
        "queue_samples",
        "response_tokens_max",
        "response_tokens_mean",
        "response_tokens_min",
        "reward_std",
        "staleness_versions_max",
        "staleness_versions_mean",
        "trainer_compute_seconds",
        "trainer_other_seconds",
        "trainer_samples",
        "trainer_wait_seconds",
        "turns_max",
    ),
    hints={
        "tool_calls_mean": "no key of its log counts tool calls",
        "trainer_mfu_ratio": "its log has no key for FLOPs or MFU",
        "staleness_versions_max": "add the run directory: wandb's trainer run does not report what a version is",
        "queue_samples": "add the run directory: the queues are in its streams",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
