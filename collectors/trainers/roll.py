"""ROLL runs, RLVR and agentic: TensorBoard (its default), wandb, trackio, or lines of its stdout tracker.

Not available: the queue and rollouts in flight (printed irregularly), the largest staleness, the reward's deviation,
truncation in agentic runs (`actor/max_len_mask_ratio` is always 1 there), MFU, tool calls.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from collectors.formats import console, tensorboard, trackio, wandb
from collectors.formats.rows import Logged
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- keys
# ROLL's metric keys -> ours (8eb27cc2: roll/pipeline/{rlvr,agentic}, roll/utils/metrics/metrics_manager.py).

STEP, UPDATE, TRAIN = "time/step_total", "time/step_model_update", "time/step_train"
# RLVR's and the agentic pipeline's: generation in a synchronous run, the wait for it in an asynchronous one.
GENERATE, ROLLOUT = "time/step_generate", "time/step_rollout"
LOGPROBS = (
    "time/ref_log_probs_values",
    "time/old_log_probs",
    "time/step_ref_log_probs_values_reward",
    "time/step_old_log_probs_values",
)
COMPUTE = (*LOGPROBS, "time/step_adv", TRAIN)
BATCH, TOTAL, TOTAL_SAMPLES = "system/batch_size", "actor/samples_total", "system/samples"
CLIPPED, LENGTH, ENTROPY = "token/total_response_length/clip", "token/response_length/mean", "critic/entropy/mean"
NORM = "actor_train/grad_norm"
# Not keys of ROLL: `pieces` adds them.
NONFINITE = "actor_train/grad_norm is not finite"
STALENESS, KEPT, FILTERED = "staleness over domains", "share kept over domains", "filtered over domains"
SECONDS, SCORING = "generate seconds over domains", "reward seconds over domains"
TURNS, TRAJECTORY = "actions of the one environment", "seconds of the one environment"

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    STEP: Key("trainer_step_seconds"),
    UPDATE: Key("trainer_weight_sync_seconds"),
    "time/val_step": Key("trainer_eval_seconds"),
    # Steps: the current one - the one in which the sample was begun. A step is a version.
    STALENESS: Key("staleness_versions_mean"),
    KEPT: Key("trainable_ratio"),
    FILTERED: Key("filtered_groups"),
    SECONDS: Key("rollout_model_seconds_mean"),
    SCORING: Key("rollout_scoring_seconds_mean"),
    TURNS: Key("turns_mean"),
    TRAJECTORY: Key("rollout_seconds_mean"),
    "critic/score/mean": Key("reward_mean"),
    "critic/correct/mean": Key("solve_ratio"),
    "group/all_correct_groups_ratio": Key("groups_all_solved_ratio"),
    "group/all_incorrect_groups_ratio": Key("groups_none_solved_ratio"),
    LENGTH: Key("response_tokens_mean"),
    "token/response_length/max": Key("response_tokens_max"),
    "token/response_length/min": Key("response_tokens_min"),
    "token/prompt_length/mean": Key("prompt_tokens_mean"),
    "tokens/response_length/mean": Key("response_tokens_mean"),
    "tokens/response_length/max": Key("response_tokens_max"),
    "tokens/response_length/min": Key("response_tokens_min"),
    "tokens/prompt_length/mean": Key("prompt_tokens_mean"),
    # Old (training engine) over inference log-probabilities.
    "actor/train_infer_ratio_token_mean": Key("importance_ratio_mean"),
    "critic/kl": Key("reference_kl_mean"),
    "actor/lr": Key("learning_rate"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
}
NEEDS = frozenset(
    (STEP, GENERATE, ROLLOUT, UPDATE, *COMPUTE, BATCH, TOTAL, TOTAL_SAMPLES, CLIPPED, LENGTH, ENTROPY, KEPT)
)

# Losses, clipping and KL of the update: sums over mini-batches whose number is not logged.
IGNORED = re.compile(
    r"time/.*|system/.*|critic/.*|actor/.*|actor_\w+/.*|tokens?/.*|group/.*|rollout/.*|scheduler/.*|env/.*|mask/.*|val.*"
    r"|expand/.*|shrink/.*|global_seqlen/.*|reference/.*|model_update/.*|[^/]+/(?:time|actor|critic|scheduler|tokens?)/.*"
    r"|__step"
)
_STALENESS = re.compile(r"(?:(.+)/)?scheduler/off_policy_ratio")
_FILTERED = re.compile(r"(?:.+/)?scheduler/(?:query|group)_filter_count")
_DURATION = re.compile(r"(?:.+/)?scheduler/([^/]+)/time/(generate|reward)/mean")
_USED = re.compile(r"(.+/)actor/samples_used")
_PARTS = re.compile(r"(?:.+/)?scheduler/.*|.+/actor/samples_(?:used|total)|env/[^/]+/(?:num_actions|traj_time_total)")
_ENVIRONMENT = re.compile(r"env/[^/]+/(num_actions|traj_time_total)")


def facts(config: Mapping[str, Any]) -> Facts:
    """From the pipeline's configuration: nested in wandb and trackio, groups as texts in TensorBoard's hparams."""
    settings = Settings(config)
    prompts, size = settings.number("rollout_batch_size"), settings.number("num_return_sequences_in_group")
    if size is None:
        # The agentic pipeline counts trajectories, not prompts.
        size = settings.number("train_env_manager.group_size")
        batch = prompts
    else:
        batch = product(prompts, size)
    ahead = settings.number("async_generation_ratio")
    return facts_of(
        mode="" if ahead is None else "async" if ahead > 0 else "sync_colocated",
        group_size=size,
        batch_samples=batch,
        max_staleness_versions=ahead,
        max_steps=settings.number("max_steps"),
        max_response_tokens=settings.number("response_length"),
        model=settings.text("pretrain").rstrip("/").rpartition("/")[2],
        run_name=settings.text("exp_name"),
    )


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    """One piece per row. The first row of a log waits for the second, which shows whether the log is a replay.

    A resumed run logs its whole history again at once: those steps were read before, and their times are wrong.
    """
    # trackio has its own counter; ROLL logs "step" as a value, which trackio renames (RESERVED_KEYS).
    number = values.get("__step") if context.sink == "trackio" else row.step
    if number is None or row.ts is None or not values:
        return
    memory = context.memory
    if context.restarted or number < memory.get("step", number):
        memory.clear()
        context.restarted = False
    rest = memory.get("step") == number
    if not rest:
        memory["replay"] = "ts" in memory and _replayed(values, row.ts - memory["ts"])
        memory |= {"step": number, "ts": row.ts, "told": memory.get("told", False) or memory["replay"]}
    yield from _waited(Piece(TRAINER, int(number), row.ts, dict(values)), row, context)


def _waited(piece: Piece, row: Logged, context: Context) -> Iterator[Piece]:
    memory, first = context.memory, context.memory.get("first")
    if NORM in row.values:
        piece = replace(piece, values={**piece.values, NONFINITE: float(NORM not in piece.values)})
    if memory["replay"]:
        memory.pop("first", None)
    elif first is not None and first[0] == piece.step:
        first[2].update(piece.values)
    elif not memory["told"]:
        memory |= {"told": True, "first": [piece.step, piece.ts, dict(piece.values)]}
    else:
        if (waiting := memory.pop("first", None)) is not None:
            yield from _emitted_pieces(Piece(TRAINER, *waiting), context)
        yield from _emitted_pieces(piece, context)


def _replayed(values: Mapping[str, float], passed: float) -> bool:
    """Returns whether the row came faster after the previous one than its own phases take."""
    phases = (GENERATE, ROLLOUT, UPDATE, *COMPUTE)
    return passed < sum(values.get(key, 0.0) for key in phases) / 2


def _emitted_pieces(piece: Piece, context: Context) -> Iterator[Piece]:
    values = {**piece.values, **_domains(_domain_values(piece, context.memory))}
    if values.get(STALENESS, 0.0) > 0 and (context.synchronous or not context.mode):
        context.take({"mode": "async"})
    if (
        context.memory.setdefault("rlvr", GENERATE in values)
        and (previous_step_seconds := values.pop(STEP, 0.0)) > 0
        and piece.step > 0
    ):
        # RLVR's time is that of the previous step; 0 means none (rlvr_pipeline.py:476).
        yield replace(piece, step=piece.step - 1, values={STEP: previous_step_seconds})
    yield replace(piece, values=values)


def _domain_values(piece: Piece, memory: dict[str, Any]) -> dict[str, float]:
    """The values of a step's domains, also if its row is read in two parts."""
    if memory.get("of") != piece.step:
        memory |= {"of": piece.step, "domains": {}}
    parts: dict[str, float] = memory["domains"]
    parts.update({key: value for key, value in piece.values.items() if _PARTS.fullmatch(key)})
    return parts


def _domains(values: Mapping[str, float]) -> dict[str, float]:
    """Values over all domains, or environments, under our own names."""
    totals: dict[str, float | None] = {
        STALENESS: _mean(_weighted(values, _STALENESS, "scheduler/collect_query_count")),
        SECONDS: _mean(_durations(values, "generate")),
        SCORING: _mean(_durations(values, "reward")),
        KEPT: _mean(_shares(values)),
        TURNS: _single(values, "num_actions"),
        TRAJECTORY: _single(values, "traj_time_total"),
    }
    filtered = [value for key, value in values.items() if _FILTERED.fullmatch(key)]
    totals[FILTERED] = sum(filtered) if filtered else None
    return {key: value for key, value in totals.items() if value is not None}


def _weighted(values: Mapping[str, float], keys: re.Pattern[str], weight: str) -> Iterator[tuple[float, float | None]]:
    for key, value in values.items():
        if (match := keys.fullmatch(key)) is not None:
            yield value, values.get(f"{match.group(1)}/{weight}" if match.group(1) else weight)


def _durations(values: Mapping[str, float], phase: str) -> Iterator[tuple[float, float | None]]:
    for key, value in values.items():
        if (match := _DURATION.fullmatch(key)) is not None and match.group(2) == phase:
            yield value, values.get(f"{key.removesuffix('mean')}count")


def _shares(values: Mapping[str, float]) -> Iterator[tuple[float, float | None]]:
    """Samples whose tokens stayed in the loss, by domain; the agentic pipeline masks none and logs 1."""
    for key, used in values.items():
        if (match := _USED.fullmatch(key)) is not None and (total := values.get(f"{match.group(1)}{TOTAL}")):
            yield used / total, total


def _mean(parts: Iterable[tuple[float, float | None]]) -> float | None:
    """The weighted mean; a single part needs no weight. None without weights."""
    weighted = list(parts)
    if len(weighted) == 1:
        return weighted[0][0]
    weights = [weight for _, weight in weighted if weight is not None]
    if len(weights) < len(weighted) or sum(weights) <= 0:
        return None
    return sum(value * weight for (value, _), weight in zip(weighted, weights, strict=True)) / sum(weights)


def _single(values: Mapping[str, float], quantity: str) -> float | None:
    """The value of a single environment; several have no mean, because the trajectories of each are not logged."""
    matches = ((key, _ENVIRONMENT.fullmatch(key)) for key in values)
    quantities = [values[key] for key, match in matches if match is not None and match.group(1) == quantity]
    return quantities[0] if len(quantities) == 1 else None


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """The phases, the batch, the trained samples."""
    values = piece.values
    wait = values.get(GENERATE, values.get(ROLLOUT))
    compute = sum(values.get(key, 0.0) for key in COMPUTE)
    if wait is not None:
        # Of an asynchronous pipeline these timers are the wait for a batch.
        alternates = context.synchronous or not context.mode
        yield "generation_seconds" if alternates else "trainer_wait_seconds", (), wait
        yield "trainer_compute_seconds", (), compute
        if any(key in values for key in LOGPROBS):
            yield "trainer_logprob_seconds", (), sum(values.get(key, 0.0) for key in LOGPROBS)
    if wait is not None and STEP in values:
        yield "trainer_other_seconds", (), max(0.0, values[STEP] - wait - compute - values.get(UPDATE, 0.0))
    # 0 means that it was not measured (metrics_manager.py:182).
    if values.get(ENTROPY, 0.0) != 0:
        yield "entropy_mean", (), values[ENTROPY]
    yield from _batch(piece)


def _batch(piece: Piece) -> Iterator[Out]:
    values = piece.values
    samples = values.get(BATCH, values.get(TOTAL))
    if samples is None and TOTAL_SAMPLES in values:
        samples = values[TOTAL_SAMPLES] / (piece.step + 1)
    if samples is None:
        return
    yield "trainer_samples", (), samples
    if CLIPPED in values and samples > 0:
        yield "truncation_ratio", (), values[CLIPPED] / samples
    if LENGTH in values and values.get(KEPT) == 1.0:
        yield "trained_tokens", (), values[LENGTH] * samples


_TAG = "metrics_tag: "


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """A line of `StdoutTracker`: JSON with the step and its metrics (utils/tracking.py:195)."""
    _, tag, text = line.text.partition(_TAG)
    if not tag:
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("metrics"), dict):
        return None
    step = row.get("step")
    return Logged(row["metrics"], step if isinstance(step, int) and not isinstance(step, bool) else None, line.ts)


FRAMEWORK = Framework(
    name="roll",
    reads="ROLL runs, RLVR and agentic (TensorBoard, wandb, trackio, console)",
    versions="8eb27cc2 (2026-08) by source",
    sinks=(wandb.SINK, trackio.SINK, tensorboard.SINK, console.sink(parse_line)),
    keys=KEYS,
    ignored=IGNORED,
    evaluations={"evaluation_score": re.compile(r"val_correct/(?P<task>[^/]+)/mean")},
    marks=(
        (UPDATE, GENERATE),
        (UPDATE, ROLLOUT),
    ),
    split=pieces,
    needs=NEEDS,
    derive=derive,
    facts=facts,
    seconds=(STEP,),
    first_step=0,
    report_seconds=30.0,
    derives=(
        "entropy_mean",
        "generation_seconds",
        "trained_tokens",
        "trainer_compute_seconds",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_samples",
        "trainer_wait_seconds",
        "truncation_ratio",
    ),
)
COLLECTOR = collector_of(FRAMEWORK)
