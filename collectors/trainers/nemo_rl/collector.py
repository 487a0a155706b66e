"""NeMo-RL runs (GRPO: synchronous, asynchronous, SingleController): wandb, MLflow, TensorBoard or the printed output.

The first three are off by default (`logger.*_enabled`). The driver prints rewards, lengths and timings of each step,
without times, entropy and gradient norm; the SingleController prints no steps. The samples that NeMo-RL always writes
(`train_data_stepN.jsonl`) have neither times nor rewards by group.

Not available: the largest staleness, groups of equal reward other than 0 and 1, staleness under the SingleController
(printed only), the engines' queues (logged as pictures).
"""

import re
from collections.abc import Iterator, Mapping

from collectors.formats import console
from collectors.formats.mlflow import database as mlflow_database
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.wandb import log as wandb_log
from collectors.trainers.nemo_rl import config as nemo_rl_config
from collectors.trainers.nemo_rl import keys as nemo_rl_keys
from collectors.trainers.nemo_rl import log as nemo_rl_log
from collectors.training_logs.model import Context, Framework, Out, Piece
from collectors.training_logs.tail import collector_of


def _on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    nemo_rl_keys.on_row(row, values, context)
    nemo_rl_log.live(row, values, context)


def _derive(piece: Piece, context: Context) -> Iterator[Out]:
    yield from nemo_rl_keys.derive(piece, context)
    yield from nemo_rl_log.derive(piece)


FRAMEWORK = Framework(
    name="nemo_rl",
    reads="NeMo-RL runs: synchronous, asynchronous and SingleController (wandb, MLflow, TensorBoard, console)",
    versions="7ea279abf (2026-08) by source",
    sinks=(wandb_log.SINK, mlflow_database.SINK, tensorboard_log.SINK, console.sink(nemo_rl_log.parse)),
    keys=nemo_rl_keys.KEYS,
    patterns=nemo_rl_keys.PATTERNS,
    ignored=re.compile(f"{nemo_rl_log.OWN.pattern}|{nemo_rl_keys.IGNORED.pattern}"),
    # Supervised and preference runs of NeMo-RL have neither.
    marks=("timing/train/policy_and_reference_logprobs", "train/gen_kl_error", nemo_rl_log.WAITING),
    config_marks=("grpo.num_generations_per_prompt",),
    split=nemo_rl_keys.pieces,
    needs=nemo_rl_keys.NEEDS | {nemo_rl_log.UPDATES},
    derive=_derive,
    facts=nemo_rl_config.facts,
    on_row=_on_row,
    seconds=(nemo_rl_keys.STEP, nemo_rl_log.PASSED),
    # The SingleController's watchdog reports every `stall_watchdog.interval_s`.
    report_seconds=30.0,
    derives=(
        "entropy_mean",
        "groups_all_solved_ratio",
        "groups_none_solved_ratio",
        "groups_zero_advantage_ratio",
        "importance_ratio_mean",
        "in_flight_rollouts",
        "loss_mean",
        "mismatch_kl_mean",
        "reference_kl_mean",
        "rollout_errors",
        "stale_dropped_rollouts",
        "trained_tokens",
        "trainer_compute_seconds",
        "trainer_other_seconds",
        "trainer_phase_active",
        "trainer_samples",
    ),
)
COLLECTOR = collector_of(FRAMEWORK)
