"""Converts a Modal `SandboxInfo` (protobuf message) to a sandbox row. Pure; does not use the SDK.

Modal has no state field: the state is derived from the task's times and result. The public `returncode` is not used,
because it reports a sandbox that died at init as a success. In protobuf 0 means "not set".
"""

from collections.abc import Iterator, Mapping
from typing import Any

from collectors.model import FailureCause, Sandbox, SandboxState
from collectors.sandbox_providers.failures import cause as cause_of
from collectors.sandbox_providers.listing import Tally
from collectors.transport.rest import clean, epoch, number, text

PROVIDER = "modal"

# GenericResult.GenericStatus: number -> (name, state, cause if the number determines it).
_RESULTS: Mapping[int, tuple[str, SandboxState, FailureCause | None]] = {
    1: ("SUCCESS", "terminated", None),
    2: ("FAILURE", "failed", None),
    3: ("TERMINATED", "terminated", None),
    4: ("TIMEOUT", "terminated", None),  # its lifetime is over; before the start it is a failure
    5: ("INIT_FAILURE", "failed", None),
    6: ("INTERNAL_FAILURE", "failed", "internal"),
    7: ("IDLE_TIMEOUT", "terminated", None),
    8: ("MEMORY_MANAGER_EVICTION", "failed", "capacity"),  # out of memory on the worker, not in the sandbox
    9: ("MEMORY_THRASHING_EVICTION", "failed", "oom"),
    10: ("KERNEL_OOM_KILL", "failed", "oom"),
}
# 128 + SIGINT, SIGKILL, SIGTERM: ended from outside.
_KILLED = (130, 137, 143)


def row(info: Any, run_label: str, tally: Tally) -> Sandbox | None:
    """Converts a listed sandbox; None (counted in the tally) without an id."""
    uid = text(info.id, 100)
    if not uid:
        tally.drop("a sandbox without an id")
        return None
    requested, started = epoch(info.created_at), epoch(info.task_info.started_at)
    state, provider_state, cause, detail = _state(info, started, tally)
    ready = _ready(info, started)
    if ready is not None and requested is not None and ready < requested:
        ready = None
    lifetime, begun = number(info.timeout_secs), started if started is not None else requested
    return Sandbox(
        provider=PROVIDER,
        id=uid,
        state=state,
        name=text(info.name, 253),
        run_key=next((value for name, value in _tags(info) if name == run_label), ""),
        provider_state=provider_state,
        requested_at=requested,
        started_at=started,
        ready_at=ready,
        ended_at=epoch(info.task_info.finished_at),
        image=text(info.image_id, 300),
        latency_source="server" if ready is not None and requested is not None else None,
        cause=cause,
        detail=detail,
        expires_at=begun + lifetime if lifetime and lifetime > 0 and begun is not None else None,
    )


def _state(info: Any, started: float | None, tally: Tally) -> tuple[SandboxState, str, FailureCause | None, str]:
    result = info.task_info.result
    if result.status:
        return _ended(result, started, tally)
    if epoch(info.task_info.finished_at) is not None:
        return "terminated", "finished", None, ""
    if started is None:
        # A task exists once the scheduler has it: waiting for a worker, loading the image, creating the container.
        placed = info.task_info.id or epoch(info.task_info.enqueued_at) is not None
        return ("starting", "enqueued", None, "") if placed else ("queued", "created", None, "")
    if _probed(info) and epoch(info.ready_at) is None:
        return "starting", "started, not ready", None, ""
    return "running", "running", None, ""


def _ended(result: Any, started: float | None, tally: Tally) -> tuple[SandboxState, str, FailureCause | None, str]:
    if result.status not in _RESULTS:
        tally.unknown("status", str(result.status))
        return "unknown", f"status {result.status}", None, ""
    status_name, state, cause = _RESULTS[result.status]
    detail = clean(result.exception or result.propagation_reason, 200)
    if status_name == "TIMEOUT" and started is None:
        return "failed", status_name, "timeout", detail
    if status_name == "FAILURE" and result.exitcode in _KILLED and started is not None:
        return "terminated", status_name, None, f"exit code {result.exitcode}"
    if state != "failed":
        return state, status_name, None, detail
    cause = cause or cause_of(detail)
    if cause == "unknown" and status_name == "INIT_FAILURE":
        cause = "internal"
    return "failed", status_name, cause, detail or (f"exit code {result.exitcode}" if result.exitcode else "")


def _ready(info: Any, started: float | None) -> float | None:
    """The first success of the readiness probe, if there is one, else the start."""
    return epoch(info.ready_at) if _probed(info) else started


def _probed(info: Any) -> bool:
    return bool(info.HasField("readiness_probe") or info.ready_at)


def _tags(info: Any) -> Iterator[tuple[str, str]]:
    for tag in info.tags:
        yield text(tag.tag_name, 200), text(tag.tag_value, 200)
