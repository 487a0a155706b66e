"""Tinker cookbook runs: metrics.jsonl, which is always written, and config.json in the same folder.

Rows have no times. The newest has the file's time, because each row is appended at once; older ones are estimated. When
a run is resumed, the file is cut back, and the old one stays as metrics.jsonl.pre_resume_<step>.

Not available: rollouts in flight and queued, truncation, the deviation of rewards, MFU (the service reports no time).
In asynchronous runs the step and its wait are known only for steps that were watched.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectors.formats import jsonl, jsonl_log
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs
from collectors.model import Cursor, Limits
from collectors.trainers.tinker_cookbook import keys as tinker_cookbook_keys
from collectors.training_logs.model import Framework
from collectors.training_logs.settings import Settings
from collectors.training_logs.tail import collector_of

# Bytes. The largest recipe's has 10 kB.
CONFIG_BYTES = 1 << 20


def _unpack(row: jsonl.Row) -> Logged:
    step = number(row.get("step"))
    return Logged(row, None if step is None else int(step))


_BASE = jsonl_log.sink(("metrics.jsonl",), _unpack, name="metrics.jsonl")


def _read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """The rows, each with the setting of config.json about removed groups; the newest with the file's time."""
    logs = _BASE.read(path, cursor, limits)
    config = _config(path.with_name("config.json"))
    removes = Settings(config).flag("remove_constant_reward_groups")
    for row in logs.rows:
        row.values.pop("step", None)
        if removes is not None:
            row.values[tinker_cookbook_keys.FILTERED] = float(removes)
    if logs.rows and not logs.more and logs.modified is not None:
        logs.rows[-1].ts, logs.rows[-1].origin = logs.modified, tinker_cookbook_keys.TIMED
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
    keys=tinker_cookbook_keys.KEYS,
    patterns=tinker_cookbook_keys.PATTERNS,
    needs=tinker_cookbook_keys.NEEDS,
    ignored=tinker_cookbook_keys.IGNORED,
    marks=(r"env/all/.*", r"optim/kl_sample_train_v[12]"),
    split=tinker_cookbook_keys.pieces,
    derive=tinker_cookbook_keys.derive,
    facts=tinker_cookbook_keys.facts,
    seconds=(tinker_cookbook_keys.TOTAL,),
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
