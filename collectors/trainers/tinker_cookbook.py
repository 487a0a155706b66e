"""Tinker cookbook runs: metrics.jsonl, which is always written, and config.json in the same folder.

Rows have no times. The newest has the file's time, because each row is appended at once; older ones are estimated. When
a run is resumed, the file is cut back, and the old one stays as metrics.jsonl.pre_resume_<step>.

Not available: rollouts in flight and queued, truncation, the deviation of rewards, MFU (the service reports no time).
In asynchronous runs the step and its wait are known only for steps that were watched.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs
from collectors.model import Cursor, Limits
from collectors.training_logs.model import TRAINER, Context, Framework, Key, Out, Piece
from collectors.training_logs.sources import Facts, Settings, facts_of, product
from collectors.training_logs.tail import collector_of

# ---- keys
# Tinker cookbook's metric keys -> ours (0.6.1: rl/train.py, rl/metric_util.py, utils/trace.py).

# Our own keys among a row's values, added by the sink.
FILTERED, GAP = "rollscope: constant groups are removed", "rollscope: seconds between steps"
TIMED = "timed"
TOTAL, DONE = "time/total", "progress/done_frac"
ASYNC_MARK = "async/staleness_mean"
_SPANS = ("sampling", "save_checkpoint", "run_evals")
# With streamed mini-batches the window includes the wait, whose length is unknown.
_STREAMED = re.compile(r"time/train/fwd_bwd_substep_\d+_mb_\d+_\w+(?::\w+)?")

KEYS: Mapping[str, Key | tuple[Key, ...]] = {
    "async/staleness_mean": Key("staleness_versions_mean"),
    "async/staleness_max": Key("staleness_versions_max"),
    "env/all/reward/total": Key("reward_mean"),
    "env/all/turns_per_episode": Key("turns_mean"),
    "env/all/total_episodes": Key("trainer_samples"),
    "env/all/total_ac_tokens": Key("trained_tokens"),
    "optim/kl_sample_train_v1": Key("mismatch_kl_mean"),
    "optim/entropy": Key("entropy_mean"),
    "optim/lr": Key("learning_rate"),
    "kl_policy_base": Key("reference_kl_mean"),
}

_BY_GROUP = ("frac_mixed", "frac_all_good", "frac_all_bad")
NEEDS = frozenset((TOTAL, ASYNC_MARK, FILTERED, GAP, "env/all/total_episodes", "env/all/total_ac_tokens")) | {
    *(f"time/{span}{part}" for span in _SPANS for part in ("", ":total")),
    *(f"env/all/by_group/{name}" for name in _BY_GROUP),
}

IGNORED = re.compile(
    r"time/.*|env/.*|test/.*|eval/.*|progress/.*|tokens/.*|cost/.*|sampling_client/.*|training_client/step"
    r"|async/.*|optim/.*|loss.*|e_(?:frac|max|min)_.*|kl_.*|rollout_errors/(?:total|groups_skipped)|advantage.*"
)


def _error(match: re.Match[str]) -> Key:
    return Key("rollout_errors", labels=(("type", match.group(1)),), reduction="total")


# Counted since the start.
PATTERNS = ((re.compile(r"rollout_errors/(?!total$|groups_skipped$)(.+)"), _error),)


def facts(config: Mapping[str, Any]) -> Facts:
    """From config.json."""
    settings = Settings(config)
    group = settings.number("dataset_builder.group_size")
    streamed = settings.number("async_config.groups_per_batch")
    groups = streamed if streamed is not None else settings.number("dataset_builder.batch_size")
    return facts_of(
        mode="async" if streamed is not None else "",
        group_size=group,
        batch_samples=product(groups, group),
        max_staleness_versions=settings.number("async_config.max_steps_off_policy"),
        max_response_tokens=settings.number("max_tokens"),
        model=settings.text("model_name"),
    )


def pieces(row: Logged, values: Mapping[str, float], context: Context) -> Iterable[Piece]:
    """Rows of training; an evaluation, a summary and the final costs are no steps."""
    if row.step is None or row.ts is None or DONE not in values or TOTAL not in values:
        return
    if values[DONE] > 0:
        context.facts["max_steps"] = float(round((row.step + 1) / values[DONE]))
    remaining = dict(values)
    if ASYNC_MARK in values:
        context.take({"mode": "async"})
        remaining |= _gap(row, values, context)
    yield Piece(TRAINER, row.step, row.ts, remaining)


def _gap(row: Logged, values: Mapping[str, float], context: Context) -> dict[str, float]:
    before = context.memory.get("timed")
    context.memory["timed"] = [row.step, row.ts] if row.origin == TIMED else None
    if before is None or row.origin != TIMED or row.ts is None or before[0] + 1 != row.step:
        return {}
    if any(_STREAMED.fullmatch(key) for key in values):
        return {}
    return {GAP: max(0.0, row.ts - before[1] - values[TOTAL])}


def derive(piece: Piece, context: Context) -> Iterator[Out]:
    """Phases of the step, lengths per rollout, the groups without advantage."""
    values = piece.values
    yield from _phases(values)
    episodes, tokens = values.get("env/all/total_episodes"), values.get("env/all/total_ac_tokens")
    if episodes and tokens is not None:
        yield "response_tokens_mean", (), tokens / episodes
    yield from _groups(values)
    if ASYNC_MARK in values:
        # "No group is discarded for being stale" (rl/train.py:1413).
        yield "stale_dropped_rollouts", (), 0.0


def _phases(values: Mapping[str, float]) -> Iterator[Out]:
    step_seconds = values[TOTAL]
    sampling, sync, evaluation = (_span(values, name) for name in _SPANS)
    busy = step_seconds - sum(part or 0.0 for part in (sampling, sync, evaluation))
    yield "trainer_compute_seconds", (), max(0.0, busy)
    if sync is not None:
        yield "trainer_weight_sync_seconds", (), sync
    if evaluation is not None:
        yield "trainer_eval_seconds", (), evaluation
        yield "trainer_other_seconds", (), evaluation
    if ASYNC_MARK not in values:
        yield "trainer_step_seconds", (), step_seconds
        if sampling is not None:
            yield "generation_seconds", (), sampling
    elif (gap := values.get(GAP)) is not None:
        yield "trainer_step_seconds", (), step_seconds + gap
        yield "trainer_wait_seconds", (), gap


def _groups(values: Mapping[str, float]) -> Iterator[Out]:
    """Unknown if groups of equal rewards are removed before they are counted: the share would always be zero."""
    mixed, good, bad = (values.get(f"env/all/by_group/{name}") for name in _BY_GROUP)
    if mixed is None or good is None or bad is None or values.get(FILTERED, 1.0):
        return
    yield "groups_mixed_ratio", (), mixed
    # Good is a reward of at least 0.5 (metric_util.py:39).
    yield "groups_all_solved_ratio", (), good
    yield "groups_none_solved_ratio", (), bad
    yield "groups_zero_advantage_ratio", (), good + bad


def _span(values: Mapping[str, float], name: str) -> float | None:
    """Seconds of a span in the step: logged once, or the sum of several."""
    return values.get(f"time/{name}", values.get(f"time/{name}:total"))


# Bytes. The largest recipe's has 10 kB.
CONFIG_BYTES = 1 << 20


def _unpack(row: jsonl.Row) -> Logged:
    step = number(row.get("step"))
    return Logged(row, None if step is None else int(step))


_BASE = jsonl.sink(("metrics.jsonl",), _unpack, name="metrics.jsonl")


def _read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """The rows, each with the setting of config.json about removed groups; the newest with the file's time."""
    logs = _BASE.read(path, cursor, limits)
    config = _config(path.with_name("config.json"))
    removes = Settings(config).flag("remove_constant_reward_groups")
    for row in logs.rows:
        row.values.pop("step", None)
        if removes is not None:
            row.values[FILTERED] = float(removes)
    if logs.rows and not logs.more and logs.modified is not None:
        logs.rows[-1].ts, logs.rows[-1].origin = logs.modified, TIMED
    if not cursor or logs.restarted:
        logs.config = dict(config)
    return logs


def _config(path: Path) -> Mapping[str, Any]:
    """config.json; an unreadable or broken one counts as absent."""
    try:
        with path.open("rb") as file:
            return jsonl.parse(file.read(CONFIG_BYTES)) or {}
    except OSError:
        return {}


FRAMEWORK = Framework(
    name="tinker_cookbook",
    reads="Tinker cookbook RL runs (metrics.jsonl with config.json)",
    versions="0.6.1 by source",
    sinks=(replace(_BASE, read=_read),),
    keys=KEYS,
    patterns=PATTERNS,
    needs=NEEDS,
    ignored=IGNORED,
    evaluations={
        "evaluation_score": re.compile(r"(?:test|eval)/(?:(?P<task>.+)/)?env/all/reward/total"),
        "evaluation_samples": re.compile(r"(?:test|eval)/(?:(?P<task>.+)/)?env/all/total_episodes"),
    },
    marks=(r"env/all/.*", r"optim/kl_sample_train_v[12]"),
    split=pieces,
    derive=derive,
    facts=facts,
    seconds=(TOTAL,),
    mode="sync_split",
    first_step=0,
    derives=(
        "generation_seconds",
        "groups_all_solved_ratio",
        "groups_mixed_ratio",
        "groups_none_solved_ratio",
        "groups_zero_advantage_ratio",
        "response_tokens_mean",
        "rollout_errors",
        "stale_dropped_rollouts",
        "trainer_compute_seconds",
        "trainer_eval_seconds",
        "trainer_other_seconds",
        "trainer_step_seconds",
        "trainer_wait_seconds",
        "trainer_weight_sync_seconds",
    ),
    hints={
        "staleness_versions_mean": "set `async_config`: a synchronous recipe has no staleness to log",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
