"""Reads Runloop devboxes over the REST API, with the time of each state change.

Spin-up is create_time_ms to the first ``running``; a resume is not a second spin-up. The list contains all devboxes
ever created, and filters by one status at a time. So the live statuses are requested one by one, in the order of a
devbox's states, and then the newest devboxes of all statuses, for failures and for new statuses.

Not available: limits and credit (configure ``limit_concurrent``), and the effect of keep-alive calls: `expires_at` is
the earliest end.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from collectors.model import Collector, FailureCause, Limits, Reading, Sample, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers import provider
from collectors.sandbox_providers.provider import Tally, cause_of, mapping, objects
from collectors.sandbox_providers.sweep import ListedRow, ListingPage, ListingSource, sweep
from collectors.transport import rest

PROVIDER = "runloop"
PAGE_ROWS = 500  # 5,000 are allowed, but the size of a row is unbounded and that of a body is limited
TRANSITIONS_MAX = 1000

STATES: Mapping[str, SandboxState] = {
    "scheduled": "queued",
    "queued": "queued",
    "provisioning": "starting",
    "initializing": "starting",
    "running": "running",
    "suspending": "stopping",
    "suspended": "paused",
    "resuming": "starting",
    "failure": "failed",
    "shutdown": "terminated",
}
CAUSES: Mapping[str, FailureCause] = {
    "out_of_memory": "oom",
    "out_of_disk": "capacity",
    "execution_failed": "internal",
    "health_check_failed": "internal",
}
ACCOUNTS: Mapping[str, float] = {
    "ACCOUNT_STATUS_ENABLED": 0.0,
    "ACCOUNT_STATUS_DISABLED_BY_ADMIN": 1.0,
    "ACCOUNT_STATUS_DISABLED_QUOTA_REACHED": 1.0,
    "ACCOUNT_STATUS_TRIAL_CANCELLED": 1.0,
}
LIVE_QUERIES = tuple(
    {"status": provider_state}
    for provider_state in (
        "scheduled",
        "queued",
        "provisioning",
        "initializing",
        "suspending",
        "suspended",
        "resuming",
        "running",
    )
)


@dataclass(slots=True)
class _Rows:
    run_label: str
    tally: Tally = field(default_factory=Tally)

    def row(self, raw: Any) -> ListedRow | None:
        record = mapping(raw)
        key = rest.text(record.get("id"), 200)
        if not key:
            self.tally.drop("a devbox without an id")
            return None
        provider_state = rest.text(record.get("status"), 40)
        state = STATES.get(provider_state, "unknown")
        if state == "unknown":
            self.tally.unknown("status", provider_state)
        changes = objects(record.get("state_transitions"))[:TRANSITIONS_MAX]
        requested = rest.epoch(record.get("create_time_ms"))
        started, ready = _first(changes, requested, "initializing", "running"), _first(changes, requested, "running")
        metadata = mapping(record, "metadata")
        return ListedRow(
            Sandbox(
                provider=PROVIDER,
                id=key,
                state=state,
                name=rest.text(record.get("name"), 200),
                run_key=rest.text(metadata.get(self.run_label), 200),
                provider_state=provider_state,
                requested_at=requested,
                started_at=started,
                ready_at=ready,
                ended_at=rest.epoch(record.get("end_time_ms")),
                image=rest.text(record.get("blueprint_id"), 300) or rest.text(record.get("snapshot_id"), 300),
                latency_source="server" if requested is not None and ready is not None else None,
                cause=_cause(record, changes) if state == "failed" else None,
                detail=_detail(record, changes),
                expires_at=_expires(requested, mapping(record, "launch_parameters")),
            )
        )


def _first(changes: list[Mapping[str, Any]], since: float | None, *statuses: str) -> float | None:
    """Time of the first change to one of these statuses, not before ``since``."""
    times = [rest.epoch(change.get("transition_time_ms")) for change in changes if change.get("status") in statuses]
    return min((moment for moment in times if moment is not None and moment >= (since or 0.0)), default=None)


def _reasons(record: Mapping[str, Any], changes: list[Mapping[str, Any]]) -> list[str]:
    reasons = [record.get("failure_reason"), *(change.get("failure_reason") for change in reversed(changes))]
    return [text for reason in reasons if (text := rest.text(reason, 200))]


def _cause(record: Mapping[str, Any], changes: list[Mapping[str, Any]]) -> FailureCause:
    reasons = _reasons(record, changes)
    return next((CAUSES[reason] for reason in reasons if reason in CAUSES), None) or cause_of(*reasons)


def _detail(record: Mapping[str, Any], changes: list[Mapping[str, Any]]) -> str:
    reasons = _reasons(record, changes)
    return rest.clean(reasons[0] if reasons else record.get("shutdown_reason"))


def _expires(requested: float | None, launch: Mapping[str, Any]) -> float | None:
    """The end of the keep-alive time, which counts from the creation; None if there is an idle rule instead."""
    keep = rest.number(launch.get("keep_alive_time_seconds"))
    idle = launch.get("after_idle") or mapping(launch, "lifecycle").get("after_idle")
    return (
        rest.epoch(requested + keep) if requested is not None and keep is not None and keep > 0 and not idle else None
    )


def _source(client: httpx.AsyncClient, rows: _Rows, limits: Limits) -> ListingSource:
    async def fetch(query: Mapping[str, str | int], page_cursor: Any) -> ListingPage:
        params = {
            **query,
            "limit": PAGE_ROWS,
            "include_total_count": "false",
            **({"starting_after": page_cursor} if page_cursor else {}),
        }
        body = mapping((await rest.get_json(client, "/v1/devboxes", params, limits)).json)
        devboxes = body.get("devboxes")
        if not isinstance(devboxes, list):
            raise ScrapeError("garbage", "the answer is not a list of devboxes")
        last = rest.text(mapping(devboxes[-1]).get("id"), 200) if devboxes else ""
        return ListingPage(devboxes, last if body.get("has_more") is True and last else None)

    async def look(key: str) -> Any:
        return (await rest.get_json(client, f"/v1/devboxes/{quote(key, safe='')}", {}, limits)).json

    return ListingSource(LIVE_QUERIES, fetch, rows.row, ({},), look)


async def _suspended(client: httpx.AsyncClient, limits: Limits, tally: Tally) -> list[Sample]:
    provider_state = mapping(await provider.fetch(client, "/v1/accounts/me", {}, limits, tally)).get("account_status")
    suspended = ACCOUNTS.get(provider_state) if isinstance(provider_state, str) else None
    if suspended is None and provider_state is not None:
        tally.unknown("account_status", rest.text(provider_state, 64))
    return [] if suspended is None else [Sample("sandbox_account_suspended", suspended)]


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads as much of the listing as fits into the poll, and the account's state at its own interval.

    Options: ``run_label`` (metadata key, default ``run``), ``limit_concurrent``.

    Raises:
        ScrapeError: as `rest.get_json`.
    """
    begun = time.monotonic()
    options = state.get("options", {})
    rows = _Rows(options.get("run_label", "run"))
    samples = provider.configured(options)
    async with rest.total_timeout(limits):
        if provider.due(state, begun):
            samples += await _suspended(client, limits, rows.tally)
        swept = await sweep(_source(client, rows, limits), state, limits, begun)
    if swept.extent.listed:
        # Suspended devboxes have a disk but no machine.
        running = sum(row.sandbox.state != "paused" for row in swept.live())
        samples += provider.quota("concurrent", float(running), None)
    sandboxes = (row.sandbox for row in swept.rows)
    return rows.tally.reading(PROVIDER, sandboxes, swept.extent, samples)


COLLECTOR = Collector(
    name="runloop",
    actor="sandbox",
    reads="Runloop devboxes and account state over the REST API",
    versions="runloop_api_client 3.0.0 by source and against a simulated server",
    poll=poll,
    report_seconds=provider.ACCOUNT_SECONDS,
    default_url="https://api.runloop.ai",
    key_variable="RUNLOOP_API_KEY",
    options=("run_label", "limit_concurrent"),
)
