"""Reads E2B sandboxes over the REST API: running and paused ones, and the team's concurrency and start rate.

The API has start and end of a sandbox but not the time of its request. So spin-up latency is unknown, and a failed
creation leaves no trace (measure `create()` in the client). A creation returns when the sandbox runs, so it is ready at
its start. Paused sandboxes do not count against the concurrency limit. The limits and the credit are not in the API:
configure ``limit_concurrent`` and ``limit_creates_per_second``. The start rate needs the team's id.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from collectors.model import Collector, Limits, Reading, Sample, Sandbox, SandboxState, ScrapeError, State
from collectors.sandbox_providers import provider
from collectors.sandbox_providers.provider import Tally, mapping
from collectors.sandbox_providers.sweep import ListedRow, ListingPage, ListingSource, sweep
from collectors.transport import rest

PROVIDER = "e2b"
PAGE_ROWS = 100  # the API's maximum
TEAM_WINDOW_SECONDS = 300  # of the team's metrics, of which the newest point is used

STATES: Mapping[str, SandboxState] = {"running": "running", "paused": "paused"}


@dataclass(slots=True)
class _Rows:
    run_label: str
    running: float | None = None  # total in the answer's header
    tally: Tally = field(default_factory=Tally)

    def row(self, raw: Any) -> ListedRow | None:
        record = mapping(raw)
        key = rest.text(record.get("sandboxID"), 200)
        if not key:
            self.tally.drop("a sandbox without a sandboxID")
            return None
        provider_state = rest.text(record.get("state"), 40)
        state = STATES.get(provider_state, "unknown")
        if state == "unknown":
            self.tally.unknown("state", provider_state)
        started = rest.epoch(record.get("startedAt"))
        return ListedRow(
            Sandbox(
                provider=PROVIDER,
                id=key,
                state=state,
                run_key=rest.text(mapping(record, "metadata").get(self.run_label), 200),
                provider_state=provider_state,
                started_at=started,
                ready_at=started,
                image=rest.text(record.get("alias"), 300) or rest.text(record.get("templateID"), 300),
                expires_at=rest.epoch(record.get("endAt")),
            )
        )


def _source(client: httpx.AsyncClient, rows: _Rows, limits: Limits) -> ListingSource:
    async def fetch(query: Mapping[str, str], page_token: Any) -> ListingPage:
        params = {**query, "limit": PAGE_ROWS, **({"nextToken": page_token} if page_token else {})}
        answer = await rest.get_json(client, "/v2/sandboxes", params, limits)
        if not isinstance(answer.json, list):
            raise ScrapeError("garbage", "the answer is not a list of sandboxes")
        if rows.running is None:
            rows.running = rest.number(answer.headers.get("x-total-running"))
        return ListingPage(answer.json, answer.headers.get("x-next-token") or None)

    return ListingSource(({"state": "running,paused"},), fetch, rows.row)


async def _team(client: httpx.AsyncClient, team: str, now: float, limits: Limits, tally: Tally) -> list[Sample]:
    """The newest point of the team's metrics. ``now``: epoch seconds, the end of the requested window."""
    window = {"start": int(now) - TEAM_WINDOW_SECONDS, "end": int(now)}
    answer = await provider.fetch(client, f"/teams/{quote(team, safe='')}/metrics", window, limits, tally)
    points = [mapping(point) for point in answer] if isinstance(answer, list) else []
    dated = [(ts, point) for point in points if (ts := rest.epoch(point.get("timestampUnix"))) is not None]
    if not dated:
        return []
    ts, point = max(dated, key=lambda pair: pair[0])
    rate = rest.number(point.get("sandboxStartRate"))
    samples = [] if rate is None or rate < 0 else [Sample("sandbox_creates_per_second", rate, ts=ts)]
    return samples + provider.quota("creates_per_second", rate, None)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """Reads as much of the listing as fits into the poll, and the team's metrics at their own interval.

    Options: ``team`` (team id), ``run_label`` (metadata key, default ``run``), ``limit_concurrent``,
    ``limit_creates_per_second``.

    Raises:
        ScrapeError: as `rest.get_json`.
    """
    begun = time.monotonic()
    options = state.get("options", {})
    rows = _Rows(options.get("run_label", "run"))
    samples = provider.configured(options)
    async with rest.total_timeout(limits):
        if options.get("team") and provider.due(state, begun):
            samples += await _team(client, options["team"], time.time(), limits, rows.tally)
        swept = await sweep(_source(client, rows, limits), state, limits, begun)
    samples += provider.quota("concurrent", rows.running, None)
    sandboxes = (row.sandbox for row in swept.rows)
    return rows.tally.reading(PROVIDER, sandboxes, swept.extent, samples)


COLLECTOR = Collector(
    name="e2b",
    actor="sandbox",
    reads="E2B sandboxes and team metrics over the REST API",
    versions="e2b 2.63.0 by source and against a simulated server",
    poll=poll,
    report_seconds=provider.ACCOUNT_SECONDS,
    default_url="https://api.e2b.app",
    key_variable="E2B_API_KEY",
    key_header="x-api-key",
    options=("team", "run_label", "limit_concurrent", "limit_creates_per_second"),
)
