"""TRL's GRPOTrainer and AsyncGRPOTrainer, through any logger they report to (TRL 1.16.0).

trackio, MLflow and wandb have the configuration and the profiling rows, which give the phases of a synchronous step.
TensorBoard, trainer_state.json and the printed log do not have them, so the phases and (without a batch size) the
samples are unknown. HF puts `train/` before every key except for MLflow, the state file and the printed log. wandb and
trackio count their own rows: the step is `train/global_step`. Of several logs in a run directory the best is read, and
the state file for facts and the end.

Not available: solved and unsolved groups separately, turns of the synchronous trainer, its MFU, its wait (a synchronous
step has none); the policy version of single rollouts. Rollout records (completions/*.parquet, trackio traces) have
collectors of their own.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collectors.formats import console
from collectors.formats.jsonl import number as number_of
from collectors.formats.jsonl import parse
from collectors.formats.mlflow import database as mlflow_database
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.trackio import log as trackio_log
from collectors.formats.wandb import log as wandb_log
from collectors.model import Event, Limits, ScrapeError
from collectors.trainers.trl import config as trl_config
from collectors.trainers.trl import keys as trl_keys
from collectors.trainers.trl import printed as trl_printed
from collectors.trainers.trl import state as trl_state
from collectors.training_logs.model import TRAINER, Context, Framework, Piece
from collectors.training_logs.tail import collector_of

# A state file older than the newest step by this much is of an earlier run in the same folder.
STATE_LAG_SECONDS = 60.0
# Profiling rows without a step belong to the step that is logged next.
NEXT = "-1"
# HF's TensorBoard callback writes the arguments as a text.
ARGUMENTS = "args/text_summary"


def on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    if context.restarted:
        context.restarted = False
        step, before = values.get("global_step", row.step), context.memory.get("step")
        context.memory.clear()
        # When the steps go back, they show the restart themselves.
        if before is None or step is None or step >= before:
            context.events.append(Event("restart", f"restart:{row.ts or 0:.0f}", row.ts, "a new run in the log"))
    if context.sink == trl_state.NAME:
        context.facts["times_estimated"] = 1.0
    if trl_printed.MAX_STEPS in values:
        context.take({"max_steps": values[trl_printed.MAX_STEPS]})
    text = row.values.get(ARGUMENTS)
    if isinstance(text, str) and (arguments := parse(text)) is not None:
        context.take(trl_config.facts(arguments))
    if context.mode == "async" or any(mark in values for mark in trl_keys.ASYNC_MARKS):
        context.memory["async"] = True
        context.take({"mode": "async"})


def split(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    """One row: profiling (cached for its step), a step, an evaluation, the final row, or several."""
    profiling = {key: value for key, value in values.items() if key.startswith(trl_keys.PROFILING)}
    if profiling:
        _add_profiling(profiling, row, context)
    step = values["global_step"] if "global_step" in values else _own_step(row, context.sink)
    if step is None or row.ts is None:
        return
    number, ts = int(step), row.ts
    logged = {key: value for key, value in values.items() if key not in profiling}
    if any(trl_keys.EVALUATION.fullmatch(key) for key in logged):
        context.events.append(Event("eval", f"eval:{number}:{ts:.0f}", ts))
        context.memory["evaluated"] = number
    if number == context.memory.get("evaluated") and trl_keys.TRAINED.isdisjoint(logged):
        # Rewards and lengths of the evaluation itself: TRL 0.23 to 0.25 with unsloth logs them under `train/`.
        return
    step_values = {key: value for key, value in logged.items() if not _is_bookkeeping(key)}
    if step_values:
        context.finished = ""
        yield _step(row, step_values, number, context)
    # For wandb and trackio, HF removes the summary's numbers from its last row; epoch and step remain.
    if "train_runtime" in logged or {key for key in logged if not key.startswith("_")} == {"epoch", "global_step"}:
        context.finished = f"the trainer's closing row at step {number}"


def _is_bookkeeping(key: str) -> bool:
    return (trl_keys.BOOKKEEPING.fullmatch(key) or trl_keys.EVALUATION.fullmatch(key)) is not None


def _own_step(row: Logged, sink: str) -> int | None:
    """The sink's own step if it is the trainer's."""
    return None if sink in (trackio_log.SINK.name, wandb_log.SINK.name) else row.step


def _add_profiling(profiling: Mapping[str, float], row: Logged, context: Context) -> None:
    # MLflow writes steps asynchronously and profiling at once, so a profiling row is assigned by its step.
    step_key = str(row.step) if context.sink == mlflow_database.SINK.name and row.step is not None else NEXT
    pending = context.memory.setdefault("pending", {}).setdefault(step_key, {})
    for phase, seconds in trl_keys.profiled(profiling):
        pending[phase] = pending.get(phase, 0.0) + seconds


def _step(row: Logged, values: dict[str, float], number: int, context: Context) -> Piece:
    memory = context.memory
    values |= trl_keys.nonfinite(row.values)
    steps = _covered_steps(number, context)
    phases = _phases(number, steps, memory)
    assert row.ts is not None
    if memory.get("async"):
        values = {trl_keys.ASYNC_NAMES.get(key, key): value for key, value in _per_step(values, steps).items()}
        if trl_keys.TRAINED_LENGTH in values:
            values.pop(trl_keys.SCORED_LENGTH, None)
        if "perf/weight_sync_s" in values:
            key, version = f"weights:{number}:{row.ts:.0f}", _version(number, steps, memory)
            context.events.append(Event("weights_published", key, row.ts, f"step {number}", version))
    else:
        values |= phases | _between(row, values, number, memory)
    memory["step"], memory["ts"], memory["writer"] = number, row.ts, row.origin
    return Piece(TRAINER, number, row.ts, values)


def _between(row: Logged, values: Mapping[str, float], number: int, memory: dict[str, Any]) -> dict[str, float]:
    """Seconds per step since the previous row, for versions of TRL that log no duration; empty if they are unknown.

    The time with an evaluation or a restart of the process in it is not the duration of a step.
    """
    memory["timed"] = timed = "step_time" in values or memory.get("timed", False)
    elapsed_before, elapsed = memory.get("elapsed"), number_of(row.values.get(trl_printed.ELAPSED))
    memory["elapsed"] = elapsed
    step, ts, passed = memory.get("step"), memory.get("ts"), None
    if elapsed is not None and elapsed_before is not None:
        passed = elapsed - elapsed_before
    elif row.ts is not None and ts is not None and not row.estimated and row.origin == memory.get("writer"):
        passed = row.ts - ts
    if timed or passed is None or passed <= 0 or step is None or number <= step or step == memory.get("evaluated"):
        return {}
    return {trl_keys.BETWEEN: passed / (number - step)}


def _version(number: int, steps: float | None, memory: dict[str, Any]) -> int | None:
    """The policy version an asynchronous step published; None where updates cannot be counted.

    Version 1 is published before the first step, then one is added every `weight_sync_steps` (async_grpo_trainer.py,
    `_sync_weight`). Few logs have the setting; two updates after the first step give it, if every step has a row.
    A resumed run publishes once more and continues from its checkpoint's count.
    """
    before: int | None = memory.get("synced")
    memory["synced"] = number
    if number == 1 or steps != 1 or number < memory.get("step", 0):
        memory["counted"] = number == steps == 1
    if not memory.get("counted") or before is None or before < 2:
        return None
    interval = number - before
    return 1 + number // interval if interval > 0 and number % interval == 0 else None


def _covered_steps(number: int, context: Context) -> float | None:
    """Steps that the row of this step covers: `logging_steps`, fewer at the start; None if unknown."""
    memory, window = context.memory, context.facts.get("logging_steps")
    last: int | None = memory.get("step")
    if number != last:  # a later part of a step's row covers as many steps as the first part
        since = max(1, number if last is None or number < last else number - last)
        if isinstance(window, float):
            memory["stands_for"] = min(window, float(since))
        else:
            # A first row may be of a resumed run: without the setting only that of step 1 has a known window.
            memory["stands_for"] = None if since == number > 1 else float(since)
    covered: float | None = memory.get("stands_for")
    return covered


def _per_step(values: Mapping[str, float], steps: float | None) -> dict[str, float]:
    """Sums over the logging window as amounts per step; left out if the window is unknown."""
    sums = trl_keys.WINDOW_SUMS & values.keys()
    remaining = {key: value for key, value in values.items() if key not in sums}
    return remaining | ({key: values[key] / steps for key in sums} if steps is not None else {})


def _phases(number: int, steps: float | None, memory: dict[str, Any]) -> dict[str, float]:
    """Seconds per step of the phases profiled for this step.

    With logging_steps > 1 a row is a mean over several steps and the profiling rows are those of all of them.
    """
    pending = memory.get("pending", {})
    seconds_by_phase: dict[str, float] = {}
    for step_key in [step_key for step_key in pending if int(step_key) < number]:
        for phase, seconds in pending.pop(step_key).items():
            seconds_by_phase[phase] = seconds_by_phase.get(phase, 0.0) + seconds / (steps or 1.0)
    return seconds_by_phase if steps is not None else {}


def state_file(folder: Path, context: Context) -> None:
    """Facts and the end from a state file in the folder, unless it is older than the log's rows."""
    path = trl_state.find(folder)
    if path is None or context.sink == trl_state.NAME:
        return
    try:
        state = trl_state.read(path, Limits())
    except ScrapeError:
        return  # incomplete, or removed with a rotated checkpoint: the log is the source here
    memory = context.memory
    if state.step >= memory.get("step", 0) and state.modified >= memory.get("ts", 0.0) - STATE_LAG_SECONDS:
        for fact, value in state.facts.items():
            context.facts.setdefault(fact, value)
        context.finished = context.finished or state.finished


def _state_path(path: Path) -> str | None:
    state = trl_state.find(path)
    if state is None:
        return None
    try:
        recognised = trl_state.is_reinforcement(trl_state.read(state, Limits()))
    except ScrapeError:
        return None
    return f"{state.name} with GRPO's keys" if recognised else None


FRAMEWORK = Framework(
    name="trl",
    reads="TRL GRPO and AsyncGRPO runs (trackio, MLflow, wandb, TensorBoard, trainer_state.json, printed log)",
    versions="1.16.0 by source and recorded runs",
    sinks=(
        trackio_log.SINK,
        mlflow_database.SINK,
        wandb_log.SINK,
        tensorboard_log.SINK,
        trl_state.SINK,
        console.sink(trl_printed.parse),
    ),
    keys=trl_keys.KEYS,
    patterns=trl_keys.PATTERNS,
    ignored=trl_keys.IGNORED,
    marks=(
        "frac_reward_zero_std",
        *trl_keys.ASYNC_MARKS,
        r"profiling/Time taken: \w*Trainer\..*",
        # HF's integrations add one, GRPO the other: other trainers log only one of them.
        ("step_time", "global_step"),
        # Versions before `frac_reward_zero_std` (summer 2025).
        ("reward", "reward_std", "completion_length|completions/mean_length"),
    ),
    not_marks=trl_printed.MS_SWIFT,
    config_marks=("num_generations", "max_staleness", "vllm_mode", "steps_per_generation", trl_state.REWARDED),
    strip=("train/",),
    split=split,
    needs=trl_keys.NEEDS,
    derive=trl_keys.derive,
    facts=trl_config.facts,
    on_row=on_row,
    run_files=state_file,
    seconds=("step_time", "perf/step_s"),
    elapsed=trl_printed.ELAPSED,
    extra_path=_state_path,
    derives=(
        "reward_component_mean",
        "trainer_compute_seconds",
        "trainer_other_seconds",
    ),
    hints={
        "trainer_mfu_ratio": "only the asynchronous trainer logs it, as `perf/mfu_wall_clock`",
        "tool_calls_mean": "only runs with tools log it, as `tools/call_frequency`",
        "tool_failure_ratio": "only runs with tools log it, as `tools/failure_frequency`",
        "turns_mean": "only the asynchronous trainer logs it, as `rollout/turns_mean`",
        "queue_samples": "only the asynchronous trainer has a queue, and logs its length",
        "generation_seconds": "set `report_to` to trackio, wandb or mlflow: only they receive the profiling rows",
        "trainer_compute_seconds": "set `report_to` to trackio, wandb or mlflow: only they receive the profiling rows",
        "stale_dropped_rollouts": "only the asynchronous trainer counts the rollouts that it drops",
        "trainer_samples": "set `report_to` to trackio, wandb or mlflow, which store the configuration",
    },
)

COLLECTOR = collector_of(FRAMEWORK)
