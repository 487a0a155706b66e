"""prime-rl's W&B files (`wandb/run-*/run-*.wandb`): steps of runs without metrics.jsonl, and keys that only W&B has.

Steps are logged with the same keys as in metrics.jsonl and with a `step` (monitors/wandb/monitor.py, 559b44772); the
orchestrator's pipeline view every 10 s is only here, in rows without one (periodic_logger.py, dispatcher.py:736,
concurrency.py:328, watcher.py:172). Trainer and orchestrator write a file each, also in W&B's shared mode.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collectors.formats.jsonl import Row, number
from collectors.formats.rows import Logs, newest
from collectors.formats.wandb import log as wandb_log
from collectors.model import Cursor, Labels, Limits, Sample
from collectors.training_logs import sources

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
_SKIPPED = re.compile(r"(?:dispatcher|concurrency|watcher|event_loop_lag|inference)/.*")
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
        return wandb_log.find(path)[:MOST_FILES]
    # Not searched recursively: a long run has thousands of folders of episodes.
    folders = (path / part / "wandb" for part in ("", "trainer", "orchestrator"))
    return newest(file for folder in folders if folder.is_dir() for file in wandb_log.find(folder))[:MOST_FILES]


SINK = replace(wandb_log.SINK, find=find)


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
    logs = wandb_log.read(path, cursor, limits)
    result = Wandb(logs=logs)
    if logs.config:
        part = "trainer" if _ORCHESTRATORS.isdisjoint(logs.config) else "orchestrator"
        result.document = {part: logs.config}
    for row in logs.rows:
        values = {key: value for key, value in row.values.items() if not key.startswith("_")}
        if "step" in values:
            remaining = {key: value for key, value in values.items() if not _SKIPPED.fullmatch(key)}
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
        elif value is not None and not _SKIPPED.fullmatch(key):
            unmapped[key] = unmapped.get(key, 0) + 1
