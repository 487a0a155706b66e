"""Reads Prime Intellect sandboxes over the REST API of prime-sandboxes: live and newest ended ones, limits, wallet.

Spin-up is startedAt - createdAt by Prime's clock. It excludes the time until the gateway reaches the sandbox, and
includes the build of an image at its first use (``image_cached`` is False if the build was seen or is pending).
prime-rl labels each sandbox with the run's name; verifiers names it after the rollout's trace. Both are stored.

Not available: a limit of starts (it is unpublished), memory and disk limits, the order of the listing (newest first is
assumed; otherwise ended sandboxes are still requested by id). Account limits apply to VM sandboxes only, key limits to
all; the one with less remaining is `concurrent`.
"""

import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from collectors.model import Collector, FailureCause, Limits, Reading, Sample, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers import provider
from collectors.sandbox_providers.provider import Tally, cause_of, mapping
from collectors.sandbox_providers.sweep import ListedRow, ListingPage, ListingSource, Swept, sweep
from collectors.transport import rest

PROVIDER = "prime"
PAGE_ROWS = 100

STATES: Mapping[str, SandboxState] = {
    "PENDING": "queued",
    "PROVISIONING": "starting",
    "RUNNING": "running",
    "PAUSED": "paused",
    "ERROR": "failed",
    "TERMINATED": "terminated",
    "TIMEOUT": "failed",
}
CAUSES: Mapping[str, FailureCause] = {
    "OOM_KILLED": "oom",
    "TIMEOUT": "timeout",
    "IMAGE_PULL_FAILED": "image",
    "SANDBOX_NOT_FOUND": "internal",
}
# resource -> (account's limit, key's limit, per how much of the resource's unit)
LIMITS = {
    "creates_per_second": ("vm_sandbox_creation_burst_limit", "", 10.0),  # creations in 10 s
    "creates_per_hour": ("", "max_sandbox_creations_per_hour", 1.0),
    "cpu": ("sandbox_total_cpu_limit", "max_sandbox_cpu_cores", 1.0),
    "gpu": ("vm_sandbox_gpu_limit", "max_sandbox_gpu_count", 1.0),
}
LIVE_QUERIES = ({"is_active": "true"},)
ENDED_QUERIES = ({"status": "ERROR"}, {"status": "TIMEOUT"}, {"status": "TERMINATED"})


@dataclass(slots=True)
class _Rows:
    """Raw rows -> records.

    Attributes:
        built: ids with an image build, which is visible only while the sandbox is pending.
        before: raw rows of the last listing with their records, because most rows do not change.
    """

    run_label: str
    built: MutableMapping[str, None]
    before: Mapping[str, tuple[Any, ListedRow]] = field(default_factory=dict)
    read_rows: dict[str, tuple[Any, ListedRow]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def row(self, raw: Any) -> ListedRow | None:
        record = mapping(raw)
        key = rest.text(record.get("id"), 200)
        if not key:
            self.tally.drop("a sandbox without an id")
            return None
        last = self.before.get(key)
        if last is not None and last[0] == raw and last[1].sandbox.state != "unknown":
            self.read_rows[key] = last
            return last[1]
        self.read_rows[key] = raw, self._read(key, record)
        return self.read_rows[key][1]

    def _read(self, key: str, record: Mapping[str, Any]) -> ListedRow:
        uses = {"cpu": rest.number(record.get("cpuCores")), "gpu": rest.number(record.get("gpuCount"))}
        uses["vm"] = 1.0 if record.get("vm") is True else 0.0
        return ListedRow(self._sandbox(key, record), {name: max(used, 0.0) for name, used in uses.items() if used})

    def _sandbox(self, key: str, record: Mapping[str, Any]) -> Sandbox:
        provider_state = rest.text(record.get("status"), 40)
        error = rest.text(record.get("errorType"), 80)
        state = self._state(provider_state, error)
        if state == "queued" and rest.text(record.get("pendingImageBuildId"), 200):
            state = "building_image"
            self.built[key] = None
        requested, started = rest.epoch(record.get("createdAt")), rest.epoch(record.get("startedAt"))
        if started is not None and requested is not None and started < requested:
            started = None
        return Sandbox(
            provider=PROVIDER,
            id=key,
            state=state,
            name=rest.text(record.get("name"), 200),
            run_key=_run_key(record.get("labels"), self.run_label),
            provider_state=provider_state,
            requested_at=requested,
            started_at=started,
            ready_at=started,
            ended_at=_ended(state, record),
            image=rest.text(record.get("dockerImage"), 300),
            image_cached=False if key in self.built else None,
            latency_source="server" if started is not None and requested is not None else None,
            cause=_cause(provider_state, error, record) if state == "failed" else None,
            detail=_detail(error, record),
            expires_at=_expires(started, record.get("timeoutMinutes")),
        )

    def _state(self, provider_state: str, error: str) -> SandboxState:
        state = STATES.get(provider_state)
        if state is None:
            self.tally.unknown("status", provider_state)
            return "unknown"
        # A killed sandbox is reported as terminated; its error type shows the difference.
        return "failed" if state == "terminated" and error else state


def _run_key(labels: Any, run_label: str) -> str:
    """The label ``KEY=run`` or ``KEY:run``, else the first label: prime-rl writes the run's name before task labels."""
    labels_read = (
        [label for item in labels[:100] if (label := rest.text(item, 200))] if isinstance(labels, list) else []
    )
    for label in labels_read:
        if label[: len(run_label) + 1] in (f"{run_label}=", f"{run_label}:"):
            return label[len(run_label) + 1 :]
    return labels_read[0] if labels_read else ""


def _cause(provider_state: str, error: str, record: Mapping[str, Any]) -> FailureCause:
    if error in CAUSES:
        return CAUSES[error]
    failure_cause = cause_of(
        error, rest.text(record.get("errorMessage"), 500), rest.text(record.get("terminationReason"), 200)
    )
    return "timeout" if failure_cause == "unknown" and provider_state == "TIMEOUT" else failure_cause


def _detail(error: str, record: Mapping[str, Any]) -> str:
    message = rest.text(record.get("errorMessage"), 500) or rest.text(record.get("terminationReason"), 200)
    return rest.clean(f"{error}: {message}" if error and message else error or message)


def _ended(state: SandboxState, record: Mapping[str, Any]) -> float | None:
    ended = rest.epoch(record.get("terminatedAt"))
    return rest.epoch(record.get("updatedAt")) if ended is None and state == "failed" else ended


def _expires(started: float | None, minutes: Any) -> float | None:
    """End of the lifetime, which counts from the start; -1 minutes means no limit."""
    budget = rest.number(minutes)
    return rest.epoch(started + 60.0 * budget) if started is not None and budget is not None and budget > 0 else None


def _source(
    client: httpx.AsyncClient, root: str, team: Mapping[str, str], rows: _Rows, limits: Limits
) -> ListingSource:
    async def fetch(query: Mapping[str, str], position: Any) -> ListingPage:
        number, before, reads = position or (1, 0.0, 0)
        params = {**query, **team, "page": number, "per_page": PAGE_ROWS}
        body = (await rest.get_json(client, f"{root}/sandbox", params, limits)).json
        sandboxes = mapping(body).get("sandboxes")
        if not isinstance(sandboxes, list):
            raise ScrapeError("garbage", "the answer is not a list of sandboxes")
        return _page(mapping(body), sandboxes, number, before, reads + 1)

    async def look(key: str) -> Any:
        return (await rest.get_json(client, f"{root}/sandbox/{quote(key, safe='')}", {}, limits)).json

    return ListingSource(LIVE_QUERIES, fetch, rows.row, ENDED_QUERIES, look)


def _page(body: Mapping[str, Any], rows: list[Any], number: int, before: float, reads: int) -> ListingPage:
    """The page and the position of the next one.

    Pages are numbered from the newest sandbox. If k sandboxes ended since the last page, k have moved up into pages
    already read, so those pages are read again. New sandboxes only shift rows down, which are then read twice.
    """
    total = rest.number(body.get("total")) or 0.0
    size = max(rest.number(body.get("perPage")) or PAGE_ROWS, 1.0)
    more = body.get("hasNext")
    shifted = max(before - total, 0.0)
    if number > 1 and shifted:
        first_shifted = (number - 1) * size - shifted
        return ListingPage(rows, (max(int(first_shifted // size), 0) + 1, total, reads))
    if rows and (more is True or (more is None and number * size < total)):
        return ListingPage(rows, (number + 1, total, reads))
    return ListingPage(rows)


def _usage(swept: Swept) -> dict[str, float]:
    live = swept.live()
    used = {name: sum(row.uses.get(name, 0.0) for row in live) for name in ("cpu", "gpu", "vm")}
    return {**used, "concurrent": float(len(live))}


def _limits(account: Mapping[str, Any], key: Mapping[str, Any]) -> dict[str, float]:
    amounts = {}
    for resource, (of_account, of_key, per) in LIMITS.items():
        both = [rest.number(account.get(of_account)), rest.number(key.get(of_key))]
        granted = [limit / per for limit in both if limit is not None]
        if granted:
            amounts[resource] = min(granted)
    for name, limit in (("all", key.get("max_concurrent_sandboxes")), ("vm", account.get("vm_sandbox_limit"))):
        if (amount := rest.number(limit)) is not None:
            amounts[name] = amount
    return amounts


def _quota(limits: Mapping[str, float], used: Mapping[str, float]) -> list[Sample]:
    samples: list[Sample] = []
    for resource in LIMITS:
        samples += provider.quota(resource, used.get(resource), limits.get(resource))
    # Two limits of the number of sandboxes: the key's for all, the account's for VMs. The one with less left counts.
    caps = [(used["concurrent"], limits["all"])] if "all" in limits else []
    if "vm" in limits and (used["vm"] or not caps):
        caps.append((used["vm"], limits["vm"]))
    used_amount, cap = min(caps, key=lambda pair: pair[1] - pair[0], default=(used["concurrent"], None))
    return samples + provider.quota("concurrent", used_amount, cap)


async def _money(
    client: httpx.AsyncClient, root: str, team: Mapping[str, str], limits: Limits, tally: Tally
) -> list[Sample]:
    wallet = mapping(await provider.fetch(client, f"{root}/billing/wallet", {"limit": 1, **team}, limits, tally))
    # The field is named USD for every currency of the wallet.
    balance = rest.number(wallet.get("balance_usd")) if wallet.get("currency") in (None, "USD", "usd") else None
    return [Sample("sandbox_credit_usd", balance)] if balance is not None else []


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads as much of the listing as fits into the poll, and limits and wallet at their own interval.

    Options: ``team`` (team id), ``run_label`` (of a label ``KEY=run``, default ``run``).

    Raises:
        ScrapeError: as `rest.get_json`.
    """
    begun = time.monotonic()
    options = state.get("options", {})
    root = "" if client.base_url.path.rstrip("/").endswith("/api/v1") else "/api/v1"
    rows = _Rows(options.get("run_label", "run"), state.setdefault("built", {}), state.get("read", {}))
    team = options.get("team", "")
    async with rest.total_timeout(limits):
        samples: list[Sample] = []
        if provider.due(state, begun):
            of_team = {"teamId": team} if team else {}
            user = await provider.fetch(client, f"{root}/user/whoami", of_team, limits, rows.tally)
            state["limits"] = _limits(mapping(user, "data", "account_limits"), mapping(user, "data", "key_limits"))
            samples += await _money(client, root, of_team, limits, rows.tally)
        swept = await sweep(
            _source(client, root, {"team_id": team} if team else {}, rows, limits), state, limits, begun
        )
    if swept.done:
        quotas = _quota(state.get("limits", {}), _usage(swept))
        # Limits come from the API. Used amounts are counted here, so they need a complete listing.
        samples += [item for item in quotas if swept.extent.listed or item.metric != "sandbox_quota_used"]
        listed = {row.sandbox.id for row in swept.rows}
        state["built"] = {key: None for key in rows.built if key in listed}
        state["read"] = {key: item for key, item in {**rows.before, **rows.read_rows}.items() if key in listed}
    records = (row.sandbox for row in swept.rows)
    return rows.tally.reading(PROVIDER, records, swept.extent, samples)


COLLECTOR = Collector(
    name="prime_sandboxes",
    actor="sandbox",
    reads="Prime Intellect sandboxes, limits and wallet over the REST API",
    versions="prime-sandboxes 0.5.1 and prime 0.18.0 by source and against a simulated server",
    poll=poll,
    report_seconds=provider.ACCOUNT_SECONDS,
    default_url="https://api.primeintellect.ai",
    key_variable="PRIME_API_KEY",
    options=("team", "run_label"),
)
