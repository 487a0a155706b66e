"""Reads sandboxes from the logs of a run: messages of SDKs and frameworks about creations, throttling and failures.

For providers without API access. The target is a file or a folder of logs; detection requires such lines. Latencies are
those in the lines (create() measured by the client; the sum of ROCK's stages).

Not available: creations that are not logged (E2B, Daytona and Prime do not log successful ones, Modal only with
`MODAL_LOGLEVEL=DEBUG`), and most ends. A sandbox counts as running until a line ends it, until it is 24 h old, or until
1,000 others started after it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from collectors.formats import jsonl
from collectors.formats.log_times import LogClock, anchor_backwards
from collectors.model import Collector, Cursor, Limits, Reading, Sample, Sandbox, ScrapeError
from collectors.sandbox_providers.provider import cause
from collectors.transport import bytetail, rest

# ---- dates
# Separates the time and the message of log lines.

# Ray's prefix of each line: (RolloutWorker pid=123, ip=10.0.0.1). "[repeated 3x across cluster]" may follow the line.
_WORKER = re.compile(r"^\([\w.:() -]{0,100}\bpid=\d{1,10}(?:, ip=[\w.:]{1,60})?\)\s?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\s?(?:Z\b|[+-]\d\d:?\d\d\b)?")
_TIME = re.compile(r"^(\d\d):(\d\d):(\d\d)\b")
# Without a terminal rich folds lines at 80 columns, which moves SWE-ReX's longest ids to the next line.
_FOLDED = re.compile(r"sandbox with ID:$")
# Characters in which a date is searched: it precedes the message, after a logger's name at most.
DATE_WITHIN = 60


def dated_lines(lines: Iterable[str], written: float, before: float | None) -> Iterator[tuple[float, str]]:
    """(epoch seconds, message) of each line.

    Args:
        written: modification time of the file; the lines are not much later.
        before: time of the line before the first one; None at the start of a file.
    """
    lines = list(_unfolded(_WORKER.sub("", line) for line in lines))
    clock = LogClock(before) if before is not None else LogClock(anchor_backwards(lines, written), anchored=True)
    for line in lines:
        row = jsonl.parse(line) if line.startswith("{") else None
        if row is not None:
            clock.now = _stamp(row.get("timestamp", row.get("time", row.get("asctime")))) or clock.now
            line = rest.text(row.get("message", row.get("msg")), 2000)
        elif match := _DATE.search(line[:DATE_WITHIN]):
            clock.now = _stamp(match[0]) or clock.now
        elif match := _TIME.match(line):
            clock.date(*map(int, match.groups()))
        yield clock.now, line


def _unfolded(lines: Iterable[str]) -> Iterator[str]:
    begun = ""
    for line in lines:
        if begun:
            yield f"{begun} {line.strip()}"
            begun = ""
        elif _FOLDED.search(line):
            begun = line
        else:
            yield line
    if begun:
        yield begun


def _stamp(value: object) -> float | None:
    if isinstance(value, str):
        try:
            # Without a zone it is local time, as written by Python's logging and by loguru.
            value = datetime.fromisoformat(value.strip().replace(",", ".").replace(" +", "+")).timestamp()
        except (ValueError, OverflowError):
            return None
    return rest.epoch(value)


# ---- sdk lines
# Converts a log line of an SDK or framework about a sandbox to an event.

Kind = Literal["up", "building", "gone", "kept", "runtime", "stage", "throttled", "failed"]


@dataclass(frozen=True, slots=True)
class SandboxLine:
    """One event.

    Attributes:
        kind: ``up`` it is ready; ``building`` its image is being built; ``gone`` it is being ended; ``kept`` ending it
            failed; ``runtime`` the server inside started; ``stage`` a stage of the start took `seconds`; ``throttled``
            a call was throttled; ``failed`` a creation failed.
        seconds: duration in the line, if any.
        why: message of a failure.
    """

    kind: Kind
    provider: str = ""
    id: str = ""
    seconds: float | None = None
    image: str = ""
    stage: str = ""
    why: str = ""


# Lengths are bounded, because a log may contain anything. `seconds` of `up` is the client's wall time of create().
_ID = r"(?P<id>[\w.-]{4,100})"
_SECONDS = r"(?P<seconds>\d{1,7}\.\d{1,6})"
_IMAGE = r"(?:\[[^\]]{1,300}\] )?"
_SDK_ERRORS = (
    "ResourceExhaustedError|PaymentRequiredError|SandboxNotRunningError|SandboxImagePullError|SandboxOOMError"
    "|RateLimitException|ServiceBusyException|DaytonaRateLimitError|DaytonaQueueTimeoutError|DaytonaForbiddenError"
    "|DaytonaSpotEvictedError"
)
_TABLE: tuple[tuple[Kind, str, str], ...] = (
    ("up", "modal", rf"\bSandbox {_ID} created in {_SECONDS}s \(create rpc:"),
    ("up", "modal", rf"\bSandbox \({_ID}\) (?P<stage>created) in {_SECONDS}s"),  # SWE-ReX's own, of its Modal sandbox
    ("up", "", rf"\b(?P<provider>prime|modal|e2b): sandbox {_ID} up \(image=(?P<image>[^,)]{{0,300}})"),
    ("up", "daytona", rf"\bCreated Daytona sandbox with ID: {_ID}"),
    ("building", "prime", rf"\bprime: image (?P<image>\S{{1,300}}) isn't cached .{{1,60}}\(sandbox {_ID} waits"),
    ("gone", "modal", rf"\bTerminating sandbox {_ID}\.\.\."),
    ("gone", "daytona", rf"\bRemoving Daytona sandbox with ID: {_ID}"),
    ("kept", "", rf"\b(?P<provider>prime|modal|e2b): failed to (?:delete|terminate|kill) sandbox {_ID}:? (?P<why>.+)"),
    ("runtime", "swerex", rf"\bRuntime started in {_SECONDS}s"),
    ("failed", "swerex", r"\b(?P<why>Runtime did not start within timeout)"),
    (
        "stage",
        "rock",
        rf"\[startup_timing\] \[{_ID}\] (?:\[[^\]]{{1,300}}\] )?(?P<stage>[\w ]{{1,40}}) took {_SECONDS} s",
    ),
    # The third line of Modal's warning; the call and the first eight digits of its key.
    ("throttled", "modal", r"^for \w{1,60} \([0-9a-f-]{8}\)\. Retrying\.\.\."),
    ("failed", "", r"\b(?P<provider>prime|modal|e2b) sandbox provisioning failed: (?P<why>.+)"),
    ("failed", "", r"\bSandboxError: (?P<why>(?P<provider>docker|podman|apptainer) (?:run|instance start) failed.*)"),
    ("failed", "", rf"^(?:[A-Za-z_][\w.]{{0,80}}\.)?(?P<why>(?:{_SDK_ERRORS}): .+)"),
)
_PATTERNS = tuple((kind, provider, re.compile(pattern)) for kind, provider, pattern in _TABLE)
# Prefilter: each pattern above requires one of these words, and most lines have none.
_HINT = re.compile(r"[Ss]andbox|Retrying|startup_timing|Runtime |Error: |Exception: ")


def event_of(line: str) -> SandboxLine | None:
    """The event in a line without colours, time and worker prefix; None if there is none."""
    if not _HINT.search(line):
        return None
    for kind, provider, pattern in _PATTERNS:
        match = pattern.search(line)
        if match:
            named = {name: text for name, text in match.groupdict().items() if text is not None}
            seconds = float(named.pop("seconds")) if "seconds" in named else None
            return SandboxLine(kind, seconds=seconds, **{"provider": provider, **named})
    return None


SUFFIXES = (".log", ".out", ".err")
LOOKED_FOR = "files named *.log, *.out or *.err"
# Folders with many files that are not logs.
NO_LOGS = {"rollouts", "checkpoints", "weights", "broadcasts", "wandb", "node_modules", "__pycache__"}
# Bounds of the search: log files (the newest ones are read), directory entries, depth.
MAX_FILES = 50
MAX_ENTRIES = 5_000
MAX_DEPTH = 5
# Detection reads this much of a file's end, of this many files, and this deep: a folder of many runs is not a run.
PROBE_BYTES = 64 << 10
MAX_PROBED = 20
PROBE_DEPTH = 1
# Modal's maximum lifetime; the defaults of other providers are shorter.
LIFETIME_SECONDS = 24 * 3600.0
# Sandboxes that count as running at a time.
MAX_OPEN = 1_000
# Stages of a container's start with ROCK, in any order.
ROCK_STAGES = ("Image pull", "Kata disk prepare", "Random sleep", "Docker start", "Wait until alive")
# The stage that ends the start.
ROCK_LAST = ("Wait until alive", "Wait sandbox running")
# Seconds between two samples of a series: the store's resolution.
TICK = 0.001
# Pause after which the old value of a counter is repeated; shorter than the 15 s for which a sample holds.
PAUSE_SECONDS = 5.0


@dataclass(slots=True)
class _ReadResult:
    """Results of one call. ``memory`` is the cursor of the next."""

    memory: dict[str, Any]
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    more: bool = False
    dropped: int = 0
    why: str = ""
    rows: int = 0


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Reads records and counters from the lines written since ``cursor``.

    Raises:
        ScrapeError: ``not_a_run`` (a folder without logs), ``missing``.
    """
    with bytetail.readable("the logs"):
        files = _files(path)
    if not files:
        raise ScrapeError("not_a_run", f"no logs in {path.name}: looked for {LOOKED_FOR}")
    result = _ReadResult(
        {"files": {}, "open": {}, "begun": {}, "counts": {}, "nested": {}, "last": "", **_copied(cursor)}
    )
    previous, left = result.memory["files"], limits
    result.memory["files"] = {}
    for file in files:
        name = file.relative_to(path).as_posix() if file != path else file.name
        if left.tail_rows <= 0 or left.tail_bytes <= 0:
            result.more = True
            result.memory["files"] |= {name: previous[name]} if name in previous else {}
        else:
            left = _read(file, name, previous.get(name, {}), left, now, result)
    _expire(result, now)
    return Reading(
        samples=tuple(result.samples),
        sandboxes=tuple(result.sandboxes.values()),
        facts={"has_sandbox": 1.0} if result.sandboxes else {},
        cursor=result.memory,
        more=result.more,
        dropped=result.dropped,
        why_dropped=result.why,
        samples_scraped=result.rows,
    )


def _copied(cursor: Cursor) -> dict[str, Any]:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in cursor.items()}


def _files(path: Path, depth: int = MAX_DEPTH) -> list[Path]:
    """The file, or the newest logs below a folder, oldest first. The walk is bounded and follows no links."""
    if not path.is_dir():
        path.stat()  # raises OSError for a missing file
        return [path]
    paths, entries = [], 0
    for folder, names, files in os.walk(path):
        at_depth_limit = len(Path(folder).relative_to(path).parts) >= depth
        names[:] = (
            [] if at_depth_limit else sorted(name for name in names if name not in NO_LOGS and not name.startswith("."))
        )
        entries += len(names) + len(files)
        paths += [Path(folder) / name for name in files if name.endswith(SUFFIXES)]
        if entries > MAX_ENTRIES:
            break
    dated = sorted((file.stat().st_mtime, file) for file in paths if file.is_file() and not file.is_symlink())
    return [file for _, file in dated[-MAX_FILES:]]


def _read(file: Path, name: str, before: Cursor, limits: Limits, now: float, result: _ReadResult) -> Limits:
    read = jsonl.read_text(file, before.get("at", {}), limits)
    result.more, result.dropped = result.more or read.more, result.dropped + read.dropped
    result.why, result.rows = result.why or read.why, result.rows + len(read.lines)
    ts = None if read.restarted else before.get("ts")
    for stamp, line in dated_lines(read.lines, min(now, file.stat().st_mtime), ts):
        ts, event = stamp, event_of(line)
        if event is not None:
            _apply_event(event, min(stamp, now), name, result)
    result.memory["files"][name] = {"at": read.cursor, "ts": ts}
    bytes_read = sum(map(len, read.lines))
    return replace(limits, tail_rows=limits.tail_rows - len(read.lines), tail_bytes=limits.tail_bytes - bytes_read)


def _apply_event(event: SandboxLine, ts: float, name: str, result: _ReadResult) -> None:
    key = f"{event.provider} {event.id}"
    if event.kind == "up":
        if event.stage == "created":
            result.memory["nested"][name] = True
        _mark_ready(event, key, ts, ts - event.seconds if event.seconds is not None else None, None, result)
    elif event.kind == "building":
        result.memory["begun"][key] = [ts, False]
        sandbox = Sandbox(event.provider, event.id, "building_image", requested_at=ts, image=event.image)
        result.sandboxes[key] = structs.replace(sandbox, image_cached=False)
    elif event.kind in ("gone", "kept"):
        _mark_ended(event, key, ts, result)
    elif event.kind == "stage":
        _apply_stage(event, key, ts, result)
    elif event.kind == "runtime":
        _runtime(event, ts, name, result)
    elif event.kind == "throttled":
        _count("sandbox_throttled_total", ("provider", event.provider), ts, result)
    else:
        _failed(event, ts, result)


def _mark_ready(
    event: SandboxLine, key: str, ts: float, requested: float | None, cached: bool | None, result: _ReadResult
) -> None:
    begun, built = result.memory["begun"].pop(key, (None, None))
    requested = begun if begun is not None else requested
    result.memory["open"][key] = ts
    sandbox = result.sandboxes.get(key) or Sandbox(event.provider, event.id, "running")
    result.sandboxes[key] = structs.replace(
        sandbox, state="running", requested_at=sandbox.requested_at or requested, ready_at=sandbox.ready_at or ts,
        image=event.image or sandbox.image, image_cached=built if built is not None else cached,
        latency_source="log" if sandbox.requested_at or requested else None,
    )  # fmt: skip


def _mark_ended(event: SandboxLine, key: str, ts: float, result: _ReadResult) -> None:
    sandbox = result.sandboxes.get(key) or Sandbox(event.provider, event.id, "running")
    if event.kind == "kept":
        result.sandboxes[key] = structs.replace(sandbox, detail=rest.clean(f"not ended: {event.why}"))
        return
    result.memory["open"].pop(key, None)
    result.sandboxes[key] = structs.replace(sandbox, state="terminated", ended_at=ts)


def _apply_stage(event: SandboxLine, key: str, ts: float, result: _ReadResult) -> None:
    """Applies a stage of ROCK, which is logged at its end. The start began with the earliest stage."""
    began = ts - (event.seconds or 0.0)
    first, cached = result.memory["begun"].get(key, (began, None))
    if event.stage in ROCK_STAGES:
        if event.stage == "Image pull":
            cached = False  # the stage is logged only if an image is pulled
        elif event.stage == "Docker start" and cached is None:
            cached = True
        result.memory["begun"][key] = [min(first, began), cached]
    if event.stage in ROCK_LAST:
        _mark_ready(replace(event, seconds=None), key, ts, began, None, result)


def _runtime(event: SandboxLine, ts: float, name: str, result: _ReadResult) -> None:
    """Adds a sandbox for a started SWE-ReX server, whose line has no id; a Modal deployment has logged it already."""
    if name in result.memory["nested"]:
        return
    number = result.memory["counts"].get("runtimes", 0) + 1
    result.memory["counts"]["runtimes"] = number
    uid = f"{name}:{number}"
    result.sandboxes[f"swerex {uid}"] = Sandbox(
        "swerex", uid, "terminated", provider_state="its end is not logged", requested_at=ts - (event.seconds or 0.0),
        ready_at=ts, ended_at=ts, latency_source="log",
    )  # fmt: skip


def _failed(event: SandboxLine, ts: float, result: _ReadResult) -> None:
    # A chain of exceptions is logged as a whole: the framework's exception, with the provider, quotes that of the SDK.
    quoted = result.memory["last"].partition(": ")[2][:150]
    result.memory["last"] = "" if event.provider else event.why[:200]
    if event.provider and quoted and quoted in event.why:
        return
    _count("sandbox_failures_total", ("cause", cause(event.why)), ts, result)


def _count(metric: str, label: tuple[str, str], ts: float, result: _ReadResult) -> None:
    """Increases a counter, in event time. After a pause the old value is repeated, so the increase is not spread."""
    key = f"{metric} {label[1]}"
    before, last = result.memory["counts"].get(key, (0, None))
    ts = round(max(ts, last + 2 * TICK) if last is not None else ts, 3)
    if last is None or ts - last > PAUSE_SECONDS:
        result.samples.append(Sample(metric, float(before), (label,), round(ts - TICK, 3)))
    result.samples.append(Sample(metric, before + 1.0, (label,), ts))
    result.memory["counts"][key] = [before + 1, ts]


def _expire(result: _ReadResult, now: float) -> None:
    """Ends sandboxes that are too old, and the oldest ones if there are too many."""
    ordered = sorted(result.memory["open"].items(), key=lambda item: item[1])
    old = [key for key, ts in ordered if now - ts > LIFETIME_SECONDS]
    for key in {*old, *(key for key, _ in ordered[: max(0, len(ordered) - MAX_OPEN)])}:
        ts = result.memory["open"].pop(key)
        sandbox = result.sandboxes.get(key) or Sandbox(key.partition(" ")[0], key.partition(" ")[2], "running")
        unlogged = structs.replace(sandbox, state="terminated", provider_state="its end is not logged")
        result.sandboxes[key] = structs.replace(unlogged, ended_at=min(now, ts + LIFETIME_SECONDS))
    begun = result.memory["begun"]
    for key in sorted(begun, key=lambda key: begun[key][0])[: max(0, len(begun) - MAX_OPEN)]:
        del begun[key]


def matches_path(path: Path) -> str | None:
    """The first log with lines of a sandbox SDK at its end, as the reason for the detection."""
    try:
        named = path.is_dir() or path.suffix in SUFFIXES
        for file in (_files(path, PROBE_DEPTH) if named else [])[-MAX_PROBED:]:
            if any(event_of(line) for _, line in dated_lines(_last_lines(file), 0.0, 0.0)):
                return f"{file.name} with lines of a sandbox SDK"
    except OSError:
        return None
    return None


def _last_lines(file: Path) -> Iterator[str]:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - PROBE_BYTES))
        for line in opened.read(PROBE_BYTES).decode(errors="replace").splitlines():
            yield jsonl.strip(line)


COLLECTOR = Collector(
    name="sandbox_log",
    actor="sandbox",
    reads="logs of a run: lines of Modal, verifiers, SWE-ReX and ROCK about sandboxes, and SDK errors",
    versions="modal 1.6.4, verifiers 0.4.0 and SWE-ReX 1.4.0 by recorded lines; ROCK 4889118bd by source",
    tail=tail,
    matches_path=matches_path,
)
