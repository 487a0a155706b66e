"""Reads sandboxes that are Kubernetes pods or Sandbox resources of agent-sandbox, and the namespace's resource quota.

Needs `list` on pods, on sandboxes.agents.x-k8s.io if configured, and on resourcequotas if allowed; a service account
with these verbs is sufficient. Deleted objects leave no trace in the API, so a sandbox that is no longer listed has
ended. A pod that was rejected by the quota does not exist; only its Sandbox resource shows it (`ReconcilerError`).

Not available: whether an image was on the node already (only in events, for an hour), the state of the server inside
beyond its readiness probe, prices.
"""

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from msgspec import structs

from collectors.model import Collector, FailureCause, Limits, Reading, Sample, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers.provider import Extent, Tally, mapping, objects, opened
from collectors.sandbox_providers.provider import cause as cause_of
from collectors.sandbox_providers.sweep import Budget, Walk, WalkPage, finish, walk
from collectors.transport.rest import JsonAnswer, Refusal, clean, epoch, get_json, number, text, total_timeout

# ---- pods
# Converts a Kubernetes pod's JSON to a sandbox row.

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


# ---- sandbox resources
# Converts a Sandbox resource of kubernetes-sigs/agent-sandbox to a sandbox row, and joins it with its pod.

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
class _ResourceStatus:
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
    derived_status = _resource_status_of(uid, meta, spec, conditions, first_ready, tally)
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
    row = structs.replace(row, started_at=started)
    if pod.state == "failed" and row.state in ("queued", "starting", "running", "failed"):
        return structs.replace(
            row,
            state="failed",
            provider_state=f"{row.provider_state} {pod.provider_state}"[:100],
            cause=pod.cause if pod.cause != "unknown" or row.cause is None else row.cause,
            detail=pod.detail or row.detail,
            ended_at=row.ended_at if row.ended_at is not None else pod.ended_at,
            unreachable=False,
        )
    if row.state in ("starting", "queued") and pod.state == "queued":
        return structs.replace(row, state="queued", detail=row.detail or pod.detail)
    if row.state == "running" and pod.unreachable:
        return structs.replace(row, unreachable=True, detail=row.detail or pod.detail)
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


def _resource_status_of(
    uid: str,
    meta: Mapping[str, Any],
    spec: Mapping[str, Any],
    conditions: Mapping[str, Mapping[str, Any]],
    first_ready: Mapping[str, float],
    tally: Tally,
) -> _ResourceStatus:
    finished, ready = mapping(conditions.get("Finished")), mapping(conditions.get("Ready"))
    if finished.get("status") == "True":
        return _finished(finished)
    if meta.get("deletionTimestamp"):
        return _ResourceStatus("stopping", "Terminating")
    if ready.get("status") == "True":
        return _ResourceStatus("running", "Ready")
    reason = text(ready.get("reason"), 100)
    if spec.get("operatingMode") == "Suspended" or number(spec.get("replicas")) == 0.0:  # the form of v1alpha1
        return _ResourceStatus("paused", reason or "Suspended")
    if not ready:
        return _ResourceStatus("queued", "new")
    return _not_ready(reason, ready, conditions, uid in first_ready, tally)


def _finished(finished: Mapping[str, Any]) -> _ResourceStatus:
    reason, message = text(finished.get("reason"), 100), text(finished.get("message"), 800)
    ended = epoch(finished.get("lastTransitionTime"))
    if reason == "PodFailed":
        return _ResourceStatus("failed", reason, ended, cause_of(message), message)
    return _ResourceStatus("terminated", reason, ended)


def _not_ready(
    reason: str, ready: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]], was_ready: bool, tally: Tally
) -> _ResourceStatus:
    state, message = _NOT_READY.get(reason), text(ready.get("message"), 800)
    if state is None:
        tally.unknown("reason", reason)
        return _ResourceStatus("unknown", reason, detail=message)
    if state == "failed":
        return _ResourceStatus(
            "failed", reason, None, "internal" if reason == "MultiplePods" else cause_of(message), message
        )
    if state == "terminated":
        return _ResourceStatus(state, reason, epoch(ready.get("lastTransitionTime")))
    if state == "starting" and was_ready:
        return _ResourceStatus("running", reason, detail=message, unreachable=True)
    scheduled = mapping(conditions.get("PodScheduled"))
    if state == "starting" and scheduled.get("status") != "True":
        return _ResourceStatus(
            "queued", f"{reason} {text(scheduled.get('reason'), 100)}".strip(), None, None, message_of(scheduled)
        )
    return _ResourceStatus(state, reason)


def message_of(condition: Mapping[str, Any]) -> str:
    """The message of a condition that is False; other messages are not shown."""
    return text(condition.get("message"), 800) if condition.get("status") == "False" else ""


Row = TypeVar("Row")

# Items per page: a pod is 5 to 15 kB of JSON, so a page stays below the byte limit.
PAGE_ROWS = 250
KINDS = ("pods", "sandboxes", "both")
VERSIONS = ("v1beta1", "v1alpha1")

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i)?")
_FACTORS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3} | {
    prefix + suffix: base**power
    for suffix, base in (("", 1000.0), ("i", 1024.0))
    for power, prefix in enumerate(("K" if suffix else "k", "M", "G", "T", "P", "E"), 1)
}
# resource -> (names in a ResourceQuota, divisor). Of several quotas the one with the least remaining amount is used.
_RESOURCES: Mapping[str, tuple[tuple[str, ...], float]] = {
    "concurrent": (("pods", "count/pods", "count/sandboxes.agents.x-k8s.io"), 1.0),
    "cpu": (("requests.cpu", "cpu", "limits.cpu"), 1.0),
    "memory_gb": (("requests.memory", "memory", "limits.memory"), 1e9),
    "disk_gb": (("requests.ephemeral-storage", "ephemeral-storage", "requests.storage"), 1e9),
    "gpu": (("requests.nvidia.com/gpu", "requests.amd.com/gpu"), 1.0),
}


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads the pods or Sandbox resources of the options' namespace and selector. Long lists take several polls.

    Raises:
        ScrapeError: as `rest.get_json`; ``missing`` if a file of the options cannot be read.
    """
    options: Mapping[str, str] = state.get("options") or {}
    tally = Tally()
    async with total_timeout(limits), opened(client, options, limits) as kube:
        rows, extent = await _sandboxes(kube, options, state, limits, tally)
        samples = await _quota(kube, options, limits)
    return tally.reading(PROVIDER, rows.values(), extent, samples)


async def _sandboxes(
    kube: httpx.AsyncClient, options: Mapping[str, str], state: State, limits: Limits, tally: Tally
) -> tuple[dict[str, Sandbox], Extent]:
    kind, label = options.get("kind", "pods"), options.get("run_label", "run")
    memory: MutableMapping[str, float] = state.setdefault("first_ready", {})
    budget = Budget(limits)
    resources: Walk[Sandbox] = Walk(done=True)
    pods: Walk[Pod] = Walk(done=True)
    if kind not in KINDS:
        raise ScrapeError("missing", f"option kind must be one of {', '.join(KINDS)}")
    if kind != "pods":
        resources = await _resources(
            kube, options, state, limits, budget, tally, lambda item: resource(item, label, memory, tally)
        )
    if kind != "sandboxes" and resources.done:
        path = _path("/api/v1", options, "pods")
        pods = await _list(
            kube, path, options, state, limits, budget, tally, lambda item: pod(item, label, memory, tally)
        )
    extent = resources.extent().and_(pods.extent())
    if not (resources.done and pods.done):
        return (resources.fresh if kind == "sandboxes" else _touched(resources.rows, pods.fresh)), extent
    finish(state, "pods", "sandboxes")
    rows = merged(resources.rows, pods.rows)
    for removed in memory.keys() - resources.rows.keys() - pods.rows.keys():
        del memory[removed]
    return rows, extent


def _touched(resources: Mapping[str, Sandbox], pods: Mapping[str, Pod]) -> dict[str, Sandbox]:
    """Rows of these pods. A resource is left out until its pod was read, because it would look healthier."""
    rows = merged(resources, pods)
    return {
        uid: rows[uid]
        for uid in (pod_row.owner if pod_row.owner in resources else pod_row.row.id for pod_row in pods.values())
    }


async def _resources(
    kube: httpx.AsyncClient,
    options: Mapping[str, str],
    state: State,
    limits: Limits,
    budget: Budget,
    tally: Tally,
    build: Callable[[Mapping[str, Any]], Sandbox | None],
) -> Walk[Sandbox]:
    """Reads Sandbox resources by the newest API version that the cluster serves, and stores that version."""
    for version in [state["version"]] if "version" in state else VERSIONS:
        path = _path(f"/apis/agents.x-k8s.io/{version}", options, "sandboxes")
        try:
            listing = await _list(kube, path, options, state, limits, budget, tally, build)
        except ScrapeError as error:
            if not _has_status(error, 404):
                raise
            state.pop("version", None)
        else:
            state["version"] = version
            return listing
    raise ScrapeError("status", "HTTP 404: the cluster has no sandboxes.agents.x-k8s.io (agent-sandbox not installed)")


async def _list(
    kube: httpx.AsyncClient,
    path: str,
    options: Mapping[str, str],
    state: State,
    limits: Limits,
    budget: Budget,
    tally: Tally,
    build: Callable[[Mapping[str, Any]], Row | None],
) -> Walk[Row]:
    selector = options.get("label_selector", "")

    async def fetch(token: str) -> WalkPage[Row]:
        params = {"limit": PAGE_ROWS} | ({"labelSelector": selector} if selector else {})
        answer = await get_json(kube, path, params | ({"continue": token} if token else {}), limits)
        items = [(text(mapping(item, "metadata").get("uid"), 100), build(mapping(item))) for item in _items(answer)]
        rows = {uid: row for uid, row in items if row is not None}
        more = text(mapping(answer.json, "metadata").get("continue"), 10_000)
        return WalkPage(rows, more, sum(row is None for _, row in items))

    name = path.rpartition("/")[2]
    try:
        return await walk(state, name, fetch, budget)
    except ScrapeError as error:
        if not _has_status(error, 410):
            raise
        # The snapshot of the token has expired (after 5 to 15 minutes, or a compaction): start again.
        return await walk(state, name, fetch, budget)


def _items(answer: JsonAnswer) -> list[Any]:
    """The items of a list. An answer without ``items`` is invalid, not empty."""
    items = mapping(answer.json).get("items")
    if not isinstance(items, list):
        raise ScrapeError("garbage", "the answer is not a Kubernetes list")
    return items


def _has_status(error: ScrapeError, status: int) -> bool:
    return isinstance(error, Refusal) and error.status == status


def _path(group: str, options: Mapping[str, str], plural: str) -> str:
    namespace = options.get("namespace", "")
    return f"{group}/namespaces/{quote(namespace, safe='')}/{plural}" if namespace else f"{group}/{plural}"


async def _quota(kube: httpx.AsyncClient, options: Mapping[str, str], limits: Limits) -> tuple[Sample, ...]:
    """Used and granted amounts of the namespace's quotas; nothing without a namespace or without permission."""
    if not options.get("namespace"):
        return ()
    try:
        answer = await get_json(kube, _path("/api/v1", options, "resourcequotas"), {"limit": 100}, limits)
    except ScrapeError as error:
        if error.kind in ("auth", "quota", "status"):
            return ()
        raise
    statuses = [mapping(item, "status") for item in _items(answer)]
    return tuple(sample for name in _RESOURCES for sample in _tightest(name, statuses))


def _tightest(resource_name: str, statuses: list[Mapping[str, Any]]) -> tuple[Sample, ...]:
    names, divisor = _RESOURCES[resource_name]
    candidates = []
    for status in statuses:
        for name in names:
            used, hard = quantity(mapping(status, "used").get(name)), quantity(mapping(status, "hard").get(name))
            if used is not None and hard is not None:
                candidates.append((hard - used, used / divisor, hard / divisor))
    if not candidates:
        return ()
    _, used, hard = min(candidates)
    labels = (("resource", resource_name),)
    return Sample("sandbox_quota_used", used, labels), Sample("sandbox_quota_limit", hard, labels)


def quantity(value: Any) -> float | None:
    """A Kubernetes quantity ("500m", "1Gi", "1e3") as a number in its base unit; None for anything else."""
    match = _QUANTITY.fullmatch(text(value, 64))
    amount = number(match.group(1)) if match else None
    if match is None or amount is None:
        return None
    scaled = amount * _FACTORS[match.group(2) or ""]
    return scaled if isfinite(scaled) and scaled >= 0 else None


COLLECTOR = Collector(
    name="kubernetes",
    actor="sandbox",
    reads="pods and agent-sandbox Sandbox resources over the Kubernetes API, and resource quotas",
    versions="core v1; agents.x-k8s.io v1alpha1 and v1beta1 by source (2fd412d5)",
    poll=poll,
    key_variable="KUBERNETES_TOKEN",
    options=(
        "namespace", "label_selector", "run_label", "kind", "token_file", "ca_file", "cert_file", "key_file",
    ),
)  # fmt: skip
