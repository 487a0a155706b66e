"""Results that harbor writes when a trial is over: how long environments took to start, trials lost to them.

`JOBS/JOB/TRIAL/result.json`; the path may be a folder of jobs, a job or a trial. Any provider harbor drives, no key.

Does not know: trials under way, the provider's own ids, whether an image was cached.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from collectors.formats import verifiers
from collectors.model import Collector, Cursor, Limits, Reading, ScrapeError
from collectors.sandbox_providers.rollout_counts import count
from collectors.sandbox_providers.trace_rows import TracedRollout
from collectors.sandboxes.harbor_trials.rows import is_trial, trial

FILE = "result.json"
LOOKED_FOR = f"{FILE} of harbor trials, up to two folders down"
# A trial with its token ids; what is larger is counted as dropped.
FILE_BYTES = 32 << 20
FOLDERS_MAX, DEPTH_MAX, PROBED_MAX = 20_000, 2, 8
# Clocks of hosts that write into one folder differ; results this much older than the newest are still looked for.
SLACK_SECONDS = 60.0


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Trials that ended since ``cursor``, oldest first. The cursor holds the newest time and what is near it.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    try:
        path.stat()
        found = sorted((at, name, file) for name, file in _results(path) if (at := _written(file)) is not None)
    except OSError as error:
        raise ScrapeError("missing", f"the results cannot be read: {type(error).__name__}") from None
    if not cursor and not any(is_trial(row) for _, _, file in found[:PROBED_MAX] if (row := _row(file)) is not None):
        raise ScrapeError("not_a_run", f"no trials in {path.name}: looked for {LOOKED_FOR}")
    seen: dict[str, float] = dict(cursor.get("recent", {}))
    since = cursor.get("newest", 0.0) - SLACK_SECONDS
    new = [(at, name, file) for at, name, file in found if at >= since and seen.get(name) != at]
    taken = new[: limits.tail_rows]
    trials, dropped = _read(taken, seen, now)
    counts = {name: {**kept, "errors": dict(kept["errors"])} for name, kept in cursor.get("counts", {}).items()}
    boxes = tuple(box for one in trials for box in one.sandboxes)
    newest = max([cursor.get("newest", 0.0), *(at for at, _, _ in taken)])
    recent = {name: at for name, at in seen.items() if at >= newest - SLACK_SECONDS}
    return Reading(
        samples=tuple(count(counts, [one for one in trials if one.boxed], now)),
        sandboxes=boxes,
        facts={"has_sandbox": 1.0} if boxes else {},
        cursor={"newest": newest, "recent": recent, "counts": counts},
        more=len(new) > len(taken),
        dropped=dropped,
        why_dropped=f"a {FILE} that is no JSON object, or larger than {FILE_BYTES} bytes" if dropped else "",
        samples_scraped=len(taken),
    )


def _read(taken: list[tuple[float, str, Path]], seen: dict[str, float], now: float) -> tuple[list[TracedRollout], int]:
    """(trials, files that are broken); what was read is noted in `seen`, so one just being written comes again."""
    trials, dropped = [], 0
    for at, name, file in taken:
        row = _row(file)
        if row is None and now - at < SLACK_SECONDS / 2:
            continue
        seen[name] = at
        dropped += row is None
        one = trial(row) if row is not None and is_trial(row) else None
        trials += [one] if one is not None else []
    return trials, dropped


def _written(file: Path) -> float | None:
    """When a regular file was last modified; None for anything else: a broken link, a pipe, one that went away."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) else None


def _no_wait(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _row(file: Path) -> dict[str, Any] | None:
    try:
        # It may have become a pipe since it was looked at: opening one would wait for a writer.
        with open(file, "rb", opener=_no_wait) as opened:
            body = opened.read(FILE_BYTES + 1) if stat.S_ISREG(os.fstat(opened.fileno()).st_mode) else b""
    except OSError:
        return None
    row = verifiers.parse(body) if len(body) <= FILE_BYTES else None
    return dict(row) if row is not None else None


def _results(path: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of every result up to two folders down; bounded, links not followed."""
    for folders, (folder, names, files) in enumerate(os.walk(path), 1):
        here = Path(folder).relative_to(path)
        names[:] = [] if len(here.parts) >= DEPTH_MAX or folders > FOLDERS_MAX else sorted(names)
        if FILE in files:
            yield here.as_posix(), Path(folder) / FILE
        if folders > FOLDERS_MAX:
            return


def matches_path(path: Path) -> str | None:
    """The trial that gives harbor's folder away."""
    try:
        if not path.is_dir():
            return None
        for number, (name, file) in enumerate(_results(path)):
            if (row := _row(file)) is not None and is_trial(row):
                return f"{name}/{FILE} of a harbor trial"
            if number >= PROBED_MAX:
                return None
    except OSError:
        return None
    return None


COLLECTOR = Collector(
    name="harbor_trials",
    actor="sandbox",
    reads="results of harbor trials (result.json): environment start times, trials lost to their sandbox",
    versions="harbor 0.25.0 by source and results written by its own models",
    tail=tail,
    matches_path=matches_path,
    report_seconds=15.0,
)
