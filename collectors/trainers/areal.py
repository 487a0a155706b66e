"""AReaL runs: wandb, TensorBoard, trackio, or the tables it always prints.

Never requests the training service's `GET /export_stats`, because it resets the run's own statistics.

Not available: the queue and rollouts in flight (not logged), zero-advantage groups, rejected rollouts (the keys are
means of ones). wandb is opened even if it is disabled, so there may be an empty log of it.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from collectors.formats import console, tensorboard, trackio, wandb
from collectors.formats.rows import Logged
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- keys
# AReaL's metric keys -> ours (1.0.4: trainer/rl_trainer.py, trainer/ppo/actor.py, utils/stats_tracker.py).

VERSIONS = "ppo_actor/update/version_stats/"
NORM = "ppo_actor/update/grad_norm"
NONFINITE = "ppo_actor/update/grad_norm is not finite"

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    "timeperf/update_weights": Key("trainer_weight_sync_seconds"),
    "timeperf/eval": Key("trainer_eval_seconds"),
    "ppo_actor/n_seqs": Key("trainer_samples"),
    "ppo_actor/n_valid_tokens": Key("trained_tokens"),
    "ppo_actor/n_tokens": Key("processed_tokens"),
    "ppo_actor/task_reward/avg": Key("reward_mean"),
    "ppo_actor/prompt_len/avg": Key("prompt_tokens_mean"),
    # Rows as long as the padded batch: the longest one counts even if it ended by itself.
    "ppo_actor/no_eos_ratios/avg": Key("truncation_ratio"),
    "rollout/num_turns": Key("turns_mean"),
    # Over generated tokens: version being trained - the token's. The maximum over tokens equals that over rollouts.
    f"{VERSIONS}sample_staleness_theta_avg": Key("token_staleness_versions_mean"),
    f"{VERSIONS}sample_staleness_theta_max": Key("staleness_versions_max"),
    f"{VERSIONS}v_theta": Key("policy_version"),
    "ppo_actor/update/actor_loss/avg": Key("loss_mean"),
    "ppo_actor/update/entropy/avg": Key("entropy_mean"),
    "ppo_actor/update/clip_ratio/avg": Key("clip_ratio"),
    "ppo_actor/update/importance_weight/avg": Key("importance_ratio_mean"),
    "ppo_actor/update/behave_approx_kl/avg": Key("mismatch_kl_mean"),
    "ppo_actor/update/lr": Key("learning_rate"),
    NORM: Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
}

WAIT = "timeperf/rollout"
LOGPROBS = ("timeperf/ref_logp", "timeperf/teacher_logp", "timeperf/recompute_logp")
COMPUTE = (
    *LOGPROBS,
    "timeperf/critic_values",
    "timeperf/compute_advantage",
    "timeperf/train_step",
    "timeperf/critic_train_step",
)
SAVES = ("timeperf/save", "timeperf/checkpoint_for_recover")
OTHERS = ("timeperf/update_weights", "timeperf/eval", "timeperf/clear_batches")
PHASES = (WAIT, *COMPUTE, *SAVES, *OTHERS)
NEEDS = frozenset((*PHASES, "ppo_actor/seq_len/avg", "ppo_actor/prompt_len/avg", "ppo_actor/n_seqs"))
NEEDS |= {"ppo_actor/correct_n_seqs"}

# `rollout/accepted` and `rejected` are means of ones; `rollout/reward` includes rejected rollouts.
IGNORED = re.compile(
    r"rollout/.*|eval-rollout/.*|eval_rollout/.*|ppo_critic/.*|ref/.*|teacher/.*|ppo_actor/(?:update/(?!.*grad_norm$).*"
    r"|compute_logp/.*|(?:in)?correct_(?:n_seqs|seq_len/.*)|(?:advantages|kl_rewards|final_reward|task_reward|prompt_len"
    r"|seq_len|no_eos_ratios)/(?:avg|min|max)|mask_no_eos_with_zero|eps_clip|c_clip|use_dual_clip|rs_.*|agent.*)"
    r"|.*__count"
)


def facts(config: Mapping[str, Any]) -> Facts:
    """From the experiment's configuration in wandb or trackio (api/cli_args.py)."""
    settings = Settings(config)
    bound, group = settings.number("rollout.max_head_offpolicyness"), settings.number("gconfig.n_samples")
    mode = "" if bound is None else "async" if bound > 0 else "sync_split"
    return facts_of(
        mode=mode,
        group_size=group,
        batch_samples=product(settings.number("train_dataset.batch_size"), group),
        max_staleness_versions=bound,
        max_in_flight=settings.number("rollout.max_concurrent_rollouts"),
        max_steps=settings.number("total_train_steps"),
        max_response_tokens=settings.number("gconfig.max_new_tokens"),
        model=settings.text("actor.path"),
    )


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """One piece per row; the logger's step may be ahead of the trainer's if it was given a list."""
    if row.step is None or row.ts is None or not values:
        return
    remaining = dict(values)
    if NORM in row.values:
        remaining[NONFINITE] = float(NORM not in values)
    yield Piece(TRAINER, row.step, row.ts, remaining)


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """The step as the sum of its timers, its phases, lengths without the prompt."""
    values = piece.values
    if WAIT in values and "timeperf/train_step" in values:
        yield from _phases(values, context.synchronous)
    sequence_length, prompt = values.get("ppo_actor/seq_len/avg"), values.get("ppo_actor/prompt_len/avg")
    if sequence_length is not None and prompt is not None:
        yield "response_tokens_mean", (), sequence_length - prompt
    solved, sequences = values.get("ppo_actor/correct_n_seqs"), values.get("ppo_actor/n_seqs")
    if solved is not None and sequences:
        # Correct is a reward above zero (actor.py:264).
        yield "solve_ratio", (), solved / sequences


def _phases(values: Mapping[str, float], synchronous: bool) -> Iterator[Out]:
    """The timers follow one another and cover the step (rl_trainer.py:601-826)."""
    step_seconds, compute, saves = (_sum(values, keys) for keys in (PHASES, COMPUTE, SAVES))
    yield "trainer_step_seconds", (), step_seconds
    yield "generation_seconds" if synchronous else "trainer_wait_seconds", (), values[WAIT]
    yield "trainer_compute_seconds", (), compute
    yield "trainer_checkpoint_seconds", (), saves
    if any(key in values for key in LOGPROBS):
        yield "trainer_logprob_seconds", (), _sum(values, LOGPROBS)
    yield "trainer_other_seconds", (), values.get("timeperf/eval", 0.0) + values.get("timeperf/clear_batches", 0.0)


def _sum(values: Mapping[str, float], keys: Iterable[str]) -> float:
    return sum(values.get(key, 0.0) for key in keys)


# "(AReaL) 20260821-10:00:00.123 StatsLogger INFO: Epoch 1/3 Step 2/10 Train step 12/300 done."
_DONE = re.compile(r".*\bTrain step (\d{1,12})/\d+ done\.")
_DATED = re.compile(r"\b(\d{8}-\d\d:\d\d:\d\d)\.(\d{3})\b")
# A table has some hundred cells; in a longer one the end was lost.
CELLS = 5_000


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """Lines of a step's table (`tabulate`, fancy_grid, four pairs a row): a row when the table ends."""
    text = line.text.strip()
    if (match := _DONE.fullmatch(text)) is not None:
        memory.update(step=int(match.group(1)) - 1, ts=_time(text), cells={})
    elif "step" not in memory:
        return None
    elif text.startswith("│"):
        _cells(text, memory["cells"])
        if len(memory["cells"]) > CELLS:
            memory.clear()
    elif text.startswith("╘"):
        return Logged(memory.pop("cells"), memory.pop("step"), memory.pop("ts", None))
    return None


def _cells(text: str, cells: dict[str, Any]) -> None:
    parts = [part.strip() for part in text.strip("│").split("│")]
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        if key and not key.endswith("__count"):
            cells[key] = console.figure(value)


def _time(text: str) -> float | None:
    """The log has no zone: it is the machine's own, which is also that of this process."""
    match = _DATED.search(text)
    try:
        return time.mktime(time.strptime(match[1], "%Y%m%d-%H:%M:%S")) + int(match[2]) / 1000 if match else None
    except (ValueError, OverflowError):
        return None


FRAMEWORK = Framework(
    name="areal",
    reads="AReaL runs (wandb, TensorBoard, trackio, console tables)",
    versions="1.0.4 by source",
    sinks=(wandb.SINK, tensorboard.SINK, trackio.SINK, console.sink(parse_line)),
    keys=KEYS,
    needs=NEEDS,
    ignored=IGNORED,
    marks=("timeperf/rollout", "timeperf/train_step", f"{VERSIONS}v_theta"),
    config_marks=("rollout.max_head_offpolicyness",),
    split=pieces,
    derive=derive,
    facts=facts,
    seconds=("timeperf/train_step",),
    mode="async",
    first_step=0,
    derives=(
        "generation_seconds",
        "response_tokens_mean",
        "solve_ratio",
        "trainer_checkpoint_seconds",
        "trainer_compute_seconds",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_step_seconds",
        "trainer_wait_seconds",
    ),
    hints={
        "trainer_mfu_ratio": "its log has no key for FLOPs or MFU",
        "in_flight_rollouts": "running rollouts are printed in its log lines only, and no key has them",
        "queue_samples": "accepted rollouts are printed in its log lines only, and no key has them",
        "turns_mean": "only a multi-turn workflow logs it, as `rollout/num_turns`",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
