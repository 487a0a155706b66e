"""OAT runs: wandb, or the dict it prints with every logged step.

Read from c1a074c (2025-10-31: learners/base.py:482-570, algorithms/ppo.py, actors/reward.py). Rows have no step of
their own: it is `misc/policy_sgd_step`, several of which make a learning round. Values are means over the learner's
ranks.

Not available: staleness, queue and wait (with `--asynchronous` a batch lags by one), tokens per second, MFU.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from collectors.formats import console, wandb
from collectors.formats.rows import Logged
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of
from collectors.training_logs.tail import collector_of

STEP, ELAPSED, ROUND = "misc/policy_sgd_step", "misc/elapse", "train/learning_round"
GENERATE, SYNC, BATCH = "actor/generate_time", "misc/weight_sync_elapse", "train/learn_batch_time"
SCORING = ("actor/verify_time", "actor/oracle_time")
# Not keys of OAT: computed from two rows.
SECONDS, UPDATES = "rollscope: seconds per round", "rollscope: updates per round"
BUFFER, NONE_SOLVED, ALL_SOLVED = "misc/pi_buffer_len", "train/all_zero_rewards_count", "train/all_one_rewards_count"
NOT_NUMBERS = ("train/policy_grad_norm_nan", "train/policy_grad_norm_inf")
UNFINISHED, SAMPLES = "actor/no_eos_count", ("actor/num_data", "actor/num_transitions")

KEYS: dict[str, Key | tuple[Key, ...]] = {
    GENERATE: Key("generation_seconds"),
    SCORING[0]: Key("reward_seconds"),
    SCORING[1]: Key("reward_seconds"),
    SYNC: Key("trainer_weight_sync_seconds"),
    "misc/pi_beta_version": Key("policy_version"),
    "misc/lr": Key("learning_rate"),
    "actor/rewards": Key("reward_mean"),
    "actor/avg_reward": Key("reward_mean"),
    "actor/rewards_mean": Key("reward_mean"),
    "actor/rewards_std": Key("reward_std"),
    "actor/rewards_std_per_prompt": Key("reward_group_std_mean"),
    "actor/response_tok_len": Key("response_tokens_mean"),
    "actor/mean_episode_len": Key("turns_mean"),
    "actor/mean_episode_success": Key("solve_ratio"),
    "train/kl_sample_train_v1": Key("mismatch_kl_mean"),
    "train/logprobs_diff_max": Key("mismatch_logprob_difference_max"),
    "train/policy_grad_norm": Key("gradient_norm"),
    "train/pg_clipfrac": Key("clip_ratio"),
    "train/pg_loss": Key("loss_mean"),
    "train/entropy": Key("entropy_mean"),
}
IGNORED = re.compile(r"misc/.*|eval/.*|train/.*|actor/.*")
NEEDS = frozenset((SECONDS, UPDATES, GENERATE, SYNC, BATCH, BUFFER, NONE_SOLVED, ALL_SOLVED, UNFINISHED)) | {
    *SCORING,
    *NOT_NUMBERS,
    *SAMPLES,
}


def facts(config: Mapping[str, Any]) -> Facts:
    """From wandb: the arguments (args.py)."""
    settings = Settings(config)
    split = "sync_colocated" if settings.flag("collocate") else "sync_split"
    has_mode_keys = "collocate" in settings or "asynchronous" in settings
    return facts_of(
        mode="one_step" if settings.flag("asynchronous") else split if has_mode_keys else "",
        group_size=settings.number("num_samples"),
        max_response_tokens=settings.number("generate_max_length"),
        model=settings.text("pretrain"),
    )


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """The printed dict of a logged step."""
    if STEP not in line.text:
        return None
    values = console.literal(line.text)
    return Logged(values, None, line.ts) if values is not None and STEP in values else None


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """A row of a learning round; a row of evaluation alone (before the first round, say) repeats old numbers."""
    if row.ts is None or STEP not in values or ROUND not in values:
        return
    remaining = dict(values)
    before = context.memory.get("round")
    current = [values[ROUND], values.get(ELAPSED), values[STEP]]
    context.memory["round"] = current
    if before is not None and current[1] is not None and before[1] is not None and current[0] > before[0]:
        rounds = current[0] - before[0]
        # `logging_steps` may skip rounds: the mean of those since the previous row.
        remaining[SECONDS] = max(0.0, current[1] - before[1]) / rounds
        remaining[UPDATES] = max(0.0, current[2] - before[2]) / rounds
    yield Piece(TRAINER, int(values[STEP]), row.ts, remaining)


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """A round's phases, the truncated share, groups without advantage, gradients that are not finite."""
    values = piece.values
    yield from _phases(values)
    samples = next((values[key] for key in SAMPLES if key in values), None)
    if samples and UNFINISHED in values:
        yield "truncation_ratio", (), values[UNFINISHED] / samples
    yield from _groups(values, context)
    if any(key in values for key in NOT_NUMBERS):
        yield "gradient_nonfinite", (), float(any(values.get(key, 0.0) > 0 for key in NOT_NUMBERS))


def _phases(values: Mapping[str, float]) -> Iterator[Out]:
    step_seconds = values.get(SECONDS)
    if step_seconds is None:
        return
    yield "trainer_step_seconds", (), step_seconds
    if BATCH not in values:
        return
    # The mean of one update, times the updates.
    compute = values[BATCH] * values[UPDATES]
    yield "trainer_compute_seconds", (), compute
    if GENERATE in values:
        phase_seconds = compute + sum(values.get(key, 0.0) for key in (GENERATE, SYNC, *SCORING))
        yield "trainer_other_seconds", (), max(0.0, step_seconds - phase_seconds)


def _groups(values: Mapping[str, float], context: Context) -> Iterator[Out]:
    """Counts per rank, over the groups of its buffer; equal rewards between the extremes are not counted."""
    size, buffer = context.facts.get("group_size"), values.get(BUFFER)
    if not isinstance(size, int | float) or not size or not buffer:
        return
    groups = buffer / size
    if NONE_SOLVED in values and ALL_SOLVED in values:
        yield "groups_none_solved_ratio", (), values[NONE_SOLVED] / groups
        yield "groups_all_solved_ratio", (), values[ALL_SOLVED] / groups


FRAMEWORK = Framework(
    name="oat",
    reads="OAT runs (wandb, printed dicts)",
    versions="c1a074c (2025-10) by source",
    sinks=(wandb.SINK, console.sink(parse_line)),
    keys=KEYS,
    ignored=IGNORED,
    marks=("misc/pi_beta_version", "misc/pi_buffer_len"),
    needs=NEEDS,
    split=pieces,
    derive=derive,
    facts=facts,
    derives=(
        "gradient_nonfinite",
        "groups_all_solved_ratio",
        "groups_none_solved_ratio",
        "trainer_compute_seconds",
        "trainer_other_seconds",
        "trainer_step_seconds",
        "truncation_ratio",
    ),
    hints={
        "groups_none_solved_ratio": "set `--use-wb`, whose configuration has the group size, or state it as a fact",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
