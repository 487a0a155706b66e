"""Converts a Kubernetes pod's JSON to a sandbox row. Pure.

Times have a resolution of one second. Conditions have only the *last* change: after a restart or a failed readiness
probe "Ready since" is not the first start. So the first readiness is stored when it is seen (``first_ready``). It is
unknown for a pod that restarted before the first poll.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from collectors.model import FailureCause, Sandbox, SandboxState
from collectors.sandbox_providers.failures import cause as cause_of
from collectors.sandbox_providers.listing import Tally, mapping, objects
from collectors.transport.rest import clean, epoch, number, text

PROVIDER = "kubernetes"

# Wait reasons that mean failure: the kubelet tries again, but without a change it will not succeed. ErrImagePull is not
# listed: it is the reason of the first attempt, and ImagePullBackOff follows if the error persists.
_FAILED_WAITS: Mapping[str, FailureCause | None] = {
    "ImagePullBackOff": "image",
    "InvalidImageName": "image",
    "ErrImageNeverPull": "image",
    "ImageInspectError": "image",
    "RegistryUnavailable": "image",
    "SignatureValidationFailed": "image",
    "CreateContainerConfigError": "internal",
    "CreateContainerError": None,  # the cause is in its message: a missing executable, a full disk
    "RunContainerError": None,
    "PreCreateHookError": "internal",
    "PreStartHookError": "internal",
    "PostStartHookError": "internal",
    "CrashLoopBackOff": None,  # the cause of the crash is in lastState
}
_REASONS: Mapping[str, FailureCause] = {
    "OOMKilled": "oom",
    "DeadlineExceeded": "timeout",
    "Evicted": "capacity",
    "Preempting": "capacity",
    "Shutdown": "capacity",
    "Terminated": "capacity",
    "NodeShutdown": "capacity",
    "NodeLost": "capacity",
    "NodeAffinity": "capacity",
    "ContainerCannotRun": "image",
    "StartError": "image",
}
_PHASES: Mapping[str, SandboxState] = {
    "Pending": "starting",
    "Running": "running",
    "Succeeded": "terminated",
    "Failed": "failed",
    "Unknown": "unknown",
}


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as a sandbox, and the uid of the Sandbox resource that owns it, or ""."""

    row: Sandbox
    owner: str


@dataclass(frozen=True, slots=True)
class _Status:
    """The state of a pod, derived from its status."""

    state: SandboxState
    provider_state: str
    cause: FailureCause | None = None
    detail: str = ""
    unreachable: bool = False


def pod(item: Mapping[str, Any], run_label: str, first_ready: MutableMapping[str, float], tally: Tally) -> Pod | None:
    """Converts an item of a pod list; None (counted in the tally) without a uid.

    Args:
        first_ready: per uid the first readiness; read and updated.
    """
    meta, status, spec = mapping(item, "metadata"), mapping(item, "status"), mapping(item, "spec")
    uid = text(meta.get("uid"), 100)
    if not uid:
        tally.drop("a pod without a uid")
        return None
    conditions = by_type(status)
    containers = objects(status.get("containerStatuses"))
    pod_status = _status_of(meta, status, conditions, containers, tally)
    restarted = any((number(container.get("restartCount")) or 0.0) > 0 for container in containers)
    ready = first_readiness(uid, ready_since(conditions), pod_status, restarted, first_ready)
    requested, scheduled = epoch(meta.get("creationTimestamp")), ready_since(conditions, "PodScheduled")
    if ready is not None and requested is not None and ready < requested:
        ready = None  # the clocks of two nodes differ; a negative latency is invalid
    row = Sandbox(
        provider=PROVIDER,
        id=uid,
        state=pod_status.state,
        name=text(meta.get("name"), 253),
        run_key=text(mapping(meta, "labels").get(run_label), 200),
        provider_state=pod_status.provider_state,
        requested_at=requested,
        started_at=scheduled,
        ready_at=ready,
        ended_at=_ended(containers) if pod_status.state in ("terminated", "failed") else None,
        image=image(spec),
        latency_source="server" if ready is not None and requested is not None else None,
        cause=pod_status.cause,
        detail=clean(pod_status.detail, 200),
        unreachable=pod_status.unreachable,
        expires_at=_expires(spec, status),
    )
    return Pod(row, _owner(meta))


def by_type(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Conditions of a status by their type."""
    return {text(condition.get("type"), 100): condition for condition in objects(status.get("conditions"))}


def ready_since(conditions: Mapping[str, Mapping[str, Any]], name: str = "Ready") -> float | None:
    """Epoch seconds since which a condition is true; None if it is not."""
    condition = mapping(conditions.get(name))
    return epoch(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def first_readiness(
    uid: str, since: float | None, derived_status: Any, doubtful: bool, memory: MutableMapping[str, float]
) -> float | None:
    """The first readiness: the earliest one seen; None if "ready since" may be that of a later start."""
    if uid not in memory and since is not None and not doubtful and derived_status.state == "running":
        memory[uid] = since
    return memory.get(uid)


def image(spec: Mapping[str, Any]) -> str:
    """The first container's image."""
    return next((text(container.get("image"), 300) for container in objects(spec.get("containers"))), "")


def _status_of(
    meta: Mapping[str, Any],
    status: Mapping[str, Any],
    conditions: Mapping[str, Mapping[str, Any]],
    containers: list[Mapping[str, Any]],
    tally: Tally,
) -> _Status:
    phase = text(status.get("phase"), 60)
    state = _PHASES.get(phase)
    if meta.get("deletionTimestamp") and state != "failed":
        return _Status("stopping" if state != "terminated" else state, f"{phase} Terminating".strip())
    if state is None:
        tally.unknown("phase", phase)
        return _Status("unknown", phase)
    if state == "failed":
        return _failed(status, containers)
    waiting = _waiting(objects(status.get("initContainerStatuses")) + containers)
    if state in ("starting", "running") and waiting is not None:
        return waiting
    if state == "starting":
        return _pending(phase, conditions)
    return _running(phase, conditions, containers) if state == "running" else _Status(state, phase)


def _failed(status: Mapping[str, Any], containers: list[Mapping[str, Any]]) -> _Status:
    reason, message = text(status.get("reason"), 100), text(status.get("message"), 800)
    terminated_states = [mapping(container, "state", "terminated") for container in containers]
    failed_container = next(
        (container for container in terminated_states if number(container.get("exitCode")) not in (None, 0.0)),
        mapping(None),
    )
    inner = text(failed_container.get("reason"), 100)
    code = number(failed_container.get("exitCode"))
    message_text = (
        message or text(failed_container.get("message"), 800) or ("" if code is None else f"exit code {code:g}")
    )
    failure_cause = _REASONS.get(inner) or _REASONS.get(reason) or cause_of(reason, message_text, inner)
    return _Status(
        "failed", " ".join(part for part in ("Failed", reason or inner) if part), failure_cause, message_text
    )


def _waiting(containers: list[Mapping[str, Any]]) -> _Status | None:
    """State by the first container (init containers first) with a wait reason that means failure."""
    for container in containers:
        waiting = mapping(container, "state", "waiting")
        reason = text(waiting.get("reason"), 100)
        if reason not in _FAILED_WAITS:
            continue
        last = mapping(container, "lastState", "terminated")
        died, message_text = text(last.get("reason"), 100), text(waiting.get("message"), 800)
        code = number(last.get("exitCode"))
        failure_cause = _FAILED_WAITS[reason] or _REASONS.get(died) or cause_of(message_text if not last else died)
        crash = f"{died} exit code {code:g}" if code is not None else ""
        return _Status("failed", reason, failure_cause, " ".join(part for part in (crash, message_text) if part))
    return None


def _pending(phase: str, conditions: Mapping[str, Mapping[str, Any]]) -> _Status:
    scheduled = mapping(conditions.get("PodScheduled"))
    if scheduled.get("status") == "True":
        return _Status("starting", phase)
    # Unschedulable is not a failure: the pod starts when there is capacity. The scheduler's message names the missing
    # resource.
    reason = text(scheduled.get("reason"), 100)
    return _Status("queued", f"{phase} {reason}".strip(), detail=text(scheduled.get("message"), 800))


def _running(phase: str, conditions: Mapping[str, Mapping[str, Any]], containers: list[Mapping[str, Any]]) -> _Status:
    ready = mapping(conditions.get("Ready"))
    if ready.get("status") == "True" or not ready:
        return _Status("running", phase)
    started = [
        moment for container in containers if (moment := epoch(mapping(container, "state", "running").get("startedAt")))
    ]
    since = epoch(ready.get("lastTransitionTime"))
    restarts = sum(number(container.get("restartCount")) or 0.0 for container in containers)
    # "Not ready" since before the start of the containers: they are starting. Since later: the pod was ready before.
    lost = since is not None and bool(started) and since > max(started)
    if ready.get("status") == "Unknown" or lost or restarts > 0:
        message_text = text(ready.get("message"), 800) or text(ready.get("reason"), 100)
        return _Status("running", f"{phase} NotReady", detail=message_text, unreachable=True)
    return _Status("starting", f"{phase} NotReady")


def _ended(containers: list[Mapping[str, Any]]) -> float | None:
    moments = [epoch(mapping(container, "state", "terminated").get("finishedAt")) for container in containers]
    return max((moment for moment in moments if moment is not None), default=None)


def _expires(spec: Mapping[str, Any], status: Mapping[str, Any]) -> float | None:
    deadline, begun = number(spec.get("activeDeadlineSeconds")), epoch(status.get("startTime"))
    return begun + deadline if deadline is not None and deadline > 0 and begun is not None else None


def _owner(meta: Mapping[str, Any]) -> str:
    for reference in objects(meta.get("ownerReferences")):
        if reference.get("kind") == "Sandbox" and text(reference.get("apiVersion"), 100).startswith("agents.x-k8s.io/"):
            return text(reference.get("uid"), 100)
    return ""
