"""Reads Daytona sandboxes over the REST API: states and error texts, the organization's usage, limits and suspension.

The API has the times of creation and of the last change, but not of the start. For a new sandbox that is first seen as
``started``, the last change is an upper bound of its readiness (`poll_bound`). There is none for a sandbox that was
already running at the first poll, or that comes from a warm pool (created long before its request). The list is
eventually consistent, so missing sandboxes are requested by id. A timeout while waiting for a runner ends as destroyed
with ``queueTimedOutAt``.

The credit is not available; without credit the organization is suspended. Archived and destroyed ones are not listed.
"""

import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from collectors.model import Collector, FailureCause, Limits, Reading, Sample, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers import provider
from collectors.sandbox_providers.provider import Tally, cause_of, mapping, objects
from collectors.sandbox_providers.sweep import ListedRow, ListingPage, ListingSource, sweep
from collectors.transport import rest

PROVIDER = "daytona"
PAGE_ROWS = 200  # the API's maximum

STATES: Mapping[str, SandboxState] = {
    "creating": "starting",
    "restoring": "starting",
    "starting": "starting",
    "resuming": "starting",
    "forking": "starting",
    "pending_build": "queued",
    "building_snapshot": "building_image",
    "pulling_snapshot": "building_image",
    "started": "running",
    "resizing": "running",
    "snapshotting": "running",
    "stopping": "stopping",
    "pausing": "stopping",
    "archiving": "stopping",
    "destroying": "stopping",
    "stopped": "paused",  # keeps its disk, counts against the quota, and can be started again
    "paused": "paused",
    "archived": "terminated",
    "destroyed": "terminated",
    "error": "failed",
    "build_failed": "failed",
    "unknown": "unknown",
}
LISTED = [provider_state for provider_state in STATES if provider_state not in ("archived", "destroyed")]
# States before the start: a sandbox seen in one of these is new, so its readiness can be dated.
BEGINNING = ("creating", "starting", "pending_build", "building_snapshot", "pulling_snapshot")
RESOURCES = {"cpu": "Cpu", "memory_gb": "Memory", "disk_gb": "Disk", "gpu": "Gpu"}


@dataclass(slots=True)
class _Watch:
    """State between polls, to determine times of readiness. Times are Daytona's, epoch seconds."""

    pending: set[str] = field(default_factory=set)
    built: set[str] = field(default_factory=set)
    ready: dict[str, float] = field(default_factory=dict)
    newest: float | None = None  # creation of the newest one in the last complete listing; None before that

    def forget(self, keep: set[str]) -> None:
        self.pending &= keep
        self.built &= keep
        self.ready = {key: moment for key, moment in self.ready.items() if key in keep}


@dataclass(slots=True)
class _Rows:
    run_label: str
    watch: _Watch
    organization: str = ""
    tally: Tally = field(default_factory=Tally)

    def row(self, raw: Any) -> ListedRow | None:
        record = mapping(raw)
        key = rest.text(record.get("id"), 200)
        if not key:
            self.tally.drop("a sandbox without an id")
            return None
        self.organization = self.organization or rest.text(record.get("organizationId"), 200)
        provider_state = rest.text(record.get("state"), 40)
        state = self._state(provider_state, record)
        created = rest.epoch(record.get("createdAt"))
        ready = self._ready(key, provider_state, created, record)
        return ListedRow(
            Sandbox(
                provider=PROVIDER,
                id=key,
                state=state,
                name=rest.text(record.get("name"), 200),
                run_key=rest.text(mapping(record, "labels").get(self.run_label), 200),
                provider_state=provider_state,
                requested_at=created,
                ready_at=ready,
                ended_at=_ended(state, record),
                image=rest.text(record.get("snapshot"), 300),
                image_cached=False if key in self.watch.built else None,
                latency_source="poll_bound" if ready is not None else None,
                cause=_cause(provider_state, record) if state == "failed" else None,
                detail=rest.clean(record.get("errorReason")) if state == "failed" else "",
                expires_at=rest.epoch(record.get("autoDestroyAt")),
            )
        )

    def _state(self, provider_state: str, record: Mapping[str, Any]) -> SandboxState:
        state = STATES.get(provider_state)
        if state is None:
            self.tally.unknown("state", provider_state)
            return "unknown"
        lost = record.get("queueTimedOutAt") or record.get("spotEvictedAt")
        return "failed" if state == "terminated" and lost else state

    def _ready(self, key: str, provider_state: str, created: float | None, record: Mapping[str, Any]) -> float | None:
        watch = self.watch
        if provider_state in BEGINNING:
            watch.pending.add(key)
            if STATES[provider_state] == "building_image":
                watch.built.add(key)
        elif (
            provider_state == "started"
            and key not in watch.ready
            and created is not None
            and self._is_new(key, created)
        ):
            changed = rest.epoch(record.get("updatedAt"))
            if changed is not None and changed >= created:
                watch.ready[key] = changed
            watch.pending.discard(key)
        return watch.ready.get(key)

    def _is_new(self, key: str, created: float) -> bool:
        return key in self.watch.pending or (self.watch.newest is not None and created > self.watch.newest)


def _cause(provider_state: str, record: Mapping[str, Any]) -> FailureCause:
    if provider_state not in ("error", "build_failed"):
        return "capacity"  # no runner in time, or its machine was withdrawn
    cause = cause_of(rest.text(record.get("errorReason"), 500))
    return "image" if cause == "unknown" and provider_state == "build_failed" else cause


def _ended(state: SandboxState, record: Mapping[str, Any]) -> float | None:
    if state != "failed":
        return None
    lost = rest.epoch(record.get("queueTimedOutAt")) or rest.epoch(record.get("spotEvictedAt"))
    return lost or rest.epoch(record.get("updatedAt"))


def _source(client: httpx.AsyncClient, rows: _Rows, limits: Limits) -> ListingSource:
    async def fetch(query: rest.Params, page_cursor: Any) -> ListingPage:
        params = {**query, "limit": PAGE_ROWS, **({"cursor": page_cursor} if page_cursor else {})}
        body = mapping((await rest.get_json(client, "/sandbox", params, limits)).json)
        items = body.get("items")
        if not isinstance(items, list):
            raise ScrapeError("garbage", "the answer is not a list of sandboxes")
        return ListingPage(items, rest.text(body.get("nextCursor"), 4096) or None)

    async def look(key: str) -> Any:
        return (await rest.get_json(client, f"/sandbox/{quote(key, safe='')}", {}, limits)).json

    query = {"states": LISTED, "includeErroredDeleted": "true", "sort": "createdAt", "order": "desc"}
    return ListingSource((query,), fetch, rows.row, request_row=look)


def _usage(answer: Any, region: str) -> list[Sample]:
    """Per resource the region and class with the highest usage, because a sum would hide a full one."""
    entries = [entry for entry in objects(mapping(answer).get("regionUsage")) if region in ("", entry.get("regionId"))]
    samples: list[Sample] = []
    for resource, name in RESOURCES.items():
        pairs = [
            (rest.number(entry.get(f"current{name}Usage")), rest.number(entry.get(f"total{name}Quota")))
            for entry in entries
        ]
        granted = [(used, limit) for used, limit in pairs if used is not None and limit is not None and limit > 0.0]
        if granted:
            samples += provider.quota(resource, *max(granted, key=lambda pair: pair[0] / pair[1]))
    return samples


def _organization(answer: Mapping[str, Any]) -> list[Sample]:
    samples = []
    suspended = answer.get("suspended")
    if isinstance(suspended, bool):
        samples.append(Sample("sandbox_account_suspended", float(suspended)))
    limit = rest.number(answer.get("sandboxCreateRateLimit"))
    seconds = rest.number(answer.get("sandboxCreateRateLimitTtlSeconds"))
    # Per minute unless the organization has another window.
    window = seconds if seconds is not None and seconds > 0 else 60.0
    return samples + provider.quota("creates_per_second", None, None if limit is None else limit / window)


async def _of_organization(
    client: httpx.AsyncClient, key: str, region: str, limits: Limits, tally: Tally
) -> list[Sample]:
    path = f"/organizations/{quote(key, safe='')}"
    samples = _organization(mapping(await provider.fetch(client, path, {}, limits, tally)))
    return samples + _usage(await provider.fetch(client, f"{path}/usage", {}, limits, tally), region)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads as much of the listing as fits into the poll, and the organization's limits at their own interval.

    Options: ``organization`` (id; else that of the first sandbox), ``region`` (of the quota), ``run_label``
    (label key, default ``run``).

    Raises:
        ScrapeError: as `rest.get_json`.
    """
    begun = time.monotonic()
    options: MutableMapping[str, str] = state.get("options", {})
    watch: _Watch = state.setdefault("watch", _Watch())
    rows = _Rows(options.get("run_label", "run"), watch, options.get("organization") or state.get("organization", ""))
    samples: list[Sample] = []
    async with rest.total_timeout(limits):
        if rows.organization and provider.due(state, begun):
            region = options.get("region", "")
            samples += await _of_organization(client, rows.organization, region, limits, rows.tally)
        swept = await sweep(_source(client, rows, limits), state, limits, begun)
    state["organization"] = rows.organization
    if swept.done:
        watch.forget({row.sandbox.id for row in swept.rows})
        created = [row.sandbox.requested_at for row in swept.rows if row.sandbox.requested_at is not None]
        watch.newest = max([*created, watch.newest or 0.0])
    sandboxes = (row.sandbox for row in swept.rows)
    return rows.tally.reading(PROVIDER, sandboxes, swept.extent, samples)


COLLECTOR = Collector(
    name="daytona",
    actor="sandbox",
    reads="Daytona sandboxes, usage and limits over the REST API",
    versions="daytona 0.226.1 by source and against a simulated server",
    poll=poll,
    report_seconds=provider.ACCOUNT_SECONDS,
    default_url="https://app.daytona.io/api",
    key_variable="DAYTONA_API_KEY",
    options=("organization", "region", "run_label"),
)
