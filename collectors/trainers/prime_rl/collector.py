"""prime-rl run directory: metrics.jsonl of trainer and orchestrator, the orchestrator's log, configs/*.json.

All files that are read are on by default in prime-rl (559b4477, 2026-08); the run needs no change. The axes ``trainer``
and ``orchestrator`` count their own steps (the orchestrator's begin at 1) and stay separate; eval lines become events.
Queue depth and rollouts in flight come from the orchestrator's log line of every 10 s. The trainer's own metrics page
(`collectors.trainers.prime_rl.collector`) is read from a URL.

The files of a run that logs to W&B are read, too (`wandb`): only they have the concurrency cap and the engines' policy
version. For a run without metrics.jsonl they give everything except the queue.

Without both, the step lines of the printed logs are read (`step_lines`): of a run directory, or of one log alone.

Not available: `inference/*` of W&B, because the engines' own pages have it; sandbox boot times, which are in
traces.jsonl and not aggregated.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from math import isfinite
from pathlib import Path
from typing import Any

import httpx

from collectors.formats import console, exposition, jsonl
from collectors.formats.jsonl import Row, number
from collectors.formats.log_times import LogClock
from collectors.formats.rows import Logs, walk
from collectors.model import Collector, Cursor, Event, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.trainers.prime_rl import keys as prime_rl_keys
from collectors.trainers.prime_rl import log
from collectors.training_logs import clocks
from collectors.transport import bytetail, http

# ---- config
# Facts of a prime-rl run from its resolved configs (configs/rl.json, trainer.json, orchestrator.json).

# Bytes. A resolved configuration has 30 kB.
CONFIG_BYTES = 1 << 20
SECTIONS = ("trainer", "orchestrator", "inference")

_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "group_size": ("orchestrator.group_size", "orchestrator.rollouts_per_example"),
    "batch_samples": ("orchestrator.batch_size",),
    "max_staleness_versions": ("orchestrator.max_off_policy_steps",),
    "max_steps": ("max_steps", "trainer.max_steps", "orchestrator.max_steps"),
    "max_in_flight": ("orchestrator.max_inflight_rollouts", "orchestrator.concurrency.max_inflight"),
    "max_response_tokens": (
        "orchestrator.train.sampling.max_completion_tokens",
        "orchestrator.sampling.max_completion_tokens",
        "orchestrator.sampling.max_tokens",
    ),
    "trainer_gpus": ("deployment.num_train_gpus",),
    "generator_gpus": ("deployment.num_infer_gpus",),
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    "model": ("model.name", "trainer.model.name", "orchestrator.model.name"),
    "run_name": ("run.name", "monitors.wandb.name", "wandb.name"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """``modified``: epoch seconds of the oldest config file, which is when the run began; 0 without any."""

    facts: Mapping[str, str | float] = field(default_factory=dict)
    modified: float = 0.0
    batches_tokens: bool = False


def read_config(folder: Path) -> Config:
    """The facts; an unreadable or broken file counts as absent, because the run can be read without it."""
    document: dict[str, Any] = {}
    times = []
    for name in ("rl", *SECTIONS):
        path = folder / f"{name}.json"
        try:
            modified = path.stat().st_mtime
            with path.open("rb") as file:
                section = jsonl.parse(file.read(CONFIG_BYTES + 1))
        except OSError:
            continue
        # The oldest: a section that was changed later must not move the start.
        times.append(modified)
        if section is not None and name == "rl":
            document |= section
        elif section is not None:
            document.setdefault(name, section)
    batches_tokens = dig(document, "orchestrator.token_batch_size") is not None
    return Config(facts_of(document), min(times, default=0.0), batches_tokens)


def facts_of(document: dict[str, Any]) -> dict[str, str | float]:
    """Facts of a configuration laid out as configs/rl.json is."""
    facts: dict[str, str | float] = {}
    facts |= {fact: value for fact, paths in _NUMBERS.items() if (value := _first_number(document, paths)) is not None}
    facts |= {fact: name for fact, paths in _NAMES.items() if (name := _first_name(document, paths))}
    return facts | _nodes(document)


def dig(document: object, path: str) -> Any:
    """The value at a dotted path, or None."""
    for part in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(part)
    return document


def _first_number(document: dict[str, Any], paths: tuple[str, ...]) -> float | None:
    values = (number(dig(document, path)) for path in paths)
    return next((value for value in values if value is not None and value > 0), None)


def _first_name(document: dict[str, Any], paths: tuple[str, ...]) -> str:
    values = (dig(document, path) for path in paths)
    return next((value for value in values if isinstance(value, str) and value), "")


def _nodes(document: dict[str, Any]) -> dict[str, float]:
    """GPU counts of a multi-node deployment: nodes x GPUs per node, inference replicas counted."""
    per_node = number(dig(document, "deployment.gpus_per_node"))
    train = number(dig(document, "deployment.num_train_nodes"))
    serve = number(dig(document, "deployment.num_infer_nodes"))
    if per_node is None or train is None:
        return {}
    trainer = {"trainer_gpus": train * per_node}
    replicas = number(dig(document, "deployment.num_infer_replicas")) or 1.0
    # Engines that the deployment does not list may run elsewhere; their number is unknown.
    return trainer if serve is None else {**trainer, "generator_gpus": serve * replicas * per_node}


# ---- page
# prime-rl's own metrics page: the trainer's last step as gauges (559b4477: utils/metrics_server.py).

STEP, STAMP = "trainer_step", "trainer_last_step_timestamp_seconds"
_BUSY: Labels = (("basis", "busy"),)

_GAUGES: Mapping[str, tuple[str, Labels, float]] = {
    "trainer_loss": ("loss_mean", (), 1),
    "trainer_grad_norm": ("gradient_norm", (), 1),
    "trainer_learning_rate": ("learning_rate", (), 1),
    "trainer_entropy": ("entropy_mean", (), 1),
    "trainer_mismatch_kl": ("mismatch_kl_mean", (), 1),
    "trainer_peak_memory_gib": ("trainer_peak_memory_bytes", (), 2**30),
    # Both over forward and backward only, like the keys of metrics.jsonl.
    "trainer_mfu_percent": ("trainer_mfu_ratio", _BUSY, 0.01),
    "trainer_throughput_tokens_per_sec": ("trainer_tokens_per_second", _BUSY, 1),
}
_KNOWN = frozenset((STEP, STAMP, "trainer_kl_ent_ratio"))
_PAGE = re.compile(rb"^trainer_last_step_timestamp_seconds[ {]", re.M)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """The page's step, at the time it ended. Before the first step there is none, because gauges begin at 0.

    Raises:
        ScrapeError: ``garbage`` for a page of another system, and as `parser.parse`.
    """
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    values = {series.name: value for series, value in page.samples}
    if STAMP not in values:
        raise ScrapeError("garbage", "a metrics page without prime-rl's trainer_ series")
    return Reading(
        samples=tuple(_samples(values)),
        facts={"framework": "prime_rl", "mode": "async"},
        unmapped={name: 1 for name in sorted(values) if name.startswith("trainer_") and not _is_known(name)},
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=len(page.samples),
    )


def _samples(values: Mapping[str, float]) -> Iterator[Sample]:
    step, ts = values.get(STEP), values[STAMP]
    if step is None or not isfinite(step) or not isfinite(ts) or ts <= 0:
        return
    for name, (metric, labels, scale) in _GAUGES.items():
        if name in values and isfinite(values[name]):
            yield Sample(metric, values[name] * scale, labels, ts, int(step), "trainer")
    if "trainer_grad_norm" in values:
        broken = float(not isfinite(values["trainer_grad_norm"]))
        yield Sample("gradient_nonfinite", broken, (), ts, int(step), "trainer")


def _is_known(name: str) -> bool:
    return name in _GAUGES or name in _KNOWN or name.endswith("_created")


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GETs the page, wherever the client's base URL names it (`http.metrics_page`).

    Raises:
        ScrapeError: as `http.metrics_page` and `parse`.
    """
    return parse(await http.metrics_page(client, limits), state, limits)


def matches_page(body: bytes) -> bool:
    """Returns whether it is the page of prime-rl's trainer."""
    return _PAGE.search(body) is not None


# File -> the axis of rows that do not state one.
METRICS = {"metrics.jsonl": "", "trainer/metrics.jsonl": "trainer", "orchestrator/metrics.jsonl": "orchestrator"}
# In a run directory, and in its folder of logs.
LOGS = (
    "logs/latest/orchestrator.log",
    "logs/orchestrator.log",
    "logs/orchestrator.stdout",
    "latest/orchestrator.log",
    "orchestrator.log",
    "orchestrator.stdout",
)
TRAINER_LOGS = tuple(name.replace("orchestrator", "trainer") for name in LOGS)
# Messages at the end of a read. If none of them has a time, the newest time is older than the end of the file.
NEWEST_WITHIN = 10
# Bytes. The closing message is among the last lines.
CLOSING_BYTES = 16 << 10
# Files of a folder that are searched for prime-rl's lines if no log has its usual name.
MAX_PRINTED = 16
# Bytes at the start of a printed log, in which its first step line is searched.
PRINTED_BYTES = 1 << 20

LOOKED_FOR = (
    "metrics.jsonl (also under trainer/ and orchestrator/), logs/latest/orchestrator.log, configs/rl.json, "
    "wandb/run-*.wandb, or a printed log of the trainer or the orchestrator"
)


@dataclass(slots=True)
class _ReadResult:
    """The result of one call. ``memory``: the next cursor."""

    memory: dict[str, Any]
    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    facts: dict[str, str | float] = field(default_factory=dict)
    unmapped: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    more: bool = False
    dropped: int = 0
    why: str = ""
    rows: int = 0

    def add_read(self, read: jsonl.Rows | jsonl.Text | Logs, name: str) -> None:
        self.memory["files"][name] = read.cursor
        self.more = self.more or read.more
        self.dropped += read.dropped
        self.why = self.why or read.why


@bytetail.readable("the run")
def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Steps, gauges, events and facts since ``cursor``, oldest first.

    The cursor holds a position per file, the log's clock, the last step per axis and the configs' age.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    found = _found(path, cursor)
    if not found.files and not found.logs and not found.wandb and not (path / "configs" / "rl.json").is_file():
        _not_a_run(path)
    share = max(1, len(found.files) + len(found.wandb) + len(found.logs))
    # Each file gets its share, so that one long history does not delay the others.
    part = replace(limits, tail_bytes=limits.tail_bytes // share, tail_rows=max(1, limits.tail_rows // share))
    memory = {"steps": {}, **cursor, "files": dict(cursor.get("files", {}))}
    memory["steps"], memory["ended"] = dict(memory["steps"]), dict(memory.get("ended", {}))
    memory["logs"] = {name: dict(values) for name, values in memory.get("logs", {}).items()}
    run = _ReadResult(memory)
    config = read_config(found.folder / "configs")
    if config.modified != memory.get("configs"):
        run.facts |= config.facts
        memory["configs"] = config.modified
    for name in found.files:
        _read_metrics(found.folder, name, part, now, run)
    for file in reversed(found.wandb):
        # The file of a resumed run comes after the previous one has been read to its end.
        if _read_wandb(path, file, part, (not found.files, not found.logs), run):
            break
    for name in found.logs:
        _read_log(found, name, part, config, run, now)
    _lifecycle(found, config.facts, run)
    run.samples.sort(key=lambda sample: sample.ts or now)
    run.events.sort(key=lambda event: event.ts or now)
    return Reading(
        samples=tuple(run.samples),
        events=tuple(run.events),
        facts={"framework": "prime_rl", "mode": "async", **run.facts},
        unmapped=run.unmapped,
        cursor=run.memory,
        more=run.more,
        dropped=run.dropped,
        why_dropped=run.why,
        samples_scraped=run.rows,
        origins=_origins(run),
        reader=", ".join([*found.files, *found.logs, *(f"wandb {file.name}" for file in found.wandb)]),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The files of a run. ``logs``: printed logs; ``printed_steps``: no other file has the steps."""

    folder: Path
    files: tuple[str, ...] = ()
    wandb: tuple[Path, ...] = ()
    logs: tuple[str, ...] = ()
    printed_steps: bool = False


def _found(path: Path, cursor: Cursor) -> _Found:
    if path.is_file() and path.name in cursor.get("logs", {}):
        return _Found(path.parent, logs=(path.name,), printed_steps=True)
    if path.is_file():
        if wandb := prime_rl_keys.find(path):
            return _Found(path, wandb=tuple(wandb))
        return _Found(path.parent, logs=(path.name,), printed_steps=True) if _is_printed(path) else _Found(path)
    files = tuple(name for name in METRICS if (path / name).is_file())
    wandb = prime_rl_keys.find(path)
    printed_steps = not files and not wandb
    logs = _logs(path, LOGS) + (_logs(path, TRAINER_LOGS) if printed_steps else ())
    if printed_steps and not logs:
        logs = tuple(cursor.get("logs", ())) or _newest_printed(path)
    return _Found(path, files, tuple(wandb), logs, printed_steps)


def _logs(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """The first file of these names, if there is one."""
    return tuple(name for name in names if (path / name).is_file())[:1]


def _newest_printed(path: Path) -> tuple[str, ...]:
    """The newest printed log of the folder with any name of such logs; a job's output has both processes."""
    files = walk(path, lambda file: any(fnmatch(file.name, pattern) for pattern in console.PATTERNS), 1)
    newest = next((file for file in files[:MAX_PRINTED] if _is_printed(file)), None)
    return (str(newest.relative_to(path)),) if newest is not None else ()


def _origins(run: _ReadResult) -> dict[str, str]:
    """The keys read; for metrics without a key a text about their source."""
    key_texts = {**prime_rl_keys.ORIGINS, **run.origins}
    return {sample.metric: key_texts[sample.metric] for sample in run.samples if sample.metric in key_texts}


def _not_a_run(path: Path) -> None:
    if not path.exists():
        raise ScrapeError("missing", f"{path.name} does not exist")
    raise ScrapeError("not_a_run", f"no prime-rl run in {path.name}: looked for {LOOKED_FOR}")


def _read_metrics(path: Path, name: str, limits: Limits, now: float, run: _ReadResult) -> None:
    read = jsonl.read_jsonl(path / name, run.memory["files"].get(name, {}), limits)
    run.add_read(read, name)
    _add_rows(read.rows, METRICS[name], now, run)


def _read_wandb(path: Path, file: Path, limits: Limits, read_parts: tuple[bool, bool], run: _ReadResult) -> bool:
    """Returns whether rows are left. ``read_parts``: read (the steps, what is in flight), if only W&B has them."""
    name = str(file.relative_to(path)) if file != path else file.name
    cursor = run.memory["files"].get(name, {})
    try:
        read = prime_rl_keys.read(file, cursor, limits)
    except ScrapeError as error:
        # Counted once: the run's other files are complete without it.
        run.dropped, run.why = run.dropped + ("bad" not in cursor), run.why or str(error)
        run.memory["files"][name] = {"bad": 1}
        return False
    run.add_read(read.logs, name)
    steps, in_flight = read_parts
    run.samples += (sample for sample in read.samples if in_flight or sample.metric != prime_rl_keys.IN_FLIGHT)
    run.unmapped.update(read.unmapped)
    if steps:
        _add_facts(read, run)
        _add_rows(read.rows, "", 0.0, run)
        if read.logs.finished or name not in run.memory["ended"]:
            run.memory["ended"][name] = [read.logs.finished, read.logs.failed]
    return read.logs.more


def _add_facts(read: prime_rl_keys.Wandb, run: _ReadResult) -> None:
    name = {"run_name": read.logs.run_name} if read.logs.run_name else {}
    run.facts = {**name, **facts_of(read.document), **run.facts}
    # W&B has its configuration once.
    if "max_steps" in run.facts:
        run.memory["max_steps"] = run.facts["max_steps"]


def _add_rows(rows: list[Row], file_axis: str, now: float, run: _ReadResult) -> None:
    run.rows += len(rows)
    for axis, step, row in _steps(rows, file_axis, run):
        ts = number(row.get("time")) or now
        if axis == "eval":
            run.events.append(Event("eval", f"eval:{step}:{ts:.0f}", ts))
            # Evaluations may end in another order than they began: an older one than the newest is no restart.
            newest = run.memory.get("evaluated", step)
            if step >= newest or last_of(run.memory["steps"]) < newest:
                run.memory["evaluated"] = step
                run.samples += prime_rl_keys.scores(row, ts, step)
            continue
        run.samples += prime_rl_keys.samples(row, axis, ts, step, run.unmapped)
        run.origins |= prime_rl_keys.origins(row, axis)
        if axis == "trainer":
            run.events += _events(row, step, ts)


def last_of(steps: Mapping[str, int]) -> int:
    """The newest step of training."""
    return max((step for axis, step in steps.items() if axis != "eval"), default=0)


def _steps(rows: list[Row], file_axis: str, run: _ReadResult) -> Iterator[tuple[str, int, Row]]:
    """Rows merged by axis, incarnation and step: a resumed trainer writes step 15 again, which is another step."""
    incarnations: dict[str, int] = {}
    last: dict[str, int] = run.memory["steps"]
    keyed: dict[int, tuple[str, int, int]] = {}
    for row in rows:
        step = number(row.get("step"))
        axis = prime_rl_keys.axis_of(row, file_axis)
        if step is None or not axis:
            run.dropped += 1
            run.why = run.why or "a row without a step, or of neither the trainer nor the orchestrator"
            continue
        incarnations[axis] = incarnations.get(axis, 0) + (step < last.get(axis, step))
        last[axis] = int(step)
        keyed[id(row)] = (axis, incarnations[axis], int(step))
    numbered = [row for row in rows if id(row) in keyed]
    keys = dict.fromkeys(keyed[id(row)] for row in numbered)
    for (axis, _, step), merged in zip(keys, jsonl.merge(numbered, lambda row: keyed[id(row)]), strict=True):
        yield axis, step, merged


def _events(row: Row, step: int, ts: float) -> Iterator[Event]:
    # The time is part of the key: after a resume the same step publishes again.
    if (number(row.get("time/broadcast_weights")) or 0.0) > 0:
        # Step N makes and broadcasts v{N} (trainer/rl/train.py).
        yield Event("weights_published", f"weights:{step}:{ts:.0f}", ts, f"trainer step {step}", step)
    if (number(row.get("time/save_ckpt")) or 0.0) > 0:
        yield Event("checkpoint", f"checkpoint:{step}:{ts:.0f}", ts, f"trainer step {step}")


def _read_log(found: _Found, name: str, limits: Limits, config: Config, run: _ReadResult, now: float) -> None:
    path, memory = found.folder / name, run.memory["logs"].setdefault(name, {})
    read = jsonl.read_text(path, run.memory["files"].get(name, {}), limits)
    lines = list(log.messages(read.lines))
    clock = _clock(path, read, lines, memory.get("clock"), config)
    run.add_read(read, name)
    run.rows += len(read.lines)
    dated = [log.split(line, clock) for line in lines]
    # Before its end a log has only older times, and progress bars have none.
    if not read.more and any(map(log.has_local_time, lines[-NEWEST_WITHIN:])):
        offset = memory.get("offset", 0.0)
        memory["offset"] = offset + clocks.offset(clock.now - offset, path.stat().st_mtime, now, local=True)
    if offset := memory.get("offset", 0.0):
        run.facts["clock_offset_seconds"] = offset
    for stamp, message in dated:
        ts = stamp - offset
        run.samples += log.samples(message, ts, not config.batches_tokens)
        if found.printed_steps:
            _add_step_line(message, ts, memory, not any(name in TRAINER_LOGS for name in found.logs), run)
    if read.lines:
        memory["clock"] = clock.now


def _add_step_line(message: str, ts: float, memory: dict[str, Any], alone: bool, run: _ReadResult) -> None:
    """``alone``: only the orchestrator's log is read; one log may also have the lines of both processes."""
    step = log.axis_and_step(message)
    if step is not None:
        axis, run.memory["steps"][axis] = step
    for sample in log.samples_of_step(message, ts, memory, alone and log.TRAINER not in run.memory["steps"]):
        run.samples.append(sample)
        run.origins[sample.metric] = log.ORIGINS[sample.metric]
    if (steps := log.max_steps(message)) is not None:
        run.facts["max_steps"] = run.memory["max_steps"] = steps


def _clock(path: Path, read: jsonl.Text, lines: list[str], previous_time: float | None, config: Config) -> LogClock:
    if previous_time is not None and (not read.restarted or config.modified <= previous_time):
        # Another log (a resume) without newer configs: it is only certain that it follows the previous one.
        return LogClock(float(previous_time))
    # configs/ is written once at the start; without it the start is estimated backwards from the log's own age.
    start = config.modified or log.start(path, lines, not read.more)
    return LogClock(start, anchored=True)


def _lifecycle(found: _Found, facts: Mapping[str, str | float], run: _ReadResult) -> None:
    evidence = _finished(found, facts, run)
    if evidence:
        failed = any(evidence == reason and bad for reason, bad in run.memory["ended"].values())
        run.facts |= {"lifecycle": "crashed" if failed else "finished", "lifecycle_why": evidence}
    elif run.memory.get("finished") and run.samples:
        # The run was over and continues: resumed with more steps.
        run.facts |= {"lifecycle": "running", "lifecycle_why": "new rows after the end"}
    run.memory["finished"] = bool(evidence)


def _finished(found: _Found, facts: Mapping[str, str | float], run: _ReadResult) -> str:
    last, max_steps = run.memory["steps"].get("trainer"), facts.get("max_steps", run.memory.get("max_steps"))
    # Trainer steps count from 0: a run of 32 ends with step 31.
    if last is not None and isinstance(max_steps, float) and last >= max_steps - 1:
        return f"the trainer's step {last} is the last of {max_steps:.0f}"
    ended = list(run.memory["ended"].values())
    if ended and all(reason for reason, _ in ended):
        # The newest file's: the older ones of a resumed run ended before.
        return str(ended[-1][0])
    for name in (*TRAINER_LOGS, *(found.logs if found.printed_steps else ())):
        if any(map(log.is_finish_message, _closing_lines(found.folder / name))):
            return f"{name} reports that the {'orchestrator' if name in LOGS else 'trainer'} finished"
    return ""


def _closing_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - CLOSING_BYTES))
            return [jsonl.strip(line) for line in file.read(CLOSING_BYTES).decode(errors="replace").splitlines()]
    except OSError:
        return []


def matches_path(path: Path) -> str | None:
    """The file that identifies a prime-rl run. metrics.jsonl is a common name, so its first rows are checked."""
    try:
        if (path / "configs" / "rl.json").is_file():
            return "configs/rl.json"
        if path.is_file():
            printed = f"{path.name} with prime-rl's printed steps" if _is_printed(path) else None
            return prime_rl_keys.matches(path) or printed
        names = (name for name, axis in METRICS.items() if (path / name).is_file() and _is_prime(path / name, axis))
        if name := next(names, ""):
            return f"{name} with prime-rl's keys"
        if (reason := prime_rl_keys.matches(path)) is not None:
            return reason
        logs = (*_logs(path, LOGS), *_logs(path, TRAINER_LOGS))
        name = next((name for name in logs if _is_printed(path / name)), "")
        name = name or next(iter(_newest_printed(path) if not logs and path.is_dir() else ()), "")
    except OSError:
        return None
    return f"{name} with prime-rl's printed steps" if name else None


def _is_printed(path: Path) -> bool:
    """Returns whether it is a printed log with a line that only prime-rl prints, at its start or near its end."""
    if not console.is_named_as_log(path):
        return False
    clock = LogClock(0.0)
    lines = log.messages((*_first_lines(path), *_closing_lines(path)))
    return any(log.identifies(log.split(line, clock)[1]) for line in lines)


def _first_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [jsonl.strip(line) for line in file.read(PRINTED_BYTES).decode(errors="replace").split("\n")]


def _is_prime(path: Path, file_axis: str) -> bool:
    try:
        rows = jsonl.read_jsonl(path, {}, Limits(tail_bytes=256 << 10, tail_rows=8)).rows
    except ScrapeError:
        return False
    return any(
        {"step", "time"} <= row.keys() and any("/" in key for key in row) and prime_rl_keys.axis_of(row, "") != ""
        for row in rows
    ) and (file_axis != "" or any(prime_rl_keys.is_own(row) for row in rows))


COLLECTOR = Collector(
    name="prime_rl",
    actor="trainer",
    reads="prime-rl run directories (metrics.jsonl, printed logs, configs, wandb) and the trainer's /metrics page",
    versions="559b4477 (2026-08) by source and recorded files",
    parse=parse,
    tail=tail,
    poll=poll,
    matches_page=matches_page,
    matches_path=matches_path,
    report_seconds=10.0,
    looks_for=(LOOKED_FOR,),
    gives=prime_rl_keys.GIVES,
    hints={
        "tool_calls_mean": "no key of its log counts tool calls",
        "response_tokens_mean": "the orchestrator logs it: add the run directory, or its metrics.jsonl",
        "turns_mean": "the orchestrator logs it: add the run directory, or its metrics.jsonl",
        "truncation_ratio": "the orchestrator logs it: add the run directory, or its metrics.jsonl",
        "staleness_versions_max": "the orchestrator logs it as `off_policy/max`: add the run directory",
        "groups_none_solved_ratio": "newer versions log `train/agg/all/*/solved_*` in the "
        "orchestrator's metrics.jsonl: add the run directory",
        "trainable_ratio": "the orchestrator logs it: add the run directory, or its metrics.jsonl",
        "rollout_error_ratio": "the orchestrator logs it: add the run directory, or its metrics.jsonl",
        "reward_mean": "the orchestrator logs it: add the run directory, or its metrics.jsonl",
        "mismatch_kl_mean": "the trainer logs it as `mismatch_kl/all/mean`: add the run directory",
        "queue_samples": "add the run directory with its logs/: the orchestrator prints the queue every 10 s",
        "in_flight_rollouts": "add the run directory with its logs/: the orchestrator prints them every 10 s",
    },
)
