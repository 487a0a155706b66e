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

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.formats import console, jsonl, mlflow, tensorboard, trackio, wandb
from collectors.formats.console import FROM_END, ConsoleLine, Parsed, figure, literal
from collectors.formats.jsonl import number, parse
from collectors.formats.jsonl import number as number_of
from collectors.formats.rows import Logged, Logs, Sink
from collectors.model import Cursor, Event, Labels, Limits, ScrapeError
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.tail import collector_of
from collectors.transport import bytetail

# ---- config
# Facts of a TRL run from its configuration, which trackio stores whole (HF's TrainingArguments and the model's).

_NUMBERS: Mapping[str, str] = {
    "group_size": "num_generations",
    "max_staleness_versions": "max_staleness",
    "max_steps": "max_steps",  # -1 when epochs decide
    "max_in_flight": "max_inflight_tasks",  # -1 is "auto"
    "max_response_tokens": "max_completion_length",
}


def facts(config: Mapping[str, Any]) -> dict[str, str | float]:
    """Facts; an absent key, or a value that means "not set", gives none."""
    facts_found: dict[str, str | float] = {}
    for fact, key in _NUMBERS.items():
        value = number(config.get(key))
        if value is not None and value > 0:
            facts_found[fact] = value
    window = _logging_steps(config)
    if window is not None:
        facts_found["logging_steps"] = window
    batch = _batch(config)
    if batch is not None:
        facts_found["batch_samples"] = batch
    model = config.get("_name_or_path")
    if isinstance(model, str) and model:
        # Of a local path only the last part is a name; "Qwen/Qwen3-8B" is a name as a whole.
        facts_found["model"] = model.rstrip("/").rpartition("/")[2] if model.startswith((".", "/")) else model
    if config:
        facts_found["mode"] = _mode(config)
    return facts_found


def _mode(config: Mapping[str, Any]) -> str:
    if "max_staleness" in config:
        return "async"
    split = config.get("use_vllm") is True and config.get("vllm_mode") == "server"
    return "sync_split" if split else "sync_colocated"


def _logging_steps(config: Mapping[str, Any]) -> float | None:
    """Steps that a row covers. A value below one is a share of all steps, as in HF's TrainerState.compute_steps."""
    interval, max_steps = number(config.get("logging_steps")), number(config.get("max_steps"))
    if interval is None or interval <= 0 or config.get("logging_strategy", "steps") != "steps":
        return None
    if interval >= 1:
        return interval
    return float(math.ceil(interval * max_steps)) if max_steps is not None and max_steps > 0 else None


def _batch(config: Mapping[str, Any]) -> float | None:
    """Samples per optimizer step. The world size is in no key, but `generation_batch_size` is
    per_device x world x steps_per_generation, which gives it (async runs log the number themselves)."""
    device = number(config.get("per_device_train_batch_size"))
    accumulation = number(config.get("gradient_accumulation_steps"))
    generation = number(config.get("generation_batch_size"))
    steps = number(config.get("steps_per_generation"))
    if accumulation is None or not device or not generation or not steps:
        return None
    return generation / steps * accumulation


# ---- printed
# Dicts that HF's trainer prints between progress bars (transformers 4 and 5, with and without ms-swift's callbacks).

# Names for what the bar has; no logger can write them.
ELAPSED = "seconds since the start of the process"
MAX_STEPS = "number of all steps"

# Keys that ms-swift adds to TRL's: its runs have a collector of their own.
MS_SWIFT = (r"train_speed\((?:iter/s|s/it)\)", "global_step/max_steps", r"elapsed time per iteration \(ms\)")

# The trainer's bar has no description, or ms-swift's. Digits are bounded, because int() of very many is slow.
_BAR = re.compile(r"^\s*(?:Train:?\s*)?\d{1,3}%\|[^|]*\| (\d{1,15})/(\d{1,15}) \[(\d[\d:]{0,15})<")
_DICT = re.compile(r"(?:^\s*|\])\s*(\{['\"].*\})\s*$", re.DOTALL)
# A printed dict of the trainer has one of them.
_TRAINING = ("loss", "reward")
_OTHERS = re.compile(r"eval_.+|train_(?:runtime|loss)")
# Numbers of steps of bars since the last dict. Reward functions and evaluations have bars of their own.
_MAX_BARS = 8


def parse_printed(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """A printed dict as a row; the step is that of the last bar."""
    bar = _BAR.match(line.text)
    if bar is not None:
        _add_bar(int(bar[1]), int(bar[2]), seconds(bar[3]), memory)
    values = dict_of(line.text)
    if values is None:
        return None
    if any(key in values for key in _TRAINING) and not any(_OTHERS.fullmatch(key) for key in values):
        return _training(values, line.ts, memory)
    if any(_OTHERS.fullmatch(key) for key in values):
        return Logged(values, memory.get("step"), line.ts)
    return None


def dict_of(text: str) -> dict[str, Any] | None:
    """The printed dict of a message, with numbers instead of their texts; None for something else."""
    found = _DICT.search(text) if text.endswith("}") else None
    values = literal(found[1]) if found is not None else None
    if values is None:
        return None
    return {key: _number(value) if isinstance(value, str) else value for key, value in values.items()}


def seconds(clock: str) -> float:
    """Seconds of ``03:25``, ``1:03:25``; of ``1m 3s``, ``1h 2m 3s``, ``4d 3h 37m 48s``, too."""
    total = 0.0
    if ":" in clock:
        for part in clock.split(":"):
            total = total * 60 + float(part or 0)
        return total
    for amount, unit in re.findall(r"(\d{1,9})([dhms])", clock):
        total += float(amount) * {"d": 86_400, "h": 3600, "m": 60, "s": 1}[unit]
    return total


def _number(text: str) -> Any:
    """A text that is no number stays a text; "nan" becomes None as in other logs."""
    if text.strip().lower().lstrip("+-") in ("nan", "inf"):
        return None
    value = figure(text)
    return text if value is None else value


def _add_bar(step: int, total: int, elapsed: float, memory: dict[str, Any]) -> None:
    bars = [bar for bar in memory.get("bars", ()) if bar[1] != total]
    memory["bars"] = [*bars, (step, total, elapsed)][-_MAX_BARS:]


def _training(values: dict[str, Any], ts: float | None, memory: dict[str, Any]) -> Logged | None:
    bars = memory.pop("bars", None)
    if not bars and "step" not in memory and memory.get(FROM_END):
        return None  # the dicts before it are not counted
    step = int(memory.get("step", 0)) + 1
    if bars:
        step, total, elapsed = next((bar for bar in bars if bar[1] == memory.get("total")), bars[-1])
        memory["total"] = total
        values |= {MAX_STEPS: float(total), ELAPSED: elapsed}
    memory["step"] = step
    return Logged(values, step, ts)


# ---- keys
# TRL's metric keys -> ours (1.16.0: trainer/grpo_trainer.py, experimental/async_grpo/).

_WALL: Labels = (("basis", "wall"),)
_BUSY: Labels = (("basis", "busy"),)

# Not keys of TRL: `collectors.trainers.trl` adds them, and no logger can write them.
NONFINITE = "grad_norm is not finite"
BETWEEN = "time between the rows"
# Length of the samples that the asynchronous trainer trained, and of the rollouts that were scored during the step.
# They differ by a quarter if few rollouts were scored. The second is used if the first is not logged.
TRAINED_LENGTH, SCORED_LENGTH = "sample/trained_tokens_mean", "completions/mean_length"
GENERATION, REWARD, WEIGHT_SYNC = "generation of the step", "rewards of the step", "weight sync of the step"

_COMMON: Mapping[str, Key] = {
    NONFINITE: Key("gradient_nonfinite"),
    "loss": Key("loss_mean"),
    "grad_norm": Key("gradient_norm"),
    "learning_rate": Key("learning_rate"),
    "entropy": Key("entropy_mean"),
    "reward": Key("reward_mean"),
    SCORED_LENGTH: Key("response_tokens_mean"),
    # Until version 0.16 (spring 2025).
    "completion_length": Key("response_tokens_mean"),
    "completions/max_length": Key("response_tokens_max"),
    "completions/min_length": Key("response_tokens_min"),
    "completions/clipped_ratio": Key("truncation_ratio"),
    "clip_ratio/region_mean": Key("clip_ratio"),
    "tools/call_frequency": Key("tool_calls_mean"),
    "tools/failure_frequency": Key("tool_failure_ratio"),
    "tools/latency_s": Key("tool_call_seconds_mean"),
    "sampling/sampling_logp_difference/mean": Key("mismatch_logprob_difference_mean"),
    "sampling/sampling_logp_difference/max": Key("mismatch_logprob_difference_max"),
    "sampling/importance_sampling_ratio/mean": Key("importance_ratio_mean"),
}

_SYNC: Mapping[str, Key] = {
    GENERATION: Key("generation_seconds"),
    REWARD: Key("reward_seconds"),
    WEIGHT_SYNC: Key("trainer_weight_sync_seconds"),
    "step_time": Key("trainer_step_seconds"),
    # Until version 0.16 no key has the duration of a step.
    BETWEEN: Key("trainer_step_seconds"),
    "frac_reward_zero_std": Key("groups_zero_advantage_ratio"),
    "reward_std": Key("reward_std"),
    "kl": Key("reference_kl_mean"),
}

_ASYNC: Mapping[str, Key] = {
    "perf/step_s": Key("trainer_step_seconds"),
    "perf/rollout_wait_s": Key("trainer_wait_seconds"),
    "perf/weight_sync_s": Key("trainer_weight_sync_seconds"),
    "perf/weight_sync_pause_s": Key("weight_sync_pause_seconds"),
    "perf/weight_sync_barrier_s": Key("weight_sync_barrier_seconds"),
    "perf/weight_sync_transfer_s": Key("weight_sync_transfer_seconds"),
    "perf/fwd_s": Key("trainer_forward_seconds"),
    "perf/optimizer_s": Key("trainer_optimizer_seconds"),
    # Percent (trainer/utils.py:1834).
    "perf/mfu_wall_clock": Key("trainer_mfu_ratio", 0.01, labels=_WALL),
    "perf/mfu_fwd_bwd": Key("trainer_mfu_ratio", 0.01, labels=_BUSY),
    "perf/trained_tok_s_wall_clock": Key("trainer_tokens_per_second", labels=_WALL),
    "perf/forwarded_tok_s_fwd_bwd": Key("trainer_tokens_per_second", labels=_BUSY),
    "batch/samples_per_step": Key("trainer_samples"),
    "batch/groups_per_step": Key("trainer_groups"),
    "batch/trained_tokens_per_step": Key("trained_tokens"),
    "batch/forwarded_tokens_per_step": Key("processed_tokens"),
    "batch/masked_token_frac": Key("masked_tokens_ratio"),
    "batch/packing_ratio": Key("packing_ratio"),
    "batch/pad_frac": Key("padding_ratio"),
    "batch/dropped_oversize_total": Key("oversize_dropped_samples"),
    # In weight syncs, stamped at the group's first dispatch: saturates at max_staleness in all modes.
    "sample/staleness_mean": Key("staleness_versions_mean"),
    "sample/staleness_max": Key("staleness_versions_max"),
    "sample/dropped_stale_total": Key("stale_dropped_rollouts"),
    "sample/rollout_queue_size": Key("queue_samples"),
    "sample/time_in_queue_s": Key("queue_age_seconds"),
    TRAINED_LENGTH: Key("response_tokens_mean"),
    "rollout/score_queue_size": Key("score_queue_groups"),
    "rollout/inflight": Key("in_flight_rollouts", labels=(("state", "generating"),)),
    "rollout/generated_tok_s": Key("rollout_tokens_per_second"),
    "rollout/duration_s": Key("rollout_seconds_mean"),
    "rollout/turns_mean": Key("turns_mean"),
    "rollout/turns_max": Key("turns_max"),
    "rollout/score_s": Key("reward_seconds"),
    "rollout/score_wait_s": Key("score_wait_seconds"),
    "rollout/score_block_s": Key("score_block_seconds"),
    "rollout/backpressure_s": Key("backpressure_seconds"),
    "rollout/vllm_retry_total": Key("rollout_retries"),
    "env/reset_s": Key("rollout_setup_seconds_mean"),
    "env/reward_s": Key("rollout_scoring_seconds_mean"),
    "ratio": Key("importance_ratio_mean"),
}

# Keys that both trainers log with different meanings: the asynchronous trainer's under our own names.
ASYNC_NAMES: Mapping[str, str] = {
    # The mean of the groups' standard deviations, not the deviation over all samples.
    "reward_std": "reward_std of groups",
    # Against the policy that generated, not a frozen reference (async_grpo_trainer.py:1588).
    "kl": "kl to the generating policy",
}
_RENAMED: Mapping[str, Key] = {
    ASYNC_NAMES["reward_std"]: Key("reward_group_std_mean"),
    ASYNC_NAMES["kl"]: Key("mismatch_kl_mean"),
}

# Of the synchronous trainer alone, for frameworks that extend it.
SYNC_KEYS: Mapping[str, Key] = {**_COMMON, **_SYNC}
KEYS: Mapping[str, Key] = {**SYNC_KEYS, **_ASYNC, **_RENAMED}

# Only the asynchronous trainer logs these, from the first step on.
ASYNC_MARKS = ("perf/rollout_wait_s", "sample/rollout_queue_size", "sample/staleness_mean")

# Sums over the logging window: the amount of a step follows from the number of steps that the row covers.
DROPPED = "sample/dropped_stale_total"
WINDOW_SUMS = frozenset((DROPPED, "rollout/vllm_retry_total", "batch/dropped_oversize_total"))

NEEDS = frozenset(
    (GENERATION, REWARD, WEIGHT_SYNC, "step_time", SCORED_LENGTH, "perf/step_s", "perf/rollout_wait_s",
     "perf/fwd_bwd_s", "perf/optimizer_s", "perf/weight_sync_s", "sample/staleness_mean", DROPPED)
)  # fmt: skip

# Extremes of values that are read anyway.
IGNORED = re.compile(
    r"num_tokens|num_input_tokens_seen|completions/(?:mean|min|max)_terminated_length"
    r"|clip_ratio/(?:low_mean|high_mean|low_min|high_max)|sampling/importance_sampling_ratio/(?:min|max)"
    r"|perf/fwd_bwd_s|perf/forwarded_tok_s_wall_clock"
)
# HF's and wandb's bookkeeping (parts of a table included): a row with nothing else is no step.
BOOKKEEPING = re.compile(
    rf"{ELAPSED}|{MAX_STEPS}|epoch|global_step|step|total_flos|train_(?:runtime|loss|.*_per_second)|_.*|completions\..*"
)
EVALUATION = re.compile(r"eval[/_].*")
# Keys that no evaluation logs without the prefix: a row with one of them is of a training step.
TRAINED = frozenset(("loss", "grad_norm", "learning_rate", "step_time", "perf/step_s"))

PROFILING = "profiling/Time taken: "
_GENERATE = frozenset(("vLLM.generate", "transformers.generate", "transformers.generate_batch"))


def _component(match: re.Match[str]) -> Key | None:
    if match.group(2) == "std":
        return None
    return Key("reward_component_mean", labels=(("function", match.group(1)),))


PATTERNS = ((re.compile(r"rewards/(.+?)(?:/(mean|std))?"), _component),)


def nonfinite(logged: Mapping[str, Any]) -> dict[str, float]:
    """1 for a gradient norm that is not finite, which is itself a finding; 0 for a finite one; empty without a norm."""
    for key in ("grad_norm", "train/grad_norm"):
        if key in logged:
            return {NONFINITE: float(number(logged[key]) is None)}
    return {}


def profiled(values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """(phase, seconds) of profiling rows.

    Names are `<Trainer>.<function>`; only leaves are read, for `_prepare_inputs` contains generation and reward.
    """
    for key, value in values.items():
        function = key.removeprefix(PROFILING).partition(".")[2]
        if function in _GENERATE:
            yield GENERATION, value
        elif function == "_calculate_rewards":
            yield REWARD, value
        elif function == "sync_weights":
            yield WEIGHT_SYNC, value


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """Work and phases that are computed from several keys of a step."""
    if context.memory.get("async"):
        yield from _async_phases(piece.values)
        # TRL leaves out a window's sum of zero: absent means none, once the step's rows are merged.
        if "sample/staleness_mean" in piece.values and DROPPED not in piece.values:
            yield "stale_dropped_rollouts", (), 0.0
    else:
        yield from _sync_work(piece.values, context.facts)
        yield from _sync_phases(piece.values)


def _async_phases(row: Mapping[str, float]) -> Iterator[Out]:
    """Compute, and the rest of the step. The first step has no `perf/step_s`, so its rest is unknown, not zero."""
    compute = row.get("perf/fwd_bwd_s")
    if compute is None:
        return
    compute += row.get("perf/optimizer_s", 0.0)
    yield "trainer_compute_seconds", (), compute
    step_seconds, wait = row.get("perf/step_s"), row.get("perf/rollout_wait_s")
    if step_seconds is not None and wait is not None:
        rest = step_seconds - wait - compute - row.get("perf/weight_sync_s", 0.0)
        yield "trainer_other_seconds", (), max(0.0, rest)


def _sync_work(row: Mapping[str, float], facts: Mapping[str, str | float]) -> Iterator[Out]:
    batch, length = facts.get("batch_samples"), row.get(SCORED_LENGTH)
    if not isinstance(batch, float) or "step_time" not in row:
        return
    yield "trainer_samples", (), batch
    if length is not None:
        # Every completion token is in the loss; with mask_truncated_completions this is an upper bound.
        yield "trained_tokens", (), batch * length


def _sync_phases(row: Mapping[str, float]) -> Iterator[Out]:
    """Compute is what remains of the step: log-probs, forward, backward and optimizer. TRL times only parts of them.

    Without profiling rows (TensorBoard, the state file) the division of the step is unknown.
    """
    if "step_time" not in row or GENERATION not in row:
        return
    rest = row["step_time"] - sum(row.get(phase, 0.0) for phase in (GENERATION, REWARD, WEIGHT_SYNC))
    yield "trainer_compute_seconds", (), max(0.0, rest)
    # The catalogue has no phase for rewards; without them the phases would not add up to the step.
    yield "trainer_other_seconds", (), row.get(REWARD, 0.0)


# ---- state
# HF's trainer_state.json as a sink: the whole log history, rewritten at checkpoints and at the end, without times.

NAME = "trainer_state.json"
# For rows without the duration of their step. Any estimate keeps the order; one second does not look precise.
UNKNOWN_STEP_SECONDS = 1.0

# Not a setting of TRL: the history has rewards, so it is not of supervised fine-tuning.
REWARDED = "rewards in the history"

# The second until version 0.16.
LENGTHS = frozenset(("completions/mean_length", "completion_length"))
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")


@dataclass(slots=True)
class State:
    """``rows``: logged values per step, ascending; ``finished``: the evidence as text, or empty."""

    step: int
    modified: float
    facts: dict[str, str | float] = field(default_factory=dict)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    finished: str = ""
    dropped: int = 0
    why: str = ""


def find(path: Path) -> Path | None:
    """The state file: the path itself, in the folder, or in its newest checkpoint."""
    if path.is_file():
        return path if path.name == NAME else None
    if (path / NAME).is_file():
        return path / NAME
    checkpoints = [
        (int(match.group(1)), folder / NAME)
        for folder in path.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(folder.name)) and (folder / NAME).is_file()
    ]
    return max(checkpoints)[1] if checkpoints else None


def read(path: Path, limits: Limits) -> State:
    """The file as it is now.

    Raises:
        ScrapeError: ``missing``, ``too_large``, ``garbage`` (also for a file being written: the next call reads it).
    """
    with bytetail.readable(path.name), path.open("rb") as file:
        modified = path.stat().st_mtime
        text = file.read(limits.body_bytes + 1)
    if len(text) > limits.body_bytes:
        raise ScrapeError("too_large", f"{path.name} is larger than {limits.body_bytes} bytes")
    if not text.strip():
        raise ScrapeError("empty", f"{path.name} is empty")
    document = jsonl.parse(text)
    if document is None or not isinstance(document.get("log_history"), list):
        raise ScrapeError("garbage", f"{path.name} is not a trainer state")
    state = State(int(number(document.get("global_step")) or 0), modified)
    max_steps = number(document.get("max_steps"))
    if max_steps is not None and max_steps > 0:
        state.facts["max_steps"] = max_steps
        if state.step >= max_steps:
            state.finished = f"{NAME} reports step {state.step} of {max_steps:.0f}"
    # With another strategy than steps it is still the default, 500; a row covers at most the steps before it.
    logging_steps = number(document.get("logging_steps"))
    if logging_steps is not None and logging_steps >= 1:
        state.facts["logging_steps"] = logging_steps
    for entry in document["log_history"]:
        _entry(entry, state)
    return state


def _entry(entry: object, state: State) -> None:
    if not isinstance(entry, dict) or number(entry.get("step")) is None:
        state.dropped += 1
        state.why = state.why or f"an entry of {NAME} without a step"
    elif "train_runtime" in entry:
        state.finished = state.finished or f"{NAME} has the closing row"
    # Evaluation rows repeat a training step's number and would overwrite it.
    elif not any(key.startswith("eval_") for key in entry):
        state.rows.append(entry)


def is_reinforcement(state: State) -> bool:
    """Returns whether the history has GRPO's keys: supervised fine-tuning writes the same file."""
    rows = state.rows[:20]
    if any(re.fullmatch(mark, key) for row in rows for mark in MS_SWIFT for key in row):
        return False
    return any("reward" in row and not LENGTHS.isdisjoint(row) for row in rows)


def dated(state: State) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Rows with estimated epoch seconds, oldest first: the last has the file's time, each other one step less."""
    ts = state.modified
    stamps = []
    for index in range(len(state.rows) - 1, -1, -1):
        row = state.rows[index]
        stamps.append(ts)
        before = state.rows[index - 1]["step"] if index else row["step"] - 1
        ts -= max(0.0, _seconds(row)) * max(1.0, row["step"] - before)
    return zip(reversed(stamps), state.rows, strict=True)


def _seconds(row: Mapping[str, Any]) -> float:
    durations = (number(row.get(key)) for key in ("step_time", "perf/step_s"))
    return next((seconds for seconds in durations if seconds is not None), UNKNOWN_STEP_SECONDS)


def _find(path: Path) -> list[Path]:
    """The folder, not the file in it, because the next checkpoint's file continues the same history."""
    state_path = find(path)
    return [] if state_path is None else [path]


def _read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Steps beyond the cursor's ``{step}``; a history that was rewound continues from its current end.

    Raises:
        ScrapeError: ``missing``, ``too_large``, ``garbage``, ``empty``.
    """
    state_path = find(path)
    if state_path is None:
        raise ScrapeError("missing", f"{NAME} was removed")
    state = read(state_path, limits)
    done = min(int(cursor.get("step", 0)), state.step)
    new = [Logged(dict(row), int(row["step"]), ts, estimated=True) for ts, row in dated(state) if row["step"] > done]
    rows = new[: limits.tail_rows]
    config: dict[str, Any] = dict(state.facts)
    if any("reward" in row for row in state.rows):
        config[REWARDED] = True
    logs = Logs(rows, {"step": int(rows[-1].step or 0) if rows else done}, len(new) > len(rows))
    logs.dropped, logs.why, logs.config, logs.finished = state.dropped, state.why, config, state.finished
    return logs


SINK = Sink(NAME, f"a {NAME} (also under checkpoint-*/)", _find, _read)


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
    if context.sink == NAME:
        context.facts["times_estimated"] = 1.0
    if MAX_STEPS in values:
        context.take({"max_steps": values[MAX_STEPS]})
    text = row.values.get(ARGUMENTS)
    if isinstance(text, str) and (arguments := parse(text)) is not None:
        context.take(facts(arguments))
    if context.mode == "async" or any(mark in values for mark in ASYNC_MARKS):
        context.memory["async"] = True
        context.take({"mode": "async"})


def split(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    """One row: profiling (cached for its step), a step, an evaluation, the final row, or several."""
    profiling = {key: value for key, value in values.items() if key.startswith(PROFILING)}
    if profiling:
        _add_profiling(profiling, row, context)
    step = values["global_step"] if "global_step" in values else _own_step(row, context.sink)
    if step is None or row.ts is None:
        return
    number, ts = int(step), row.ts
    logged = {key: value for key, value in values.items() if key not in profiling}
    if any(EVALUATION.fullmatch(key) for key in logged):
        context.events.append(Event("eval", f"eval:{number}:{ts:.0f}", ts))
        context.memory["evaluated"] = number
    if number == context.memory.get("evaluated") and TRAINED.isdisjoint(logged):
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
    return (BOOKKEEPING.fullmatch(key) or EVALUATION.fullmatch(key)) is not None


def _own_step(row: Logged, sink: str) -> int | None:
    """The sink's own step if it is the trainer's."""
    return None if sink in (trackio.SINK.name, wandb.SINK.name) else row.step


def _add_profiling(profiling: Mapping[str, float], row: Logged, context: Context) -> None:
    # MLflow writes steps asynchronously and profiling at once, so a profiling row is assigned by its step.
    step_key = str(row.step) if context.sink == mlflow.SINK.name and row.step is not None else NEXT
    pending = context.memory.setdefault("pending", {}).setdefault(step_key, {})
    for phase, seconds in profiled(profiling):
        pending[phase] = pending.get(phase, 0.0) + seconds


def _step(row: Logged, values: dict[str, float], number: int, context: Context) -> Piece:
    memory = context.memory
    values |= nonfinite(row.values)
    steps = _covered_steps(number, context)
    phases = _phases(number, steps, memory)
    assert row.ts is not None
    if memory.get("async"):
        values = {ASYNC_NAMES.get(key, key): value for key, value in _per_step(values, steps).items()}
        if TRAINED_LENGTH in values:
            values.pop(SCORED_LENGTH, None)
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
    elapsed_before, elapsed = memory.get("elapsed"), number_of(row.values.get(ELAPSED))
    memory["elapsed"] = elapsed
    step, ts, passed = memory.get("step"), memory.get("ts"), None
    if elapsed is not None and elapsed_before is not None:
        passed = elapsed - elapsed_before
    elif row.ts is not None and ts is not None and not row.estimated and row.origin == memory.get("writer"):
        passed = row.ts - ts
    if timed or passed is None or passed <= 0 or step is None or number <= step or step == memory.get("evaluated"):
        return {}
    return {BETWEEN: passed / (number - step)}


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
    sums = WINDOW_SUMS & values.keys()
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
    path = find(folder)
    if path is None or context.sink == NAME:
        return
    try:
        state = read(path, Limits())
    except ScrapeError:
        return  # incomplete, or removed with a rotated checkpoint: the log is the source here
    memory = context.memory
    if state.step >= memory.get("step", 0) and state.modified >= memory.get("ts", 0.0) - STATE_LAG_SECONDS:
        for fact, value in state.facts.items():
            context.facts.setdefault(fact, value)
        context.finished = context.finished or state.finished


def _state_path(path: Path) -> str | None:
    state = find(path)
    if state is None:
        return None
    try:
        recognised = is_reinforcement(read(state, Limits()))
    except ScrapeError:
        return None
    return f"{state.name} with GRPO's keys" if recognised else None


FRAMEWORK = Framework(
    name="trl",
    reads="TRL GRPO and AsyncGRPO runs (trackio, MLflow, wandb, TensorBoard, trainer_state.json, printed log)",
    versions="1.16.0 by source and recorded runs",
    sinks=(
        trackio.SINK,
        mlflow.SINK,
        wandb.SINK,
        tensorboard.SINK,
        SINK,
        console.sink(parse_printed),
    ),
    keys=KEYS,
    patterns=PATTERNS,
    ignored=IGNORED,
    evaluations={"evaluation_score": re.compile(r"eval[/_](?:(?P<task>\w+)_)?reward")},
    evaluation_step="global_step",
    marks=(
        "frac_reward_zero_std",
        *ASYNC_MARKS,
        r"profiling/Time taken: \w*Trainer\..*",
        # HF's integrations add one, GRPO the other: other trainers log only one of them.
        ("step_time", "global_step"),
        # Versions before `frac_reward_zero_std` (summer 2025).
        ("reward", "reward_std", "completion_length|completions/mean_length"),
    ),
    not_marks=MS_SWIFT,
    config_marks=("num_generations", "max_staleness", "vllm_mode", "steps_per_generation", REWARDED),
    strip=("train/",),
    split=split,
    needs=NEEDS,
    derive=derive,
    facts=facts,
    on_row=on_row,
    run_files=state_file,
    seconds=("step_time", "perf/step_s"),
    elapsed=ELAPSED,
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
