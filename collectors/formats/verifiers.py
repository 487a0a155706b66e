"""Episodes as verifiers and prime-rl save them: where their files are, and what several collectors read of a line.

`rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl` in a run directory of prime-rl, `traces.jsonl` in the
directory of an evaluation of verifiers, or such a file itself.

Source: verifiers 0.4.0 (v1/trace.py, rollout.py, episode.py); prime-rl 559b4477 (monitors/file.py, orchestrator.py).
Messages, tokens and tool output are never kept.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.formats import jsonl, slim
from collectors.formats.shapes import mapping, objects
from collectors.model import Limits, ScrapeError
from collectors.transport import bytetail, rest

FILE, STEPS = "traces.jsonl", "rollouts"
KINDS = ("train", "eval")
CONFIG = ("configs", "rl.json")
LOOKED_FOR = f"{STEPS}/step_N/train/all/{FILE} or {FILE}, as verifiers writes them, or configs/rl.json"
# An episode of 200,000 tokens with its log-probabilities is some 6 MB; the long ones are the ones that matter.
LINE_BYTES = 32 << 20
# A step's file grows until the next step begins (evaluations a little longer); older ones are not looked at again.
OPEN_STEPS = 8
HEAD_BYTES = 512

TRACE_VERSION = 1
PHASES = ("boot", "setup", "agent", "finalize", "scoring")
# Runs on the host itself: nothing is provisioned, and its "id" is a path of the user's.
NO_SANDBOX = ("", "subprocess")
# Errors of the task's author or of the harness, raised at a boundary of their own: the sandbox is not to blame.
NOT_OURS = frozenset(
    f"{boundary}Error" for boundary in ("Task", "Harness", "Toolset", "Env", "Provider", "Interception", "Tunnel")
)

_STEP = re.compile(r"step_(\d{1,12})")
# Fields come in the order of the class; a whole line may be megabytes.
_HEAD = re.compile(rb'\{"id": ?"[^"]{1,200}", ?"env": ?\{')


def steps(path: Path) -> list[int]:
    """The steps that have a folder, ascending."""
    folder = path / STEPS
    numbered = (_STEP.fullmatch(one.name) for one in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(match[1]) for match in numbered if match)


def file_of(path: Path, step: int, kind: str, cohort: str = "all") -> Path:
    """Where a step's episodes are or will be."""
    return path / STEPS / f"step_{step}" / kind / cohort / FILE


def alone(path: Path) -> Path | None:
    """The only file of an evaluation: this one, or the one right in this directory."""
    file = path if path.is_file() else path / FILE
    return file if file.is_file() and is_traces(file) else None


def refuse(path: Path) -> None:
    """Say why there is nothing to read.

    Raises:
        ScrapeError: ``missing`` or ``not_a_run``; none while there is a configuration that says there will be some.
    """
    if path.joinpath(*CONFIG).is_file():
        return
    if not path.exists():
        raise ScrapeError("missing", f"{path.name} does not exist")
    raise ScrapeError("not_a_run", f"no traces of verifiers in {path.name}: looked for {LOOKED_FOR}")


def matches_path(path: Path) -> str | None:
    """The file that shows saved episodes, or prime-rl's configuration, which says that there will be some."""
    try:
        for file in islice(_there(path), OPEN_STEPS):
            if is_traces(file):
                return f"{name(file, path)} with verifiers' episodes"
        return "configs/rl.json: prime-rl saves its episodes" if path.joinpath(*CONFIG).is_file() else None
    except OSError:
        return None


def _there(path: Path) -> Iterator[Path]:
    if (only := alone(path)) is not None:
        yield only
    found = (file_of(path, step, kind) for step in steps(path) for kind in KINDS)
    yield from (file for file in found if file.is_file())


def is_traces(file: Path) -> bool:
    """Does it begin with an episode? The file of an evaluation is made empty, and filled as episodes end."""
    if file.suffix != ".jsonl":
        return False
    with file.open("rb") as opened:
        head = opened.read(HEAD_BYTES)
    return _HEAD.match(head) is not None or (file.name == FILE and not head)


def name(file: Path, root: Path) -> str:
    """The file's path below what was given."""
    return file.relative_to(root).as_posix() if file != root else file.name


def left(limits: Limits, read: bytetail.Lines) -> Limits:
    """What one call may still take."""
    taken = sum(len(line) for _, line in read.lines)
    return replace(limits, tail_rows=limits.tail_rows - len(read.lines), tail_bytes=limits.tail_bytes - taken)


def parse(line: bytes) -> Mapping[str, Any] | None:
    """The episode on a line, without its long lists of numbers; None when it is no JSON object."""
    return jsonl.parse(slim.numbers(line))


def is_episode(row: Mapping[str, Any]) -> bool:
    """Does this look like `Episode.to_record` of verifiers 1?"""
    return isinstance(row.get("traces"), list) and isinstance(row.get("env"), dict) and "ok" in row


def unknown_versions(episode: Mapping[str, Any]) -> Iterator[str]:
    """Traces of a schema that was not checked are read as well as they can be, and named."""
    for trace in objects(episode.get("traces")):
        if trace.get("version") != TRACE_VERSION:
            yield f"trace version {rest.text(trace.get('version'), 10)}"


def environment(episode: Mapping[str, Any]) -> str:
    """The name it is run under, else what it is."""
    env = mapping(episode, "env")
    return rest.text(env.get("name"), 100) or rest.text(env.get("id"), 100)


def runtime_kind(trace: Mapping[str, Any]) -> str:
    """What it ran in (``prime``, ``docker``, ...); one of `NO_SANDBOX` on the host itself."""
    agent = mapping(trace, "agent")
    told = mapping(agent, "runtime").get("type") or mapping(agent, "config", "runtime").get("type")
    return rest.text(told, 40)


def booted(trace: Mapping[str, Any]) -> float | None:
    """When its sandbox was ready; None when it never was.

    A boot that fails has its span closed at the end of the rollout (rollout.py, `close`): that is no boot time. What
    tells the two apart is `timing.setup.start`, which is written in the moment of a boot's true end, and nowhere else.
    """
    timing = mapping(trace, "timing")
    if rest.epoch(mapping(timing, "setup").get("start")) is None:
        return None
    return rest.epoch(mapping(timing, "boot").get("end"))


def ended(trace: Mapping[str, Any]) -> float | None:
    """When its last phase ended."""
    spans = (mapping(trace, "timing", phase) for phase in PHASES)
    ends = (rest.epoch(span.get("end")) for span in spans)
    return max((end for end in ends if end is not None), default=None)


def last_error(record: Mapping[str, Any]) -> str:
    """Type of the last error of an episode or a trace: earlier ones are of attempts before. "" without any."""
    errors = objects(record.get("errors"))
    return rest.text(errors[-1].get("type"), 60) if errors else ""


def lost(trace: Mapping[str, Any]) -> bool:
    """It failed, and by its sandbox.

    Runtimes raise SandboxError, but for what they did not foresee (an engine that does not answer: RuntimeError);
    that is theirs too while nothing else has run yet.
    """
    if trace.get("ok") is not False:
        return False
    last = last_error(trace)
    booting = rest.epoch(mapping(trace, "timing", "boot").get("start")) is not None and booted(trace) is None
    unforeseen = booting and bool(last) and last not in NOT_OURS and runtime_kind(trace) not in NO_SANDBOX
    return last == "SandboxError" or unforeseen
