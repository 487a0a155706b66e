"""AReaL's metric keys -> ours (1.0.4: trainer/rl_trainer.py, trainer/ppo/actor.py, utils/stats_tracker.py).

`stat` keys end in `/avg`, `/min`, `/max`; `denominator` keys are sums; `scalar` keys are means over all places that
logged them, so the largest staleness is a mean of the largest values of mini-batches.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from collectors.formats.rows import Logged
from collectors.training_logs.model import TRAINER, Context, Key, Out, Piece
from collectors.training_logs.settings import Facts, Settings, facts_of, product

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
