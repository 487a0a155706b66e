"""ART runs: history.jsonl, one object per step and split (openpipe-art 0.5.18: model.py:661, pipeline_trainer/).

Rows of split `train` are the trainer's steps. The pipeline trainer runs in parallel with its rollouts and drops groups
of equal rewards before it counts them; a user's own loop (`model.train`) is synchronous and counts them.

Not available: queue and rollouts in flight (a status line on the terminal), the largest staleness, weight sync, MFU,
response lengths, truncation.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping

from collectors.formats import jsonl
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.tail import collector_of

STEP, IDLE, ACTOR, BUSY = (
    "time/step_wall_s",
    "throughput/step_trainer_idle_s",
    "time/step_actor_s",
    "time/step_trainer_s",
)
EVALUATED, STALE = "time/step_eval_s", "train/discarded_stale_groups"
GROUPS, TRAINABLE, TRAJECTORIES = (
    f"data/step_num_{name}" for name in ("groups_submitted", "groups_trainable", "trajectories")
)
PIPELINE_MARKS = (IDLE, STALE, "train/steps_off_policy")
NORM, NONFINITE = "loss/grad_norm", "loss/grad_norm is not finite"
_DATED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?")

KEYS: dict[str, Key | tuple[Key, ...]] = {
    STEP: Key("trainer_step_seconds"),
    BUSY: Key("trainer_compute_seconds"),
    EVALUATED: Key("trainer_eval_seconds"),
    "train/steps_off_policy": Key("staleness_versions_mean"),
    "train/reward": Key("reward_mean"),
    # The mean of the groups' standard deviations.
    "train/reward_std_dev": Key("reward_group_std_mean"),
    "train/exception_rate": Key("rollout_error_ratio"),
    TRAJECTORIES: Key("trainer_samples"),
    GROUPS: Key("trainer_groups"),
    "data/step_trainer_tokens": Key("processed_tokens"),
    "loss/train": Key("loss_mean"),
    "loss/entropy": Key("entropy_mean"),
    "loss/kl_policy_ref": Key("reference_kl_mean"),
    "loss/learning_rate": Key("learning_rate"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
}
# Totals and means since the start, costs, and what users measure of their trajectories.
IGNORED = re.compile(
    r"(?:time|throughput|data)/(?:cum/.*|wall_clock_sec|step_actor_idle_s|step_num_.*|step_actor_tokens|avg_.*)"
    r"|throughput/(?:avg_.*|step_actor_idle_s)|costs/.*|train/.*|pipeline/.*|offpolicy/.*|loss/.*|reward/.*"
    r"|training_step|step"
)


def _unpack(row: jsonl.Row) -> Logged:
    step = number(row.get("training_step", row.get("step")))
    return Logged(row, None if step is None else int(step), _time(row.get("recorded_at")))


def _time(text: object) -> float | None:
    """`recorded_at` has no zone: it is the machine's own, which is also that of this process."""
    match = _DATED.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        return time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) + float(match[2] or 0)
    except (ValueError, OverflowError):
        return None


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """Rows of training: other splits carry `time/*` and `costs/*` too, and validation may be of an earlier step."""
    if row.step is None or row.ts is None or not any(key.startswith("train/") for key in values):
        return
    if any(mark in values for mark in PIPELINE_MARKS):
        context.take({"mode": "async"})
    remaining = {
        key: value for key, value in values.items() if key.partition("/")[0] not in ("val", "test", "discarded")
    }
    if NORM in row.values:
        remaining[NONFINITE] = float(NORM not in values)
    yield Piece(TRAINER, row.step, row.ts, remaining)


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """The wait or generation, the rest of the step, groups without advantage, groups dropped as too old."""
    values = piece.values
    pipeline = any(mark in values for mark in PIPELINE_MARKS)
    yield from _phases(values, pipeline)
    groups, trainable = values.get(GROUPS), values.get(TRAINABLE)
    if not pipeline and groups and trainable is not None:
        yield "groups_zero_advantage_ratio", (), 1.0 - trainable / groups
    dropped = _dropped(piece, context)
    trajectories = values.get(TRAJECTORIES)
    if dropped is not None and groups and trajectories is not None:
        # In groups; all groups of a run have one size.
        yield "stale_dropped_rollouts", (), dropped * trajectories / groups


def _phases(values: Mapping[str, float], pipeline: bool) -> Iterator[Out]:
    step_seconds, busy = values.get(STEP), values.get(BUSY)
    wait = values.get(IDLE if pipeline else ACTOR)
    if wait is not None:
        yield "trainer_wait_seconds" if pipeline else "generation_seconds", (), wait
    if step_seconds is not None and busy is not None and wait is not None:
        yield "trainer_other_seconds", (), max(0.0, step_seconds - busy - wait)


def _dropped(piece: Piece, context: Context) -> float | None:
    """Groups dropped since the previous step, from their total; None if that step was not read."""
    total = piece.values.get(STALE)
    if total is None:
        return None
    totals: dict[str, float] = context.memory.setdefault("stale", {})
    before = max((int(step) for step in totals if int(step) < piece.step), default=None)
    since = totals[str(before)] if before is not None else None
    totals[str(piece.step)] = total
    context.memory["stale"] = {step: totals[step] for step in sorted(totals, key=int) if int(step) >= piece.step - 4}
    if since is None:
        return None
    # The process restarted and counts from zero.
    return total - since if total >= since else total


FRAMEWORK = Framework(
    name="art",
    reads="ART runs (history.jsonl)",
    versions="openpipe-art 0.5.18 by source",
    sinks=(jsonl.sink(("history.jsonl",), _unpack, name="history.jsonl"),),
    keys=KEYS,
    ignored=IGNORED,
    evaluations={"evaluation_score": re.compile(r"(?P<task>val)/reward")},
    marks=("data/step_num_groups_submitted", "time/step_wall_s", "train/reward_std_dev"),
    needs=frozenset((STEP, IDLE, ACTOR, BUSY, STALE, GROUPS, TRAINABLE, TRAJECTORIES, "train/steps_off_policy")),
    split=pieces,
    derive=derive,
    seconds=(STEP,),
    derives=(
        "generation_seconds",
        "groups_zero_advantage_ratio",
        "stale_dropped_rollouts",
        "trainer_other_seconds",
        "trainer_wait_seconds",
    ),
    hints={
        "staleness_versions_mean": "use the pipeline trainer: your own loop over `model.train` logs no versions",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
