"""NeMo-RL runs (GRPO: synchronous, asynchronous, SingleController): wandb, MLflow or TensorBoard.

All three are off by default (`logger.*_enabled`), and one of them is needed: the samples it always writes
(`train_data_stepN.jsonl`) have neither times nor rewards by group.

Not available: the largest staleness, groups of equal reward other than 0 and 1, staleness under the SingleController
(printed only), the engines' queues (logged as pictures).
"""

from collectors.formats.mlflow import database as mlflow_database
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.wandb import log as wandb_log
from collectors.trainers.nemo_rl import config as nemo_rl_config
from collectors.trainers.nemo_rl import keys as nemo_rl_keys
from collectors.training_logs.model import Framework
from collectors.training_logs.tail import collector_of

FRAMEWORK = Framework(
    name="nemo_rl",
    reads="NeMo-RL runs: synchronous, asynchronous and SingleController (wandb, MLflow, TensorBoard)",
    versions="7ea279abf (2026-08) by source",
    sinks=(wandb_log.SINK, mlflow_database.SINK, tensorboard_log.SINK),
    keys=nemo_rl_keys.KEYS,
    patterns=nemo_rl_keys.PATTERNS,
    ignored=nemo_rl_keys.IGNORED,
    # Supervised and preference runs of NeMo-RL have neither.
    marks=("timing/train/policy_and_reference_logprobs", "train/gen_kl_error"),
    config_marks=("grpo.num_generations_per_prompt",),
    split=nemo_rl_keys.pieces,
    needs=nemo_rl_keys.NEEDS,
    derive=nemo_rl_keys.derive,
    facts=nemo_rl_config.facts,
    on_row=nemo_rl_keys.on_row,
    seconds=(nemo_rl_keys.STEP,),
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
        "trainer_samples",
    ),
)
COLLECTOR = collector_of(FRAMEWORK)
