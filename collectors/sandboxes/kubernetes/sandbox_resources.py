"""Converts a Sandbox resource of kubernetes-sigs/agent-sandbox to a sandbox row, and joins it with its pod.

Only the condition `Ready` is reliable: `Suspended` may remain after a resume (sandbox_types.go). A sandbox of a warm
pool is created long before its request, so it has no request time, no latency and no age as pending. The latency of its
claim is in the controller's histograms (collector `agent_sandbox_metrics`).
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from collectors.model import FailureCause, Sandbox, SandboxState
from collectors.sandbox_providers.failures import cause as cause_of
from collectors.sandbox_providers.listing import Tally, mapping
from collectors.sandboxes.kubernetes.pods import PROVIDER, Pod, by_type, first_readiness, image, ready_since
from collectors.transport.rest import clean, epoch, number, text

LAUNCH_TYPE = "agents.x-k8s.io/launch-type"

_NOT_READY: Mapping[str, SandboxState] = {
    "DependenciesNotReady": "starting",
    "SandboxSuspended": "paused",
    "SandboxExpired": "terminated",
    "PodSucceeded": "terminated",
    "PodFailed": "failed",
    "ReconcilerError": "failed",
    "MultiplePods": "failed",
}


@dataclass(frozen=True, slots=True)
class _Status:
    state: SandboxState
    provider_state: str
    ended_at: float | None = None
    cause: FailureCause | None = None
    detail: str = ""
    unreachable: bool = False


def resource(
    item: Mapping[str, Any], run_label: str, first_ready: MutableMapping[str, float], tally: Tally
) -> Sandbox | None:
    """Converts an item of a Sandbox list (v1alpha1 or v1beta1); None (counted in the tally) without a uid.

    Args:
        first_ready: per uid the first readiness; read and updated.
    """
    meta, spec, status = mapping(item, "metadata"), mapping(item, "spec"), mapping(item, "status")
    uid = text(meta.get("uid"), 100)
    if not uid:
        tally.drop("a Sandbox resource without a uid")
        return None
    conditions = by_type(status)
    warm = mapping(meta, "labels").get(LAUNCH_TYPE) == "warm"
    derived_status = _status_of(uid, meta, spec, conditions, first_ready, tally)
    created = epoch(meta.get("creationTimestamp"))
    ready = first_readiness(uid, ready_since(conditions), derived_status, "Suspended" in conditions, first_ready)
    if ready is not None and created is not None and ready < created:
        ready = None
    return Sandbox(
        provider=PROVIDER,
        id=uid,
        state=derived_status.state,
        name=text(meta.get("name"), 253),
        run_key=text(mapping(meta, "labels").get(run_label), 200),
        provider_state=derived_status.provider_state,
        requested_at=None if warm else created,
        started_at=created if warm else ready_since(conditions, "PodScheduled"),
        ready_at=ready,
        ended_at=derived_status.ended_at,
        image=image(mapping(spec, "podTemplate", "spec")),
        image_cached=True if warm else None,
        latency_source="server" if ready is not None and created is not None and not warm else None,
        cause=derived_status.cause,
        detail=clean(derived_status.detail, 200),
        unreachable=derived_status.unreachable,
        expires_at=epoch(spec.get("shutdownTime")),
    )


def joined(row: Sandbox, pod: Sandbox) -> Sandbox:
    """The resource's row with data that only its pod has: failure cause, scheduling time, restarts."""
    started = row.started_at if row.started_at is not None else pod.started_at
    row = replace(row, started_at=started)
    if pod.state == "failed" and row.state in ("queued", "starting", "running", "failed"):
        return replace(
            row,
            state="failed",
            provider_state=f"{row.provider_state} {pod.provider_state}"[:100],
            cause=pod.cause if pod.cause != "unknown" or row.cause is None else row.cause,
            detail=pod.detail or row.detail,
            ended_at=row.ended_at if row.ended_at is not None else pod.ended_at,
            unreachable=False,
        )
    if row.state in ("starting", "queued") and pod.state == "queued":
        return replace(row, state="queued", detail=row.detail or pod.detail)
    if row.state == "running" and pod.unreachable:
        return replace(row, unreachable=True, detail=row.detail or pod.detail)
    return row


def merged(resources: Mapping[str, Sandbox], pods: Mapping[str, Pod]) -> dict[str, Sandbox]:
    """One row per sandbox: a pod that belongs to a Sandbox resource is not counted a second time."""
    rows = dict(resources)
    for uid, pod in pods.items():
        if pod.owner in resources:
            rows[pod.owner] = joined(rows[pod.owner], pod.row)
        else:
            rows[uid] = pod.row
    return rows


def _status_of(
    uid: str,
    meta: Mapping[str, Any],
    spec: Mapping[str, Any],
    conditions: Mapping[str, Mapping[str, Any]],
    first_ready: Mapping[str, float],
    tally: Tally,
) -> _Status:
    finished, ready = mapping(conditions.get("Finished")), mapping(conditions.get("Ready"))
    if finished.get("status") == "True":
        return _finished(finished)
    if meta.get("deletionTimestamp"):
        return _Status("stopping", "Terminating")
    if ready.get("status") == "True":
        return _Status("running", "Ready")
    reason = text(ready.get("reason"), 100)
    if spec.get("operatingMode") == "Suspended" or number(spec.get("replicas")) == 0.0:  # the form of v1alpha1
        return _Status("paused", reason or "Suspended")
    if not ready:
        return _Status("queued", "new")
    return _not_ready(reason, ready, conditions, uid in first_ready, tally)


def _finished(finished: Mapping[str, Any]) -> _Status:
    reason, message = text(finished.get("reason"), 100), text(finished.get("message"), 800)
    ended = epoch(finished.get("lastTransitionTime"))
    if reason == "PodFailed":
        return _Status("failed", reason, ended, cause_of(message), message)
    return _Status("terminated", reason, ended)


def _not_ready(
    reason: str, ready: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]], was_ready: bool, tally: Tally
) -> _Status:
    state, message = _NOT_READY.get(reason), text(ready.get("message"), 800)
    if state is None:
        tally.unknown("reason", reason)
        return _Status("unknown", reason, detail=message)
    if state == "failed":
        return _Status("failed", reason, None, "internal" if reason == "MultiplePods" else cause_of(message), message)
    if state == "terminated":
        return _Status(state, reason, epoch(ready.get("lastTransitionTime")))
    if state == "starting" and was_ready:
        return _Status("running", reason, detail=message, unreachable=True)
    scheduled = mapping(conditions.get("PodScheduled"))
    if state == "starting" and scheduled.get("status") != "True":
        return _Status(
            "queued", f"{reason} {text(scheduled.get('reason'), 100)}".strip(), None, None, message_of(scheduled)
        )
    return _Status(state, reason)


def message_of(condition: Mapping[str, Any]) -> str:
    """The message of a condition that is False; other messages are not shown."""
    return text(condition.get("message"), 800) if condition.get("status") == "False" else ""
