"""OpenRLHF's PPO trainers (GRPO, RLOO, REINFORCE++ and kin), synchronous and asynchronous (0.11.2 by source).

wandb has the arguments; TensorBoard and the console (`Global step N: {...}`) have the same numbers without them.
wandb's own step counts log calls: the step is `train/global_step`. A synchronous `timing/step_total` is the sum of
the phases; an asynchronous one is the wall time, which includes the wait for samples. This distinguishes the two
without a configuration (ppo_trainer.py:545, ppo_trainer_async.py:228).

Not available: the wait without logging and checkpoints of the previous step (it is what the phases leave of an
asynchronous step), staleness (bounded by `train.async_queue_size`), the queue, zero-advantage groups (only the mean
of the groups' deviations is logged), tokens per second, MFU, turns. Scoring is part of making experience and counts as
compute.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats import console, tensorboard, wandb
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged
from collectors.model import Event
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- config
# Facts of an OpenRLHF run from the arguments it passes to wandb (0.11.2: utils/config.py, cli/train_ppo_ray.py).

# Evaluating a literal costs a hundred times the memory of its text; a group of arguments has some thousand characters.
GROUP_CHARS = 64 << 10


def facts(config: Mapping[str, Any]) -> Facts:
    """Facts of the configuration; absent keys give no fact."""
    settings = Settings({key: _group(value) for key, value in config.items()})
    group = settings.number("rollout.n_samples_per_prompt")
    result = facts_of(
        mode=_mode(settings),
        group_size=group,
        batch_samples=product(group, settings.number("rollout.batch_size")),
        max_response_tokens=settings.number("rollout.max_new_tokens"),
        trainer_gpus=product(settings.number("actor.num_nodes"), settings.number("actor.num_gpus_per_node")),
        generator_gpus=product(settings.number("vllm.num_engines"), settings.number("vllm.tensor_parallel_size")),
        # For TensorBoard and wandb; the console has every step.
        logging_steps=settings.number("logger.logging_steps"),
        model=_model(settings.text("actor.model_name_or_path")),
    )
    return result


def _mode(settings: Settings) -> str:
    """The mode; "" if unknown. Asynchronous runs never share the engines' GPUs (train_ppo_ray.py:56)."""
    is_async = settings.flag("train.async_enable")
    if is_async is None:
        return ""
    if is_async:
        return "async"
    return "sync_colocated" if settings.flag("train.colocate_all") else "sync_split"


def _model(path: str) -> str:
    # Of a local path only the last part is a name; "Qwen/Qwen3-8B" is a name as a whole.
    return path.rstrip("/").rpartition("/")[2] if path.startswith((".", "/")) else path


def _group(value: Any) -> Any:
    """A printed namespace as a dict; other values unchanged."""
    if not isinstance(value, str) or not value.lower().startswith("namespace(") or len(value) > GROUP_CHARS:
        return value
    try:
        call = ast.parse(value, mode="eval").body
        pairs = call.keywords if isinstance(call, ast.Call) else []
        return {
            pair.arg: literal_value
            for pair in pairs
            if pair.arg and (literal_value := _literal(pair.value)) is not None
        }
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return value


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None  # inf, nan: not a setting that is read


def batch_share(rate: float, group_size: object) -> float | None:
    """Share of groups that passed the dynamic filter; None while the group size is unknown.

    OpenRLHF logs samples kept per prompt used, times 100 (samples_generator.py:123): 800 when all of 8 pass.
    """
    size = number(group_size)
    return min(1.0, rate / 100.0 / size) if size is not None and size > 0 else None


GENERATION, EXPERIENCE = "timing/generation", "timing/make_experience"
TRAIN, BROADCAST, TOTAL = "timing/ppo_train", "timing/broadcast", "timing/step_total"
PASSED, LENGTH, SAMPLES = "dynamic_filtering_pass_rate", "rollout/response_length_mean", "rollout/num_samples"
# Not a key of OpenRLHF: `_split` adds it, and no logger can write it.
NONFINITE = "actor_grad_norm is not finite"
# TensorBoard stores 32-bit floats; an asynchronous step is never that close to the sum of its phases.
SUM_TOLERANCE = 1e-5

_STEP = re.compile(r"Global step (\d{1,15}): \{")

KEYS: Mapping[str, Key] = {
    TOTAL: Key("trainer_step_seconds"),
    BROADCAST: Key("trainer_weight_sync_seconds"),
    SAMPLES: Key("trainer_samples"),
    "rollout/reward_mean": Key("reward_mean"),
    "rollout/reward_std": Key("reward_std"),
    "group_reward_std": Key("reward_group_std_mean"),
    LENGTH: Key("response_tokens_mean"),
    "rollout/truncated_rate": Key("truncation_ratio"),
    "policy_loss": Key("loss_mean"),
    "actor_grad_norm": Key("gradient_norm"),
    NONFINITE: Key("gradient_nonfinite"),
    "actor_lr": Key("learning_rate"),
    "entropy_loss": Key("entropy_mean"),
    "ppo_clip_ratio": Key("clip_ratio"),
    "kl": Key("reference_kl_mean"),
    # The generator's log-probabilities against those of the old policy (models/loss.py:247).
    "vllm_kl": Key("mismatch_kl_mean"),
}

# Micro-batch values of metrics that are read anyway (reward, response_length, truncated), shaped rewards, the critic.
IGNORED = re.compile(
    r"reward|return|score|rewards|scores|response_length|total_length|truncated|response_clip_ratio"
    r"|ppo_kl|logprobs_diff|is_filter_ratio|critic_.*|values|num_actions|num_samples|num_action_tokens|index"
    r"|eval/.*"
)
# wandb's own fields, and parts of the table of samples in a separate row under the previous step.
_NO_METRIC = re.compile(r"global_step|generated_samples.*|_.*")


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """The status dict of a step, after an emoji in the synchronous trainer and Ray's prefix in both."""
    match = _STEP.search(line.text, 0, 200)
    values = console.literal(line.text[match.end() - 1 :]) if match is not None else None
    return Logged(values, int(match.group(1)), line.ts) if match is not None and values is not None else None


def _split(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    if any(key.startswith("eval/") for key in values):
        step = values.get("eval/global_step", row.step)
        context.events.append(Event("eval", f"eval:{step}:{row.ts or 0:.0f}", row.ts))
        values = {key: value for key, value in values.items() if not key.startswith("eval/")}
    # wandb's own step counts its rows, and a table of samples is one of them.
    step = values.get("global_step") if context.sink == wandb.SINK.name else row.step
    remaining = {key: value for key, value in values.items() if not _NO_METRIC.fullmatch(key)}
    if step is None or row.ts is None or not remaining:
        return
    _learn_mode(remaining, context)
    yield Piece(TRAINER, int(step), row.ts, remaining | _nonfinite(row.values))


def _nonfinite(logged: Mapping[str, Any]) -> dict[str, float]:
    """1 for a gradient norm that is not finite, which is itself a finding; 0 for a finite one."""
    for key in ("actor_grad_norm", "train/actor_grad_norm"):
        if key in logged:
            return {NONFINITE: float(number(logged[key]) is None)}
    return {}


def _learn_mode(values: Mapping[str, float], context: Context) -> None:
    """Detects the mode without a configuration: a step that is not the sum of its phases overlaps with them."""
    phases = [values[key] for key in (GENERATION, EXPERIENCE, TRAIN, BROADCAST) if key in values]
    total = values.get(TOTAL)
    if total is not None and len(phases) == 4 and abs(total - sum(phases)) > SUM_TOLERANCE * total:
        context.take({"mode": "async"})


def _derive(piece: Piece, context: Context) -> Iterator[Out]:
    row = piece.values
    if SAMPLES in row and LENGTH in row:
        # Every response token is in the loss, except masked ones of an agent's tools: an upper bound.
        yield "trained_tokens", (), row[SAMPLES] * row[LENGTH]
    if PASSED in row:
        share = batch_share(row[PASSED], context.facts.get("group_size"))
        if share is not None:
            yield "trainable_ratio", (), share
    if BROADCAST in row:
        # Weights go to the engines once a step.
        yield "policy_version", (), float(piece.step)
    yield from _phases(row, context.mode == "async")


def _phases(row: Mapping[str, float], is_async: bool) -> Iterator[Out]:
    if EXPERIENCE not in row or TRAIN not in row:
        return
    compute = row[EXPERIENCE] + row[TRAIN]
    yield "trainer_compute_seconds", (), compute
    if GENERATION in row and not is_async:
        yield "generation_seconds", (), row[GENERATION]
    if TOTAL in row and is_async:
        # Generation runs in parallel with the step: what the phases leave is the wait for samples.
        yield "trainer_wait_seconds", (), max(0.0, row[TOTAL] - compute - row.get(BROADCAST, 0.0))


FRAMEWORK = Framework(
    name="openrlhf",
    reads="OpenRLHF runs, synchronous and asynchronous (wandb, TensorBoard, console)",
    versions="0.11.2 by source",
    sinks=(wandb.SINK, tensorboard.SINK, console.sink(parse_line)),
    keys=KEYS,
    ignored=IGNORED,
    evaluations={"evaluation_score": re.compile(r"eval/eval_(?P<task>.+)_pass1")},
    evaluation_step="eval/global_step",
    marks=((TRAIN, EXPERIENCE),),
    strip=("train/",),
    split=_split,
    needs=frozenset((GENERATION, EXPERIENCE, TRAIN, BROADCAST, TOTAL, PASSED, LENGTH, SAMPLES)),
    derive=_derive,
    facts=facts,
    seconds=(TOTAL,),
    derives=(
        "generation_seconds",
        "policy_version",
        "trainable_ratio",
        "trained_tokens",
        "trainer_compute_seconds",
        "trainer_wait_seconds",
    ),
    hints={
        "trainable_ratio": "turn on dynamic filtering: only it logs `dynamic_filtering_pass_rate`",
        "mismatch_kl_mean": "turn on importance-sampling correction of vLLM's log-probs: only it logs `vllm_kl`",
    },
)

COLLECTOR = collector_of(FRAMEWORK)
