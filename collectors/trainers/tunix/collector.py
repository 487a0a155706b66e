"""Tunix RL runs: TensorBoard, wandb.

TensorBoard comes first, although it may lag two minutes (metrax flushes every 100 steps, tensorboardX every 120 s):
wandb drops rows with a smaller step than the previous row, and two counters share one run.

Not available: mode (only timers show which parts have their own devices), the configuration, queue, staleness,
samples per step, groups of equal rewards (`advantage/nonzero_frac` is not by group), MFU.
"""

from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.wandb import log as wandb_log
from collectors.trainers.tunix import keys as tunix_keys
from collectors.training_logs.model import Framework
from collectors.training_logs.tail import collector_of

FRAMEWORK = Framework(
    name="tunix",
    reads="Tunix RL runs (TensorBoard, wandb)",
    versions="c7d8950f (2026-08) by source",
    sinks=(tensorboard_log.SINK, wandb_log.SINK),
    keys=tunix_keys.KEYS,
    patterns=tunix_keys.PATTERNS,
    ignored=tunix_keys.IGNORED,
    marks=(
        tunix_keys.STEP,
        "rewards/train/score/mean",
        "generation/train/completions/mean_length",
        "completions/train/mean_length",
    ),
    split=tunix_keys.pieces,
    needs=tunix_keys.NEEDS,
    derive=tunix_keys.derive,
    derives=(
        "reward_mean",
        "reward_component_mean",
        "reference_kl_mean",
        "generation_seconds",
        "trainer_compute_seconds",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
    ),
    seconds=(tunix_keys.STEP,),
    first_step=0,
    report_seconds=120.0,
)
COLLECTOR = collector_of(FRAMEWORK)
