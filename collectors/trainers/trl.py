"""TRL's GRPOTrainer and AsyncGRPOTrainer, through trackio's database or trainer_state.json (TRL 1.16.0).

trackio (``report_to="trackio"``) is live, 0.6 s behind, and carries the profiling rows; trainer_state.json is
rewritten at checkpoints only and has no times, so its steps are dated backwards from the file's own age (fact
``times_estimated``). Where both are there trackio gives the steps and the state file facts and the end.

Does not know: solved and unsolved groups apart, turns of the synchronous trainer, MFU of it, waiting (there is none
in a synchronous step); the policy version of single rollouts. Rollout records (completions/*.parquet, trackio
traces) are not read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.model import Collector, Cursor, Event, Limits, Reading, Sample, ScrapeError
from collectors.readers import trackio
from collectors.trainers import _trl_config, _trl_keys, _trl_state

LOOKED_FOR = "a trackio *.db (also under trackio/) or a trainer_state.json (also under checkpoint-*/)"
# More databases than this in one folder is a shared trackio directory: the newest ones are the candidates.
CANDIDATES = 20
# Two rows of one flush share its time; a series needs times of its own.
TICK_SECONDS = 0.001


@dataclass(slots=True)
class _Gathered:
    """What one call gathers. ``memory`` is the cursor of the next."""

    memory: dict[str, Any]
    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    facts: dict[str, str | float] = field(default_factory=dict)
    unmapped: dict[str, int] = field(default_factory=dict)
    finished: str = ""

    def date(self, ts: float) -> float:
        """The time, or just after the step before when they share it."""
        last = self.memory.get("ts")
        ts = ts if last is None or ts > last else last + TICK_SECONDS
        self.memory["ts"] = ts
        return ts


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Steps, facts and events since ``cursor``, oldest first.

    Args:
        path: an output directory, a trackio directory, or one trackio ``.db`` file.

    Raises:
        ScrapeError: ``missing``, ``not_a_run``, ``locked``, ``garbage``, ``too_large``.
    """
    try:
        return _tail(path, cursor, limits, now)
    except OSError as error:
        # A folder that may not be entered, or a checkpoint rotated away between two looks at it.
        raise ScrapeError("missing", f"the run cannot be read: {type(error).__name__}") from None


def _tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    database = path if path.is_file() and path.name != _trl_state.NAME else _database(path)
    state_path = _trl_state.find(path)
    if database is None and state_path is None:
        if not path.exists():
            raise ScrapeError("missing", f"{path.name} does not exist")
        raise ScrapeError("not_a_run", f"no TRL run in {path.name}: looked for {LOOKED_FOR}")
    run = _Gathered(dict(cursor))
    if database is None:
        assert state_path is not None
        return _from_state(state_path, run, limits)
    return _from_trackio(database, state_path, run, limits, now)


def _database(folder: Path) -> Path | None:
    """The trackio database written last, in the folder or its ``trackio/``."""
    found = [file for pattern in ("*.db", "trackio/*.db") for file in folder.glob(pattern) if file.is_file()]
    found.sort(key=lambda file: file.stat().st_mtime, reverse=True)
    return next((file for file in found[:CANDIDATES] if trackio.is_trackio(file)), None)


def _from_trackio(database: Path, state_path: Path | None, run: _Gathered, limits: Limits, now: float) -> Reading:
    # Another database (a second project in the folder) has ids of its own.
    known = run.memory if run.memory.get("db") == database.name else {}
    read = trackio.read(database, known.get("trackio", {}), limits)
    if read.restarted or not known:
        run.memory = {"db": database.name}
    if read.restarted:
        run.events.append(Event("restart", f"restart:{read.cursor.get('run_id', '')}", None, read.run_name))
    run.memory["trackio"] = read.cursor
    run.facts |= _trl_config.facts(read.config) | ({"run_name": read.run_name} if read.run_name else {})
    rows = [(row, _trl_keys.canonical(row.metrics)) for row in read.rows]
    if "max_staleness" in read.config or any(mark in row for _, row in rows for mark in _trl_keys.ASYNC_MARKS):
        run.memory["async"] = True
    for logged, row in rows:
        _row(logged, row, run, now)
    if state_path is not None:
        _add_state(state_path, run, limits)
    return _reading(run, read.more, read.dropped, read.why, len(read.rows))


def _row(logged: trackio.Logged, row: dict[str, float], run: _Gathered, now: float) -> None:
    """One trackio row: profiling (kept for the step it belongs to), a step, an evaluation, or the closing one."""
    step = row.pop("global_step", None)
    if step is None:
        pending = run.memory["pending"] = dict(run.memory.get("pending", {}))
        for phase, seconds in _trl_keys.profiled(logged.metrics):
            pending[phase] = pending.get(phase, 0.0) + seconds
        return
    number, ts = int(step), logged.ts or now
    if any(key.startswith(("eval/", "eval_")) for key in row):
        run.events.append(Event("eval", f"eval:{number}:{ts:.0f}", ts))
    elif row.keys() <= {"epoch"} or "train_runtime" in row:
        # HF takes the summary's numbers out of its last row and leaves epoch and step (integration_utils.py).
        run.finished = f"the trainer's closing row at step {number}"
    else:
        _step(row, number, run.date(ts), run)


def _step(row: Mapping[str, float], step: int, ts: float, run: _Gathered) -> None:
    memory = run.memory
    is_async = bool(memory.get("async"))
    run.samples += _trl_keys.samples(row, is_async, ts, step, run.unmapped)
    # With logging_steps > 1 a row is a mean over several steps and the profiling rows are those of all of them.
    steps = max(1, step - memory.get("step", step - 1))
    phases = {phase: seconds / steps for phase, seconds in memory.pop("pending", {}).items()}
    if is_async:
        if "perf/weight_sync_s" in row:
            run.events.append(Event("weights_published", f"weights:{step}:{ts:.0f}", ts, f"step {step}"))
    else:
        run.samples += _sync_only(row, phases, ts, step, run.facts)
    memory["step"] = step


def _sync_only(
    row: Mapping[str, float], phases: Mapping[str, float], ts: float, step: int, facts: Mapping[str, str | float]
) -> Iterator[Sample]:
    whole = row.get("step_time")
    if whole is not None:
        yield from _trl_keys.sync_phases(whole, phases, ts, step)
    batch, length = facts.get("batch_samples"), row.get("completions/mean_length")
    if isinstance(batch, float) and whole is not None:
        yield Sample("trainer_samples", batch, (), ts, step, "trainer")
        if length is not None:
            # Every completion token is in the loss; with mask_truncated_completions this is an upper bound.
            yield Sample("trained_tokens", batch * length, (), ts, step, "trainer")


def _add_state(path: Path, run: _Gathered, limits: Limits) -> None:
    """Facts and the end from a state file beside trackio, unless it is older than what trackio tells."""
    try:
        state = _trl_state.read(path, limits)
    except ScrapeError:
        return  # half written, or gone with a rotated checkpoint: trackio is the source here
    if state.step >= run.memory.get("step", 0) and state.modified >= run.memory.get("ts", 0.0) - 60:
        run.facts = {**state.facts, **run.facts}
        run.finished = run.finished or state.finished


def _from_state(path: Path, run: _Gathered, limits: Limits) -> Reading:
    state = _trl_state.read(path, limits)
    run.facts |= {**state.facts, "times_estimated": 1.0}
    run.memory["async"] = any(mark in row for row in state.rows for mark in _trl_keys.ASYNC_MARKS)
    if state.step < run.memory.get("step", 0):
        run.memory["step"] = state.step  # the history was rewound: a resume from an earlier checkpoint
    done = run.memory.get("step", 0)
    new = [(ts, int(row["step"]), row) for ts, row in _trl_state.dated(state) if row["step"] > done]
    for ts, step, row in new[: limits.tail_rows]:
        _step(row, step, run.date(ts), run)
    run.finished = state.finished
    return _reading(run, len(new) > limits.tail_rows, state.dropped, state.why, len(new))


def _reading(run: _Gathered, more: bool, dropped: int, why: str, rows: int) -> Reading:
    memory, facts = run.memory, run.facts
    most, last = facts.get("max_steps"), memory.get("step", 0)
    if not run.finished and isinstance(most, float) and last >= most:
        run.finished = f"step {last} is the last of {most:.0f}"
    if run.finished:
        facts |= {"lifecycle": "finished", "lifecycle_why": run.finished}
        memory["finished"] = True
    elif run.samples and memory.pop("finished", False):
        facts |= {"lifecycle": "running", "lifecycle_why": "new rows after the end"}
    mode = "async" if memory.get("async") else facts.get("mode", "sync_colocated")
    return Reading(
        samples=tuple(run.samples),
        events=tuple(run.events),
        facts={**facts, "framework": "trl", "mode": mode},
        unmapped=run.unmapped,
        cursor=memory,
        more=more,
        dropped=dropped,
        why_dropped=why,
        samples_scraped=rows,
    )


def matches_path(path: Path) -> str | None:
    """What gives a TRL run away. Other trainers use trackio and HF's state file too, so their content is asked."""
    try:
        state_path = _trl_state.find(path)
        if state_path is not None and _trl_state.is_reinforcement(_trl_state.read(state_path, Limits())):
            return f"{state_path.name} with GRPO's keys"
        database = path if path.is_file() and path.suffix == ".db" else _database(path)
        if database is not None and _is_trl(database):
            return f"trackio database {database.name} with TRL's keys"
    except (ScrapeError, OSError):
        return None
    return None


def _is_trl(database: Path) -> bool:
    read = trackio.read(database, {}, Limits(tail_rows=100))
    if "num_generations" in read.config:
        return True
    return any("train/global_step" in row.metrics and "train/reward" in row.metrics for row in read.rows)


COLLECTOR = Collector(
    name="trl",
    actor="trainer",
    reads="TRL GRPO and AsyncGRPO runs (trackio database, trainer_state.json)",
    versions="1.16.0 by source and recorded runs",
    tail=tail,
    matches_path=matches_path,
)
