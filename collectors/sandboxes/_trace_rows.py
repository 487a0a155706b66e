"""One saved episode of verifiers as records: where its rollouts ran, how long boot took, what was lost to a sandbox.

Source: verifiers 0.4.0 (v1/trace.py, rollout.py, episode.py). Messages, tokens and tool output are never kept.

`timing.boot` is the caller's wall clock round `runtime.start()` and `prepare_setup()`: it holds the wait in verifiers'
own limiter of creations, so it is longer than the provider's figure when the run throttles itself. When boot fails, its
span is closed at the end of the rollout (rollout.py, `close`): that is no boot time. What tells the two apart is
`timing.setup.start`, which is written in the same moment as a boot's true end, and nowhere else.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from collectors.model import Sandbox
from collectors.readers import jsonl, rest
from collectors.sandboxes._failures import cause
from collectors.sandboxes._shape import mapping, objects

TRACE_VERSION = 1
PHASES = ("boot", "setup", "agent", "finalize", "scoring")
# Runs on the host itself: nothing is provisioned, and its "id" is a path of the user's.
NO_SANDBOX = ("", "subprocess")
# Errors of the task's author or of the harness, raised at a boundary of their own: the sandbox is not to blame.
NOT_OURS = frozenset(
    f"{boundary}Error" for boundary in ("Task", "Harness", "Toolset", "Env", "Provider", "Interception", "Tunnel")
)

# Token ids, masks and log-probabilities: most of a line, and nothing of it is read. No quote and no bracket can be
# inside, so what is cut out of a text leaves a text; one pass, three times faster than parsing them (2.6 MB: 7 ms).
_NUMBERS = re.compile(rb"\[[-+0-9.eE,\struefalsn]{64,}\]")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode, as far as sandboxes go. Epoch seconds.

    Attributes:
        ended_at: when its last phase ended; None: it says no time.
        purpose: ``train`` or ``eval`` of a training run; "" when it does not say (a run of its own).
        boxed: it ran, or was to run, in a sandbox.
        lost: it failed, and its sandbox is why.
        errors: types of all errors on the way, those of attempts that were repeated too.
    """

    environment: str
    run: str
    purpose: str
    ended_at: float | None
    boxed: bool
    lost: bool
    errors: tuple[str, ...] = ()
    sandboxes: tuple[Sandbox, ...] = field(default=())


def parse(line: bytes) -> Mapping[str, Any] | None:
    """The episode on a line, without its long lists of numbers; None when it is no JSON object."""
    return jsonl.parse(_NUMBERS.sub(b"[]", line))


def is_episode(row: Mapping[str, Any]) -> bool:
    """Does this look like `Episode.to_record` of verifiers 1?"""
    return isinstance(row.get("traces"), list) and isinstance(row.get("env"), dict) and "ok" in row


def unknown_versions(episode: Mapping[str, Any]) -> Iterator[str]:
    """Traces of a schema that was not checked are read as well as they can be, and named."""
    for trace in objects(episode.get("traces")):
        if trace.get("version") != TRACE_VERSION:
            yield f"trace version {rest.text(trace.get('version'), 10)}"


def rollout(episode: Mapping[str, Any]) -> Rollout:
    """An episode's record. Of several agents each has its sandbox; the episode is lost when one of them is."""
    traces = objects(episode.get("traces"))
    run = mapping(episode, "run")
    name = rest.text(run.get("name"), 200)
    env = mapping(episode, "env")
    boxed = any(_kind(trace) not in NO_SANDBOX for trace in traces)
    lost = any(_lost(trace) for trace in traces) or (not traces and _last_error(episode) == "SandboxError")
    return Rollout(
        environment=rest.text(env.get("name"), 100) or rest.text(env.get("id"), 100),
        run=name,
        purpose=rest.text(mapping(run, "work").get("type"), 20),
        ended_at=max((end for trace in traces if (end := _ended(trace)) is not None), default=None),
        boxed=boxed or lost,
        lost=lost and episode.get("ok") is not True,
        errors=tuple(_errors(episode, traces)),
        sandboxes=tuple(one for trace in traces if (one := sandbox(trace, name)) is not None),
    )


def sandbox(trace: Mapping[str, Any], run: str) -> Sandbox | None:
    """The sandbox a trace had to itself; None on the host, or in a box it only borrowed."""
    runtime = mapping(trace, "agent", "runtime")
    kind, trace_id = _kind(trace), rest.text(trace.get("id"), 100)
    uid = rest.text(runtime.get("id"), 200) or trace_id
    if kind in NO_SANDBOX or not uid or runtime.get("borrowed") is True:
        return None
    lost, cached = _lost(trace), runtime.get("image_cached")
    requested, ready = rest.epoch(mapping(trace, "timing", "boot").get("start")), _booted(trace)
    said = _message(trace) if lost else ""
    return Sandbox(
        provider=kind,
        # A creation that was refused has no id: the trace's is the name the sandbox would have had.
        id=uid,
        state="failed" if lost else "terminated",
        name=trace_id,
        run_key=run,
        provider_state=rest.text(trace.get("stop_condition"), 60),
        requested_at=requested,
        ready_at=ready,
        ended_at=_ended(trace),
        image=rest.text(runtime.get("image"), 300),
        image_cached=cached if isinstance(cached, bool) else None,
        latency_source="trace" if ready is not None and requested is not None else None,
        cause=cause(said) if lost else None,
        detail=rest.clean(said),
    )


def _kind(trace: Mapping[str, Any]) -> str:
    agent = mapping(trace, "agent")
    told = mapping(agent, "runtime").get("type") or mapping(agent, "config", "runtime").get("type")
    return rest.text(told, 40)


def _lost(trace: Mapping[str, Any]) -> bool:
    """It failed, and by its sandbox: the last error is of this attempt, earlier ones of attempts before.

    Runtimes raise SandboxError, but for what they did not foresee (an engine that does not answer: RuntimeError);
    that is theirs too while nothing else has run yet.
    """
    if trace.get("ok") is not False:
        return False
    last = _last_error(trace)
    booting = rest.epoch(mapping(trace, "timing", "boot").get("start")) is not None and _booted(trace) is None
    unforeseen = booting and bool(last) and last not in NOT_OURS and _kind(trace) not in NO_SANDBOX
    return last == "SandboxError" or unforeseen


def _booted(trace: Mapping[str, Any]) -> float | None:
    timing = mapping(trace, "timing")
    if rest.epoch(mapping(timing, "setup").get("start")) is None:
        return None
    return rest.epoch(mapping(timing, "boot").get("end"))


def _ended(trace: Mapping[str, Any]) -> float | None:
    spans = (mapping(trace, "timing", phase) for phase in PHASES)
    ends = (rest.epoch(span.get("end")) for span in spans)
    return max((end for end in ends if end is not None), default=None)


def _last_error(record: Mapping[str, Any]) -> str:
    errors = objects(record.get("errors"))
    return rest.text(errors[-1].get("type"), 60) if errors else ""


def _message(trace: Mapping[str, Any]) -> str:
    """The first line of the last error: what follows may be output of the model's own commands."""
    message = objects(trace.get("errors"))[-1].get("message")
    return message.strip().split("\n", 1)[0][:800] if isinstance(message, str) and message.strip() else ""


def _errors(episode: Mapping[str, Any], traces: list[Mapping[str, Any]]) -> Iterator[str]:
    for record in (episode, *traces):
        for error in objects(record.get("errors")):
            yield rest.text(error.get("type"), 60) or "unknown"
