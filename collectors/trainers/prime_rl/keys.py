"""prime-rl's metric keys -> ours, and which of its two writers wrote a row (559b44772, 2026-08; monitors/file.py).

Trainer and orchestrator append to one metrics.jsonl by default and both use `time/step`; only the other keys of a row
distinguish them. Keys are renamed every few weeks (six times in four months), so aggregates are matched by pattern:
with the agent level (since 2026-08-03) and without.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collectors.formats import wandb
from collectors.formats.jsonl import Row, number
from collectors.formats.rows import Logs, newest
from collectors.model import Basis, Cursor, Labels, Limits, Sample
from collectors.training_logs import sources

Target = tuple[str, Labels, float]
_BUSY: Labels = (("basis", "busy"),)

TRAINER: Mapping[str, Target] = {
    "time/step": ("trainer_step_seconds", (), 1),
    "time/wait_for_batch": ("trainer_wait_seconds", (), 1),
    "time/load_data": ("trainer_data_load_seconds", (), 1),
    "time/forward_backward": ("trainer_compute_seconds", (), 1),
    "time/broadcast_weights": ("trainer_weight_sync_seconds", (), 1),
    "time/save_ckpt": ("trainer_checkpoint_seconds", (), 1),
    # Both measured over forward_backward only (train.py:651), so they are "busy" values.
    "perf/mfu": ("trainer_mfu_ratio", _BUSY, 0.01),
    "perf/throughput": ("trainer_tokens_per_second", _BUSY, 1),
    "perf/peak_memory": ("trainer_peak_memory_bytes", (), 2**30),
    "optim/grad_norm": ("gradient_norm", (), 1),
    "optim/lr": ("learning_rate", (), 1),
    "loss/mean": ("loss_mean", (), 1),
    "entropy/all/mean": ("entropy_mean", (), 1),
    "mismatch_kl/all/mean": ("mismatch_kl_mean", (), 1),
    # Tokens outside the trust region have no part in the policy gradient, as by clipping elsewhere (rl/loss.py).
    "is_masked/all/mean": ("clip_ratio", (), 1),
    # Before statistics were split by environment there was no level `all`; a version writes one or the other.
    "entropy/mean": ("entropy_mean", (), 1),
    "mismatch_kl/mean": ("mismatch_kl_mean", (), 1),
    "is_masked/mean": ("clip_ratio", (), 1),
}

ORCHESTRATOR: Mapping[str, Target] = {
    "time/step": ("orchestrator_step_seconds", (), 1),
    "time/pack": ("batch_pack_seconds", (), 1),
    "time/wait_for_policy": ("dispatch_gate_wait_seconds", (), 1),
    # In versions: (step - 1) - version at the episode's start (utils.py:57), over shipped episodes.
    "off_policy/mean": ("staleness_versions_mean", (), 1),
    "off_policy/max": ("staleness_versions_max", (), 1),
    "off_policy/in_flight/mean": ("staleness_in_flight_versions_mean", (), 1),
    "off_policy/in_flight/max": ("staleness_in_flight_versions_max", (), 1),
    "off_policy/in_queue/mean": ("staleness_in_queue_versions_mean", (), 1),
    "off_policy/in_queue/max": ("staleness_in_queue_versions_max", (), 1),
    "off_policy/dropped": ("stale_dropped_rollouts", (), 1),
    "progress/rollouts": ("trainer_samples", (), 1),
    "progress/tasks": ("trainer_groups", (), 1),
    "progress/tokens": ("processed_tokens", (), 1),
    # The loss is taken over the policy's own tokens.
    "progress/output_tokens": ("trained_tokens", (), 1),
}

# Statistic -> (metric, wanted population). `effective` is what was shipped to the trainer. Groups and errors must come
# from `all`, because filtering removes the groups that are counted.
AGGREGATES: Mapping[str, tuple[str, str]] = {
    "reward/mean": ("reward_mean", "effective"),
    "num_output_tokens/mean": ("response_tokens_mean", "effective"),
    "num_output_tokens/max": ("response_tokens_max", "effective"),
    "num_output_tokens/min": ("response_tokens_min", "effective"),
    "num_output_tokens/p90": ("response_tokens_p90", "effective"),
    "num_input_tokens/mean": ("prompt_tokens_mean", "effective"),
    "num_turns/mean": ("turns_mean", "effective"),
    "num_turns/max": ("turns_max", "effective"),
    "is_truncated/mean": ("truncation_ratio", "effective"),
    "timing/total/mean": ("rollout_seconds_mean", "effective"),
    "timing/total/max": ("rollout_seconds_max", "effective"),
    "timing/setup/mean": ("rollout_setup_seconds_mean", "effective"),
    "timing/agent/model/mean": ("rollout_model_seconds_mean", "effective"),
    "timing/agent/harness/mean": ("rollout_harness_seconds_mean", "effective"),
    "timing/scoring/mean": ("rollout_scoring_seconds_mean", "effective"),
    "solved_none": ("groups_none_solved_ratio", "all"),
    "solved_all": ("groups_all_solved_ratio", "all"),
    "solved_some": ("groups_mixed_ratio", "all"),
    "is_trainable/mean": ("trainable_ratio", "all"),
    "has_error/mean": ("rollout_error_ratio", "all"),
    "cancelled/mean": ("rollout_cancelled_ratio", "all"),
}

_AGGREGATE = re.compile(
    r"train/agg/(all|effective)/(?:([^/]+)/)?(" + "|".join(map(re.escape, AGGREGATES)) + r"|error/[^/]+)"
)
_BASES = {name.rpartition("/")[0] for name in AGGREGATES if "/" in name}
_BASES |= {"num_total_tokens", "num_branches", "timing/agent", "timing/finalize", "is_truncated", "cancelled"}
# Bookkeeping, and statistics per environment or percentile that are read in total: known and unused. The pattern is
# narrow, so that a renamed key is still shown as unmapped.
_SKIPPED = re.compile(
    r"step|time|train/(?!agg/).*|train/agg/(?:all|effective)/(?:[^/]+/)?(?:"
    + "|".join(sorted(map(re.escape, _BASES)))
    + r")/(?:mean|max|min|p10|p90)|train/agg/effective/(?:[^/]+/)?(?:solved_(?:none|all|some)|error/[^/]+)"
    + r"|eval/.*|batch/.*|curriculum/.*|system/.*|progress/(?:input_tokens|total_[a-z_]+)"
    + r"|time/save_ckpt|perf/throughput_per_gpu"
    # Statistics of the loss: per environment, and extremes of values that are read over all.
    + r"|(?:ref_kl/)?(?:entropy|mismatch_kl|(?:un)?masked_mismatch_kl|is_masked(?:_low|_high)?"
    + r"|masked_advantage_(?:positive|negative)|trainer_probs|inference_probs)/(?:[^/]+/)?(?:mean|max|min|std|median)"
)

_TRAINER_HINT = re.compile(
    r"time/(?:forward_backward|wait_for_batch)|(?:perf|optim|loss|entropy|mismatch_kl|is_masked|system)/"
)
_ORCHESTRATOR_HINT = re.compile(r"(?:progress|off_policy|train|batch|curriculum)/|time/(?:wait_for_policy|pack)")


_STEP_ROW = frozenset(("time/step", "progress/rollouts", "progress/tokens", "off_policy/mean"))


def axis_of(row: Row, file_axis: str) -> str:
    """`trainer`, `orchestrator`, `eval`, or "" if the row does not show it; ``file_axis``: the axis by the path."""
    # An eval row's step is the eval's and may go backwards: it must not touch the step axes.
    if any(key.startswith("eval/") for key in row) and _STEP_ROW.isdisjoint(row):
        return "eval"
    if any(_ORCHESTRATOR_HINT.match(key) for key in row):
        return "orchestrator"
    return "trainer" if any(_TRAINER_HINT.match(key) for key in row) else file_axis


_SCORE = re.compile(r"eval/(?P<task>.+)/effective/[^/]+/avg@\d+")


def scores(row: Row, ts: float, step: int) -> Iterator[Sample]:
    """Scores of an evaluation, by environment."""
    for key, given in row.items():
        if (match := _SCORE.fullmatch(key)) is not None and (value := number(given)) is not None:
            yield Sample("evaluation_score", value, (("task", match["task"]),), ts, step, "eval")


def is_own(row: Row) -> bool:
    """Returns whether a row has a key that no other framework's metrics.jsonl has."""
    return any(key in row for key in ("time/forward_backward", "time/wait_for_batch", "off_policy/mean", "perf/mfu"))


def samples(row: Row, axis: str, ts: float, step: int, unmapped: dict[str, int]) -> Iterator[Sample]:
    """Samples of one merged row; unknown keys are counted in ``unmapped``."""
    table = TRAINER if axis == "trainer" else ORCHESTRATOR
    aggregates: dict[tuple[str, Labels], dict[tuple[int, str], float]] = defaultdict(dict)
    for key, raw in row.items():
        value = number(raw)
        if value is None:
            continue
        if (target := table.get(key)) is not None:
            metric, labels, scale = target
            yield Sample(metric, value * scale, labels, ts, step, axis)
        elif (match := _AGGREGATE.fullmatch(key)) is not None:
            _file_aggregate(aggregates, match, value)
        elif not _SKIPPED.fullmatch(key):
            unmapped[key] = unmapped.get(key, 0) + 1
    for (metric, labels), by_agent in aggregates.items():
        yield from _best(metric, labels, by_agent, ts, step, axis)
    if axis == "trainer":
        yield from _other(row, ts, step)
        if "optim/lr" in row:
            # Written in one row with the norm, but the writer leaves out values that are not finite (monitors/file.py).
            broken = float(number(row.get("optim/grad_norm")) is None)
            yield Sample("gradient_nonfinite", broken, (), ts, step, "trainer")


def _file_aggregate(
    aggregates: dict[tuple[str, Labels], dict[tuple[int, str], float]], match: re.Match[str], value: float
) -> None:
    population, agent, statistic = match.group(1), match.group(2) or "", match.group(3)
    labels: Labels = ()
    if statistic.startswith("error/"):
        metric, wanted, labels = "rollout_errors", "all", (("type", statistic.removeprefix("error/")),)
    else:
        metric, wanted = AGGREGATES[statistic]
    # Counts of groups and errors cannot be replaced by the other population; other values are close enough.
    if population == wanted or wanted == "effective":
        aggregates[metric, labels][int(population != wanted), agent] = value


def origins(row: Row, axis: str) -> dict[str, str]:
    """Metric -> the key it was read from in a row: the wanted population's, else the other one's."""
    table = TRAINER if axis == "trainer" else ORCHESTRATOR
    ranked_keys: dict[str, tuple[int, str]] = {}
    for key, raw in row.items():
        if number(raw) is None:
            continue
        metric, rank = table[key][0] if key in table else "", 0
        if (match := _AGGREGATE.fullmatch(key)) is not None and match.group(3) in AGGREGATES:
            metric, wanted = AGGREGATES[match.group(3)]
            rank = 2 * int(match.group(1) != wanted) + int(match.group(2) is not None)
            # A count of groups over the other population is never read.
            metric = metric if match.group(1) == wanted or wanted == "effective" else ""
        if metric and (metric not in ranked_keys or rank < ranked_keys[metric][0]):
            ranked_keys[metric] = rank, key
    return {metric: key for metric, (_, key) in ranked_keys.items()}


def _best(
    metric: str, labels: Labels, by_agent: Mapping[tuple[int, str], float], ts: float, step: int, axis: str
) -> Iterator[Sample]:
    """The wanted population; with an agent label only if several agents report, because then there is no total."""
    rank = min(rank for rank, _ in by_agent)
    agents = {agent: value for (rank_of_value, agent), value in by_agent.items() if rank_of_value == rank}
    if "" in agents:
        agents = {"": agents[""]}
    for agent, value in agents.items():
        named = (("agent", agent), *labels) if len(agents) > 1 else labels
        yield Sample(metric, value, named, ts, step, axis)


def _other(row: Row, ts: float, step: int) -> Iterator[Sample]:
    """Step time outside of all phases (data loading included); never below zero, because clocks are not exact."""
    step_seconds = number(row.get("time/step"))
    if step_seconds is None:
        return
    phases = ("time/wait_for_batch", "time/forward_backward", "time/broadcast_weights", "time/save_ckpt")
    rest = step_seconds - sum(number(row.get(phase)) or 0.0 for phase in phases)
    yield Sample("trainer_other_seconds", max(0.0, rest), (), ts, step, "trainer")


def _named() -> Iterator[tuple[str, Labels, str]]:
    """(metric, labels, key) of every metric with its own key."""
    for key, (metric, labels, _) in (*TRAINER.items(), *ORCHESTRATOR.items()):
        yield metric, labels, key
    for statistic, (metric, population) in AGGREGATES.items():
        yield metric, (), f"train/agg/{population}/{statistic}"


_OTHERS = {
    "trainer_other_seconds": "of several keys",
    "gradient_nonfinite": "optim/grad_norm",
    "rollout_errors": "train/agg/all/error/*",
    "queue_samples": "the orchestrator's log",
    "in_flight_rollouts": "the orchestrator's log, or dispatcher/inflight/*",
    "in_flight_capacity_rollouts": "concurrency/max_inflight",
    "generator_policy_version": "watcher/policy_version",
}
# For renamed keys the newest name.
ORIGINS: Mapping[str, str] = {metric: key for metric, _, key in reversed(tuple(_named()))} | _OTHERS
GIVES: dict[tuple[str, Labels], Basis] = {(metric, ()): "derived" for metric in _OTHERS}
GIVES.update({(metric, labels): "native" for metric, labels, _ in _named()})
GIVES["evaluation_score", ()] = "native"


# ---- wandb
# prime-rl's W&B files (`wandb/run-*/run-*.wandb`): steps of runs without metrics.jsonl, and keys that only W&B has.

# Two processes, and the files of a few resumes.
MOST_FILES = 8
IN_FLIGHT = "in_flight_rollouts"
GAUGES: Mapping[str, tuple[str, Labels]] = {
    "dispatcher/inflight/train": (IN_FLIGHT, (("state", "generating"),)),
    "dispatcher/inflight/eval": (IN_FLIGHT, (("state", "eval"),)),
    "concurrency/max_inflight": ("in_flight_capacity_rollouts", ()),
    "watcher/policy_version": ("generator_policy_version", ()),
}
# Counts per tick that step rows have as shares, and the engines' metrics, which their own pages have.
_WANDB_SKIPPED = re.compile(r"(?:dispatcher|concurrency|watcher|event_loop_lag|inference)/.*")
_OF_WANDB = re.compile(r"(?:offline-)?run-.*")
_MARKS = frozenset(("time/forward_backward", "time/wait_for_batch", "off_policy/mean"))
# Settings of the orchestrator only: each process logs its own configuration.
_ORCHESTRATORS = frozenset(("group_size", "rollouts_per_example", "max_off_policy_steps"))


@dataclass(slots=True)
class Wandb:
    """The part of one file read by one call. ``rows``: as in metrics.jsonl; ``document``: as configs/rl.json."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)
    logs: Logs = field(default_factory=Logs)


def find(path: Path) -> list[Path]:
    """The run's files, the newest first: a file, one of W&B's folders, or those in a run directory."""
    if path.is_file() or path.name == "wandb" or _OF_WANDB.fullmatch(path.name):
        return wandb.find(path)[:MOST_FILES]
    # Not searched recursively: a long run has thousands of folders of episodes.
    folders = (path / part / "wandb" for part in ("", "trainer", "orchestrator"))
    return newest(file for folder in folders if folder.is_dir() for file in wandb.find(folder))[:MOST_FILES]


SINK = replace(wandb.SINK, find=find)


def matches(path: Path) -> str | None:
    """A description of the newest file with prime-rl's keys."""
    source = sources.choose((SINK,), path, _is_prime_rl)
    return f"wandb {source.path.name} with prime-rl's keys" if source is not None else None


def _is_prime_rl(peek: sources.Peek) -> bool:
    return "dispatcher/inflight/train" in peek.keys or ("step" in peek.keys and not _MARKS.isdisjoint(peek.keys))


def read(path: Path, cursor: Cursor, limits: Limits) -> Wandb:
    """Rows and gauges since ``cursor``.

    Raises:
        ScrapeError: ``missing``, ``garbage``.
    """
    logs = wandb.read(path, cursor, limits)
    result = Wandb(logs=logs)
    if logs.config:
        part = "trainer" if _ORCHESTRATORS.isdisjoint(logs.config) else "orchestrator"
        result.document = {part: logs.config}
    for row in logs.rows:
        values = {key: value for key, value in row.values.items() if not key.startswith("_")}
        if "step" in values:
            remaining = {key: value for key, value in values.items() if not _WANDB_SKIPPED.fullmatch(key)}
            result.rows.append({**remaining, "time": row.ts})
        elif row.ts is not None:
            result.samples += _gauges(values, row.ts, result.unmapped)
    return result


def _gauges(values: Mapping[str, Any], ts: float, unmapped: dict[str, int]) -> Iterator[Sample]:
    for key, raw in values.items():
        value = number(raw)
        if value is not None and key in GAUGES:
            metric, labels = GAUGES[key]
            yield Sample(metric, value, labels, ts)
        elif value is not None and not _WANDB_SKIPPED.fullmatch(key):
            unmapped[key] = unmapped.get(key, 0) + 1
