"""Tunix RL runs: TensorBoard, wandb.

TensorBoard comes first, although it may lag two minutes (metrax flushes every 100 steps, tensorboardX every 120 s):
wandb drops rows with a smaller step than the previous row, and two counters share one run.

Not available: mode (only timers show which parts have their own devices), the configuration, queue, staleness,
samples per step, groups of equal rewards (`advantage/nonzero_frac` is not by group), MFU.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from collectors.formats import tensorboard, wandb
from collectors.formats.rows import Logged
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece, mark
from collectors.training_logs.tail import CACHED_STEPS, collector_of

# ---- keys
# Tunix' metric names -> ours (c7d8950f: rl/rl_cluster.py, rl/{grpo,agentic}, perf/export.py, sft/peft_trainer.py).

# The actor's trainer counts updates.
UPDATES = "update"
PERF = "perf/train/"
STEP, SYNC = f"{PERF}global_step_time", f"{PERF}weight_sync_time"
ROLLOUT, REFERENCE, TRAIN = (f"{PERF}sum/{name}_time" for name in ("rollout", "refer_inference", "actor_train"))
# Only if the rollouts have their own devices; the gap is between the training of two micro-batches.
FIRST, GAPS = f"{PERF}first_micro_batch_rollout_time", f"{PERF}sum/between_micro_batch_gap_time"
# Only if the reference has its own devices, too.
REFERENCE_GAP = f"{PERF}sum/refer_gap_time"
NORM = "actor/train/grad_norm"
# Not a key of Tunix: `pieces` adds it, because a gradient norm that is not finite is itself a finding.
NONFINITE = "actor/train/grad_norm is not finite"
KL = "actor/train/kl"
# The sum over reward functions, averaged over samples; `rewards/train/mean` is averaged over functions, too.
SCORE, SUM = "rewards/train/score/mean", "rewards/train/sum"

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    STEP: Key("trainer_step_seconds"),
    SYNC: Key("trainer_weight_sync_seconds"),
    "sampler_trainer/train/logp_diff_mean": Key("mismatch_logprob_difference_mean"),
    "sampler_trainer/train/logp_diff_max": Key("mismatch_logprob_difference_max"),
    "generation/train/completions/clip_ratio": Key("truncation_ratio"),
    "trajectory/train/env_time/reset_latency/mean": Key("rollout_setup_seconds_mean"),
    # A step of the environment: the time of its tools.
    "trajectory/train/env_time/step_latency/mean": Key("tool_call_seconds_mean"),
    "trajectory/train/reward_time/reward_latency/mean": Key("rollout_scoring_seconds_mean"),
    "actor/train/loss": Key("loss_mean"),
    "actor/train/learning_rate": Key("learning_rate"),
    "actor/train/entropy": Key("entropy_mean"),
    "actor/train/loss/entropy": Key("entropy_mean"),
    "actor/train/pg_clipfrac": Key("clip_ratio"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    **{
        f"{prefix}/{name}_length": Key(f"response_tokens_{name}")
        for prefix in ("generation/train/completions", "completions/train")
        for name in ("mean", "max", "min")
    },
}
NEEDS = frozenset((STEP, SYNC, ROLLOUT, REFERENCE, TRAIN, FIRST, GAPS, REFERENCE_GAP, KL, SCORE, SUM))


def _component(match: re.Match[str]) -> Key:
    return Key("reward_component_mean", labels=(("function", match.group(1)),))


PATTERNS = ((re.compile(r"rewards/train/(?!(?:sum|mean|min|max)$)([^/]+)"), _component),)
# `generation/prompts/*` is the padded length of the first prompt of a group.
IGNORED = re.compile(
    r"[^/]+/eval/.*|(?:actor|critic|perf|generation|completions|rewards|sampler_trainer|trajectory|packing|global)/train/.*"
    r"|_.*"
)


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """The parts of a row by their counters; first the times of the previous step, if they belong to it."""
    if row.step is None or row.ts is None:
        return
    updates = {key: value for key, value in values.items() if key.startswith(("actor/", "critic/"))}
    if NORM in row.values:
        updates[NONFINITE] = float(NORM not in values)
    rest = {key: value for key, value in values.items() if key not in updates}
    times = {key: value for key, value in rest.items() if key.startswith(PERF)}
    row_pieces = [Piece(UPDATES, row.step, row.ts, updates)]
    if ROLLOUT in times or any(key.startswith(("completions/", SCORE)) for key in rest):
        context.memory["afterwards"] = True
    if times and context.memory.get("afterwards") and row.step > 0:
        # Exported after the count of steps has increased (rl_learner.py:637); the agentic learner, with other names,
        # exports them before.
        row_pieces.append(Piece(TRAINER, row.step - 1, row.ts, times))
        rest = {key: value for key, value in rest.items() if key not in times}
    row_pieces.append(Piece(TRAINER, row.step, row.ts, rest))
    if FIRST in times:
        context.take({"mode": "sync_split"})
    for piece in row_pieces:
        fresh = _new_values(piece, row.origin, context.memory)
        if fresh.values:
            yield fresh


def _new_values(piece: Piece, origin: str, memory: dict[str, Any]) -> Piece:
    """Only the new values of an older step.

    The agentic learner buffers ahead, so parts of a step may come after the next one and repeat its keys, as means
    over the rest. That is no rewind: a resumed run writes a file of its own.
    """
    if memory.get("origin") != origin:
        memory |= {"origin": origin, "told": {}}
    steps: dict[str, list[int]] = memory["told"].setdefault(piece.axis, {})
    emitted = set(steps.get(str(piece.step), ()))
    late = any(int(step) > piece.step for step in steps)
    values = {key: value for key, value in piece.values.items() if not (late and mark(key) in emitted)}
    steps[str(piece.step)] = sorted(emitted | {mark(key) for key in values})
    while len(steps) > CACHED_STEPS:
        del steps[min(steps, key=int)]
    return replace(piece, values=values)


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """The phases, the reward, and a KL that was computed."""
    values = piece.values
    if SCORE in values or SUM in values:
        yield "reward_mean", (), values.get(SCORE, values.get(SUM, 0.0))
    if values.get(KL, 0.0) != 0.0:
        # Without a reference model it is 0.
        yield "reference_kl_mean", (), values[KL]
    if STEP in values and TRAIN in values and ROLLOUT in values:
        yield from _phases(values)


def _phases(values: Mapping[str, float]) -> Iterator[Out]:
    """The step includes the time to send weights. With its own devices, generation counts while training waits."""
    reference = 0.0 if REFERENCE_GAP in values else values.get(REFERENCE, 0.0)
    compute = values[TRAIN] + reference
    yield "trainer_compute_seconds", (), compute
    if REFERENCE_GAP in values:
        # The gaps logged here are no gaps: from the begin of a micro-batch to the end of the next.
        return
    if REFERENCE in values:
        yield "trainer_logprob_seconds", (), reference
    generation = values[FIRST] + values.get(GAPS, 0.0) if FIRST in values else values[ROLLOUT]
    yield "generation_seconds", (), generation
    yield "trainer_other_seconds", (), max(0.0, values[STEP] - generation - compute - values.get(SYNC, 0.0))


FRAMEWORK = Framework(
    name="tunix",
    reads="Tunix RL runs (TensorBoard, wandb)",
    versions="c7d8950f (2026-08) by source",
    sinks=(tensorboard.SINK, wandb.SINK),
    keys=KEYS,
    patterns=PATTERNS,
    ignored=IGNORED,
    marks=(
        STEP,
        "rewards/train/score/mean",
        "generation/train/completions/mean_length",
        "completions/train/mean_length",
    ),
    split=pieces,
    needs=NEEDS,
    derive=derive,
    derives=(
        "reward_mean",
        "reward_component_mean",
        "reference_kl_mean",
        "generation_seconds",
        "trainer_compute_seconds",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
    ),
    seconds=(STEP,),
    first_step=0,
    report_seconds=120.0,
)
COLLECTOR = collector_of(FRAMEWORK)
