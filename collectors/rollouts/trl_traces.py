"""Traces of TRL's AsyncGRPOTrainer in trackio's database: 8 rollouts of every 8th policy version (TRL 1.16.0).

A row of table `traces` is one rollout when the trainer took it from its queue (experimental/async_grpo/
async_grpo_trainer.py:264): `step` is the policy's version then, `model_version` that of its group's first dispatch.
The rows are a sample, so nothing is counted from them. Only `metadata` is read, no messages (trackio 0.43.0).

Not available: versions of single tokens, dropped rollouts, turns, when a rollout was made.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collectors.formats import jsonl, sqlite, trackio
from collectors.formats.jsonl import number
from collectors.formats.rows import whole
from collectors.model import Collector, Consumption, Cursor, Limits, Reading, Rollout, ScrapeError
from collectors.transport import bytetail

LOOKED_FOR = "a trackio *.db with traces of TRL's AsyncGRPOTrainer"
KEY = "rollouts"
METADATA_BYTES = 64 << 10
# Only the asynchronous trainer has this setting, and only that trainer writes traces.
SETTING = "max_staleness"

_COLUMNS = frozenset({"run_id", "timestamp", "step", "key", "trace_index", "metadata"})
_ROWS = (
    "SELECT rowid, timestamp, step, trace_index, CASE WHEN length(CAST(metadata AS BLOB)) <= ? THEN metadata END"
    " FROM traces WHERE run_id = ? AND rowid > ? AND key = ? ORDER BY rowid LIMIT ?"
)


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Rollouts whose traces were logged since ``cursor``, of the newest run in the database.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``, ``locked``, ``garbage``.
    """
    with bytetail.readable(path.name[:100]):
        database = _find(path)
    if database is None:
        raise ScrapeError("not_a_run", f"no traces in {path.name}: looked for {LOOKED_FOR}")
    inode = database.stat().st_ino
    return sqlite.reading(database, lambda opened: _read(opened, inode, cursor, limits, now), "trackio")


def _read(database: sqlite3.Connection, inode: int, cursor: Cursor, limits: Limits, now: float) -> Reading:
    run, config = trackio.newest_run(database, limits)
    last = database.execute("SELECT coalesce(max(rowid), 0) FROM traces").fetchone()[0]
    same = cursor.get("inode") == inode and cursor.get("run") == run and int(cursor.get("row", 0)) <= last
    row = int(cursor.get("row", 0)) if same else 0
    rows = database.execute(_ROWS, (METADATA_BYTES, run, row, KEY, limits.tail_rows + 1)).fetchall()
    page, group_size = rows[: limits.tail_rows], whole(config.get("num_generations"))
    rollouts = [_rollout(rollout, group_size, now) for rollout in page]
    dropped = sum(rollout is None for rollout in rollouts)
    return Reading(
        rollouts=tuple(rollout for rollout in rollouts if rollout is not None),
        cursor={"inode": inode, "run": run, "row": page[-1][0] if page else row},
        more=len(rows) > len(page),
        dropped=dropped,
        why_dropped="a trace without the metadata of a rollout" if dropped else "",
        samples_scraped=len(page),
    )


def _rollout(row: tuple[Any, ...], group_size: int | None, now: float) -> Rollout | None:
    _, stamp, step, index, text = row
    data = jsonl.parse(text) if isinstance(text, str | bytes) else None
    version, group = _count(data, "model_version"), _count(data, "group_id")
    if data is None or version is None or group is None or whole(step) is None:
        return None
    at, tokens = trackio.epoch(stamp), _count(data, "completion_tokens")
    return Rollout(
        rollout_id=f"{step}/{whole(index) or 0}",
        group_id=str(group),
        group_size=group_size,
        purpose="train",
        version_dispatched=version,
        consumptions=(Consumption(int(step), min(at, now) if at is not None else None),),
        prompt_tokens=_count(data, "prompt_tokens"),
        response_tokens=tokens,
        loss_tokens=tokens,
        reward=number(data.get("reward")),
        advantage=number(data.get("advantage")),
        sampled=True,
    )


def _count(data: Mapping[str, Any] | None, key: str) -> int | None:
    return whole(data.get(key)) if data is not None else None


def _find(path: Path) -> Path | None:
    """The newest database with such traces, or of a trainer that will write them."""
    path.stat()
    return next((database for database in trackio.find(path) if _has_traces(database)), None)


def _has_traces(path: Path) -> bool:
    """Returns whether it has the table, and either rollouts in it or the configuration of the trainer.

    Raises:
        ScrapeError: ``locked``.
    """

    def query(database: sqlite3.Connection) -> bool:
        if not sqlite.columns(database, "traces") >= _COLUMNS:
            return False
        trace_row = database.execute("SELECT 1 FROM traces WHERE key = ? LIMIT 1", (KEY,)).fetchone()
        return trace_row is not None or SETTING in trackio.newest_run(database, Limits())[1]

    try:
        return sqlite.reading(path, query, "trackio")
    except ScrapeError as error:
        if error.kind == "locked":
            raise
        return False


def matches_path(path: Path) -> str | None:
    """The database.

    Raises:
        ScrapeError: ``locked``.
    """
    try:
        database = _find(path)
    except OSError:
        return None
    return f"{database.name} with traces of AsyncGRPO" if database is not None else None


RECORD_FIELDS = ("group_id", "reward", "response_tokens", "version_dispatched", "consumptions", "sampled")
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="trl_traces",
    actor="generator",
    reads="rollout traces of TRL AsyncGRPO runs in trackio's database (8 of every 8th version: a sample)",
    versions="TRL 1.16.0 and trackio 0.43.0 by source and recorded runs",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
