"""slime runs (624b824a, 2026-08): what the rollout manager and the trainer log under a rollout, merged; three counters.

Axis ``trainer`` is the rollout: `train/*` of the optimizer steps is folded into it (means; samples are added up). The
trainer's timer `train_wait` covers all that is not training, so weight syncs and checkpoints are subtracted from it.
The console has queue, suspended rollouts and the trainer's phase as they change.

Not available: staleness and policy versions (slime logs none), MFU (only FLOPs), aborted rollouts. The share of
zero-advantage groups needs the batch size (from wandb's configuration or the printed command).
"""

from collections.abc import Mapping

from collectors.formats import console
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.wandb import log as wandb_log
from collectors.trainers.slime import config as slime_config
from collectors.trainers.slime import keys as slime_keys
from collectors.trainers.slime import log as slime_log
from collectors.training_logs.model import Context, Framework
from collectors.training_logs.tail import collector_of

# Keys of miles that slime does not log.
MILES = (
    r"rollout/zero_std/all_(?:zero|one)_percentage",
    r"rollout/weight_version/.+",
    r"(?:rollout|perf)/fully_async/.+",
    "perf/mfu_peak_tflops",
    "train/train_rollout_kl",
)
MARKS = (r"rollout/response_len/mean", "perf/train_wait_time", "perf/tokens_per_gpu_per_sec")


def on_row(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, and evaluations as events."""
    slime_log.live(row, values, context)
    slime_keys.evaluated(row, values, context)


FRAMEWORK = Framework(
    name="slime",
    reads="slime runs (wandb, TensorBoard, console)",
    versions="624b824a (2026-08) by source and recorded logs",
    sinks=(wandb_log.SINK, tensorboard_log.SINK, console.sink(slime_log.parse)),
    keys=slime_keys.KEYS,
    ignored=slime_keys.IGNORED,
    marks=MARKS,
    not_marks=MILES,
    split=slime_keys.pieces,
    needs=slime_keys.NEEDS,
    derive=slime_keys.derive,
    facts=slime_config.facts,
    on_row=on_row,
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
        "mismatch_kl_mean": "it logs `train/train_rollout_logprob_abs_diff`, which is not a KL divergence",
        "trainer_mfu_ratio": "it logs `perf/actor_train_tflops`, but not the GPU's peak FLOPS",
        "tool_calls_mean": "no key of its log counts tool calls",
        "rollout_error_ratio": "no key of its log counts failed rollouts or tool calls",
        "staleness_versions_max": "its log has no versions of samples, so no staleness to compare",
        "stale_dropped_rollouts": "its log counts no discarded rollouts, only why groups were filtered",
        "turns_mean": "`--log-multi-turn`",
        "queue_samples": "add the job's printed log: only it reports the queue of a fully asynchronous run",
        "groups_zero_advantage_ratio": "add wandb's run or the printed command, which have the batch size",
    },
)

COLLECTOR = collector_of(FRAMEWORK)
