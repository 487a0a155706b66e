"""Episodes saved by verifiers and prime-rl: their files, and the parts of a line that several collectors read.

The files are `rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl` in a run directory of prime-rl, `traces.jsonl`
in the directory of an evaluation of verifiers, or such a file itself.

Source: verifiers 0.4.0 (v1/trace.py, rollout.py, episode.py); prime-rl 559b4477 (monitors/file.py, orchestrator.py).
Messages, tokens and tool output are never stored.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.formats import jsonl, rows
from collectors.formats.rows import mapping, objects
from collectors.model import Limits, ScrapeError
from collectors.transport import bytetail, rest

FILE, STEPS = "traces.jsonl", "rollouts"
KINDS = ("train", "eval")
CONFIG = ("configs", "rl.json")
LOOKED_FOR = f"{STEPS}/step_N/train/all/{FILE} or {FILE}, as verifiers writes them, or configs/rl.json"
# Bytes. An episode of 200,000 tokens with log-probabilities has about 6 MB, and long episodes matter most.
LINE_BYTES = 32 << 20
# A step's file grows until the next step begins (evaluations a little longer); older files are not read again.
OPEN_STEPS = 8
HEAD_BYTES = 512

TRACE_VERSION = 1
PHASES = ("boot", "setup", "agent", "finalize", "scoring")
# Runtimes on the host itself: nothing is provisioned, and the "id" is a path of the user.
NO_SANDBOX = ("", "subprocess")
# Errors of the task or of the harness, raised at their own boundary: they are no failures of the sandbox.
NOT_OURS = frozenset(
    f"{boundary}Error" for boundary in ("Task", "Harness", "Toolset", "Env", "Provider", "Interception", "Tunnel")
)

_STEP = re.compile(r"step_(\d{1,12})")
# Fields come in the order of the class. A whole line may have megabytes.
_HEAD = re.compile(rb'\{"id": ?"[^"]{1,200}", ?"env": ?\{')


def steps(path: Path) -> list[int]:
    """The steps with a folder, ascending."""
    folder = path / STEPS
    numbered = (_STEP.fullmatch(entry.name) for entry in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in numbered if match)


def file_of(path: Path, step: int, kind: str, cohort: str = "all") -> Path:
    """The path of a step's episodes, existing or not."""
    return path / STEPS / f"step_{step}" / kind / cohort / FILE


def single_file(path: Path) -> Path | None:
    """The only file of an evaluation: the path itself, or a file directly in it."""
    file = path if path.is_file() else path / FILE
    return file if file.is_file() and is_traces(file) else None


def refuse(path: Path) -> None:
    """Raises the reason why there is nothing to read.

    Raises:
        ScrapeError: ``missing`` or ``not_a_run``; none if a configuration shows that episodes will be written.
    """
    if path.joinpath(*CONFIG).is_file():
        return
    if not path.exists():
        raise ScrapeError("missing", f"{path.name} does not exist")
    raise ScrapeError("not_a_run", f"no traces of verifiers in {path.name}: looked for {LOOKED_FOR}")


def matches_path(path: Path) -> str | None:
    """The file with saved episodes, or prime-rl's configuration, which shows that some will be written."""
    try:
        for file in islice(_trace_files(path), OPEN_STEPS):
            if is_traces(file):
                return f"{name(file, path)} with verifiers' episodes"
        return "configs/rl.json: prime-rl saves its episodes" if path.joinpath(*CONFIG).is_file() else None
    except OSError:
        return None


def _trace_files(path: Path) -> Iterator[Path]:
    if (only := single_file(path)) is not None:
        yield only
    files = (file_of(path, step, kind) for step in steps(path) for kind in KINDS)
    yield from (file for file in files if file.is_file())


def is_traces(file: Path) -> bool:
    """Returns whether it begins with an episode, or is empty: an evaluation's file is created empty."""
    if file.suffix != ".jsonl":
        return False
    with file.open("rb") as opened:
        head = opened.read(HEAD_BYTES)
    return _HEAD.match(head) is not None or (file.name == FILE and not head)


def name(file: Path, root: Path) -> str:
    """The file's path relative to the given one."""
    return file.relative_to(root).as_posix() if file != root else file.name


def left(limits: Limits, read: bytetail.Lines) -> Limits:
    """What one call may still read."""
    used = sum(len(line) for _, line in read.lines)
    return replace(limits, tail_rows=limits.tail_rows - len(read.lines), tail_bytes=limits.tail_bytes - used)


def parse(line: bytes) -> Mapping[str, Any] | None:
    """The episode on a line without its long lists of numbers; None if it is not a JSON object."""
    return jsonl.parse(rows.numbers(line))


def is_episode(row: Mapping[str, Any]) -> bool:
    """Returns whether this looks like `Episode.to_record` of verifiers 1."""
    return isinstance(row.get("traces"), list) and isinstance(row.get("env"), dict) and "ok" in row


def unknown_versions(episode: Mapping[str, Any]) -> Iterator[str]:
    """Names schema versions of traces that were not checked; the traces are read as well as possible."""
    for trace in objects(episode.get("traces")):
        if trace.get("version") != TRACE_VERSION:
            yield f"trace version {rest.text(trace.get('version'), 10)}"


def environment(episode: Mapping[str, Any]) -> str:
    """The configured name of the environment, else its id."""
    env = mapping(episode, "env")
    return rest.text(env.get("name"), 100) or rest.text(env.get("id"), 100)


def runtime_kind(trace: Mapping[str, Any]) -> str:
    """The runtime (``prime``, ``docker``, ...); one of `NO_SANDBOX` on the host itself."""
    agent = mapping(trace, "agent")
    kind = mapping(agent, "runtime").get("type") or mapping(agent, "config", "runtime").get("type")
    return rest.text(kind, 40)


def booted(trace: Mapping[str, Any]) -> float | None:
    """When the sandbox was ready; None if it never was.

    A failed boot has its span closed at the end of the rollout (rollout.py, `close`), which is no boot time.
    `timing.setup.start` distinguishes the two: it is written at the true end of a boot only.
    """
    timing = mapping(trace, "timing")
    if rest.epoch(mapping(timing, "setup").get("start")) is None:
        return None
    return rest.epoch(mapping(timing, "boot").get("end"))


def ended(trace: Mapping[str, Any]) -> float | None:
    """The end of its last phase."""
    spans = (mapping(trace, "timing", phase) for phase in PHASES)
    ends = (rest.epoch(span.get("end")) for span in spans)
    return max((end for end in ends if end is not None), default=None)


def last_error(record: Mapping[str, Any]) -> str:
    """Type of the last error of an episode or a trace; earlier errors belong to earlier attempts. "" for none."""
    errors = objects(record.get("errors"))
    return rest.text(errors[-1].get("type"), 60) if errors else ""


def lost(trace: Mapping[str, Any]) -> bool:
    """Returns whether it failed because of its sandbox.

    Runtimes raise SandboxError, except for unexpected errors (an engine that does not answer: RuntimeError). Such an
    error belongs to the sandbox as long as nothing else has run.
    """
    if trace.get("ok") is not False:
        return False
    last = last_error(trace)
    booting = rest.epoch(mapping(trace, "timing", "boot").get("start")) is not None and booted(trace) is None
    unforeseen = booting and bool(last) and last not in NOT_OURS and runtime_kind(trace) not in NO_SANDBOX
    return last == "SandboxError" or unforeseen
