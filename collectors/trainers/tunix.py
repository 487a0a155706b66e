"""Tunix RL runs: TensorBoard, wandb.

TensorBoard first, although it may lag two minutes (metrax flushes every 100 steps, tensorboardX every 120 s): wandb
drops what has a smaller step than the row before, and two counters share one run there.

Does not know: mode (what is on devices of its own is told by timers alone), the configuration, queue, staleness,
samples per step, groups of equal rewards (`advantage/nonzero_frac` is not by group), MFU.
"""

from collectors.readers import tensorboard, wandb_log
from collectors.trainers import _tunix_keys
from collectors.trainers._framework import collector_of
from collectors.trainers._model import Framework

FRAMEWORK = Framework(
    name="tunix",
    reads="Tunix RL runs (TensorBoard, wandb)",
    versions="c7d8950f (2026-08) by source",
    sinks=(tensorboard.SINK, wandb_log.SINK),
    keys=_tunix_keys.KEYS,
    patterns=_tunix_keys.PATTERNS,
    ignored=_tunix_keys.IGNORED,
    marks=(
        _tunix_keys.STEP,
        "rewards/train/score/mean",
        "generation/train/completions/mean_length",
        "completions/train/mean_length",
    ),
    split=_tunix_keys.pieces,
    needs=_tunix_keys.NEEDS,
    derive=_tunix_keys.derive,
    derives=(
        "reward_mean",
        "reward_component_mean",
        "reference_kl_mean",
        "generation_seconds",
        "trainer_compute_seconds",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
    ),
    seconds=(_tunix_keys.STEP,),
    first_step=0,
    report_seconds=120.0,
)
COLLECTOR = collector_of(FRAMEWORK)
