"""Reads episodes saved by verifiers (prime-rl run directories, evaluations): boot times and lost rollouts.

It needs no key, no provider API and no change to the run: prime-rl writes these files by default (its file monitor) and
appends each episode at its end. The path is a run directory (`rollouts/step_N/{train,eval}/all/traces.jsonl`;
`effective/` repeats the shipped ones), the directory of an evaluation (`traces.jsonl`), or such a file.

Not available: sandboxes of rollouts in progress (only the provider's API shows a straggler), the time of the first
command, and sandboxes that several rollouts share.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collectors.formats import verifiers
from collectors.model import Collector, Cursor, Limits, Reading, Sandbox
from collectors.sandbox_providers.traces import Counts, TracedRollout, count, rollout
from collectors.transport import bytetail


@dataclass(slots=True)
class _ReadResult:
    """Results of one call. ``memory`` is the cursor of the next."""

    memory: dict[str, Any]
    rollouts: list[TracedRollout] = field(default_factory=list)
    sandboxes: dict[tuple[str, str], Sandbox] = field(default_factory=dict)
    run: str = ""
    more: bool = False
    dropped: int = 0
    why: str = ""
    rows: int = 0
    unmapped: dict[str, int] = field(default_factory=dict)


@bytetail.readable("the traces")
def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Reads sandboxes and counters of the episodes appended since ``cursor``, step by step.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    memory = {"floor": 0, "closed": 0, "newest": 0.0, "counts": {}, **cursor, "files": dict(cursor.get("files", {}))}
    steps = _steps(path)
    if not steps:
        verifiers.refuse(path)
    # A resumed run removes the steps that it repeats and writes them again.
    memory["floor"] = min(memory["floor"], max(steps, default=0))
    result = _ReadResult(memory)
    _read_steps({step: files for step, files in steps.items() if step >= memory["floor"]}, path, limits, result)
    counts: Counts = {name: {**entry, "errors": dict(entry["errors"])} for name, entry in memory["counts"].items()}
    counted = [traced for traced in result.rollouts if traced.boxed and traced.purpose != "eval"]
    samples = tuple(count(counts, counted, now))
    memory["counts"] = counts
    memory["newest"] = max([memory["newest"], *(min(traced.ended_at or 0.0, now) for traced in result.rollouts)])
    return Reading(
        samples=samples,
        sandboxes=tuple(result.sandboxes.values()),
        facts=_facts(result),
        unmapped=result.unmapped,
        cursor=memory,
        more=result.more,
        dropped=result.dropped,
        why_dropped=result.why,
        samples_scraped=result.rows,
    )


def _facts(result: _ReadResult) -> dict[str, str | float]:
    facts: dict[str, str | float] = {"has_sandbox": 1.0} if any(traced.boxed for traced in result.rollouts) else {}
    # prime-rl sets this name as a label on each sandbox.
    return facts | ({"run_name": result.run} if result.run else {})


def _steps(path: Path) -> dict[int, list[Path]]:
    """Paths of present and future traces by step, ascending. The single file of an evaluation is step 0."""
    single_file = verifiers.single_file(path)
    paths_by_step = {0: [single_file]} if single_file is not None else {}
    for step in verifiers.steps(path):
        paths_by_step.setdefault(step, []).extend(verifiers.file_of(path, step, kind) for kind in verifiers.KINDS)
    return paths_by_step


def _read_steps(steps: dict[int, list[Path]], path: Path, limits: Limits, result: _ReadResult) -> None:
    """Reads file after file up to the limits of a call, and closes the steps that are over."""
    left = replace(limits, line_bytes=verifiers.LINE_BYTES)
    newest = list(steps)[-verifiers.OPEN_STEPS :]
    files: dict[str, Any] = {}
    for step, paths in steps.items():
        cursors = {verifiers.name(file, path): result.memory["files"].get(verifiers.name(file, path)) for file in paths}
        for file in paths:
            result.more = result.more or left.tail_rows <= 0 or left.tail_bytes <= 0
            if not result.more and file.is_file():
                read = _read(file, cursors[verifiers.name(file, path)] or {}, left, step, result)
                cursors[verifiers.name(file, path)] = read.cursor
                left = verifiers.left(left, read)
        if result.more or step in newest:
            files |= {name: cursor for name, cursor in cursors.items() if cursor}
        else:
            result.memory["floor"] = step + 1
    result.memory["files"] = files
    result.memory["closed"] = max(result.memory["closed"], result.memory["floor"])


def _read(file: Path, cursor: Cursor, limits: Limits, step: int, result: _ReadResult) -> bytetail.Lines:
    read = bytetail.read(file, cursor, limits)
    result.more = result.more or read.more
    result.dropped += read.dropped
    result.why = result.why or read.why
    result.rows += len(read.lines)
    # The file is read again from its start: it was rewritten, or the run repeats the step.
    repeated = read.restarted or (not cursor and step < result.memory["closed"])
    for offset, line in read.lines:
        row = verifiers.parse(line)
        if row is None or not verifiers.is_episode(row):
            result.dropped += 1
            result.why = result.why or f"the line at byte {offset} of {file.name} is not an episode of verifiers"
        else:
            _add_rollout(rollout(row), repeated, result)
            for version_name in verifiers.unknown_versions(row):
                result.unmapped[version_name] = result.unmapped.get(version_name, 0) + 1
    return read


def _add_rollout(traced: TracedRollout, repeated: bool, result: _ReadResult) -> None:
    result.run = traced.run or result.run
    result.sandboxes |= {(sandbox.provider, sandbox.id): sandbox for sandbox in traced.sandboxes}
    if not repeated or (traced.ended_at or 0.0) > result.memory["newest"]:
        result.rollouts.append(traced)


COLLECTOR = Collector(
    name="verifiers_traces",
    actor="sandbox",
    reads="episodes saved by verifiers and prime-rl (traces.jsonl): boot times, rollouts lost to their sandbox",
    versions="verifiers 0.4.0 by source and recorded files; prime-rl 559b4477 (2026-08) by source",
    tail=tail,
    matches_path=verifiers.matches_path,
)
