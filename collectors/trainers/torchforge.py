"""TorchForge runs: wandb, or the lines that its console backend prints with every step.

Read from 6e77f0b3 (2025-11-15: apps/grpo/main.py:429-470, actors/replay_buffer.py, observability/metrics.py), mode
`global_reduce`. A step is flushed when the trainer ends it, so other processes' values cover the time since the
previous step.

Not available: the buffer in items (only its fill level), zero-advantage groups, truncation, MFU, KL and entropy.
"""

import re
from collections.abc import Iterator
from typing import Any

from collectors.formats import console, wandb
from collectors.formats.rows import Logged
from collectors.training_logs.model import Context, Framework, Key, Out, Piece
from collectors.training_logs.tail import collector_of

_TRAINING, _ROLLOUTS = "main_perf/continuous_training/", "main_perf/continuous_rollouts/"
STEP = f"{_TRAINING}total_duration_avg_s"
WAIT = f"{_TRAINING}waiting_for_buffer/duration_avg_s"
TRAIN = f"{_TRAINING}train_step/duration_avg_s"
SYNC = (f"{_TRAINING}push_weights/duration_avg_s", f"{_TRAINING}update_weights/duration_avg_s")
SAVE = "rl_trainer_perf/step/save_checkpoint/duration_avg_s"
GENERATED = "generator/generate/sum_tokens_generated"
# The first line of a step's message, and its largest size; in a longer message the end was lost.
_BEGIN = re.compile(r".*=== \[[^]]*\] - METRICS STEP (\d{1,15}) ===")
_PAIR = re.compile(r"  ([^\s:]+): (\S+)")
KEYS_PER_STEP = 5_000

KEYS: dict[str, Key | tuple[Key, ...]] = {
    STEP: Key("trainer_step_seconds"),
    WAIT: Key("trainer_wait_seconds"),
    # Versions: one per training step.
    "buffer/sample/avg_sampled_policy_age": Key("staleness_versions_mean"),
    "buffer/sample/max_sampled_policy_age": Key("staleness_versions_max"),
    "buffer/evict/sum_episodes_evicted": Key("stale_dropped_rollouts"),
    "reward/evaluate_response/avg_total_reward": Key("reward_mean"),
    "generator/generate/avg_tokens_generated": Key("response_tokens_mean"),
    "rl_trainer/avg_loss": Key("loss_mean"),
    "rl_trainer/learning_rate": Key("learning_rate"),
    SAVE: Key("trainer_checkpoint_seconds"),
    "rl_trainer_perf/step/optimizer_step/duration_avg_s": Key("trainer_optimizer_seconds"),
    f"{_ROLLOUTS}total_duration_avg_s": Key("rollout_seconds_mean"),
    f"{_ROLLOUTS}total_duration_max_s": Key("rollout_seconds_max"),
    f"{_ROLLOUTS}policy_generation/duration_avg_s": Key("rollout_model_seconds_mean"),
    f"{_ROLLOUTS}reward_evaluation/duration_avg_s": Key("rollout_scoring_seconds_mean"),
}


def _component(match: re.Match[str]) -> Key:
    return Key("reward_component_mean", labels=(("function", match.group(1)),))


PATTERNS = ((re.compile(r"reward/evaluate_response/avg_(?!total_reward$)(.+)_reward"), _component),)
IGNORED = re.compile(
    r"(?:buffer|generator|reward|main|rl_trainer|dataset|reference_model|ReferenceModel|episode)/.*"
    r"|(?:main|generator|generator_worker|rl_trainer|reference|reference_model|reference_perf|buffer)_perf/.*"
)


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """Lines of a step's message; returns a row at the closing rule."""
    if (match := _BEGIN.fullmatch(line.text)) is not None:
        memory.update(step=int(match.group(1)), ts=line.ts, values={})
    elif "step" not in memory:
        return None
    elif (match := _PAIR.fullmatch(line.text)) is not None and len(memory["values"]) < KEYS_PER_STEP:
        memory["values"][match.group(1)] = console.figure(match.group(2))
    elif line.text.startswith("=====") and set(line.text) == {"="}:
        return Logged(memory.pop("values"), memory.pop("step"), memory.pop("ts"))
    return None


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """The time to send weights, the rest of the step, tokens per second."""
    values = piece.values
    step_seconds, wait, train = values.get(STEP), values.get(WAIT), values.get(TRAIN)
    if step_seconds is None:
        return
    sync = sum(values.get(key, 0.0) for key in SYNC)
    if any(key in values for key in SYNC):
        yield "trainer_weight_sync_seconds", (), sync
    if train is not None:
        # The checkpoint is written inside `train_step`.
        yield "trainer_compute_seconds", (), max(0.0, train - values.get(SAVE, 0.0))
    if wait is not None and train is not None:
        # Includes dropping the weights of the previous version.
        yield "trainer_other_seconds", (), max(0.0, step_seconds - wait - train - sync)
    if (tokens := values.get(GENERATED)) is not None and step_seconds > 0:
        yield "rollout_tokens_per_second", (), tokens / step_seconds


FRAMEWORK = Framework(
    name="torchforge",
    reads="TorchForge GRPO runs (wandb, console)",
    versions="6e77f0b3 (2025-11) by source",
    sinks=(wandb.SINK, console.sink(parse_line)),
    keys=KEYS,
    patterns=PATTERNS,
    ignored=IGNORED,
    marks=(STEP, WAIT, "buffer/sample/avg_sampled_policy_age"),
    needs=frozenset((STEP, WAIT, TRAIN, SAVE, GENERATED, *SYNC)),
    derive=derive,
    seconds=(STEP,),
    mode="async",
    only_mode=True,
    derives=(
        "reward_component_mean",
        "rollout_tokens_per_second",
        "trainer_compute_seconds",
        "trainer_other_seconds",
        "trainer_weight_sync_seconds",
    ),
)
COLLECTOR = collector_of(FRAMEWORK)
