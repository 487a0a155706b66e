"""NeMo-RL runs (GRPO: synchronous, asynchronous, SingleController): wandb, MLflow or TensorBoard.

All three are off by default (`logger.*_enabled`), and without one of them there is nothing to read: the samples it
always writes (`train_data_stepN.jsonl`) have neither times nor rewards by group.

Does not know: the largest staleness, groups of equal reward that is neither 0 nor 1, staleness under the
SingleController (printed only), the engines' queues (logged as pictures).
"""

from collectors.readers import mlflow_db, tensorboard, wandb_log
from collectors.trainers import _nemo_config, _nemo_keys
from collectors.trainers._framework import collector_of
from collectors.trainers._model import Framework

FRAMEWORK = Framework(
    name="nemo_rl",
    reads="NeMo-RL runs: synchronous, asynchronous and SingleController (wandb, MLflow, TensorBoard)",
    versions="7ea279abf (2026-08) by source",
    sinks=(wandb_log.SINK, mlflow_db.SINK, tensorboard.SINK),
    keys=_nemo_keys.KEYS,
    patterns=_nemo_keys.PATTERNS,
    ignored=_nemo_keys.IGNORED,
    # Supervised and preference runs of NeMo-RL have neither.
    marks=("timing/train/policy_and_reference_logprobs", "train/gen_kl_error"),
    config_marks=("grpo.num_generations_per_prompt",),
    split=_nemo_keys.pieces,
    needs=_nemo_keys.NEEDS,
    derive=_nemo_keys.derive,
    facts=_nemo_config.facts,
    seen=_nemo_keys.seen,
    seconds=(_nemo_keys.STEP,),
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
