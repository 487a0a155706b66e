"""Reads the results that harbor writes at the end of a trial: start times of environments, trials lost to them.

`JOBS/JOB/TRIAL/result.json`; the path may be a folder of jobs, a job or a trial. Works for all providers of harbor,
without a key. Not available: trials in progress, the provider's own ids, whether an image was cached.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collectors.formats import verifiers
from collectors.model import Collector, Cursor, Limits, Reading, Sandbox, ScrapeError
from collectors.sandbox_providers.provider import cause, mapping
from collectors.sandbox_providers.traces import TracedRollout, count
from collectors.transport import bytetail, rest

# ---- rows
# Converts the result of a harbor trial to records.

# Errors that harbor classifies as `sandbox_failed` (models/trial/error_policy.py).
SANDBOX_FAILED = frozenset(
    (
        "EnvironmentStartTimeoutError", "SandboxBuildFailedError", "AgentSetupTimeoutError", "HealthcheckError",
        "SandboxLikelyOutOfMemoryError", "MemoryLimitExceededError", "SSHAccessError", "GKEExecStreamClosedError",
        "GKEPodNotFoundError", "RuntimeRequestError", "AddTestsDirError", "DownloadVerifierDirError",
    )
)  # fmt: skip
CANCELLED = "CancelledError"
# Causes of error types; for other types the message is searched.
_CAUSES = {"EnvironmentStartTimeoutError": "timeout", "SandboxBuildFailedError": "image build failed",
           "SandboxLikelyOutOfMemoryError": "oom", "MemoryLimitExceededError": "oom"}  # fmt: skip


def is_trial(row: Mapping[str, Any]) -> bool:
    """Is it a `TrialResult` of harbor? The result of a job lacks these keys."""
    return isinstance(row.get("trial_name"), str) and "task_checksum" in row and "environment_setup" in row


def trial(row: Mapping[str, Any]) -> TracedRollout | None:
    """The record of a trial; None for a cancelled trial, which is neither a failure nor a rollout."""
    failed = rest.text(mapping(row, "exception_info").get("exception_type"), 60)
    if failed == CANCELLED:
        return None
    begun, ready = _time(row, "environment_setup", "started_at"), _ready(row)
    lost = failed in SANDBOX_FAILED or (bool(failed) and begun is not None and ready is None)
    return TracedRollout(
        environment=rest.text(row.get("source"), 100) or "harbor",
        run="",
        purpose="",
        ended_at=rest.epoch(row.get("finished_at")),
        boxed=begun is not None or lost,
        lost=lost,
        errors=(failed,) if failed else (),
        sandboxes=(_sandbox(row, failed if lost else "", begun, ready),) if begun is not None else (),
    )


def _sandbox(row: Mapping[str, Any], failed: str, begun: float | None, ready: float | None) -> Sandbox:
    message = mapping(row, "exception_info").get("exception_message")
    # Only the first line: the others may be output of the agent's commands.
    line = message.strip().split("\n", 1)[0][:800] if failed and isinstance(message, str) else ""
    name = rest.text(row.get("trial_name"), 200)
    return Sandbox(
        provider=rest.text(mapping(row, "config", "environment").get("type"), 40) or "harbor",
        # The provider's id is not in the file, so the trial's id is used.
        id=rest.text(row.get("id"), 100) or name,
        state="failed" if failed else "terminated",
        name=name,
        provider_state=failed,
        requested_at=begun,
        ready_at=ready,
        ended_at=rest.epoch(row.get("finished_at")),
        latency_source="trace" if ready is not None else None,
        cause=cause(_CAUSES.get(failed, failed), line) if failed else None,
        detail=rest.clean(f"{failed}: {line}" if line else failed),
    )


def _ready(row: Mapping[str, Any]) -> float | None:
    if _time(row, "agent_setup", "started_at") is None:
        return None
    return _time(row, "environment_setup", "finished_at")


def _time(row: Mapping[str, Any], phase: str, which: str) -> float | None:
    return rest.epoch(mapping(row, phase).get(which))


FILE = "result.json"
LOOKED_FOR = f"{FILE} of harbor trials, up to two folders down"
# Largest result that is read (a trial with its token ids); larger files count as dropped.
FILE_BYTES = 32 << 20
# Folders that are searched, their depth, and the files that detection opens.
MAX_FOLDERS = 20_000
MAX_DEPTH = 2
MAX_PROBED = 8
# Files this much older than the newest may still be new, because the clocks of the writing hosts differ.
SLACK_SECONDS = 60.0


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Reads trials that ended since ``cursor``, oldest first. The cursor has the newest time and the files near it.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    with bytetail.readable("the results"):
        path.stat()
        results = sorted(
            (at, name, file) for name, file in _results(path) if (at := _modification_time(file)) is not None
        )
    if not cursor and not any(is_trial(row) for _, _, file in results[:MAX_PROBED] if (row := _row(file)) is not None):
        raise ScrapeError("not_a_run", f"no trials in {path.name}: looked for {LOOKED_FOR}")
    seen: dict[str, float] = dict(cursor.get("recent", {}))
    since = cursor.get("newest", 0.0) - SLACK_SECONDS
    new = [(at, name, file) for at, name, file in results if at >= since and seen.get(name) != at]
    to_read = new[: limits.tail_rows]
    trials, dropped = _read(to_read, seen, now)
    counts = {name: {**entry, "errors": dict(entry["errors"])} for name, entry in cursor.get("counts", {}).items()}
    sandboxes = tuple(sandbox for rollout in trials for sandbox in rollout.sandboxes)
    newest = max([cursor.get("newest", 0.0), *(at for at, _, _ in to_read)])
    recent = {name: at for name, at in seen.items() if at >= newest - SLACK_SECONDS}
    return Reading(
        samples=tuple(count(counts, [rollout for rollout in trials if rollout.boxed], now)),
        sandboxes=sandboxes,
        facts={"has_sandbox": 1.0} if sandboxes else {},
        cursor={"newest": newest, "recent": recent, "counts": counts},
        more=len(new) > len(to_read),
        dropped=dropped,
        why_dropped=f"a {FILE} that is not a JSON object, or is larger than {FILE_BYTES} bytes" if dropped else "",
        samples_scraped=len(to_read),
    )


def _read(
    to_read: list[tuple[float, str, Path]], seen: dict[str, float], now: float
) -> tuple[list[TracedRollout], int]:
    """(trials, number of invalid files). Files that were read are added to `seen`; a file being written is not."""
    trials, dropped = [], 0
    for at, name, file in to_read:
        row = _row(file)
        if row is None and now - at < SLACK_SECONDS / 2:
            continue
        seen[name] = at
        dropped += row is None
        rollout = trial(row) if row is not None and is_trial(row) else None
        trials += [rollout] if rollout is not None else []
    return trials, dropped


def _modification_time(file: Path) -> float | None:
    """Modification time of a regular file; None for anything else (broken link, pipe, removed file)."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime if stat.S_ISREG(status.st_mode) else None


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _row(file: Path) -> dict[str, Any] | None:
    try:
        # Non-blocking, because the file may have been replaced by a pipe, whose opening waits for a writer.
        with open(file, "rb", opener=_open_without_blocking) as opened:
            body = opened.read(FILE_BYTES + 1) if stat.S_ISREG(os.fstat(opened.fileno()).st_mode) else b""
    except OSError:
        return None
    row = verifiers.parse(body) if len(body) <= FILE_BYTES else None
    return dict(row) if row is not None else None


def _results(path: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of each result up to two folders deep. Links are not followed."""
    for folders, (folder, names, files) in enumerate(os.walk(path), 1):
        relative = Path(folder).relative_to(path)
        names[:] = [] if len(relative.parts) >= MAX_DEPTH or folders > MAX_FOLDERS else sorted(names)
        if FILE in files:
            yield relative.as_posix(), Path(folder) / FILE
        if folders > MAX_FOLDERS:
            return


def matches_path(path: Path) -> str | None:
    """The first trial of a harbor folder, as the reason for the detection."""
    try:
        if not path.is_dir():
            return None
        for number, (name, file) in enumerate(_results(path)):
            if (row := _row(file)) is not None and is_trial(row):
                return f"{name}/{FILE} of a harbor trial"
            if number >= MAX_PROBED:
                return None
    except OSError:
        return None
    return None


COLLECTOR = Collector(
    name="harbor_trials",
    actor="sandbox",
    reads="results of harbor trials (result.json): environment start times, trials lost to their sandbox",
    versions="harbor 0.25.0 by source and results written with harbor's own classes",
    tail=tail,
    matches_path=matches_path,
    report_seconds=15.0,
)
