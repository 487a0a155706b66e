"""Reads sandboxes that are Kubernetes pods or Sandbox resources of agent-sandbox, and the namespace's resource quota.

Needs `list` on pods, on sandboxes.agents.x-k8s.io if configured, and on resourcequotas if allowed; a service account
with these verbs is sufficient. Deleted objects leave no trace in the API, so a sandbox that is no longer listed has
ended. A pod that was rejected by the quota does not exist; only its Sandbox resource shows it (`ReconcilerError`).

Not available: whether an image was on the node already (only in events, for an hour), the state of the server inside
beyond its readiness probe, prices.
"""

import re
from collections.abc import Callable, Mapping, MutableMapping
from math import isfinite
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from collectors.model import Collector, Limits, Reading, Sample, Sandbox, ScrapeError, State
from collectors.sandbox_providers.listing import Extent, Tally, mapping
from collectors.sandbox_providers.own_client import opened
from collectors.sandbox_providers.walk import Budget, Walk, WalkPage, finish, walk
from collectors.sandboxes.kubernetes.pods import PROVIDER, Pod, pod
from collectors.sandboxes.kubernetes.sandbox_resources import merged, resource
from collectors.transport.rest import JsonAnswer, Refusal, get_json, number, text, total_timeout

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
