"""slime runs (624b824a, 2026-08): what the rollout manager and the trainer log under a rollout, merged; three counters.

Axis ``trainer`` is the rollout: `train/*` of the optimizer steps is folded into it (means; samples are added up). The
trainer's timer `train_wait` covers all that is not training, so weight syncs and checkpoints are subtracted from it.
The console has queue, suspended rollouts and the trainer's phase as they change.

Not available: staleness and policy versions (slime logs none), MFU (only FLOPs), aborted rollouts. The share of
zero-advantage groups needs the batch size (from wandb's configuration or the printed command).
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from collectors.formats import console, tensorboard, wandb
from collectors.formats.console import ConsoleConfig, ConsoleLine, Parsed, literal
from collectors.formats.rows import Logged
from collectors.model import Event, Sample
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- config
# Facts from the arguments of slime (624b824a: slime/utils/arguments.py) and miles, which have the same names.

# Not an argument: the program that was started, from the console's command line.
PROGRAM = "program"
_COMMAND = re.compile(r"\btrain(?:_async|_multi_lora_async)?\.py(?=\s+--)")
# A launch script's command has a hundred arguments; shlex is slow on long texts.
COMMAND_CHARS = 20_000


def facts(config: Mapping[str, Any]) -> Facts:
    """Facts from all arguments (wandb, MLflow), a part of them (miles' meta.json) or the command line."""
    settings = Settings(config)
    size = settings.number("n_samples_per_prompt")
    mode = _mode(settings)
    model = settings.text("hf_checkpoint").rstrip("/").rpartition("/")[2]
    separate = settings.flag("colocate") is False or mode not in ("", "sync_colocated")
    # train.py and train_async.py with GPUs of their own have the same arguments.
    return facts_of(
        mode=mode,
        usual_mode="one_step" if separate and not mode else "",
        group_size=size,
        batch_samples=product(settings.number("rollout_batch_size"), size),
        max_staleness_versions=settings.number("max_weight_staleness"),
        max_steps=None if settings.flag("wandb_always_use_train_step") else settings.number("num_rollout"),
        max_response_tokens=settings.number("rollout_max_response_len"),
        trainer_gpus=product(settings.number("actor_num_nodes"), settings.number("actor_num_gpus_per_node")),
        generator_gpus=settings.number("rollout_num_gpus") if separate else None,
        model=model,
    )


def _mode(settings: Settings) -> str:
    """The mode; "" if the arguments do not show it: train.py and train_async.py have the same ones."""
    function = settings.text("rollout_function_path")
    if settings.flag("fully_async") or "fully_async" in function:
        return "async"
    program = settings.text(PROGRAM)
    if settings.flag("colocate"):
        return "sync_colocated"
    if program == "train_multi_lora_async.py":
        return "async"
    if program == "train_async.py" or (settings.number("update_weights_interval") or 1) > 1:
        return "one_step"
    return "sync_split" if program else ""


def from_command(text: str) -> dict[str, Any] | None:
    """Arguments of a printed `... train.py --rollout-batch-size 32 ...` (launch scripts run with `set -x`)."""
    match = _COMMAND.search(text)
    if match is None or "--rollout-batch-size" not in text:
        return None
    try:
        arguments = shlex.split(text[match.end() : match.end() + COMMAND_CHARS])
    except ValueError:
        return None
    config: dict[str, Any] = {PROGRAM: match.group()}
    for argument, value in zip(arguments, [*arguments[1:], "--"], strict=True):
        if argument.startswith("--"):
            name, given, inline = argument[2:].partition("=")
            config[name.replace("-", "_")] = inline if given else True if value.startswith("--") else value
    return config


# ---- keys
# Keys of slime (624b824a: slime/observability) and of its fork miles -> ours, and metrics computed from several.

ROLLOUT_STEP, TRAIN_STEP = "rollout/step", "train/step"
NORM = "train/grad_norm"
BATCH = "train/global_batch_size"
# Not keys of slime: `pieces` computes them from families of keys.
NONFINITE = "train/grad_norm is not finite"
ZERO, DROPPED, DROPPED_ZERO = "zero_std groups", "dropped groups", "dropped zero_std groups"
# Groups of equal rewards other than 0 and 1: then all-zero and all-one groups are not all of them.
GRADED = "zero_std groups of other rewards"

BUSY = (("basis", "busy"),)

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    "perf/step_time": Key("trainer_step_seconds"),
    "perf/train_time": Key("trainer_compute_seconds"),
    "perf/update_weights_time": Key("trainer_weight_sync_seconds"),
    # Only updates by deltas on disk (update_weight_from_disk_delta.py).
    "perf/update_weights_wire_bytes": Key("weight_sync_bytes"),
    "perf/save_model_time": Key("trainer_checkpoint_seconds"),
    "perf/data_preprocess_time": Key("trainer_data_load_seconds"),
    "perf/actor_train_tok_per_s": Key("trainer_tokens_per_second", labels=BUSY),
    # Seconds per sample outside of generation: tools and environment.
    "perf/non_generation_time/mean": Key("rollout_harness_seconds_mean"),
    "rollout/raw_reward": Key("reward_mean"),
    "rollout/response_len/mean": Key("response_tokens_mean"),
    "rollout/response_len/max": Key("response_tokens_max"),
    "rollout/response_len/min": Key("response_tokens_min"),
    "rollout/truncated_ratio": Key("truncation_ratio"),
    "multi_turn/multi_turn_metric/round_number_mean": Key("turns_mean"),
    "multi_turn/multi_turn_metric/round_number_max": Key("turns_max"),
    "passrate/pass@1": Key("solve_ratio"),
    "passrate/pass_1": Key("solve_ratio"),  # MLflow takes no @
    "train/loss": Key("loss_mean"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    "train/lr-pg_0": Key("learning_rate"),
    "train/entropy_loss": Key("entropy_mean"),
    "train/pg_clipfrac": Key("clip_ratio"),
    "train/kl_loss": Key("reference_kl_mean"),
    "train/train_rollout_logprob_abs_diff": Key("mismatch_logprob_difference_mean"),
    # exp(trainer's log-prob - generator's), before it is truncated (loss.py:894).
    "train/tis": Key("importance_ratio_mean"),
    BATCH: Key("trainer_samples"),
    DROPPED: Key("filtered_groups"),
}

WAIT, TRAIN, STEP, ROLLOUT = "perf/train_wait_time", "perf/train_time", "perf/step_time", "perf/rollout_time"
SYNC_TIME, SAVE_TIME = "perf/update_weights_time", "perf/save_model_time"
# Timers that run between two trainings: `train_wait` covers all that is not `train` (actor.py:59, 433).
WITHIN_WAIT = tuple(
    f"perf/{name}_time"
    for name in ("update_weights", "save_model", "data_preprocess", "ref_model_update", "sleep", "wake_up")
)
LOGPROB = ("perf/log_probs_time", "perf/ref_log_probs_time")
TOTAL_LENGTH, RESPONSE_LENGTH = "rollout/total_lengths", "rollout/response_lengths"
THROUGHPUT = "perf/tokens_per_gpu_per_sec"

NEEDS = frozenset(
    {WAIT, TRAIN, STEP, ROLLOUT, TOTAL_LENGTH, RESPONSE_LENGTH, THROUGHPUT, BATCH, ZERO, DROPPED, DROPPED_ZERO, GRADED}
    | {*WITHIN_WAIT, *LOGPROB}
)

# Extremes of values that are read anyway, normalised rewards, requests, the critic, evaluation, wandb's own.
IGNORED = re.compile(
    r"_\w+|(?:rollout|train)/step|eval/.*|perf/.*|train/(?:critic-|mtp_|lr-pg_).*"
    r"|train/(?:pg_loss|ppo_kl|ois|tis_\w+|opsm_clipfrac|opd_reverse_kl|value_\w+)"
    r"|rollout/(?:zero_std|dynamic_filter|response_len|prefix_cache_\w+|error_cat|correct_length)(?:/.*)?"
    r"|rollout/(?:rewards|advantages|returns|values|truncated|repetition_frac|avg_cached_\w+|correct_\w+|spec_\w+"
    r"|log_probs|ref_log_probs|rollout_log_probs|teacher_log_probs|opd_reverse_kl|top_p\w*)"
    r"|multi_turn/.*|passrate/.*"
)

_COUNT = re.compile(r"rollout/zero_std/count_(.+)")
_DROP = re.compile(r"rollout/dynamic_filter/drop_(.+)")
# Keys logged under `rollout/step`; other names (adapters of a multi-LoRA run) count their own steps.
_ROLLOUT_KEY = re.compile(r"(?:rollout|perf|passrate|multi_turn)/.+")
# The generator's half of a rollout, logged before the rollout is trained.
GENERATED = ("rollout/response_len/mean", ROLLOUT)
# Sinks that write a step's scalars one by one, so that a read may end within a step.
CUT = ("tensorboard",)
# Optimizer steps that wait for their rollout; real rollouts have fewer.
MAX_HELD_UPDATES = 256
# By rollout 4 at least rollout 2 has been trained: with two steps per rollout that is step 6 or later.
SETTLED = 4


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    """The rollout's half of a row, and the half of the optimizer steps when their rollout is known."""
    assert row.ts is not None
    memory, cut = context.memory, context.sink in CUT
    rollout_values = {
        key: value for key, value in values.items() if _ROLLOUT_KEY.fullmatch(key) and key != ROLLOUT_STEP
    }
    step = _step(row, values, ROLLOUT_STEP, context)
    if rollout_values and step is not None:
        if any(key in rollout_values for key in GENERATED):
            if _went_back(step, [key for key in GENERATED if key in rollout_values], "newest", memory):
                memory |= {"held": [], "last": -1}
            rollout_values |= counted(rollout_values, memory)
            # Emitted before the rollout itself, because they belong to earlier rollouts.
            yield from _complete_rollouts(memory, cut)
        yield Piece(TRAINER, step, row.ts, rollout_values)
    update = _step(row, values, TRAIN_STEP, context)
    trained = {key: value for key, value in values.items() if key.startswith("train/") and key != TRAIN_STEP}
    if trained and update is not None and not all(key.startswith("train/critic-") for key in trained):
        if NORM in row.values:
            trained[NONFINITE] = float(NORM not in values)
        _hold_update(update, row.ts, trained, memory)
    if step is not None and TRAIN in rollout_values and memory.get("last", -1) >= 0:
        # The trainer has finished this rollout, so its last optimizer step gives the number per rollout.
        updates_per_rollout, rest = divmod(memory["last"] + 1, step + 1)
        memory["per"] = updates_per_rollout if not rest and updates_per_rollout else memory.get("per")
    yield from _complete_rollouts(memory, cut)


def _step(row: Logged, values: Mapping[str, float], key: str, context: Context) -> int | None:
    """The step of one counter, from the logged value; wandb's own counter is neither."""
    if key in values:
        return int(values[key])
    return row.step if context.sink != "wandb" else None


def counted(values: Mapping[str, float], memory: dict[str, Any]) -> dict[str, float]:
    """Keys that are left out when their count is zero: after the first value, absence means zero."""
    equal = {match[1]: n for key, n in values.items() if (match := _COUNT.fullmatch(key)) is not None}
    dropped = {match[1]: n for key, n in values.items() if (match := _DROP.fullmatch(key)) is not None}
    memory["equal"] = memory.get("equal") or bool(equal)
    memory["drops"] = memory.get("drops") or bool(dropped)
    counts: dict[str, float] = {}
    if memory["equal"]:
        counts[ZERO] = sum(equal.values())
        counts[GRADED] = sum(n for reward, n in equal.items() if reward not in ("0.0", "1.0", "0", "1"))
    if memory["drops"]:
        counts[DROPPED] = sum(dropped.values())
        counts[DROPPED_ZERO] = sum(n for reason, n in dropped.items() if reason.startswith("zero_std"))
    return counts


def _hold_update(update: int, ts: float, values: dict[str, float], memory: dict[str, Any]) -> None:
    held = memory.setdefault("held", [])
    if _went_back(update, list(values), "last", memory):
        held.clear()
    if held and held[-1][0] == update:
        held[-1][2].update(values)
    else:
        held.append([update, ts, values])
    del held[:-MAX_HELD_UPDATES]


def _went_back(number: int, keys: list[str], counter: str, memory: dict[str, Any]) -> bool:
    """Returns whether the counter went back. Other keys of the same number are the rest of a step read in two parts."""
    before, previous_keys = memory.get(counter, -1), memory.get(f"{counter}_keys", [])
    rest = number == before and set(previous_keys).isdisjoint(keys)
    memory |= {counter: number, f"{counter}_keys": sorted([*previous_keys, *keys]) if rest else keys}
    return number <= before and not rest


def _complete_rollouts(memory: dict[str, Any], cut: bool) -> Iterator[Piece]:
    """Optimizer steps of complete rollouts, as one piece each.

    The number per rollout is known when the trainer has finished one. Logs without the trainer's half are decided by
    their numbers: a rollout is logged before it is trained, and at most one is ahead, so with two or more per rollout
    the optimizer steps pass the rollouts after a few of them.

    Args:
        cut: a read may end within a step: keys that its last optimizer step lacks wait for the next one.
    """
    held, updates_per_rollout = memory.get("held", []), memory.get("per")
    if not updates_per_rollout and held and not SETTLED <= memory.get("newest", -1) >= held[-1][0]:
        return
    updates_per_rollout = updates_per_rollout or 1
    while (
        held
        and (
            last := next(
                (
                    n
                    for n, update_entry in enumerate(held)
                    if update_entry[0] % updates_per_rollout == updates_per_rollout - 1
                ),
                None,
            )
        )
        is not None
    ):
        update, ts, newest = held[last]
        steps = [update_entry[2] for update_entry in held[: last + 1]]
        complete = not cut or len(held) > last + 1
        emitted = _folded(steps) if complete else {key: value for key, value in _folded(steps).items() if key in newest}
        if emitted:
            yield Piece(TRAINER, update // updates_per_rollout, ts, emitted)
        held[: last + 1] = [] if complete else _rest(held[: last + 1], emitted)
        if not complete:
            return


def _rest(steps: list[list[Any]], emitted: Mapping[str, float]) -> list[list[Any]]:
    """The values of released optimizer steps that were not emitted yet; empty if all were."""
    left = [[n, ts, {key: value for key, value in values.items() if key not in emitted}] for n, ts, values in steps]
    return left if any(values for _, _, values in left) else []


def _folded(steps: list[dict[str, float]]) -> dict[str, float]:
    """Means over the optimizer steps of one rollout; samples are added up, and one bad gradient counts."""
    keys = dict.fromkeys(key for values in steps for key in values)
    columns = {key: [values[key] for values in steps if key in values] for key in keys}
    return {key: _fold(key, column) for key, column in columns.items()}


def _fold(key: str, column: list[float]) -> float:
    if key == NONFINITE:
        return max(column)
    return sum(column) if key == BATCH else sum(column) / len(column)


def derive(piece: Piece, context: Context) -> Iterable[Out]:
    values = piece.values
    _learn_mode(values, context)
    yield from _phases(values, context)
    yield from _equal(values, context)
    if TOTAL_LENGTH in values and RESPONSE_LENGTH in values:
        yield "prompt_tokens_mean", (), values[TOTAL_LENGTH] - values[RESPONSE_LENGTH]
    gpus, batch = context.facts.get("generator_gpus"), context.facts.get("batch_samples")
    if THROUGHPUT in values and isinstance(gpus, float):
        yield "rollout_tokens_per_second", (), values[THROUGHPUT] * gpus
    if STEP in values and BATCH not in values and isinstance(batch, float):
        yield "trainer_samples", (), batch


def _learn_mode(values: Mapping[str, float], context: Context) -> None:
    """If trainer and generator alternate, the wait contains the whole rollout; a shorter wait shows overlap.

    Overlap is one-step only if the arguments exclude the fully asynchronous rollout.
    """
    if context.facts.get("usual_mode") == "one_step" and values.get(ROLLOUT, 0.0) > values.get(WAIT, float("inf")):
        context.memory["mode"] = "one_step"
    if "mode" in context.memory:
        context.take({"mode": context.memory["mode"]})


def _phases(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    synchronous = context.synchronous
    if (synchronous or not context.mode) and ROLLOUT in values:
        yield "generation_seconds", (), values[ROLLOUT]
    logprob = [values[key] for key in LOGPROB if key in values]
    if logprob:
        yield "trainer_logprob_seconds", (), sum(logprob)
    if WAIT not in values or TRAIN not in values:
        return
    wait = max(0.0, values[WAIT] - sum(values.get(key, 0.0) for key in WITHIN_WAIT))
    if not synchronous:
        yield "trainer_wait_seconds", (), wait
    fetch = values.get(ROLLOUT) if synchronous else wait
    if fetch is not None:
        named = fetch + values[TRAIN] + values.get(SYNC_TIME, 0.0) + values.get(SAVE_TIME, 0.0)
        yield "trainer_other_seconds", (), max(0.0, values[WAIT] + values[TRAIN] - named)


def _equal(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Groups of equal rewards among all completed ones: those in the batch, and those that a filter replaced."""
    batch, size = context.facts.get("batch_samples"), context.facts.get("group_size")
    if (ZERO in values or DROPPED in values) and isinstance(batch, float) and isinstance(size, float):
        equal = values.get(ZERO, 0.0) + values.get(DROPPED_ZERO, 0.0)
        yield "groups_zero_advantage_ratio", (), equal / (batch / size + values.get(DROPPED, 0.0))


def groups(count: float, context: Context) -> Out:
    """A queue counted in groups; in samples if the group's size is known."""
    size = context.facts.get("group_size")
    return ("queue_samples", (), count * size) if isinstance(size, float) else ("queue_groups", (), count)


# Mean reward of each dataset (slime/ray/rollout.py, `eval/{key}`); other values have a suffix or a part behind it.
EVALUATIONS = {
    "evaluation_score": re.compile(r"eval/(?!step$|skipped_|.*-(?:truncated_ratio|pass[@_]\d+)$)(?P<task>[^/]+)")
}


def evaluated(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """An event for a row of evaluation results."""
    step = _step(row, values, "eval/step", context)
    done = any(key.startswith("eval/") and key != "eval/step" and "skipped_" not in key for key in values)
    if done and step is not None:
        context.events.append(Event("eval", f"eval:{step}:{row.ts or 0:.0f}", row.ts, f"rollout {step}"))


# ---- log
# Printed lines of slime and miles (624b824a: slime/observability, slime/rollout/fully_async_rollout.py:208-258):
# dicts in Python's notation behind `[time] file.py:line - `, timers, and the queue of a fully asynchronous rollout
# every 30 s.

LIVE, TIMER = "live", "timer"
# Digits are bounded, because int() of very many digits is slow and then fails.
_LOGGED = re.compile(r" - (perf|rollout|passrate|multi_turn|step|eval) (\d{1,15}): (?=\{)")
_QUEUE = re.compile(
    r" - fully-async rollout \d{1,15}: "
    r"(?:target=\d{1,15} queue_warm=(\d{1,15})|collected (\d{1,15})/\d{1,15}, queue=(\d{1,15})"
    r"|done in [\d.]{1,20}s, queue_left=(\d{1,15}))"
)
_PARTIAL = re.compile(r" - Collected (\d{1,15}) partial samples into the data buffer")
_TIMER = re.compile(r" - Timer (train_wait|train|update_weights|save_model) (start|end)\b")
PHASES = {"train_wait": "wait", "train": "compute", "update_weights": "weight_sync", "save_model": "checkpoint"}


def parse(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """A logged dict, a gauge of the moment, or the arguments."""
    text = line.text
    if (logged := _LOGGED.search(text)) is not None:
        values = literal(text[logged.end() :])
        return Logged(values, int(logged[2]), line.ts, logged[1]) if values else None
    if (queue := _QUEUE.search(text)) is not None:
        warm, collected, waiting, left = (int(number) if number else 0 for number in queue.groups())
        # Collected samples are complete and not trained yet, like those waiting in the queue.
        return Logged({"ready": warm + collected + waiting + left}, None, line.ts, LIVE)
    if (partial := _PARTIAL.search(text)) is not None:
        return Logged({"suspended": int(partial[1])}, None, line.ts, LIVE)
    if (timer := _TIMER.search(text)) is not None:
        return Logged({timer[1]: int(timer[2] == "start")}, None, line.ts, TIMER)
    config = from_command(text)
    return ConsoleConfig(config) if config else None


def live(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, from lines without a step."""
    if row.origin == LIVE and row.step is None:
        if "ready" in values:
            # Only the fully asynchronous rollout has this queue, so the mode is known without the arguments.
            context.memory["mode"] = "async"
            context.take({"mode": "async"})
        context.samples += _state(values, row.ts, context)
    elif row.origin == TIMER and row.step is None:
        context.samples += _phase(values, row.ts, context)


def _state(values: Mapping[str, float], ts: float | None, context: Context) -> Iterator[Sample]:
    if "ready" in values:
        metric, labels, value = groups(values["ready"], context)
        yield Sample(metric, value, labels, ts)
    if "suspended" in values:
        # Begun by an older policy, suspended, and finished in a later rollout.
        yield Sample("in_flight_rollouts", values["suspended"], (("state", "suspended"),), ts)


def _phase(values: Mapping[str, float], ts: float | None, context: Context) -> Iterator[Sample]:
    """`train_wait` continues while weights are sent and checkpoints written: that time is no wait."""
    open_: dict[str, int] = context.memory.setdefault("timers", {})
    open_ |= {name: int(value) for name, value in values.items()}
    busy = any(open_.get(name) for name in PHASES if name != "train_wait")
    for name, phase in PHASES.items():
        if name in open_:
            active = open_[name] and not (name == "train_wait" and busy)
            yield Sample("trainer_phase_active", float(active), (("phase", phase),), ts)


# Keys of miles that slime does not log.
MILES = (
    r"rollout/zero_std/all_(?:zero|one)_percentage",
    r"rollout/weight_version/.+",
    r"(?:rollout|perf)/fully_async/.+",
    "perf/mfu_peak_tflops",
    "train/train_rollout_kl",
)
MARKS = (r"rollout/response_len/mean", "perf/train_wait_time", "perf/tokens_per_gpu_per_sec")


def on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, and evaluations as events."""
    live(row, values, context)
    evaluated(row, values, context)


FRAMEWORK = Framework(
    name="slime",
    reads="slime runs (wandb, TensorBoard, console)",
    versions="624b824a (2026-08) by source and recorded logs",
    sinks=(wandb.SINK, tensorboard.SINK, console.sink(parse)),
    keys=KEYS,
    ignored=IGNORED,
    evaluations=EVALUATIONS,
    evaluation_step="eval/step",
    marks=MARKS,
    not_marks=MILES,
    split=pieces,
    needs=NEEDS,
    derive=derive,
    facts=facts,
    on_row=on_row,
    seconds=("perf/step_time",),
    first_step=0,
    report_seconds=30.0,
    derives=(
        "generation_seconds",
        "groups_zero_advantage_ratio",
        "in_flight_rollouts",
        "prompt_tokens_mean",
        "queue_groups",
        "queue_samples",
        "rollout_tokens_per_second",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_phase_active",
        "trainer_wait_seconds",
    ),
    hints={
        "mismatch_kl_mean": "it logs `train/train_rollout_logprob_abs_diff`, which is not a KL divergence",
        "trainer_mfu_ratio": "it logs `perf/actor_train_tflops`, but not the GPU's peak FLOPS",
        "tool_calls_mean": "no key of its log counts tool calls",
        "rollout_error_ratio": "no key of its log counts failed rollouts or tool calls",
        "staleness_versions_max": "its log has no versions of samples, so no staleness to compare",
        "stale_dropped_rollouts": "its log counts no discarded rollouts, only why groups were filtered",
        "turns_mean": "`--log-multi-turn`",
        "queue_samples": "add the job's printed log: only it reports the queue of a fully asynchronous run",
        "groups_zero_advantage_ratio": "add wandb's run or the printed command, which have the batch size",
    },
)

COLLECTOR = collector_of(FRAMEWORK)
