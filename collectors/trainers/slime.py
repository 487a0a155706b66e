"""slime runs (624b824a, 2026-08): what the rollout manager and the trainer log under a rollout, merged; three counters.

Axis ``trainer`` is the rollout: `train/*` of the optimizer steps is folded into it (means, samples added up). The
trainer's timer `train_wait` holds all that is not training, so weight syncs and checkpoints are taken out of the wait.
The console tells queue, suspended rollouts and the trainer's phase as they change.

Does not know: staleness and policy versions (slime logs none), MFU (only FLOPs), aborted rollouts; zero-advantage
groups as a share without the batch size (wandb's configuration or the printed command have it).
"""

from collections.abc import Mapping

from collectors.readers import console, tensorboard, wandb_log
from collectors.readers.rows import Logged
from collectors.trainers import _slime_config, _slime_keys, _slime_log
from collectors.trainers._framework import collector_of
from collectors.trainers._model import Context, Framework

# What miles logs and slime does not.
MILES = (
    r"rollout/zero_std/all_(?:zero|one)_percentage",
    r"rollout/weight_version/.+",
    r"(?:rollout|perf)/fully_async/.+",
    "perf/mfu_peak_tflops",
    "train/train_rollout_kl",
)
MARKS = (r"rollout/response_len/mean", "perf/train_wait_time", "perf/tokens_per_gpu_per_sec")


def seen(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, and evaluations as events."""
    _slime_log.live(row, values, context)
    _slime_keys.evaluated(row, values, context)


FRAMEWORK = Framework(
    name="slime",
    reads="slime runs (wandb, TensorBoard, console)",
    versions="624b824a (2026-08) by source and recorded logs",
    sinks=(wandb_log.SINK, tensorboard.SINK, console.sink(_slime_log.parse)),
    keys=_slime_keys.KEYS,
    ignored=_slime_keys.IGNORED,
    marks=MARKS,
    not_marks=MILES,
    split=_slime_keys.pieces,
    needs=_slime_keys.NEEDS,
    derive=_slime_keys.derive,
    facts=_slime_config.facts,
    seen=seen,
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
        "mismatch_kl": "it logs `train/train_rollout_logprob_abs_diff`, which is no KL",
        "trainer_mfu_ratio": "it logs `perf/actor_train_tflops` and not the GPU's peak",
        "tool_calls": "no key of its log counts tool calls",
        "failure_ratio": "no key of its log counts failed rollouts or tool calls",
        "staleness_bound_ratio": "its log has no versions of samples, so no staleness to compare",
        "discarded_rollout_ratio": "its log counts no discarded rollouts, only why groups were filtered",
        "turns_mean": "`--log-multi-turn`",
        "queue_samples": "give the job's printed log: the queue of a fully asynchronous run is only there",
        "groups_zero_advantage_ratio": "give wandb's run or the printed command, which have the batch size",
    },
)

COLLECTOR = collector_of(FRAMEWORK)
